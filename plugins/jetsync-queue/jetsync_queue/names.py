"""
The names on the server: of streams, subjects, consumers, keys and headers.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

import jetsync

__all__ = ["token", "untoken"]

ID: Final = "Jetsync-Job-Id"
ATTEMPT: Final = "Jetsync-Job-Attempt"
"""The number of the attempt; absent for the first one."""
ENQUEUED: Final = "Jetsync-Job-Enqueued"
"""When the job was put, in seconds since 1970; absent if the server stored it at once."""
EXPIRES: Final = "Jetsync-Job-Expires"
"""Seconds since 1970."""
TYPE: Final = "Jetsync-Job-Type"
"""``json``; absent for bytes."""
OBJECT: Final = "Jetsync-Job-Object"
"""The object that holds the data."""
TRACKED: Final = "Jetsync-Job-Tracked"
REASON: Final = "Jetsync-Job-Reason"
"""Of a dead job: why."""
PRIORITY: Final = "Jetsync-Job-Priority"
"""Of a dead job."""

OWN: Final = "jetsync-job-"
RESERVED: Final = (OWN, "nats-")
"""Beginnings of the names of headers that a job cannot have, in lower case."""

KINDS: Final = ("q", "eta", "retry", "dead")
"""What the subjects of jobs begin with: those that are available, have a delay, wait for their next
attempt, and were given up."""

MOST_PRIORITIES: Final = 10
LONGEST_TOKEN: Final = 200
"""Characters of an encoded name. A file name of the server holds the name of a consumer."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_ENCODED: Final = re.compile(r"=([0-9A-F]{2})")
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")


def token(text: str) -> str:
    """
    Return any text as one token of a subject, a key or the name of a consumer.

    Letters, digits, ``-`` and ``_`` stay. Every other byte of the UTF-8 text becomes ``=`` and two
    hexadecimal digits, so ``celery@host`` becomes ``celery=40host``.
    """
    if _PLAIN.fullmatch(text):
        return text
    raw = text.encode("utf-8", "surrogateescape")
    return _UNSAFE.sub(lambda found: f"={ord(found[0]):02X}".encode(), raw).decode("ascii")


def untoken(text: str) -> str:
    """
    Return the text that :func:`token` encoded.
    """
    if "=" not in text:
        return text
    raw = _ENCODED.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1")
    return raw.decode("utf-8", "surrogateescape")


def checked_token(what: str, text: object) -> str:
    """
    Return a name from a caller as one token.

    Raises:
        InvalidArgumentError, InvalidTypeError: It is no text, empty or too long.
    """
    if not isinstance(text, str):
        raise jetsync.InvalidTypeError(
            f"{what} must be text, not {type(text).__name__}", argument=what
        )
    try:
        found = token(text)
    except UnicodeEncodeError as error:
        raise jetsync.InvalidArgumentError(
            f"{what} has characters that UTF-8 does not have: {error}", argument=what
        ) from error
    if not found or len(found) > LONGEST_TOKEN:
        raise jetsync.InvalidArgumentError(
            f"{what} must have 1 to {LONGEST_TOKEN} characters, and each one other than letters, "
            f"digits, '-' and '_' counts as three or more",
            argument=what,
        )
    return found


def check_prefix(prefix: object) -> str:
    """
    Return the prefix from a caller.

    Raises:
        InvalidArgumentError, InvalidTypeError: It cannot be a part of the name of a stream.
    """
    if not isinstance(prefix, str):
        raise jetsync.InvalidTypeError(
            f"prefix must be text, not {type(prefix).__name__}", argument="prefix"
        )
    if not _PLAIN.fullmatch(prefix) or len(prefix) > LONGEST_TOKEN:
        raise jetsync.InvalidArgumentError(
            f"prefix must be letters, digits, '-' and '_', not {prefix!r}", argument="prefix"
        )
    return prefix


@attrs.frozen
class Names:
    """
    The names of one queue. ``queue`` is encoded already.
    """

    prefix: str
    queue: str

    @property
    def stream(self) -> str:
        """The stream of all queues with this prefix, and their bucket."""
        return stream_name(self.prefix)

    @property
    def all_jobs(self) -> str:
        """A wildcard for the jobs of all kinds."""
        return f"*.{self.prefix}.{self.queue}.*"

    @property
    def all_waiting(self) -> str:
        """A wildcard for the jobs that wait or run."""
        return f"q.{self.prefix}.{self.queue}.*"

    def waiting(self, priority: int) -> str:
        """Return the subject of the jobs of one priority that wait or run."""
        return f"q.{self.prefix}.{self.queue}.{priority}"

    def scheduled(self, job: str) -> str:
        """Return the subject of a job with a delay; ``*`` for all."""
        return f"eta.{self.prefix}.{self.queue}.{job}"

    def retrying(self, job: str) -> str:
        """Return the subject of a job that waits for its next attempt; ``*`` for all."""
        return f"retry.{self.prefix}.{self.queue}.{job}"

    def dead(self, job: str) -> str:
        """Return the subject of a dead job; ``*`` for all."""
        return f"dead.{self.prefix}.{self.queue}.{job}"

    def consumer(self, priority: int) -> str:
        """Return the consumer of the jobs of one priority."""
        return f"{self.queue}-{priority}"

    def record(self, job: str) -> str:
        """Return the key of the record of a job."""
        return f"{self.queue}.{job}"

    def starts(self, sequence: int) -> str:
        """Return the key of the count of starts of a job that was redelivered."""
        return f"starts.{self.queue}.{sequence}"


def stream_name(prefix: str) -> str:
    """
    Return the name of the stream of all queues with a prefix, which is that of their bucket, too.
    """
    return f"QUEUE_{prefix}"


def subjects_of(prefix: str) -> list[str]:
    """
    Return the subjects of the stream of a prefix.
    """
    return [f"{kind}.{prefix}.>" for kind in KINDS]
