"""
Watch a bucket: its entries, and then the changes in order.

A :class:`Watch` reads through an ordered consumer, which is recreated when necessary. Its engine
decides when the initial entries are complete (:mod:`jetsync._proto.watching`). After a lost
message, consumer or connection, the watch recovers in ``OrderedSource.remake``
(:mod:`jetsync.consume.ordered_source`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from jetsync import errors
from jetsync._api import streams as _stream_admin
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.dropped import disown
from jetsync._base.iterations import Iteration, one_by_one
from jetsync._base.locks import Latch
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import outside
from jetsync._hooks.errors import PluginError
from jetsync._proto.ordered import OrderedCursor
from jetsync._proto.watching import WatchEngine
from jetsync.consume.core import ConsumptionCore
from jetsync.consume.ordered import filter_fields, ordered_options, replicas_in
from jetsync.consume.ordered_source import SHORTEST_CREATE, OrderedSource
from jetsync.consume.pull_feed import empty_pull
from jetsync.consume.reading import Reading, shown
from jetsync.kv.entry import ValueT, delivered_entry
from jetsync.values.consumer_config import DeliverPolicy
from jetsync.values.server_versions import FILTERS_LEVEL, level_of_version
from jetsync.values.subjects import common_wildcard, overlap

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync._proto.keys import BucketLayout
    from jetsync._proto.pull_request import ConsumeOptions
    from jetsync.kv.entry import Entry
    from jetsync.stream import Stream

__all__ = ["Watch"]

# Entries to prefetch if the watch leaves out the values.
PREFETCHED_KEYS: Final = 5000

# Entries that are taken out of the buffer at once.
RUN: Final = 64

# Seconds for which the server keeps the pull of a nudge.
NUDGE: Final = 0.01

# Seconds to wait for the server's answer.
INFO_TIMEOUT: Final = 1.0

# The minimum if the watch outlasts the call. Otherwise a caller that polls with short timeouts
# would never get the answer.
SHORTEST_INFO: Final = SHORTEST_CREATE

# The description of the error if there is no stream, without a further reason.
MISSING: Final = errors.StreamNotFoundError().description

# Taken from if no entry has arrived.
NOTHING: Final[Iterator[Any]] = one_by_one(list.pop, [])


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

    def gone(self, reason: str | None) -> errors.StreamNotFoundError:
        """Return the error for a watch of it that ends because the stream does not exist."""


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
    # Locks: the thread that takes entries out of the buffer has the turn of `_reading`, which
    # protects the engine and the position. A thread takes an entry out of a run in one step.

    __reduce__ = refuse_copy

    def __init__(
        self,
        bucket: Watched,
        engine: WatchEngine,
        source: OrderedSource,
        options: ConsumeOptions,
        *,
        until: Deadline | None,
        ignore_deletes: bool = False,
        shown: Callable[[Entry], Any] | None = None,
        report: Callable[[errors.DecodeError], object] | None = None,
    ) -> None:
        self._bucket = bucket
        self._engine = engine
        self._source = source
        self._expires = options.expires
        self._core = ConsumptionCore(source.target, options, source=source)
        # The deadline of the call that also closes the watch; None if the caller closes it.
        self._until = until
        self._ignore_deletes = ignore_deletes
        # Returns what is handed out in place of an entry, or None to leave it out; None if entries
        # are handed out as they are stored.
        self._shown = shown
        # Called with the error of an entry that is left out, or raises it; None without codecs.
        self._report = report
        self._lane = bucket.context.lane
        self._reading = Reading("watch", bucket.context.connection)
        # Also set when the watch ends, so that no thread keeps waiting for it.
        self._current = Latch()
        self._is_current = engine.current
        if engine.current:
            self._current.set()
        self._revision = 0
        # Whether the entries that were not taken are dropped. Ctrl-C may keep them in `_run`.
        self._ended = False
        # The entries that were taken out of the buffer, with their revisions, see `one_by_one`. If
        # they complete the initial ones, the last of them is in `_final`. The thread that takes it
        # makes the watch current.
        self._run: Iterator[tuple[int, Entry[Any]]] = NOTHING
        self._final: tuple[int, Entry[Any]] | None = None
        # The revision of the last one. After Ctrl-C, the ordered consumer may send it again.
        self._last = 0
        disown(self._lane.later, self, self._core)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "current" if self._is_current else "loading"
        return f"<Watch {self._bucket.name} {state} revision={self._revision}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry[ValueT]:  # noqa: RET503 - `end_loop` always raises
        reading = self._reading
        # An entry that was held at Ctrl-C comes first.
        if not (reading.held or self._ended or self._lane.forked):
            # No call between this and the caller, so that no signal handler runs.
            try:
                for revision, entry in self._run:
                    self._revision = revision
                    return entry
            except IndexError:
                pass
        for entry in map(self._take, (FOREVER,)):
            return entry
        reading.end_loop()

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
        until = Deadline.after(self._expires if timeout is None else timeout)
        for entry in map(self._take, (until,)):
            return entry
        if self._reading.over.is_set():
            self._reading.end_next()
        return None

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
        yield from map(self._take, repeat(deadline), repeat(True))
        self._check_current(deadline)

    def _check_current(self, deadline: Deadline) -> None:
        """Raise why the initial entries end before all of them were taken."""
        if self._is_current:
            return
        if not self._reading.over.is_set():
            raise errors.RequestTimeoutError(
                self._bucket.layout.read_prefix + ">",
                deadline.total,
                what=f"bucket {self._bucket.name!r} did not send all entries",
            )
        self._reading.raise_once()
        raise errors.HandleClosedError("watch", reason="it ended before all entries arrived")

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
        return self._reading.over.is_set() or self._core.closed

    @property
    def error(self) -> BaseException | None:
        """The error that ended the watch. None if it is open, or ended without an error."""
        return shown(self._reading.error) or self._core.error

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
        self._core.close()
        context, until = self._bucket.context, self._until or FOREVER
        # Without a connection, the server deletes the consumer after its inactive threshold.
        if context.connection.is_connected:
            self._source.close(until.at_most(context.default_timeout))

    def _take(self, until: Deadline, initial: bool = False) -> Entry[ValueT]:  # noqa: FBT001, FBT002 - as an argument of `map`
        """
        Return the next entry. Call it through ``map``, as :meth:`Reading.take`.

        Raises StopIteration at the end and at the deadline, and after the last initial entry if
        *initial*.
        """
        if initial and self._is_current and not self._reading.held:
            raise StopIteration
        hold = partial(self._hold_next, initial=initial)
        left: int | None = None
        while True:
            try:
                for entry in map(self._reading.take, (hold,), (until,)):
                    return entry
                raise StopIteration
            except errors.DecodeError as error:
                assert self._report is not None
                self._report(error)
            if until.expired():
                # With a timeout of 0, the entries that have arrived by now are tried, too. Later
                # ones are not, so the call ends even if entries arrive all the time.
                left = len(self._core.buffer) if left is None else left - 1
                if until.total or initial or left <= 0:
                    raise StopIteration

    def _hold_next(self, until: Deadline, me: int, *, initial: bool) -> Entry[Any] | None:
        """Hold and return the next entry for :meth:`Reading.take`."""
        reading, held = self._reading, self._reading.held
        while not reading.over.is_set():
            if (
                self._engine.current
                and not self._is_current
                and self._final is None
                # Else a call was interrupted before it kept the entries.
                and not reading.turn.unfinished
            ):
                self._note_current()
            if me not in held:
                if initial:
                    if self._is_current:
                        return None
                    if until.expired():
                        raise errors.WaitTimeoutError("an entry", until.total)
                self._hold(me)
            if me in held:
                entry: Entry[Any] = held[me]
                return entry
            try:
                self._receive(until, initial)
            except (
                errors.CallInSignalHandlerError,
                errors.ConflictingUseError,
                errors.DecodeError,
                errors.WaitTimeoutError,
            ):
                raise
            except errors.StreamNotFoundError as error:
                gone = self._bucket.gone(_reason(error))
                gone.__cause__ = error
                self._end(gone)
            except errors.JetSyncError as error:
                self._end(error)
        return None

    def _hold(self, me: int) -> None:
        """Take the next entry of the run, if there is one, and hold it."""
        held = self._reading.held
        # No call between the two steps, so that no signal handler runs.
        try:
            for revision, entry in self._run:
                held[me], self._revision = entry, revision
                return
        except IndexError:
            pass
        if self._final is not None:
            (self._revision, held[me]), self._final = self._final, None
            self._note_current()

    def _receive(self, until: Deadline, initial: bool) -> None:  # noqa: FBT001 - as in `_take`
        """
        Take the entries that have arrived, and wait until there is one.

        Raises:
            WaitTimeoutError: None arrived in time.
        """
        engine, turn = self._engine, self._reading.turn
        is_patient = self._is_current and not initial
        step = until.at_most(self._expires if is_patient else engine.quiet)
        if not self._is_current and turn.unfinished:
            engine.repeat()
        # The core has a turn of its own.
        if not outside(self._core.wait_for_next, step):
            self._core.reading.raise_once()
            self._note_silence(until)
            return
        turn.step(self._keep_arrived, until)
        if self._reading.over.is_set():
            self._end()

    def _keep_arrived(self, until: Deadline) -> None:
        """
        Take entries out of the buffer, once they are kept.

        After Ctrl-C, some may be in the buffer again. They are recognised by their revisions.
        """
        core, engine = self._core, self._engine
        run: list[tuple[int, Entry[Any]]] = []
        # One at a time if the bucket has codecs: their calls belong to the thread that asks.
        frames = core.engine.snapshot(RUN if self._report is None else 1)
        taken = 0
        for frame in frames:
            try:
                message = core.make(frame)
            except PluginError as error:
                # It is raised once the entries before this one are taken.
                core.fail(error)
                break
            taken += 1
            key = self._bucket.layout.key_of(message.subject)
            name = message.subject if key is None else key
            entry: Entry[Any] = delivered_entry(self._bucket.name, name, message)
            revision = entry.revision
            if self._source.resets:
                engine.recreate()
            if engine.take(revision, entry.delta):
                engine.learn_last(self._last_revision(until))
            if revision > self._last and not (self._ignore_deletes and entry.is_deleted):
                try:
                    item = entry if self._shown is None else outside(self._shown, entry)
                except errors.DecodeError:
                    self._last = revision
                    core.hand_out(frames[:taken])
                    raise
                if item is not None:
                    run.append((revision, item))
            if engine.current and not self._is_current:
                break
        if run:
            last = run[-1][0]
            final = run.pop() if engine.current and not self._is_current else None
            kept = one_by_one(deque.popleft, deque(run))
            # In one step: no signal handler runs between the two.
            self._run, self._final, self._last = kept, final, last
        core.hand_out(frames[:taken])

    def _note_silence(self, until: Deadline) -> None:
        """Decide what follows, as no entry arrived; raises WaitTimeoutError at the deadline."""
        if self._core.closed:
            self._end()
            return
        if not self._engine.current:
            self._look(until)
        if until.expired():
            raise errors.WaitTimeoutError("an entry", until.total)

    def _look(self, until: Deadline) -> None:
        """Ask the server whether all initial entries have been sent."""
        source = self._source
        try:
            info = source.ask(self._info_deadline(until))
        except errors.JetSyncError:
            return
        sent = info.delivered.consumer_seq, info.delivered.stream_seq
        reached = source.cursor.arrived, source.last or 0
        wanted = self._engine.look(info.num_pending, sent, reached)
        if wanted == "nudge":
            self._lane.post_nowait(empty_pull(source.target, expires=NUDGE))
        elif wanted == "last":
            self._engine.learn_last(self._last_revision(until))

    def _last_revision(self, until: Deadline) -> int | None:
        """Ask for the last revision in the bucket; return None if the server does not answer."""
        context, stream = self._bucket.context, self._bucket.stream.name
        try:
            return _stream_admin.position(context, stream, self._info_deadline(until))[0]
        except errors.JetSyncError:
            return None

    def _info_deadline(self, until: Deadline) -> Deadline:
        """Return the deadline of a request whose answer is needed before *until*."""
        least = SHORTEST_INFO if self._until is None else 0.0
        return Deadline.after(max(min(INFO_TIMEOUT, until.remaining()), least))

    def _note_current(self) -> None:
        self._is_current = True
        self._current.set()

    def _end(self, error: errors.JetSyncError | None = None) -> None:
        """Record that no more entries arrive, and drop those that were not taken."""
        self._reading.end(error)
        self._ended, self._run, self._final = True, NOTHING, None
        self._current.set()

    def _initial_runs(self, deadline: Deadline) -> Generator[list[Entry[ValueT]], None, None]:
        """Yield the initial entries that have arrived, as often as it takes."""
        for first in map(self._take, repeat(deadline), repeat(True)):
            found = [first]
            with contextlib.suppress(IndexError):
                for _, entry in self._run:
                    found.append(entry)
            yield found
        self._check_current(deadline)


def _shown_if(
    filters: Sequence[str], prefix: str, show: Callable[[Entry], Any] | None, entry: Entry
) -> Any:
    """Return what is handed out in place of an entry; None if no filter matches its subject."""
    if not any(overlap(each, prefix + entry.key) for each in filters):
        return None
    return entry if show is None else show(entry)


def _reason(error: errors.StreamNotFoundError) -> str | None:
    """Return what an error says besides that there is no stream; None if that is all."""
    return None if error.description == MISSING else error.description


def initial_entries(watch: Watch[ValueT], deadline: Deadline) -> Iterator[Entry[ValueT]]:
    """
    Yield the initial entries of a watch that no other call uses, with few calls for each.

    Raises as ``Watch.initial``. If Ctrl-C interrupts it, entries are lost.
    """
    return chain.from_iterable(watch._initial_runs(deadline))  # noqa: SLF001  (its own module)


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
    **options: Any,
) -> Watch[Any]:
    """
    Create a watch.

    Args:
        bucket: What to watch.
        filters: Subjects of the stream, at least one.
        deadline: Deadline of the calling operation.
        policy: Where the watch starts.
        from_revision: As for ``KeyValue.watch``.
        meta_only: As for ``KeyValue.watch``.
        ends: Whether the calling operation closes the watch.
        complete: As for :class:`WatchEngine`.
        **options: The further options of :class:`Watch`.
    """
    context, stream, known = bucket.context, bucket.stream.name, bucket.stream.cached_info
    is_new, before, created = policy is DeliverPolicy.NEW, 0, known.created
    if not is_new:
        # Asked before the consumer is created: entries up to this revision are initial.
        before, created = _stream_admin.position(context, stream, deadline)
    asked = filters
    if len(filters) > 1 and level_of_version(context.server.version) < FILTERS_LEVEL:
        # This server would leave entries out.
        asked, show = [common_wildcard(filters)], options.get("shown")
        options["shown"] = partial(_shown_if, filters, bucket.layout.read_prefix, show)
    wanted = {**filter_fields(asked), "deliver_policy": policy.value}
    if from_revision is not None:
        wanted["opt_start_seq"] = from_revision
    if meta_only:
        wanted["headers_only"] = True
    cursor = OrderedCursor(wanted, secrets.token_hex(8), replicas_in(known.config))
    source = OrderedSource(context, stream, created, cursor, max_attempts=-1)
    source.make(deadline)
    limits = source.limits
    if ends:
        # The calling operation pulls all the time, so nothing else has to keep the consumer.
        limits = limits._replace(inactive_threshold=None)
    prefetched = PREFETCHED_KEYS if meta_only else None
    return Watch(
        bucket,
        WatchEngine(0 if is_new else source.pending, before, complete=complete),
        source,
        ordered_options(limits, max_messages=prefetched),
        until=deadline if ends else None,
        **options,
    )
