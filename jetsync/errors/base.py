"""
The root of the error tree.
"""

from __future__ import annotations

import typing as _t


def _rebuild(
    cls: type[JetSyncError], args: tuple[_t.Any, ...], state: dict[str, _t.Any]
) -> JetSyncError:
    """
    Recreate an error from its pickled state, without calling its constructor.
    """
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class JetSyncError(Exception):
    """
    The root of every error that jetsync raises.
    """

    _default_text: _t.ClassVar[str] = ""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self._default_text if message is None else message)

    def __str__(self) -> str:
        # KeyError would return the repr of the text, and OSError would look at errno.
        return str(self.args[0])

    def __reduce__(self) -> tuple[_t.Any, ...]:
        # BaseException would call cls(*args), which does not fit constructors with keywords.
        # OSError would drop the attributes.
        return _rebuild, (type(self), self.args, dict(self.__dict__))
