"""
Dead letters: copies of messages that no worker could handle, and the way back.

A dead letter has the payload and the headers of the message. Its own headers say where the message
came from and why it was given up.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Final

from jetsync.errors import InvalidArgumentError, InvalidHeaderError, InvalidSubjectError
from jetsync.values.headers import MSG_ID, TTL, Headers, is_for_servers
from jetsync.values.outbound import OutboundMessage
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from jetsync.values.message import Message
    from jetsync.values.stored import StoredMessage

__all__ = ["DeadLetter", "replay"]

PREFIX: Final = "Jetsync-Dead-Letter-"
STREAM: Final = PREFIX + "Stream"
SEQUENCE: Final = PREFIX + "Sequence"
SUBJECT: Final = PREFIX + "Subject"
DELIVERIES: Final = PREFIX + "Deliveries"
CONSUMER: Final = PREFIX + "Consumer"
REASON: Final = PREFIX + "Reason"

KEPT: Final = PREFIX + "Header-"
"""
The start of the names of headers that the server would act on. It would drop the copy because of
the message id of the original, for example.
"""

RAW: Final = PREFIX + "Raw-Headers"
"""The header block of the original in Base64, if it has bytes that are not valid headers."""

# The longest reason in bytes.
LONGEST_REASON: Final = 600

# Characters that a header cannot have, or that would disturb a terminal.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class DeadLetter(Exception):  # noqa: N818 - it is a decision of the handler, not an error.
    """
    Raise it in a handler to give up a message: its consumption stores a copy as a dead letter.

    Without ``dead_letter`` in :meth:`Consumer.consume`, it is an exception like any other.

    Args:
        reason: Why, for the header ``Jetsync-Dead-Letter-Reason``.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


def dead_letter(
    target: str,
    *,
    stream: str,
    consumer: str,
    sequence: int,
    timestamp_ns: int,
    deliveries: int,
    subject: str,
    raw_headers: bytes | None,
    data: bytes,
    reason: str,
) -> OutboundMessage:
    """
    Return the dead letter of a message, to be published to *target*.

    Its id is the same however often it is made, and differs from those of all other messages: if
    the stream is deleted and made again, the time of the message differs.
    """
    headers = Headers()
    for name, value in _original(raw_headers, headers):
        # Also the headers of another dead letter, so that a letter of a letter leads back to it.
        own = is_for_servers(name) or name.startswith(PREFIX)
        headers.add(KEPT + name if own else name, value)
    try:
        validate_subject(subject)
    except InvalidSubjectError:
        # The space makes `replay` refuse it, because no message can be published to it.
        subject = f"not valid: {subject}"
    for name, text in (
        (STREAM, stream),
        (SEQUENCE, str(sequence)),
        (SUBJECT, subject),
        (DELIVERIES, str(deliveries)),
        (CONSUMER, consumer),
        (REASON, _line(reason)),
    ):
        headers.add(name, _text(text))
    msg_id = f"{letter_id(stream, consumer, sequence)}{timestamp_ns}"
    return OutboundMessage(target, data, headers, msg_id=msg_id)


def letter_id(stream: str, consumer: str, sequence: int) -> str:
    """Return the start of the id of a dead letter; the time of the message follows."""
    return _text(f"{PREFIX}{stream}/{consumer}/{sequence}/")


def reason_of(error: BaseException) -> str:
    """Return why a handler gave up a message."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it is a class of the application.
        text = ""
    if isinstance(error, DeadLetter) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def replay(letter: Message | StoredMessage) -> OutboundMessage:
    """
    Return the message that a dead letter was made of, to publish it again.

    It has the original subject, payload and headers. Of the headers that the server acts on, it has
    only the time-to-live. Its message id is made of that of the letter: within the duplicate window
    of the stream, a letter can be put back only once. Change its fields before you publish it if
    the message needs a correction. ``publish_many`` takes it as it is.

    Args:
        letter: The dead letter, read with a consumer or from its stream.

    Raises:
        InvalidArgumentError: This is not a dead letter, or its original subject is not valid.
    """
    found = letter.headers
    subject, msg_id = found.get(SUBJECT), found.get(MSG_ID)
    if subject is None or msg_id is None or SEQUENCE not in found:
        raise InvalidArgumentError(
            f"the message on {letter.subject!r} is not a dead letter of jetsync", argument="letter"
        )
    headers, ttl = Headers(), None
    # The stream of the letter may be a copy of another one, so servers may have added headers.
    for name, value in found.forwardable().items():
        if name.startswith(KEPT):
            original = name[len(KEPT) :]
            if original == TTL:
                ttl = value
            elif original.startswith(PREFIX):
                headers.add(original, value)
        elif not name.startswith(PREFIX):
            headers.add(name, value)
    if ttl is not None:
        headers.add(TTL, ttl)
    return OutboundMessage(
        validate_subject(subject), letter.data, headers or None, msg_id=f"{msg_id}/replay"
    )


def _original(block: bytes | None, headers: Headers) -> list[tuple[str, str]]:
    """Return the original headers that can be sent; add the block itself if others cannot."""
    if block is None:
        return []
    pairs, valid = Headers.parse(block)[2].items(), []
    for name, value in pairs:
        try:
            Headers().add(name, value)
            f"{name}{value}".encode()
        except (InvalidHeaderError, UnicodeEncodeError):
            headers.set(RAW, base64.b64encode(block).decode())
        else:
            valid.append((name, value))
    return valid


def _text(text: str) -> str:
    """Return text for a header, with escapes for bytes that are not UTF-8."""
    raw = text.encode("utf-8", "surrogateescape")
    return _CONTROL.sub("?", raw.decode("utf-8", "backslashreplace"))


def _line(text: str) -> str:
    """Return a text as one line of at most :data:`LONGEST_REASON` bytes."""
    # Cut off first, because a text may have megabytes.
    words = text[: 4 * LONGEST_REASON].encode("utf-8", "replace").decode().split()
    line = _CONTROL.sub("?", " ".join(words))
    if len(line.encode()) <= LONGEST_REASON:
        return line
    return line.encode()[: LONGEST_REASON - 3].decode(errors="ignore") + "..."
