"""
Watch a bucket: its entries, and then every change in order, with no gaps or duplicates.

A :class:`Watch` reads through an ordered consumer, which is recreated when necessary. This module
decides when the initial entries are complete. After a lost message, consumer or connection, the
watch recovers in ``OrderedSource.remake`` (:mod:`jetsync.consume.ordered_source`).
"""

from __future__ import annotations

import contextlib
import math
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from jetsync import errors
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.dropped import disown
from jetsync._base.iterations import Iteration
from jetsync._base.locks import Latch
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import outside
from jetsync.consume.ordered import consume_within, open_ordered
from jetsync.consume.ordered_reads import arrived, nudge
from jetsync.consume.ordered_source import SHORTEST_CREATE
from jetsync.consume.reading import Reading, shown
from jetsync.kv.entry import ValueT, delivered_entry
from jetsync.values.consumer_config import DeliverPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync._proto.kv import BucketLayout
    from jetsync.consume.ordered import OrderedConsumer
    from jetsync.kv.entry import Entry
    from jetsync.stream import Stream
    from jetsync.values.message import Message

__all__ = ["Watch"]

# Entries to prefetch if the watch leaves out the values.
PREFETCHED_KEYS: Final = 5000

# Seconds without an entry after which a watch asks the server whether its initial entries are
# complete. Each entry tells how many follow it. So the watch only has to ask if the following
# entries were removed in the meantime, or if the consumer was recreated.
QUIET: Final = 0.25

# The same after a nudge, at most once for each initial entry. A nudge gets the server past one
# removed entry, so with 0.25 seconds 30 of them took 7.4 s.
NUDGED: Final = 0.01

# A watch counts as current once it has taken this many times the number of initial entries, even if
# some of these have not arrived.
MOST: Final = 4

# Seconds to wait for the server's answer.
INFO_TIMEOUT: Final = 1.0

# The minimum if the watch outlasts the call. Otherwise a caller that polls with short timeouts
# would never get the answer.
SHORTEST_INFO: Final = SHORTEST_CREATE

# The description of the error if there is no stream, without a further reason.
MISSING: Final = errors.StreamNotFoundError().description


class Watched(Protocol):
    """
    A bucket, or another stream whose subjects have one current message each.
    """

    @property
    def name(self) -> str:
        """The name."""

    @property
    def context(self) -> Context:
        """The context of requests."""

    @property
    def stream(self) -> Stream:
        """The stream."""

    @property
    def layout(self) -> BucketLayout:
        """The subjects."""


