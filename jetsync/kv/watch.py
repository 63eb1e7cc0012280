"""
Watching a bucket: what there is, and then every change, without a gap and without a repeat.

Behind a :class:`Watch` stands an ordered consumer, which is made again where it has to be. What is
this module's own is to know when all that was there has come.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch, Locked, refuse_reentry
from jetsync.errors import (
    BucketNotFoundError,
    CallInSignalHandlerError,
    ConnectionClosedError,
    ConsumptionClosedError,
    HandleClosedError,
    JetSyncError,
    RequestTimeoutError,
    StreamNotFoundError,
    WaitTimeoutError,
)
from jetsync.kv.entry import delivered_entry
from jetsync.values.consumer_config import DeliverPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from jetsync._base.deadline import Seconds
    from jetsync.consume.ordered import OrderedConsumer
    from jetsync.kv.bucket import Bucket
    from jetsync.kv.entry import Entry
    from jetsync.values.message import Message

__all__ = ["Watch"]

AHEAD_OF_NAMES: Final = 5000
"""Entries without values that are pulled ahead; with values it is as for any consumption."""

QUIET: Final = 0.25
"""
Seconds without an entry after which a watch that is not up to date asks whether it is.

An entry says how many follow it, so that this happens only when what was to follow was removed
meanwhile, or the consumer had to be made again.
"""


MOST: Final = 4
"""
Entries for each one that there was, after which a watch is up to date whatever has not come yet.
"""

INFO_TIMEOUT: Final = 1.0
"""Seconds to wait for the answer to that."""


class Watch:
    """
    The entries of a bucket as they are, and as they change; made by ``KeyValue.watch``.

    :meth:`initial` gives what there was, and ends; iterating over the watch itself goes on for as
    long as it is open. :attr:`is_current` and :meth:`wait_current` tell, in any thread, whether all
    that there was has been taken. Revisions grow, none is left out and none comes twice, across
    lost connections and servers that restart.

    Any number of threads may take entries; each goes to one of them. The iteration ends after
    :meth:`close` or the end of the client, and raises, once, what makes going on impossible. As a
    context manager it is stopped at the end of the block.

    It ends with its bucket: BucketNotFoundError is raised when servers have said for two seconds
    that there is none, and where another one has the name, or it has lost what it held, as
    revisions begin anew then.
    """

    def __init__(
        self, bucket: Bucket, ordered: OrderedConsumer, *, updates_only: bool, ignore_deletes: bool
    ) -> None:
        self._bucket = bucket
        self._ordered = ordered
        self._ignore_deletes = ignore_deletes
        self._current = Latch()
        self._over = Latch()
        """Set together with the other one at the end, so that nobody waits for that."""

        self._taking = threading.RLock()
        """Held by the thread that takes an entry."""

        self._step = Deadline.after(0.0)
        """How long to wait for an entry at a time; belongs to the thread that takes one."""

        self._revision = 0
        self._last: Message | None = None
        """The message of the last entry."""

        self._there = ordered.cached_info.num_pending
        """How many entries there were; 0 once that is of no use any more."""

        self._by_key = ordered.cached_info.config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT
        self._keys: set[str] = set()
        """The keys that have come, while there is more of what was there."""

        self._taken = 0
        self._gone: BucketNotFoundError | None = None
        self._is_current = updates_only or not ordered.cached_info.num_pending
        if self._is_current:
            self._current.set()
        only_names = ordered.cached_info.config.headers_only
        self._messages = ordered.consume(max_messages=AHEAD_OF_NAMES if only_names else None)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "current" if self._is_current else "loading"
        return f"<Watch {self._bucket.name} {state} revision={self._revision}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        try:
            entry = self._take(None, initial=False)
        except ConnectionClosedError as error:
            # The end of the client is an ordinary end.
            if error.__cause__ is not None:
                raise
            entry = None
        if entry is None:
            raise StopIteration
        return entry

    def next(self, *, timeout: Seconds | None = None) -> Entry | None:
        """
        Wait for the next entry and return it, or None if none arrives in time.

        Args:
            timeout: Seconds to wait. The default is 30; 0 returns only an entry that is already
                here. While the consumer is being recreated, the call may take half a second more.

        Raises:
            HandleClosedError: The watch has ended.
            JetSyncError: The error that ended the watch. It is raised once.
        """
        seconds = self._messages.options.expires if timeout is None else timeout
        try:
            entry = self._take(Deadline.after(seconds), initial=False)
        except WaitTimeoutError:
            return None
        if entry is None:
            raise HandleClosedError("watch")
        return entry

    def initial(self, *, timeout: Seconds | None = None) -> Iterator[Entry]:
        """
        Yield what there was when the watch was made, and end; at once where there was nothing.

        What changes meanwhile may be among it. Every later change comes by iterating over the watch
        itself. Where changes come faster than they are taken, it ends when as many keys have come
        as there were.

        Args:
            timeout: Seconds for all of it; None waits as long as it takes.

        Raises:
            RequestTimeoutError: There is more, and the time is over; the watch goes on.
            HandleClosedError: It was stopped before all had come.
            JetSyncError: What ended it, once.
        """
        deadline = Deadline.after(timeout)
        while True:
            try:
                entry = self._take(deadline, initial=True)
            except WaitTimeoutError:
                where = self._bucket.layout.read_prefix + ">"
                raise RequestTimeoutError(
                    where, deadline.total, what=f"not all entries of {self._bucket.name!r} came"
                ) from None
            if entry is not None:
                yield entry
            elif self._is_current:
                return
            else:
                raise HandleClosedError("watch", reason="it ended before all had come")

    @property
    def is_current(self) -> bool:
        """Whether all that there was when the watch was made has been taken."""
        return self._is_current

    @property
    def revision(self) -> int:
        """The revision of the last entry that was taken, 0 before the first."""
        return self._revision

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set() or self._messages.closed

    @property
    def error(self) -> BaseException | None:
        """What made it end, None if it goes on or was stopped."""
        return self._messages.error if self._gone is None else self._gone

    def wait_current(self, *, timeout: Seconds | None = None) -> bool:
        """
        Wait until all that there was has been taken, by whichever thread; return whether that is
        so.

        Returns early once the watch has ended. It takes nothing itself: another thread has to.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.
        """
        deadline = Deadline.after(timeout)
        if not self._current.is_set():
            refuse_reentry(self._taking)
        self._current.wait(deadline.remaining())
        return self._is_current

    def close(self) -> None:
        """
        End it; whoever waits for an entry is woken. Safe to repeat, from any thread.

        Deletes the consumer behind it, if there is a connection.
        """
        self._end()
        self._messages.close()
        # Without a connection the server forgets the consumer by itself.
        if self._bucket.context.connection.is_connected:
            self._ordered.close()

    def _take(self, deadline: Deadline | None, *, initial: bool) -> Entry | None:
        """Return the next entry; None at the end, or where *initial* asks for no more."""
        until = Deadline.after(None) if deadline is None else deadline
        with Locked(self._taking, until, "another call on the watch"):
            while not self._over.is_set():
                if initial and self._is_current:
                    return None
                if initial and until.expired():
                    raise WaitTimeoutError("an entry", until.total)
                try:
                    entry = self._receive(until)
                except WaitTimeoutError:
                    if not self._is_current:
                        self._look()
                    if until.expired():
                        raise
                except ConsumptionClosedError:
                    self._end()
                except StreamNotFoundError as error:
                    reason = None if type(error) is StreamNotFoundError else error.description
                    self._gone = BucketNotFoundError(self._bucket.name, reason=reason)
                    self._end()
                    raise self._gone from error
                except CallInSignalHandlerError:
                    raise
                except JetSyncError:
                    self._end()
                    raise
                else:
                    if not (self._ignore_deletes and entry.is_deleted):
                        return entry
            return None

    def _receive(self, until: Deadline) -> Entry:
        """Wait for an entry, for as long as makes sense at a time."""
        messages = self._messages
        try:
            # What is here is given out whatever the time: most entries need no new deadline.
            message = messages.take(self._step)
        except WaitTimeoutError:
            longest = messages.options.expires if self._is_current else QUIET
            self._step = until.at_most(longest)
            message = messages.take(self._step)
        key = self._bucket.layout.key_of(message.subject)
        entry = delivered_entry(self._bucket.name, message.subject if key is None else key, message)
        self._revision, self._last = entry.revision, message
        if not entry.delta:
            self._note_current()
        elif not self._is_current:
            self._count(entry.key)
        return entry

    def _count(self, key: str) -> None:
        """
        See if as much has come as there was, while changes come faster than they are taken.

        Of a key that is changed before it came only the change does, and others may come twice
        before that: keys are counted, not entries, within reason.
        """
        self._taken += 1
        if not self._there or self._ordered.statistics().resets:
            # What the next consumer was made with is not what there was.
            self._there = 0
            return
        if self._by_key:
            self._keys.add(key)
        if (len(self._keys) if self._by_key else self._taken) >= self._there or (
            self._taken >= MOST * self._there
        ):
            self._note_current()

    def _look(self) -> None:
        """Ask whether all that was there has come; what gives no answer now may later."""
        try:
            info = self._ordered.info(timeout=INFO_TIMEOUT)
        except JetSyncError:
            return
        if info.num_pending:
            return
        sent, came = info.delivered, 0
        if self._last is not None and self._last.metadata.consumer == info.name:
            came = self._last.metadata.consumer_sequence
        # After a purge the consumer stands behind what was purged, which it never sent.
        last = self._ordered.statistics().last_sequence or 0
        if sent.consumer_seq <= came or sent.stream_seq <= last:
            self._note_current()

    def _note_current(self) -> None:
        self._is_current = True
        self._keys.clear()
        self._current.set()

    def _end(self) -> None:
        """Note that no more comes."""
        self._over.set()
        self._current.set()
