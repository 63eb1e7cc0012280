"""
A message as commands show it.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datetime as dt

    from jetsync.values.headers import Headers


def as_dict(  # noqa: PLR0917 - the order in which it is printed.
    stream: str, sequence: int, subject: str, time: dt.datetime, headers: Headers, data: bytes
) -> dict[str, Any]:
    """
    Return a message for JSON. The payload is text if it is UTF-8, and base64 otherwise.
    """
    fields: dict[str, Any] = {
        "stream": stream,
        "sequence": sequence,
        "subject": subject,
        "time": time.isoformat(),
        "headers": headers.to_dict(),
    }
    try:
        fields["data"] = data.decode("utf-8")
    except UnicodeDecodeError:
        fields["data_base64"] = base64.b64encode(data).decode("ascii")
    return fields
