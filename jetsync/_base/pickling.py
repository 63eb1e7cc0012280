"""
Refuse to pickle and to copy handles.

A handle belongs to the connection of its process. A copy would share its state with the original,
and end the original's work when it is dropped.
"""

from __future__ import annotations

from typing import NoReturn

from jetsync.errors import InvalidTypeError


def refuse_copy(handle: object) -> NoReturn:
    """
    Raise an error that says what to pass on instead; a class uses it as its ``__reduce__``.

    Raises:
        InvalidTypeError: Always.
    """
    raise InvalidTypeError(
        f"{type(handle).__name__} objects cannot be pickled or copied: "
        "pass ConnectOptions to the other process and connect there"
    )
