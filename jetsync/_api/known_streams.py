"""
What a context knows about streams, so that it can tell what their servers support.

A server that does not support batches would store their messages one by one, and one that does not
support direct reads of many messages would answer with another message. So jetsync looks a stream
up before the first such request. The answer is valid for one connection: the next one may lead
to a server of another version.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

import attrs

from jetsync import errors
from jetsync.values.codec import from_wire
from jetsync.values.server_versions import TIMES_LEVEL, api_level_of
from jetsync.values.stream_config import StorageType, StreamConfig
from jetsync.values.subjects import overlap

if TYPE_CHECKING:
    from jetsync._api.account import Account
    from jetsync._base.deadline import Deadline


@attrs.define(kw_only=True)
class KnownStream:
    """
    A stream as its leader described it. Only ``asked`` changes.
    """

    name: str
    config: StreamConfig
    level: int
    """The API level of the leader's server; 0 before server 2.11."""

    version: str | None
    """The version of the leader's server; None before 2.11."""

    epoch: int
    """The connection on which it was looked up."""

    asked: float = attrs.field(factory=time.monotonic, eq=False)
    """When it was looked up, or did not answer, on the monotonic clock."""

    def keep(self) -> None:
        """Trust the configuration again, because the stream does not answer."""
        self.asked = time.monotonic()

    @property
    def finds_times(self) -> bool:
        """Whether its server finds messages by their time."""
        return self.level >= TIMES_LEVEL or self.config.storage is not StorageType.MEMORY

    def takes(self, subject: str) -> bool:
        """Return whether it stores messages to *subject*."""
        for each in self.config.subjects or ():  # noqa: SIM110 - `any` costs twice as much here.
            if overlap(subject, each):
                return True
        return False


class StreamCache:
    """
    The streams that were looked up, each with the connection of its lookup; thread-safe.
    """

    __slots__ = ("_account_ref", "_failed", "_known", "_mirrors", "batch_limits")

    def __init__(self, account: Account) -> None:
        # The owner of the cache. A strong reference would keep a dropped client open until the
        # garbage collector looks for cycles.
        self._account_ref = weakref.ref(account)
        self._known: dict[str, KnownStream] = {}
        self._mirrors: dict[str, frozenset[str]] = {}
        # The server's limit for messages of an atomic batch, by connection; at most that of one.
        self.batch_limits: dict[int, int] = {}
        # The connection on which `find_once` failed.
        self._failed = -1

    @property
    def _account(self) -> Account:
        account = self._account_ref()
        assert account is not None
        return account

    def find(self, subject: str, deadline: Deadline, *, fresh: bool = False) -> KnownStream:
        """
        Return the stream that stores *subject*; with *fresh* the server is asked in any case.

        Raises:
            NoStreamResponseError: No stream stores the subject.
            ApiError, RequestTimeoutError, TransportError: The request failed.
        """
        epoch = self._account.lane.outbox.wait_open(deadline)
        if not fresh:
            kept = self.kept(subject, epoch)
            if kept is not None:
                return kept
        account = self._account
        answer = account.api("STREAM.NAMES", {"subject": subject}, deadline)
        names = answer.get("streams")
        if not names:
            raise errors.NoStreamResponseError(subject)
        if not isinstance(names, list) or not isinstance(names[0], str):
            raise errors.ProtocolError("the answer has no list of streams")
        try:
            return self._learn(names[0], epoch, deadline)
        except errors.StreamNotFoundError as error:
            # Deleted between the two requests.
            raise errors.NoStreamResponseError(subject) from error

    def find_once(self, subject: str) -> KnownStream | None:
        """
        Return the stream that stores *subject*, or None if it cannot be found.

        The user may lack permission for the lookup, so a failure is not repeated on its connection.
        """
        epoch = self._account.lane.epoch
        if self._failed == epoch:
            return None
        try:
            return self.find(subject, self._account.deadline(None))
        except errors.JetSyncError:
            self._failed = epoch
            return None

    def named(self, name: str, deadline: Deadline, *, fresh: bool = False) -> KnownStream:
        """
        Return the stream called *name*; with *fresh* the server is asked in any case.

        Raises:
            StreamNotFoundError: The stream does not exist.
            ApiError, RequestTimeoutError, TransportError: The request failed.
        """
        epoch = self._account.lane.outbox.wait_open(deadline)
        known = self._known.get(name)
        if known is not None and known.epoch == epoch and not fresh:
            return known
        return self._learn(name, epoch, deadline)

    def forget(self, name: str) -> None:
        """Have the next call that needs the stream called *name* look it up again."""
        self._known.pop(name, None)

    def _learn(self, name: str, epoch: int, deadline: Deadline) -> KnownStream:
        """Look a stream up and keep the answer."""
        account = self._account
        answer = account.api(f"STREAM.INFO.{name}", None, deadline, stream=name)
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

    def last(self, name: str) -> KnownStream | None:
        """Return the stream called *name* as it was looked up last, on any connection."""
        return self._known.get(name)

    def mirrors(self, name: str) -> frozenset[str]:
        """Return the known mirrors of a stream, also from earlier connections."""
        return self._mirrors.get(name, frozenset())

    def kept(self, subject: str, epoch: int) -> KnownStream | None:
        """Return the stream that stores *subject* if it was looked up on the connection *epoch*."""
        for known in list(self._known.values()):
            if known.epoch == epoch and known.takes(subject):
                return known
        return None
