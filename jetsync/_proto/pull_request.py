"""
What reads ask for: one pull, and all pulls of a consumption.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Final, NamedTuple

import attrs

NANOSECONDS: Final = 1_000_000_000


class Priorities(NamedTuple):
    """The options of a pull that concern priority groups."""

    group: str | None = None
    min_pending: int | None = None
    min_ack_pending: int | None = None
    priority: int | None = None


NO_PRIORITIES: Final = Priorities()


@attrs.frozen(kw_only=True, slots=False)
class PullRequest:
    """What one pull asks for."""

    max_messages: int
    # Seconds that the server keeps the pull; 0 if the server answers at once.
    expires: float
    max_bytes: int | None = None
    # Seconds between heartbeats, at most half of `expires`.
    heartbeat: float | None = None
    no_wait: bool = False
    priorities: Priorities = NO_PRIORITIES
    pin_id: str | None = None

    @functools.cached_property
    def wire(self) -> bytes:
        """The JSON on the wire. Cached, because the same request is often sent repeatedly."""
        body: dict[str, Any] = {"batch": self.max_messages}
        if self.expires:
            body["expires"] = round(self.expires * NANOSECONDS)
        if self.max_bytes is not None:
            body["max_bytes"] = self.max_bytes
        if self.no_wait:
            body["no_wait"] = True
        if self.heartbeat:
            body["idle_heartbeat"] = round(self.heartbeat * NANOSECONDS)
        if self.priorities != NO_PRIORITIES:
            given = self.priorities._asdict().items()
            body.update({name: value for name, value in given if value is not None})
        if self.pin_id is not None:
            body["id"] = self.pin_id
        return json.dumps(body, separators=(",", ":")).encode()


@attrs.define
class Pull:
    """One open pull."""

    # Its reply subject.
    subject: bytes
    request: PullRequest
    number: int
    opened: float
    # How many messages, and how many bytes, it may still deliver. None is no limit.
    messages: int
    size: int | None
    # The number of the connection that it was sent on; 0 before it was sent.
    epoch: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it is complete, by our count. Servers send no status for a complete pull."""
        return self.messages <= 0 or (self.size is not None and self.size <= 0)


class PullLimits(NamedTuple):
    """
    The fields of a consumer's configuration that limit its pulls. They are hashable.
    """

    max_batch: int | None = None
    max_bytes: int | None = None
    max_expires: float | None = None
    inactive_threshold: float | None = None


@attrs.frozen(kw_only=True)
class ConsumeOptions:
    """How a consumption pulls; checked and complete."""

    # The limit of the buffer in messages; unused with `max_bytes`. With a handler, it also counts
    # the messages that are being handled.
    max_messages: int
    # The limit of the buffer in bytes; None if messages are counted.
    max_bytes: int | None
    # The next pull is due when this many messages, or bytes, are left.
    threshold: int
    expires: float
    heartbeat: float
    stop_after: int | None = None
    # What the consumer allows a single pull to ask for.
    max_batch: int | None = None
    max_batch_bytes: int | None = None
    priorities: Priorities = NO_PRIORITIES
    # Seconds without pulls after which the server deletes the consumer; None if it never does.
    inactive_threshold: float | None = None
    # How many threads handle the messages; 0 without a handler.
    threads: int = 0
    # The consumer's limit of deliveries, with a handler; 0 for no limit, and without a handler.
    max_deliver: int = 0
