"""
The handlers, names, headers and storages that callers give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jetsync
from jetsync_queue.names import RESERVED, checked_token

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_handler(handler: object) -> None:
    """
    Refuse a handler whose call would run none of its code.

    Raises:
        InvalidTypeError: It cannot be called, is async, or has a yield.
    """
    if not callable(handler):
        raise jetsync.InvalidTypeError("handler must be callable", argument="handler")
    jetsync.check_function("handler", handler)


def checked_name(name: str) -> str:
    """
    Return the name of a worker, which is in the records of jobs.

    Raises:
        InvalidArgumentError, InvalidTypeError: It is no text, empty or too long.
    """
    checked_token("name", name)
    return name


def check_storage(storage: object) -> None:
    """
    Refuse what is no storage of a stream.

    Raises:
        InvalidArgumentError: It is neither ``file`` nor ``memory``.
    """
    if storage not in tuple(jetsync.StorageType):
        raise jetsync.InvalidArgumentError(
            f"storage must be 'file' or 'memory', not {storage!r}", argument="storage"
        )


def checked_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the headers of a user.

    Raises:
        InvalidArgumentError: One of the names is reserved.
        InvalidTypeError: A header has several values, or a value that is no text.
    """
    found: dict[str, str] = {}
    for name, value in headers.items():
        if str(name).lower().startswith(RESERVED):
            raise jetsync.InvalidArgumentError(
                f"header {name!r} is set by jetsync or the server: leave it out",
                argument="headers",
            )
        if not isinstance(value, str) or name in found:
            raise jetsync.InvalidTypeError(
                f"header {name!r} must have one text as its value", argument="headers"
            )
        found[name] = value
    return found
