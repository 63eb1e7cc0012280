"""
The error of a service, which travels in two headers of the answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_services import checks

if TYPE_CHECKING:
    from jetsync.typing import Payload

__all__ = ["ServiceError"]

ERROR: Final = "Nats-Service-Error"
ERROR_CODE: Final = "Nats-Service-Error-Code"

BAD_REQUEST: Final = 400
INTERNAL: Final = 500
UNAVAILABLE: Final = 503
LATE: Final = 504

_CODE: Final = re.compile("[0-9]{1,9}")

UNKNOWN_CODE: Final = 0
"""The code of an answer whose header is not a number."""


class ServiceError(jetsync.JetSyncError):
    """
    A service answers with an error.

    A handler raises it to answer with this error. :func:`call` raises it for such an answer.

    Args:
        code: A number from 1, by convention one of HTTP, such as 404.
        description: A text for the caller. Line breaks become spaces.
        data: A payload for the caller.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: The code or the description cannot
            be sent.
    """

    def __init__(self, code: int, description: str, data: Payload = b"") -> None:
        checks.count("code", code, 1)
        line = " ".join(checks.text("description", description).split())
        checks.encodable(line, "description")
        if not line:
            raise jetsync.InvalidArgumentError(
                "description must not be empty", argument="description"
            )
        super().__init__(f"{line} ({code})")
        self.code = code
        """The code; 0 if the answer had none that is a number."""
        self.description = line
        """The text."""
        self.data = data
        """The payload of the answer."""


def error_of(message: jetsync.Message) -> ServiceError | None:
    """
    Return the error in an answer, or None.
    """
    if message.raw_headers is None:
        return None
    description, code = message.headers.get(ERROR), message.headers.get(ERROR_CODE)
    if not description and not code:
        return None
    # Other programs may send any bytes.
    line = (description or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    error = ServiceError(1, line.strip() or "no description", message.data)
    error.code = int(code) if code and _CODE.fullmatch(code) else UNKNOWN_CODE
    error.args = (f"{error.description} ({code})",)
    return error


def headers_of(error: ServiceError) -> dict[str, str]:
    """
    Return the headers of an answer with an error.
    """
    return {ERROR: error.description, ERROR_CODE: str(error.code)}


def summary_of(error: ServiceError) -> str:
    """
    Return an error as the statistics show it.
    """
    return f"{error.code}:{error.description}"
