"""
Per-message time-to-live, and the markers that servers leave for expired messages (ADR-43).

Servers from 2.11 accept a TTL as whole seconds, as a Go duration such as ``1h30m``, or as
``never``. They store a fraction as it was sent, but cut it when they compute the expiry.
"""

from __future__ import annotations

import enum
import math
import re
from typing import TYPE_CHECKING, Final, Literal, Protocol

from jetsync._base.deadline import MAX_SECONDS, ServerSeconds, as_seconds
from jetsync.errors import InvalidArgumentError, InvalidTtlError, InvalidTypeError
from jetsync.values.headers import MARKER_REASON, MSG_SIZE, TTL, Headers

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds

__all__ = ["MarkerReason"]

NEVER: Final = "never"
"""A TTL that also protects the message from the stream's ``max_age``."""

# Go counts durations in 64-bit nanoseconds. Servers accept longer values, which overflow.
_LONGEST = 2**63 // 10**9

# No payload has a size with as many digits.
_DIGITS: Final = 19

_UNITS = {
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ns": 1e-9,
}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ms|us|µs|μs|ns|h|m|s)"
_GO_DURATION = re.compile(rf"(?:{_PART})+")
_GO_PART = re.compile(_PART)


class MarkerReason(enum.Enum):
    """
    Why a server stored a marker.

    A *marker* (in ADR-43: limit marker) is a message that the server stores when the last message
    of a subject has expired. The stream needs ``subject_delete_marker_ttl``. ADR-43 also
    specifies ``REMOVE`` and ``PURGE``, but servers up to 2.15 store no markers for these reasons.
    """

    MAX_AGE = "MaxAge"
    """The last message of the subject expired, by its own TTL or the stream's ``max_age``."""
    REMOVE = "Remove"
    """The message was deleted through the API."""
    PURGE = "Purge"
    """The subject was purged through the API."""


def ttl_header(value: Seconds | Literal["never"]) -> str:
    """
    Return the value of the ``Nats-TTL`` header for a time-to-live.

    Args:
        value: At least 1 second as a number or ``timedelta``, or ``"never"``. Servers cut
            fractions. A number of 1e9 or more is refused, because it looks like nanoseconds.

    Returns:
        Whole seconds such as ``"3600"``, a duration such as ``"1.5s"``, or ``"never"``.

    Raises:
        InvalidTtlError: The value is something else. Also for a wrong type, so that
            ``except ValueError`` covers every case.
    """
    if value == NEVER:
        return NEVER
    try:
        seconds = as_seconds(value, "", minimum=1.0)
    except InvalidTypeError:
        raise InvalidTtlError(value) from None
    except InvalidArgumentError as error:
        raise InvalidTtlError(value, f"it {error.args[0].strip()}") from None
    if seconds > _LONGEST:
        raise InvalidTtlError(value, f'servers overflow above {_LONGEST} seconds; use "never"')
    whole = math.floor(seconds)
    return str(whole) if whole == seconds else f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def parse_ttl(text: str | None) -> float | Literal["never"] | None:
    """
    Parse a ``Nats-TTL`` header: seconds, ``"never"``, or ``None`` if there is no time-to-live.

    Zero and invalid text return ``None``. Servers before 2.11, and streams without
    ``allow_msg_ttl``, store any text and ignore it.
    """
    if not text:
        return None
    if text.lower() == NEVER:
        return NEVER
    seconds = float(text) if text.isascii() and text.isdigit() else parse_duration(text)
    if not seconds:
        return None
    # Another client may have sent a number that `ttl_header` would take for nanoseconds.
    return seconds if seconds < MAX_SECONDS else ServerSeconds(seconds)


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration like ``1m30s``; ``None`` if *text* is no duration."""
    if not _GO_DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _GO_PART.findall(text))


def marker_of(headers: Headers | None) -> MarkerReason | None:
    """
    Return the reason of a marker; ``None`` for an ordinary message or an unknown reason.
    """
    reason = None if headers is None else headers.get(MARKER_REASON)
    if reason is None:
        return None
    try:
        return MarkerReason(reason)
    except ValueError:
        return None


# Most messages are no markers and have no TTL. A search in the bytes of the header block shows
# that much faster than parsing it.

MARKER_LINE = f"\r\n{MARKER_REASON}:".encode()
_TTL_LINE = f"\r\n{TTL}:".encode()


_SIZE_LINE = f"\r\n{MSG_SIZE}:".encode()


class _HasHeaders(Protocol):
    @property
    def headers(self) -> Headers: ...


def marker_in(block: bytes | None, message: _HasHeaders) -> MarkerReason | None:
    """
    Return the reason of a marker; parse the headers only if *block* has one.
    """
    if block is None or MARKER_LINE not in block:
        return None
    return marker_of(message.headers)


def ttl_in(block: bytes | None, message: _HasHeaders) -> float | Literal["never"] | None:
    """
    Return the message's time-to-live; parse the headers only if *block* has one.
    """
    if block is None or _TTL_LINE not in block:
        return None
    return parse_ttl(message.headers.get(TTL))


def omitted_in(data: bytes, block: bytes | None, message: _HasHeaders) -> int | None:
    """
    Return the size of a payload that the server left out; ``None`` if it left out nothing.
    """
    if data or block is None or _SIZE_LINE not in block:
        return None
    # The last value, because the server appends its own.
    size = message.headers.get_last(MSG_SIZE, "")
    return int(size) or None if size.isascii() and size.isdigit() and len(size) < _DIGITS else None
