"""
Messages, keys and objects as commands show them.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from jetsync.cli._output import NAME, Styled, say

if TYPE_CHECKING:
    import datetime as dt

    from jetsync.values.headers import Headers


def as_dict(  # noqa: PLR0917 - the order in which it is printed.
    stream: str, sequence: int, subject: str, time: dt.datetime, headers: Headers, data: bytes
) -> dict[str, Any]:
    """
    Return a message for JSON. The payload is text if it is UTF-8, and base64 otherwise.
    """
    return {
        "stream": stream,
        "sequence": sequence,
        "subject": subject,
        "time": time.isoformat(),
        "headers": headers.to_dict(),
        **text_or_base64("data", data),
    }


def text_or_base64(name: str, data: bytes) -> dict[str, str]:
    """
    Return a field of JSON for bytes: text if they are UTF-8, and base64 otherwise.
    """
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def show_line(number: int, time: dt.datetime, name: str, *rest: str | Styled) -> None:
    """
    Print a message, a key or an object as one line.

    Args:
        number: Its sequence or its revision.
        time: When it was stored.
        name: Its subject, key or name.
        rest: What follows.
    """
    local = time.astimezone().isoformat(sep=" ", timespec="milliseconds")
    say(f"{number}  {local}  ", Styled(name, NAME), "  ", *rest)
