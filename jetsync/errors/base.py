"""
The root of the error tree.
"""

from __future__ import annotations

import re
from typing import Any


def _rebuild(cls: type[JetSyncError], args: tuple[Any, ...], state: dict[str, Any]) -> JetSyncError:
    """
    Make an error anew from its pickled state.

    The constructor is passed by on purpose: it takes data and composes the text, which both are in
    the state already.
    """
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class JetSyncError(Exception):
    """
    The root of every error that jetsync raises.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def __str__(self) -> str:
        # KeyError would show the repr of the text and OSError looks at errno first. One rule for
        # the whole tree.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException rebuilds with cls(*args) and OSError drops what it does not know. Neither
        # fits keyword data.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def trailing_number(text: str) -> int | None:
    """
    Return the number at the end of a text that a server sent, such as a limit.
    """
    found = re.search(r"(?<![0-9])([0-9]{1,20})\s*$", text)
    return int(found[1]) if found else None