class Watch(Generic[ValueT]):
    """
    The entries of a bucket and their changes. Made by ``KeyValue.watch``.

    :meth:`initial` yields the entries that exist at the start, and then ends. A loop over the watch
    itself continues until the watch is closed. :attr:`is_current` and :meth:`wait_current` say
    whether all initial entries have been taken.

    Entries arrive in the order of their revisions. None is skipped or repeated, even if the
    connection is lost or a server restarts. A revision is left out only if the bucket no longer
    keeps it when the server would send it, for example with ``history=1``.

    Any number of threads may share a watch; each entry goes to one of them. The iteration ends
    when the watch or the client is closed. An error that ends the watch is raised once. A ``with``
    block closes the watch.

    The watch raises BucketNotFoundError if servers report for two seconds that the bucket does not
    exist. It also does so if the bucket was deleted and created again, because revisions then start
    over.

    If the codecs of the bucket cannot decode an entry, the call for it raises DecodeError. This
    does not end the watch: the next call, or another loop, continues after this entry. See
    ``on_undecodable`` of ``KeyValue.with_codec``.
    """

    # Threads: any, and signal handlers.
    # Locks: the thread that takes an entry has the turn of `_reading`, which protects the
    # counts and the position.

    __reduce__ = refuse_copy

    def __init__(
        self,
        bucket: Watched,
        ordered: OrderedConsumer,
        deadline: Deadline,
        *,
        ends: bool,
        before: int,
        complete: bool,
        ignore_deletes: bool,
        shown: Callable[[Entry], Entry[Any]] | None = None,
        report: Callable[[errors.DecodeError], object] | None = None,
    ) -> None:
        self._bucket = bucket
        # Decodes an entry; None returns it as it is stored.
        self._shown = shown
        # Called with the error of an entry that is left out, or raises it.
        self._report = report
        self._ordered = ordered
        # The deadline of the call that also closes the watch; None if the caller closes it.
        self._until = deadline if ends else None
        self._ignore_deletes = ignore_deletes
        self._reading = Reading("watch", bucket.context.connection)
        # Also set when the watch ends, so that no thread keeps waiting for it.
        self._current = Latch()
        # The deadline of the current wait for an entry.
        self._step = Deadline.after(0.0)
        self._revision = 0
        # That of the last entry that was handed out. After Ctrl-C, the ordered consumer may send it
        # again.
        self._handed_out = 0
        # How often the server was asked to continue, and the seconds without an entry before it is
        # asked whether it has sent everything.
        self._nudges = 0
        self._quiet = QUIET
        # The message of the last entry.
        self._last: Message | None = None
        # The number of initial entries; 0 once the number is no longer known.
        self._there = ordered.cached_info.num_pending
        # The last revision in the bucket just before the consumer was created.
        self._before = before
        # See :data:`MOST`. A caller who needs *complete* initial entries waits for them, also if
        # changes arrive faster than they are taken.
        self._most = math.inf if complete else MOST
        self._complete = complete
        # The last revision in the bucket when the server first said that it has sent everything,
        # for such a caller. All initial entries arrive up to it.
        self._goal: int | None = None
        # The entries that have arrived, and those of them that are certainly initial ones.
        self._taken = self._taken_initial = 0
        policy = ordered.cached_info.config.deliver_policy
        self._is_current = policy is DeliverPolicy.NEW or not self._there
        if self._is_current:
            self._current.set()
        only_names = ordered.cached_info.config.headers_only
        self._messages = consume_within(
            ordered, deadline, max_messages=PREFETCHED_KEYS if only_names else None
        )
        disown(bucket.context.lane.later, self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "current" if self._is_current else "loading"
        return f"<Watch {self._bucket.name} {state} revision={self._revision}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry[ValueT]:
        me = get_ident()
        while True:
            entry = self._take_in_loop()
            # No call between this and the caller, so that no signal handler runs.
            try:
                del self._reading.held[me]
            except KeyError:
                continue  # A signal handler has taken it.
            return entry

    def _take_in_loop(self) -> Entry[ValueT]:
        """Return the next entry of a loop, and keep it in ``held``."""
        entry = self._take(None, initial=False)
        if entry is None:
            self._reading.end_loop()
        return entry

    def next(self, *, timeout: Seconds | None = None) -> Entry[ValueT] | None:
        """
        Wait for the next entry and return it, or None if none arrives in time.

        Args:
            timeout: Seconds to wait. The default is 30; 0 returns only an entry that has already
                arrived. The call may take half a second longer if jetsync replaces the watch's
                consumer, or asks the server whether the initial entries are complete.

        Raises:
            HandleClosedError: The watch has ended.
            JetSyncError: The error that ended the watch. It is raised once.
        """
        me = get_ident()
        until = Deadline.after(self._messages.options.expires if timeout is None else timeout)
        while True:
            entry = self._take_next(until)
            if entry is not None:
                # As in `__next__`.
                try:
                    del self._reading.held[me]
                except KeyError:
                    continue
            return entry

    def _take_next(self, until: Deadline) -> Entry[ValueT] | None:
        """Return what :meth:`next` returns, and keep it in ``held``."""
        try:
            entry = self._take(until, initial=False)
        except errors.WaitTimeoutError:
            return None
        if entry is None:
            self._reading.end_next()
        return entry

    def initial(self, *, timeout: Seconds | None = None) -> Iterator[Entry[ValueT]]:
        """
        Yield the entries that existed when the watch was created, and then end.

        If a key changes in the meantime, its entry may be the changed one, and may come after those
        of new keys. Iterate over the watch itself for all later changes. If changes arrive faster
        than you take them, the iteration ends after four times as many entries as existed at the
        start. A key that changed all the time may be missing then.

        Args:
            timeout: Seconds for all entries. The default is no limit.

        Raises:
            RequestTimeoutError: Not all entries arrived in time. The watch stays open.
            HandleClosedError: The watch was closed before all entries had arrived.
            JetSyncError: The error that ended the watch. It is raised once.
        """
        return Iteration(self._initial(timeout), "watch")

    def _initial(self, timeout: Seconds | None) -> Generator[Entry[ValueT], None, None]:
        """Yield the initial entries."""
        deadline = Deadline.after(timeout)
        while (entry := self._take_initial(deadline)) is not None:
            me = get_ident()
            # As in `__next__`.
            try:
                del self._reading.held[me]
            except KeyError:
                continue
            yield entry

    def _take_initial(self, deadline: Deadline) -> Entry[ValueT] | None:
        """Return the next initial entry, and keep it in ``held``; None after the last one."""
        try:
            entry = self._take(deadline, initial=True)
        except errors.WaitTimeoutError:
            where = self._bucket.layout.read_prefix + ">"
            raise errors.RequestTimeoutError(
                where,
                deadline.total,
                what=f"bucket {self._bucket.name!r} did not send all entries",
            ) from None
        if entry is None and not self._is_current:
            self._reading.raise_once()
            raise errors.HandleClosedError("watch", reason="it ended before all entries arrived")
        return entry

    @property
    def is_current(self) -> bool:
        """Whether all entries that existed at the start have been taken."""
        return self._is_current

    @property
    def revision(self) -> int:
        """The revision of the last entry that was taken; 0 before the first."""
        return self._revision

    @property
    def closed(self) -> bool:
        """Whether the watch has ended."""
        return self._reading.over.is_set() or self._messages.closed

    @property
    def error(self) -> BaseException | None:
        """The error that ended the watch. None if it is open, or ended without an error."""
        return shown(self._reading.error) or self._messages.error

    def wait_current(self, *, timeout: Seconds | None = None) -> bool:
        """
        Wait until other threads have taken all initial entries. Return whether they have.

        Returns early if the watch ends. This call takes no entries itself.

        Args:
            timeout: Seconds to wait. The default is no limit.

        Raises:
            CallInSignalHandlerError: This signal handler interrupted a call of jetsync.
        """
        self._reading.wait(self._current, Deadline.after(timeout).remaining())
        return self._is_current

    def close(self) -> None:
        """
        End the watch and wake all threads that wait for an entry.

        Also deletes the watch's consumer if the client is connected, and waits for the server's
        answer for at most the context's default timeout. Any thread may call this, and repeated
        calls have no effect.
        """
        self._end()
        self._messages.close()
        context = self._bucket.context
        # Without a connection, the server deletes the consumer after its inactive threshold.
        if context.connection.is_connected:
            until = context.deadline(None)
            if self._until is not None:
                until = self._until.at_most(until.total)
            self._ordered.close(timeout=until.remaining())

    def _take(self, deadline: Deadline | None, *, initial: bool) -> Entry[ValueT] | None:
        """Return the next entry; None at the end, or after the last initial one if *initial*."""
        until = FOREVER if deadline is None else deadline
        left: int | None = None
        while True:
            try:
                return self._take_one(until, initial=initial)
            except errors.DecodeError as error:
                if self._report is None:
                    raise
                self._report(error)
            if until.expired():
                # With a timeout of 0, the entries that have arrived by now are tried, too. Later
                # ones are not, so the call ends even if entries arrive all the time.
                left = arrived(self._messages) if left is None else left - 1
                if until.total or initial or left <= 0:
                    raise errors.WaitTimeoutError("an entry", until.total)

    def _take_one(self, until: Deadline, *, initial: bool) -> Entry[Any] | None:
        """
        Do the work of :meth:`_take` for one entry.

        Raises:
            DecodeError: The codecs cannot decode it.
        """
        return self._reading.run(until, self._take_held, until, get_ident(), initial)

    def _take_held(self, until: Deadline, me: int, initial: bool) -> Entry[Any] | None:  # noqa: FBT001 - as an argument of `Turn.run`
        messages = self._messages
        held: dict[int, Entry[Any]] = self._reading.held
        if me in held and not self._reading.over.is_set():
            return held[me]
        while not self._reading.over.is_set():
            # A call that was interrupted may have taken the last initial entry.
            if initial and self._is_current and messages.is_settled:
                return None
            if initial and until.expired():
                raise errors.WaitTimeoutError("an entry", until.total)
            try:
                # The reads of the consumer and of the bucket take turns of their own.
                entry = outside(self._receive, until, initial)
            except (errors.CallInSignalHandlerError, errors.ConflictingUseError):
                raise
            except errors.StreamNotFoundError as error:
                reason = None if error.description == MISSING else error.description
                gone = errors.BucketNotFoundError(self._bucket.name, reason=reason)
                gone.__cause__ = error
                self._end(gone)
                continue
            except errors.JetSyncError as error:
                self._end(error)
                continue
            if entry is not None:
                if self._hold(entry, me):
                    return held[me]
            elif messages.closed:
                self._end()
            else:
                if not self._is_current:
                    self._look(until)
                if until.expired():
                    raise errors.WaitTimeoutError("an entry", until.total)
        return None

    def _hold(self, entry: Entry, me: int) -> bool:
        """Hold an entry as the codecs show it; return False if it is left out."""
        is_new = entry.revision > self._handed_out
        if is_new and not (self._ignore_deletes and entry.is_deleted):
            try:
                shown = entry if self._shown is None else outside(self._shown, entry)
            except errors.DecodeError:
                self._handed_out = entry.revision
                self._messages.settle()
                raise
            # In one step: no signal handler runs between the two.
            self._reading.held[me], self._handed_out = shown, entry.revision
        else:
            is_new = False
        self._messages.settle()
        return is_new

    def _receive(self, until: Deadline, initial: bool) -> Entry | None:  # noqa: FBT001 - as above
        """Return the next entry within *until* or until it is time to ask the server."""
        messages = self._messages
        # A buffered entry is returned even after the deadline, so most calls need no new one.
        message = messages.take(self._step, shared=True)
        if message is None and not messages.closed:
            is_patient = self._is_current and not initial
            self._step = until.at_most(messages.options.expires if is_patient else self._quiet)
            message = messages.take(self._step, shared=True)
        if message is None:
            return None
        key = self._bucket.layout.key_of(message.subject)
        entry = delivered_entry(self._bucket.name, message.subject if key is None else key, message)
        self._revision, self._last = entry.revision, message
        if not self._is_current:
            self._count(entry.revision)
            if not entry.delta and not self._is_current:
                self._on_nothing_pending(until)
        return entry

    def _on_nothing_pending(self, until: Deadline) -> None:
        """
        Note that the initial entries are complete, unless changes may be missing among them.

        If a key changes, servers count its old revision as removed before they count the new one
        as pending. So for a moment they say that nothing is pending (seen on 2.15.1).
        """
        if self._complete and self._goal is None and self._there:
            with contextlib.suppress(errors.JetSyncError):
                info = self._bucket.stream.info(timeout=self._info_timeout(until))
                self._goal = info.state.last_seq
        if self._goal is None or self._revision >= self._goal:
            self._note_current()

    def _count(self, revision: int) -> None:
        """
        Check whether all initial entries have arrived, though more entries follow.

        If a key changes before its initial entry was sent, many buckets no longer have that entry.
        The server then sends only the change, in its place among the changes of other keys and new
        keys. So a later revision does not show whether its key existed at the start. Only earlier
        revisions count. If they do not become complete, the watch is current at an entry that no
        other follows.
        """
        self._taken += 1
        self._taken_initial += revision <= self._before
        if not self._there or self._ordered.statistics().resets:
            # A recreated consumer sends more than one revision of a key, so the number of initial
            # entries no longer applies.
            self._there = 0
        elif (
            self._taken_initial >= self._there
            or self._taken >= self._most * self._there
            or (self._goal is not None and revision >= self._goal)
        ):
            self._note_current()

    def _look(self, until: Deadline) -> None:
        """Ask the server whether all initial entries have been sent."""
        try:
            info = self._ordered.info(timeout=self._info_timeout(until))
        except errors.JetSyncError:
            return
        if info.num_pending:
            # Servers stop sending the last entries of keys at one that was removed meanwhile (seen
            # on 2.15.1). They continue when a change, a heartbeat or a pull arrives.
            nudge(self._messages)
            self._nudges += 1
            self._quiet = NUDGED if self._nudges < self._there else QUIET
            return
        sent, came = info.delivered, 0
        if self._last is not None and self._last.metadata.consumer == info.name:
            came = self._last.metadata.consumer_sequence
        # After a purge, the consumer's position may be after messages that it never sent.
        last = self._ordered.statistics().last_sequence or 0
        if sent.consumer_seq > came and sent.stream_seq > last:
            return
        if self._goal is None:
            self._quiet = QUIET
            self._on_nothing_pending(until)
        else:
            self._note_current()

    def _info_timeout(self, until: Deadline) -> float:
        """Return the seconds to wait for an info that is needed before *until*."""
        seconds = min(INFO_TIMEOUT, until.remaining())
        return seconds if self._until is not None else max(seconds, SHORTEST_INFO)

    def _note_current(self) -> None:
        self._is_current = True
        self._current.set()

    def _end(self, error: errors.JetSyncError | None = None) -> None:
        """Record that no more entries arrive."""
        self._reading.end(error)
        self._current.set()


class Takes:
    """
    Takes the entries of a watch for an owner that makes something else of them.

    An entry stays in ``held`` until the owner removes it. So if Ctrl-C interrupts the owner, the
    next call of the same thread takes the same entry.

    Threads: any, and signal handlers.
    Locks: those of the watch.

    Args:
        watch: The watch.
    """

    def __init__(self, watch: Watch[Any]) -> None:
        self.held: dict[int, Any] = watch._reading.held  # noqa: SLF001  (its own module)
        self.in_loop: Callable[[], Entry] = watch._take_in_loop  # noqa: SLF001
        self.next: Callable[[Deadline], Entry | None] = watch._take_next  # noqa: SLF001
        self.initial: Callable[[Deadline], Entry | None] = watch._take_initial  # noqa: SLF001


def watch_subjects(
    bucket: Watched,
    filters: Sequence[str],
    deadline: Deadline,
    *,
    policy: DeliverPolicy,
    from_revision: int | None = None,
    meta_only: bool = False,
    ends: bool,
    complete: bool = False,
    ignore_deletes: bool = False,
    shown: Callable[[Entry], Entry[Any]] | None = None,
    report: Callable[[errors.DecodeError], object] | None = None,
) -> Watch[Any]:
    """
    Create a watch.

    Args:
        bucket: What to watch.
        filters: Subjects of the stream.
        deadline: Deadline of the calling operation.
        policy: Where the watch starts.
        from_revision: As for ``KeyValue.watch``.
        meta_only: As for ``KeyValue.watch``.
        ends: Whether the calling operation closes the watch.
        complete: As for :class:`Watch`, like all further arguments.
        ignore_deletes: Whether to leave out deletions.
        shown: Decodes an entry; None returns it as it is stored.
        report: Called with the error of an entry that cannot be decoded; None raises it.
    """
    stream = bucket.stream
    before = 0
    if policy is not DeliverPolicy.NEW:
        # Asked before the consumer is created: entries up to this revision are initial.
        before = stream.info(timeout=deadline.remaining()).state.last_seq
    ordered = open_ordered(
        bucket.context,
        stream.name,
        stream.cached_info,
        deadline,
        filters,
        deliver_policy=policy,
        opt_start_seq=from_revision,
        headers_only=meta_only or None,
    )
    return Watch(
        bucket,
        ordered,
        deadline,
        ends=ends,
        before=before,
        complete=complete,
        ignore_deletes=ignore_deletes,
        shown=shown,
        report=report,
    )
