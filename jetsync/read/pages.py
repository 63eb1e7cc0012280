"""
Read stored messages in pages: send requests, wait for answers, and continue after failures.

A :class:`PageReader` runs one engine of :mod:`jetsync._proto.direct` in the thread that iterates.
It requests the next page as soon as the open one ends, before it hands out the messages. So the
server works while the caller does, and at most one page is read ahead.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from jetsync import errors
from jetsync._api.mirrors import TRANSIENT, known_answers, may_answer
from jetsync._api.repeats import connected
from jetsync._api.replica_or_leader import is_another, leader_get, no_server, shown_by
from jetsync._api.strays import StrayReports
from jetsync._api.streams import REPLACED, read_info
from jetsync._api.streams import info as stream_info
from jetsync._base.deadline import Deadline
from jetsync._base.failures import raise_failure
from jetsync._base.iterations import Iteration, ListIteration
from jetsync._base.locks import Latch, UnlessSet
from jetsync._io.listener import Listener
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import LaneState
from jetsync._proto import frames
from jetsync._proto.late_answers import LATE
from jetsync._proto.page_runs import PageRuns, join_frames
from jetsync.events import DirectReadOperation
from jetsync.values.frame import FrameRun
from jetsync.values.server_info import encode_json
from jetsync.values.server_versions import NEEDS_PAGES
from jetsync.values.stored import StoredPage, messages_of, page_of, stored_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._api.mirrors import Reading
    from jetsync._hooks.calls import Entered
    from jetsync._proto.direct import PagedRead
    from jetsync.values.stored import Run, StoredMessage
    from jetsync.values.stream_info import StreamInfo

# The most messages of one request. Between pages the server waits for the next request. Measured
# with 128 bytes and two processors, in us per message: 2.1 to 2.2 with pages of 2,000 messages, 1.9
# with 4,000 and 1.7 with 10,000. On a busy machine, 2,000 and 4,000 are equally fast, and 10,000
# are 14 % slower.
PAGE: Final = 4000

# The most messages of one request for a wildcard, because the server looks at all subjects that
# match it before each page. With 1 million subjects this takes about 20 ms. Measured with them, in
# us per message: 12 with pages of 2,000 messages, 9 with 4,000, 5 with 10,000 and 3 with 40,000.
LARGEST_PAGE: Final = 32_000

# The most bytes of one request, without the headers that servers add. There is no flow control. A
# server drops a connection with 64 MiB pending, or one that reads nothing for ten seconds. 2 MiB
# fit into the buffers of the sockets. Measured as above, 1 to 16 MiB are equally fast.
PAGE_BYTES: Final = 2 << 20

# Seconds before the next request if no server answered; doubled each time up to the limit.
PAGE_RETRY_WAIT: Final = 0.05
PAGE_RETRY_WAIT_LIMIT: Final = 1.0

# The most requests for one page if replicas or mirrors answer that have fewer messages than the
# stream. If three of four answers come from such mirrors, one in 100 million pages fails.
TRIES: Final = 64

# Seconds before a lagging replica is asked again; doubled each time up to PAGE_RETRY_WAIT.
LAG_WAIT: Final = 0.002

# Seconds to wait for the stream's info if no server answered a request.
INFO_TIMEOUT: Final = 1.0

# Seconds of silence on an open page before the reader checks whether a replica is gone; doubled
# each time that the page is requested again.
SILENCE: Final = LATE

# Seconds after which a replica may be gone. Its heartbeats are a second apart, and servers call it
# offline after ten.
ABSENT: Final = 3.0

T = TypeVar("T")


def check_stream(
    context: Context,
    name: str,
    deadline: Deadline,
    *,
    feature: str = "a direct read of many messages",
    direct: bool = True,
    fresh: bool = False,
) -> KnownStream:
    """
    Return the stream if its server is 2.11 or later and, with *direct*, it allows direct gets.

    Args:
        context: The context of the request.
        name: The stream.
        deadline: The deadline of the calling operation.
        feature: The name of the unsupported feature, for the error.
        direct: Whether the stream has to allow direct gets.
        fresh: Ask the server even if the stream is known.

    Raises:
        NotSupportedError: The server is older. It might answer with a wrong message.
        DirectNotSupportedError: The stream does not allow direct gets.
        StreamNotFoundError: The stream does not exist.
    """
    known = connected(
        context, lambda until: context.streams.named(name, until, fresh=fresh), deadline
    )
    if known.level and (known.config.allow_direct or not direct):
        return known
    if not fresh:
        # The stream may have changed since it was last described.
        return check_stream(context, name, deadline, feature=feature, direct=direct, fresh=True)
    if known.level:
        raise errors.DirectNotSupportedError(name)
    server = known.version or context.server.version
    raise errors.NotSupportedError(feature, needs=NEEDS_PAGES, server=server)


class ReadPlan:
    """
    The engine of a read, and the decisions between its pages.
    """

    engine: PagedRead
    """The same one until the end of the read."""
    known: StreamInfo | None = None
    """The stream when the read began, if the read must not continue with another stream."""

    @property
    def reading(self) -> Reading:
        """The kind of read, which decides which mirrors may answer."""
        return "history"

    def recover(self, reader: PageReader) -> bool:
        """Return whether the open page has to be requested again, after it has ended."""
        del reader
        return False

    def extend(self, reader: PageReader) -> list[StoredMessage]:
        """
        Return messages from elsewhere, or have another page requested, when the engine is done.
        """
        del reader
        return []

    def check(self, reader: PageReader, messages: Sequence[StoredMessage]) -> None:
        """Raise an error if these messages must not be handed out."""


class PageReader:
    """
    The pages of one read; one thread at a time.

    Args:
        context: The context of the requests.
        stream: The stream.
        plan: Makes the requests and interprets the answers.
        name: The name of the reading method, for plugins.
        seconds: Seconds to wait for one page. The caller's own time does not count.
        patient: Whether each request of a list of subjects has that time, and not all of a page.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        plan: ReadPlan,
        *,
        name: str,
        seconds: float,
        patient: bool = False,
    ) -> None:
        self.context = context
        self.stream = stream
        self.plan = plan
        self.name = name
        self.seconds = seconds
        self._patient = patient
        # Seconds left for the open page.
        self.left: float = seconds
        #: The deadline of all pages together, if any.
        self.until: Deadline | None = None
        self._lag_wait = LAG_WAIT
        self._retry_wait = PAGE_RETRY_WAIT
        self._silence = SILENCE
        self._report_strays = StrayReports(context.connection, stream, acked=False).report
        # The last part of the reply subject of each request.
        self._numbers = itertools.count(1)
        self._box = Mailbox(context.connection.new_inbox().encode() + b".*", collect_denials=True)
        self._listener: Listener | None = None
        self._epoch = 0
        self._entered: Entered | None = None
        # The messages that arrived during the call, until the iteration begins.
        self._first: list[Run] = []
        # Whether the page of the last messages that arrived has ended.
        self._page_ended = False
        # Set by `close`, perhaps in another thread.
        self._over = Latch()

    @property
    def description(self) -> str:
        """The text for the repr of an iteration."""
        engine = self.plan.engine
        state = "ended" if engine.done and not self._first else "open"
        return f"{self.name} of {self.stream!r} {state} received={engine.received}"

    @property
    def _target(self) -> str:
        """The subject of the requests."""
        return f"{self.context.prefix}.DIRECT.GET.{self.stream}"

    def __enter__(self) -> None:
        """Begin an iteration. It calls :meth:`_raise` at its end."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """End the read."""
        self._end(None if isinstance(error, GeneratorExit) else error)

    def begin(self, deadline: Deadline) -> None:
        """
        Request the first page and wait for its first messages. Raise if the request is refused.
        """
        self.left = deadline.remaining()
        try:
            runs = self._next()
            if not runs:
                self._raise()
            # The last step, so that Ctrl-C at any earlier one ends the read.
            self._first = runs
        finally:
            if not self._first:
                # It failed, or there is no message.
                self.close()

    def close(self, iteration: Iteration[Any] | ListIteration[StoredMessage] | None = None) -> None:
        """End the read, and an iteration over it, now; any thread, safe to repeat."""
        self._over.set()
        self._first = []
        if iteration is None or iteration.close():
            self._end(None)
        else:
            # Another thread runs the iteration, or this is a signal handler that interrupted it.
            self.context.lane.interrupt(self._box)

    def messages(self, what: str) -> ListIteration[StoredMessage]:
        """
        Return an iterator over the messages. Dropping it ends the read.

        Args:
            what: The kind of object that is iterated over, for errors.
        """
        found = self._messages(shown_by(self.context))
        return ListIteration(self._until_over(found), what)

    def pages(self, what: str) -> Iteration[StoredPage]:
        """Return an iterator over non-empty pages, as :meth:`messages` does."""
        return Iteration(self._until_over(self._pages()), what)

    def payloads(self, what: str) -> Iteration[list[bytes | memoryview]]:
        """Return an iterator over lists of payloads, mostly views of the bytes that arrived."""
        return Iteration(self._until_over(self._payloads()), what)

    def _payloads(self) -> Generator[list[bytes | memoryview], None, None]:
        show = shown_by(self.context)
        while runs := self._next():
            while runs and not self._over.is_set():
                run = runs.pop(0)
                if show is not None:
                    yield [show(each).data for each in messages_of(run)]
                elif isinstance(run, FrameRun):
                    view, bounds = memoryview(run.data), run.bounds
                    yield [view[a:b] for a, b in zip(bounds[1::3], bounds[2::3], strict=True)]
                else:
                    yield [message.data for message in run]

    def _messages(
        self, show: Callable[[StoredMessage], StoredMessage] | None
    ) -> Generator[list[StoredMessage], None, None]:
        while runs := self._next():
            # The bytes of a run are released early, so that the next read reuses their memory.
            while runs:
                messages = messages_of(runs.pop(0))
                if self._over.is_set():
                    # Closed meanwhile, perhaps by a signal handler.
                    break
                if show is None:
                    yield messages
                else:
                    for message in messages:
                        yield [show(message)]

    def _pages(self) -> Generator[StoredPage, None, None]:
        show = shown_by(self.context)
        while runs := self._next(whole=True):
            page = page_of(runs)
            yield page if show is None else StoredPage([show(each) for each in page])

    def read_all(self) -> list[StoredMessage]:
        """Return all messages without showing them to plugins, or raise the error of the read."""
        found: list[StoredMessage] = []
        try:
            for messages in self._messages(None):
                found += messages
            self._raise()
        finally:
            self.close()
        return found

    def _until_over(self, items: Generator[T, None, None]) -> Generator[T, None, None]:
        """Yield *items*, end the read, and raise its error."""
        with self:
            # Another generator has the loop, see `jetsync._base.turn`.
            yield from items
            self._raise()

    def _raise(self) -> None:
        """Raise the error that ended the read, if there is one."""
        error = self.plan.engine.take_error()
        if error is not None:
            try:
                raise error
            finally:
                # The traceback holds this frame, and this frame would hold the error: a cycle.
                del error

    def _next(self, *, whole: bool = False) -> list[Run]:
        """
        Return the next messages, or none at the end. Errors are kept until all messages are taken.

        Args:
            whole: Whether to wait for the rest of the page.
        """
        engine = self.plan.engine
        # The messages that arrived during the call come first.
        runs, self._first = self._first, []
        goes_on = True
        while goes_on and not (runs and (self._page_ended or not whole)):
            if self._over.is_set() or engine.error is not None:
                break
            try:
                goes_on = self._step(runs)
            except Exception as error:  # noqa: BLE001  (also an error that a plugin raises instead)
                engine.fail(error)
                try:
                    self._end(error)
                except Exception as raised:  # noqa: BLE001  (the error of a plugin)
                    engine.fail(raised)
        if self._over.is_set():
            # `close` has caused this error, so it is not reported.
            engine.take_error()
            return []
        if not runs:
            self._unsubscribe()
            if engine.error is not None and (held := engine.release()):
                return [stored_messages(held)]
        return runs

    def _step(self, runs: list[Run]) -> bool:
        """Add what has arrived to *runs*, or request a page; return False at the end."""
        engine = self.plan.engine
        if engine.is_open:
            if self._wait():
                arrived = self._arrived()
                self.plan.check(self, page_of(arrived))
                runs += arrived
                self._page_ended = not self.plan.engine.is_open and self._end_page()
            return True
        if engine.verdict == "unanswered":
            self._wait_for_server()
        elif engine.done:
            found = self.plan.extend(self)
            if found:
                runs.append(found)
            if runs or engine.done:
                self._page_ended = True
                return False
        self._ask()
        return True

    def _arrived(self) -> list[Run]:
        """Return the messages that have arrived, in non-empty runs."""
        runs: list[Run] = []
        engine = self.plan.engine
        for arrived in join_frames(self._box.drain()):
            taken = engine.take(arrived)
            if engine.strays.fresh:
                self._report_strays(engine.strays)
            if taken:
                runs.append(taken if isinstance(taken, FrameRun) else stored_messages(taken))
        return runs

    def _end_page(self) -> bool:
        """
        Finish a page that is complete, and request the next one before its messages are handed out.

        Returns whether it is complete. If not, it has to be requested again.
        """
        engine = self.plan.engine
        if engine.verdict == "stranger":
            self._check_stranger()
            return False
        if engine.verdict == "unanswered" or self.plan.recover(self):
            return False
        if engine.error is not None:
            raise engine.error
        self._leave_plugins(None)
        if engine.end_page():
            # A page that brought nothing is requested again within its own time.
            self.left, self._lag_wait = self.seconds, LAG_WAIT
        self._retry_wait, self._silence = PAGE_RETRY_WAIT, SILENCE
        # Without a connection, the request would wait and delay the messages that have arrived.
        is_open = self.context.lane.state is LaneState.OPEN
        if not engine.done and engine.reads_ahead and is_open:
            self._ask()
        return True

    def _ask(self) -> None:
        """Send the request for the next page."""
        context, engine = self.context, self.plan.engine
        listener = self._listener
        if listener is None:
            listener = self._listener = Listener(context.lane, self._box)
            self._box.express = PageRuns(self._box.push, self._box.interest, listener.sid).take
        # Each request has its own reply subject, so that late answers are not mistaken for others.
        reply = b"%b%x" % (self._box.interest[:-1], next(self._numbers))
        self._box.take_denials()
        request = engine.open(reply, known_answers(context, self.stream, self.plan.reading))
        try:
            if self._entered is None and context.plugins.enter_fetch is not None:
                subject = request.get("next_by_subj")
                operation = DirectReadOperation(
                    name=self.name,
                    stream=self.stream,
                    subjects=request.get("multi_last", (subject,) if subject else ()),
                    sequence=request.get("seq"),
                    batch=request.get("batch"),
                    max_bytes=request["max_bytes"],
                    timeout=self.seconds,
                )
                self._entered = context.plugins.enter_fetch(operation)
            body = encode_json(request)
            context.connection.check()
            context.connection.check_size(len(body))
            block = frames.pub(self._target.encode(), reply, body)
            with self.page_time() as deadline:
                until = UnlessSet(deadline.at, deadline.total, self._over)
                self._epoch = listener.write(block, until)
        except Exception:
            engine.lost()
            raise

    def _wait(self) -> bool:
        """Wait for frames of the open page; return False if it has to be requested again."""
        box, engine = self._box, self.plan.engine
        while not box.frames:
            if self._over.is_set():
                return False
            if box.failure is not None:
                raise_failure(box.failure)
            for subject, denial in box.take_denials():
                if subject == self._target.encode():
                    raise_failure(denial)
            if box.take_lost() >= self._epoch:
                engine.lost()
                return False
            with self.page_time() as deadline:
                if self.context.lane.wait(box, deadline.at_most(self._silence)):
                    continue
                # The server may be gone, too.
                self.context.connection.probe()
                if not deadline.expired() and self._may_be_gone(deadline) and not box.frames:
                    self._silence *= 2.0
                    engine.lost()
                    return False
            if self.left <= 0.0:
                if engine.tries:
                    raise errors.IncompleteMirrorError(self.stream, engine.mirror)
                raise errors.RequestTimeoutError(self._target, self.seconds)
        return True

    def _may_be_gone(self, deadline: Deadline) -> bool:
        """
        Return whether the request may be lost together with the replica that received it.

        No server reports such a loss. A replica that is only slow, because it searches many
        messages, must not be asked twice.
        """
        try:
            info = stream_info(self.context, self.stream, deadline.at_most(INFO_TIMEOUT))
        except TRANSIENT:
            return False
        self.check_same(info)
        cluster = info.cluster
        if cluster is None or not cluster.replicas:
            return False
        absent = any(peer.offline or (peer.active or 0.0) > ABSENT for peer in cluster.replicas)
        if cluster.leader is None or absent:
            return True
        if cluster.leader_since is None or info.ts is None:
            return False
        return info.ts - cluster.leader_since < dt.timedelta(seconds=self.seconds)

    def _wait_for_server(self) -> None:
        """
        Wait before the next request, because no server answers. Raise if none ever will.

        No server answers while a cluster elects a leader, or while a server restarts.
        """
        with self.page_time() as deadline:
            # Without a leader, this request is not answered either.
            with contextlib.suppress(*TRANSIENT):
                probe = deadline.at_most(INFO_TIMEOUT)
                check_stream(self.context, self.stream, probe, fresh=True)
            if deadline.remaining() <= self._retry_wait:
                raise no_server(self.stream, self._target, self.seconds)
            self.context.lane.wait(self._box, deadline.at_most(self._retry_wait))
        self._retry_wait = min(2.0 * self._retry_wait, PAGE_RETRY_WAIT_LIMIT)

    def _check_stranger(self) -> None:
        """Find out whether the other stream that answered may do so, or count one more attempt."""
        stranger, reading = self.plan.engine.answered_by, self.plan.reading
        with self.page_time() as deadline:
            if stranger and may_answer(self.context, stranger, self.stream, reading, deadline):
                return
        self.try_again()

    # For plans.

    def try_again(self, *, wait: bool = False) -> None:
        """
        Count one more attempt, because the server that answered has fewer messages than the stream.

        Args:
            wait: Whether to wait until a lagging server may have caught up.

        Raises:
            IncompleteMirrorError: There were too many attempts, or no time is left.
        """
        engine = self.plan.engine
        engine.count_try()
        if engine.tries > TRIES or self.left <= self._lag_wait:
            raise errors.IncompleteMirrorError(self.stream, engine.mirror)
        if wait:
            self.wait_for_lag()

    def wait_for_lag(self) -> None:
        """Wait briefly for a lagging replica; raise if not enough time is left."""
        with self.page_time() as deadline:
            if deadline.remaining() <= self._lag_wait:
                raise errors.RequestTimeoutError(self._target, self.seconds)
            self.context.connection.closing.wait(self._lag_wait)
        self._lag_wait = min(2.0 * self._lag_wait, PAGE_RETRY_WAIT)

    def first_at_leader(self, request: dict[str, object]) -> StoredMessage | None:
        """
        Return the leader's first message for a request; None if there is none.

        Raises:
            PermissionDeniedError: This user may not ask the leader.
        """
        with contextlib.suppress(errors.MessageNotFoundError):
            return self._call(lambda until: leader_get(self.context, self.stream, request, until))
        return None

    def check_same(self, info: StreamInfo) -> None:
        """Raise an error if this is another stream than the one that the read began with."""
        known = self.plan.known
        if known is None or info.created == known.created:
            return
        stored = known.state.last_ts or known.ts
        replaced = stored is None or self._call(
            lambda until: is_another(
                self.context,
                self.stream,
                info.state,
                until,
                last=known.state.last_seq,
                stored=stored,
                is_exact=known.state.last_ts is not None,
            )
        )
        if replaced:
            raise errors.StreamNotFoundError(description=REPLACED, stream=self.stream)
        self.plan.known = attrs.evolve(known, created=info.created)

    def info(self, subjects: str | None = None) -> StreamInfo:
        """Fetch the stream's info from the leader, with the subjects that a wildcard matches."""

        def ask(send: Callable[[Deadline], T]) -> T:
            # Only the request that fails is repeated, and not the whole list.
            answer = self._call(send)
            if self._patient and subjects is not None:
                self.left = self.seconds
            return answer

        return read_info(self.context, self.stream, ask, subjects_filter=subjects)

    def _call(self, call: Callable[[Deadline], T]) -> T:
        """Return the result of a request within the page's time, as :func:`connected` does."""
        with self.page_time() as deadline:
            return connected(self.context, call, deadline)

    @contextlib.contextmanager
    def page_time(self) -> Iterator[Deadline]:
        """Yield a deadline with the page's remaining time, and subtract the time of the block."""
        started = time.monotonic()
        if self.until is not None:
            self.left = min(self.left, self.until.remaining())
        try:
            # Errors name the whole time.
            yield Deadline(started + max(self.left, 0.0), self.seconds)
        finally:
            self.left -= time.monotonic() - started

    # The end of the read.

    def _end(self, error: BaseException | None) -> None:
        """Stop requesting, drop later answers and notify the plugins."""
        self.plan.engine.stop()
        self._unsubscribe()
        self._leave_plugins(error)

    def _leave_plugins(self, error: BaseException | None) -> None:
        """Leave the wrapper hooks around the page with its outcome."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.leave(self.plan.engine.page_received, error)

    def _unsubscribe(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.end()
