"""
What a context knows of the streams it writes batches to, or reads many messages from.

A batch must not be sent to a server that would store its messages one by one, nor a request for
many messages to one that would answer with another message, so a stream is asked before the first
of them. The answer holds as long as the connection: the next one may lead to another server, after
an upgrade or a downgrade.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from jetsync.errors import (
    NoStreamResponseError,
    ProtocolError,
    StreamNotFoundError,
)
from jetsync.values.codec import from_wire
from jetsync.values.echo import api_level_of
from jetsync.values.stream_config import StreamConfig
from jetsync.values.subjects import overlap

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline


@attrs.frozen(kw_only=True)
class KnownStream:
    """
    A stream as its leader described it.
    """

    name: str
    config: StreamConfig
    level: int
    """The API level of the server that leads it; 0 before server 2.11."""

    version: str | None
    """The version of that server; None before 2.11."""

    epoch: int
    """The connection that it was asked on."""

    asked: float = attrs.field(factory=time.monotonic, eq=False)
    """When that was, on the monotonic clock."""

    def takes(self, subject: str) -> bool:
        """Return whether messages to *subject* are stored in it."""
        for each in self.config.subjects or ():  # noqa: SIM110 - `any` costs twice as much here.
            if overlap(subject, each):
                return True
        return False


class StreamCache:
    """
    The streams that were asked for, until the connection changes; any thread.
    """

    __slots__ = ("_context", "_denied", "_known", "_limit", "_mirrors")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[str, KnownStream] = {}
        self._mirrors: dict[str, frozenset[str]] = {}
        self._limit: tuple[int, int] | None = None
        self._denied: set[tuple[int, str]] = set()
        """Connections and streams whose advisories the server does not let this user have."""

    def find(self, subject: str, deadline: Deadline, *, fresh: bool = False) -> KnownStream:
        """
        Return the stream that stores *subject*; with *fresh* it is asked in any case.

        Raises:
            NoStreamResponseError: There is none.
            ApiError, RequestTimeoutError, TransportError: It could not be told.
        """
        # Without a connection only the next one can tell, and this waits for it.
        lane = self._context.lane
        epoch = lane.epoch if self._context.connection.is_connected else lane.write(b"", deadline)
        if not fresh:
            kept = self.kept(subject, epoch)
            if kept is not None:
                return kept
        answer = self._context.api("STREAM.NAMES", {"subject": subject}, deadline)
        names = answer.get("streams")
        if not names:
            raise NoStreamResponseError(subject)
        if not isinstance(names, list) or not isinstance(names[0], str):
            raise ProtocolError("the answer has no list of streams")
        try:
            return self._learn(names[0], epoch, deadline)
        except StreamNotFoundError as error:
            # Deleted between the two questions.
            raise NoStreamResponseError(subject) from error

    def named(self, name: str, deadline: Deadline, *, fresh: bool = False) -> KnownStream:
        """
        Return the stream called *name*, as :meth:`find` does.

        Raises:
            StreamNotFoundError: There is none.
            ApiError, RequestTimeoutError, TransportError: It could not be told.
        """
        lane = self._context.lane
        epoch = lane.epoch if self._context.connection.is_connected else lane.write(b"", deadline)
        known = self._known.get(name)
        if known is not None and known.epoch == epoch and not fresh:
            return known
        return self._learn(name, epoch, deadline)

    def _learn(self, name: str, epoch: int, deadline: Deadline) -> KnownStream:
        """Ask for a stream and keep what is said of it."""
        answer = self._context.api(f"STREAM.INFO.{name}", None, deadline, stream=name)
        config = from_wire(StreamConfig, answer.get("config") or {})
        known = KnownStream(
            name=name,
            config=config,
            level=api_level_of(config.metadata) or 0,
            version=(config.metadata or {}).get("_nats.ver"),
            epoch=epoch,
        )
        self._known[name] = known
        origin = known.config.mirror and known.config.mirror.name
        if origin:
            self._mirrors[origin] = self._mirrors.get(origin, frozenset()) | {name}
        return known

    def peek(self, name: str) -> KnownStream | None:
        """Return the stream called *name* if it was asked for on this connection."""
        known = self._known.get(name)
        return known if known is not None and known.epoch == self._context.lane.epoch else None

    def mirrors(self, name: str) -> frozenset[str]:
        """Return the names of mirrors of a stream that were asked for, whenever that was."""
        return self._mirrors.get(name, frozenset())

    def kept(self, subject: str, epoch: int) -> KnownStream | None:
        """Return the stream that stores *subject* if it was asked for on the connection *epoch*."""
        for known in list(self._known.values()):
            if known.epoch == epoch and known.takes(subject):
                return known
        return None

    @property
    def batch_limit(self) -> int | None:
        """How many messages an atomic batch may have, once the server has said so."""
        limit = self._limit
        return limit[1] if limit is not None and limit[0] == self._context.lane.epoch else None

    def learn_batch_limit(self, limit: int, epoch: int) -> None:
        """Keep what the server of the connection *epoch* said of its limit."""
        self._limit = epoch, limit

    def may_listen(self, known: KnownStream) -> bool:
        """Return whether the stream's advisories may be asked for, as far as is known."""
        return (known.epoch, known.name) not in self._denied

    def learn_denial(self, known: KnownStream) -> None:
        """Keep that the server refused the stream's advisories; until the connection changes."""
        kept = {each for each in self._denied if each[0] == known.epoch}
        self._denied = {*kept, (known.epoch, known.name)}
