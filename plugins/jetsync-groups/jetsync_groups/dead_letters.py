"""
Dead letters of a group: copies of messages that its members could not handle.

They have the headers that jetsync's own dead letters have, so ``jetsync.replay`` puts them back.
The names in them are those of the original stream, not of the group's.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

import jetsync
from jetsync_groups.names import durable_of

PREFIX: Final = "Jetsync-Dead-Letter-"
KEPT: Final = PREFIX + "Header-"
SOURCE: Final = "Nats-Stream-Source"
SERVER_HEADERS: Final = ("Nats-Pin-Id", SOURCE)

_LONGEST_REASON: Final = 600
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

_logger = jetsync.get_logger("jetsync_groups")


@attrs.frozen
class Origin:
    """
    The place of a message in the stream that it was published to.
    """

    stream: str
    """The stream."""

    sequence: int
    """Its sequence there."""


def origin_of(message: jetsync.Message, stream: str) -> Origin:
    """
    Return where a group's message was published.

    In an elastic group, ``message.metadata`` is about the group's own stream. A header has the
    original sequence.

    Args:
        message: A message of the group.
        stream: The stream that the group reads.
    """
    fields = message.headers.get_last(SOURCE, "").split(" ")
    if message.metadata.stream != stream and len(fields) > 1 and fields[1].isdigit():
        # The first field may have a hash of the source's settings after the name.
        return Origin(stream, int(fields[1]))
    return Origin(message.metadata.stream, message.sequence)


@attrs.frozen
class DeadLetters:
    """
    Decides which messages are given up, and stores their copies. Thread-safe.
    """

    js: jetsync.JetStream
    stream: str
    group: str
    member: str
    subject: str
    max_deliver: int | None

    def is_over(self, delivered: int) -> bool:
        """
        Return whether a message had all of its deliveries before this one: its workers died.
        """
        return self.max_deliver is not None and delivered > self.max_deliver

    def gives_up(self, delivered: int, error: Exception) -> bool:
        """
        Return whether a message is given up after its handler raised *error*.
        """
        is_last = self.max_deliver is not None and delivered >= self.max_deliver
        return is_last or isinstance(error, jetsync.DeadLetter)

    def store(self, message: jetsync.Message, reason: str) -> bool:
        """
        Store the dead letter of a message; return False if that failed or is not known.

        Its id prevents a second one within the duplicate window of the stream.
        """
        about = message.metadata
        origin = origin_of(message, self.stream)
        headers = jetsync.Headers()
        forwardable = message.headers.forwardable()
        for name, value in message.headers.items():
            if name in SERVER_HEADERS:
                continue
            is_kept = name not in forwardable or name.startswith(PREFIX)
            headers.add(KEPT + name if is_kept else name, _CONTROL.sub(" ", value))
        for name, text in (
            ("Stream", origin.stream),
            ("Sequence", str(origin.sequence)),
            ("Subject", message.subject),
            ("Deliveries", str(about.delivered)),
            ("Consumer", durable_of(self.group, self.member)),
            ("Reason", _line(reason)),
        ):
            headers.add(PREFIX + name, text)
        msg_id = f"{PREFIX}{self.stream}/{self.group}/{origin.sequence}/{about.timestamp_ns}"
        fields = {
            "stream": self.stream,
            "group": self.group,
            "subject": message.subject,
            "sequence": origin.sequence,
            "deliveries": about.delivered,
        }
        try:
            self.js.publish(self.subject, message.data, headers=headers, msg_id=msg_id)
        except jetsync.JetSyncError as error:
            _logger.warning("dead_letter_failed", **fields, error=repr(error))
            return False
        _logger.warning("dead_letter_stored", **fields, reason=_line(reason))
        return True


def reason_of(error: Exception) -> str:
    """
    Return why a handler gave up a message.
    """
    text = str(error)
    if isinstance(error, jetsync.DeadLetter) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line(text: str) -> str:
    line = _CONTROL.sub(" ", text.encode("utf-8", "replace").decode()).strip()
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 3] + "..."
