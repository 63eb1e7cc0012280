"""
Turn the error of a server's answer into an exception, by its ``err_code``.

The classes and their codes are in ``jetsync/errors/api.py``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from jetsync.errors.api import ApiError
from jetsync.errors.transport import ProtocolError


def from_api_error(
    error: Mapping[str, Any], stream: str | None = None, consumer: str | None = None
) -> ApiError:
    """
    Return the error for the ``error`` object of an API answer or a publish ack.

    Missing and malformed fields get default values.

    Raises:
        ProtocolError: *error* is not a JSON object.
    """
    if not isinstance(error, Mapping):
        raise ProtocolError(f"the error in an answer is not a JSON object: {reprlib.repr(error)}")
    err_code = _as_int(error.get("err_code"), 0)
    description = error.get("description")
    return ApiError.classes.get(err_code, ApiError)(
        code=_as_int(error.get("code"), 500),
        err_code=err_code,
        description=description if isinstance(description, str) and description else None,
        stream=stream,
        consumer=consumer,
    )


def _as_int(value: object, default: int) -> int:
    return value if type(value) is int and 0 <= value < 1 << 31 else default
