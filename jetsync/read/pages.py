"""
Driving a read in pages: asking, waiting, going on after what passes.

A :class:`PageReader` runs one engine of :mod:`jetsync._proto.direct` in the thread that iterates.
The next page is asked for as soon as the end of the open one was seen, before its messages are
handed out: the server works while the caller does, and no more than one page is ahead of it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from jetsync._api.messages import leader_get, shown_by
from jetsync._api.mirrors import known_answers, may_answer
from jetsync._api.streams import info as stream_info
from jetsync._base.deadline import Deadline
from jetsync._io.connection import raise_failure
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import LaneState
from jetsync._proto import frames
from jetsync._proto.direct import NEEDS_PAGES, PagedRead
from jetsync.errors import (
    ConnectionLostError,
    DirectNotSupportedError,
    IncompleteMirrorError,
    JetStreamNotEnabledError,
    MessageNotFoundError,
    NotSupportedError,
    RequestTimeoutError,
    TemporarilyUnavailableError,
    TransportError,
)
from jetsync.events import DirectReadOperation
from jetsync.values.stored import StoredMessage, StoredPage, stored_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._api.mirrors import Reading
    from jetsync._hooks.calls import Entered
    from jetsync._proto.direct import PageRequest
    from jetsync.values.frame import Frame

PAGE: Final = 2000
"""
Messages of one request at most.

Measured with payloads of 16 bytes to 64 KiB: pages of 1000 to 10 000 messages are equally fast on
an idle machine, and smaller ones are faster on a busy one.
"""

PAGE_BYTES: Final = 2 << 20
"""
Bytes of one request, as nothing slows its answer down: 2 MiB, without what servers add.

A server drops a connection that has 64 MiB waiting or takes nothing for ten seconds; this much
fits into the buffers of the sockets. Measured as above, 1 to 16 MiB are equally fast.
"""

RETRY_WAIT: Final = 0.05
"""Seconds before a page is asked for again that nobody took; doubled each time."""

RETRY_WAIT_LIMIT: Final = 1.0

TRIES: Final = 64
"""
How often a page is asked for again, of which another stream or a replica has less: with three
mirrors in four of those that answer, one in 100 million pages is in vain.
"""

LAG_WAIT: Final = 0.002
"""Seconds before a server is asked again that has not got far enough; doubled each time."""

PROBE_WAIT: Final = 1.0
"""Seconds to wait for the stream's info when nobody answered a request."""

SILENCE: Final = 2.0
"""
Seconds without a message of an open page after which to look whether a replica has gone; doubled
each time that the page is asked for again.
"""

PASSING: Final = (
    JetStreamNotEnabledError,
    RequestTimeoutError,
    TemporarilyUnavailableError,
    TransportError,
)
"""Errors of asking for the stream that say nothing about it."""

T = TypeVar("T")
EngineT = TypeVar("EngineT", bound=PagedRead)


def require_pages(known: KnownStream, server: str) -> None:
    """
    Raise unless *known* answers direct reads of many messages.

    Raises:
        NotSupportedError: Its server is too old, and might answer with another message.
        DirectNotSupportedError: The stream does not allow direct gets.
    """
    if not known.level:
        raise NotSupportedError(
            "a direct read of many messages", needs=NEEDS_PAGES, server=known.version or server
        )
    if not known.config.allow_direct:
        raise DirectNotSupportedError(known.name)


def repeated(call: Callable[[Deadline], T], deadline: Deadline) -> T:
    """
    Return what *call* returns, which asks something and stores nothing.

    It is made again if the connection was lost, or if nobody answered: a request that meets a
    change of leader gets no answer, however long it waits.
    """
    while True:
        attempt = deadline.at_most(max(PROBE_WAIT, deadline.remaining() / 2.0))
        try:
            return call(attempt)
        except (ConnectionLostError, TemporarilyUnavailableError):
            if deadline.remaining() <= RETRY_WAIT:
                raise
            time.sleep(RETRY_WAIT)
        except RequestTimeoutError as error:
            if deadline.expired():
                raise RequestTimeoutError(error.subject, deadline.total) from error


def require_level(context: Context, stream: str, deadline: Deadline, feature: str) -> None:
    """
    Raise NotSupportedError if the stream's server is older than 2.11.
    """
    for fresh in (False, True):
        ask = functools.partial(context.streams.named, stream, fresh=fresh)
        known = repeated(ask, deadline)
        if known.level:
            return
    raise NotSupportedError(
        feature, needs=NEEDS_PAGES, server=known.version or context.server.version
    )


def check_stream(
    context: Context, name: str, deadline: Deadline, *, fresh: bool = False
) -> KnownStream:
    """
    Return the stream if it answers direct reads of many messages; with *fresh* it is asked anew.

    Raises: as :func:`require_pages`, and StreamNotFoundError.
    """
    known = repeated(lambda until: context.streams.named(name, until, fresh=fresh), deadline)
    try:
        require_pages(known, context.server.version)
    except NotSupportedError:
        if fresh:
            raise
        # It may have been changed since it was asked for.
        return check_stream(context, name, deadline, fresh=True)
    return known


class PageReader(Generic[EngineT]):
    """
    The pages of one read; one thread at a time.

    Args:
        context: Where to read.
        stream: The stream.
        engine: What to ask and what the answers mean.
        name: The method that reads, for plugins.
        seconds: How long to wait for one page. Time that the caller spends with the messages does
            not count.
    """

    def __init__(
        self, context: Context, stream: str, engine: EngineT, *, name: str, seconds: float
    ) -> None:
        self._sid: bytes | None = None
        self.context = context
        self.stream = stream
        self.engine = engine
        self.name = name
        self.seconds = seconds
        self._where = f"{context.prefix}.DIRECT.GET.{stream}".encode()
        self._numbers = itertools.count(1)
        self._inbox = b""
        self._box = Mailbox()
        self._line = b""
        self._epoch = 0
        self._left = seconds
        """Seconds left for the open page."""

        self._pause = RETRY_WAIT
        self._silence = SILENCE
        self._lag_wait = LAG_WAIT
        self._tries = 0
        self._mirror: str | None = None
        """Who had less than the stream when it answered last."""

        self._page_received = 0
        self._pages_ended = 0
        self._run_began = 0
        """How many pages had ended as the last messages were taken."""

        self._entered: Entered | None = None
        self._error: Exception | None = None
        self._ready: list[StoredMessage] | None = None
        """What came with the call, before the iteration began; ``None`` from then on."""

    def __del__(self) -> None:
        # Nobody iterates any more; what is still on its way is dropped.
        self._leave()

    @property
    def state(self) -> str:
        """One word for a repr."""
        return "ended" if self.engine.done and not self._ready else "open"

    def begin(self, deadline: Deadline) -> None:
        """
        Ask for the first page and wait until it begins to come, so that a refusal is raised here.
        """
        self._left = deadline.remaining()
        try:
            self._ready = self._next()
            if not self._ready:
                self._raise()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """
        End the read now; safe to repeat.
        """
        self.engine.done = True
        self._ready = []
        self._leave()
        self._leave_page(None)

    def messages(self) -> Generator[StoredMessage, None, None]:
        """Yield the messages; every way out ends the read."""
        show = shown_by(self.context)
        with self._iteration():
            while run := self._next_run():
                if show is None:
                    yield from run
                else:
                    for message in run:
                        yield show(message)

    def pages(self) -> Generator[StoredPage, None, None]:
        """Yield the messages by pages, none of them empty; every way out ends the read."""
        show = shown_by(self.context)
        with self._iteration():
            for page in self._joined():
                yield StoredPage(page if show is None else [show(each) for each in page])

    def _joined(self) -> Iterator[list[StoredMessage]]:
        """Yield what came of each page, as soon as its end is known."""
        page: list[StoredMessage] = []
        number = 0
        while run := self._next_run():
            if page and self._run_began > number:
                # The end of a page came alone: what came behind it is of the next one.
                yield page
                page = []
            number = self._run_began
            page += run
            if self._pages_ended > number:
                yield page
                page = []
        if page:
            yield page

    def _next_run(self) -> list[StoredMessage]:
        """Return what came with the call, and then what comes; none at the end."""
        run, self._ready = self._ready, None
        return self._next() if run is None else run

    @contextlib.contextmanager
    def _iteration(self) -> Iterator[None]:
        """Raise behind the block what ended the read; every way out ends it."""
        error: BaseException | None = None
        try:
            yield
            self._raise()
        except BaseException as raised:
            error = None if isinstance(raised, GeneratorExit) else raised
            raise
        finally:
            self.engine.done = True
            self._leave()
            self._leave_page(error)

    def everything(self) -> list[StoredMessage]:
        """Return all messages, of which plugins see nothing yet, or raise why they did not come."""
        found: list[StoredMessage] = []
        try:
            while run := self._next():
                found += run
            self._raise()
        finally:
            self.close()
        return found

    def _raise(self) -> None:
        """Raise what ended the read, if it was a fault."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # The traceback holds this frame and this frame would hold the error: a cycle.
                del error

    def _next(self) -> list[StoredMessage]:
        """
        Return the next messages, none at the end; a fault is kept until all that came is out.
        """
        run: list[StoredMessage] = []
        while not run and self._error is None:
            try:
                if not self.engine.is_open and not self._go_on():
                    break
                if self._wait():
                    self._run_began = self._pages_ended
                    run = stored_messages(self.engine.take(self._box.drain()))
                    if not self.engine.is_open:
                        self._end_page()
            except Exception as error:  # noqa: BLE001  (also what a plugin puts in its place)
                self._fail(error)
        if not run and self._error is not None:
            run = stored_messages(self.rest())
        return run

    def rest(self) -> Sequence[Frame]:
        """Return what the engine keeps back, as nothing more will come."""
        return ()

    def _go_on(self) -> bool:
        """Ask for the next page; return False if there is none."""
        engine = self.engine
        if engine.unanswered:
            self._look_why_unanswered()
        elif engine.done and not self.more():
            self._leave()
            return False
        self._ask()
        return True

    def more(self) -> bool:
        """Return whether the engine has more to ask, though it said that it is done."""
        return False

    def recovers(self) -> bool:
        """Return whether the engine can go on after all, though its page ended without an end."""
        return False

    @property
    def reading(self) -> Reading:
        """What a mirror has to have in order to answer."""
        return "history"

    def _look_who_answered(self, stranger: str) -> None:
        """See that the page may be asked for again, which another stream has answered."""
        with self.spending() as deadline:
            if stranger and may_answer(self.context, stranger, self.stream, self.reading, deadline):
                return
        self._mirror = stranger or None
        self.try_again()

    def try_again(self, *, wait: bool = False) -> None:
        """
        Count how often a page has to be asked for again, as who answered has less than the stream.

        Args:
            wait: Whether to give it a moment.

        Raises:
            IncompleteMirrorError: That was too often.
        """
        self._tries += 1
        if self._tries > TRIES or self._left <= self._lag_wait:
            raise IncompleteMirrorError(self.stream, self._mirror)
        if wait:
            with self.spending():
                time.sleep(self._lag_wait)
            self._lag_wait = min(2.0 * self._lag_wait, RETRY_WAIT)

    def first_at_leader(self, request: dict[str, object]) -> StoredMessage | None:
        """
        Return the first message that the leader has; None if there is none.

        Raises:
            PermissionDeniedError: This user may not ask it.
        """
        with self.spending() as deadline, contextlib.suppress(MessageNotFoundError):
            return repeated(
                lambda until: leader_get(self.context, self.stream, request, until), deadline
            )
        return None

    def _end_page(self) -> None:
        """See the end of a page, and ask for the next one before this one's messages are taken."""
        if self.engine.stranger is not None:
            self._look_who_answered(self.engine.stranger)
            return
        if self.engine.unanswered or self.recovers():
            return
        if self.engine.error is not None:
            raise self.engine.error
        self._leave_page(None)
        self._pages_ended += 1
        if self.engine.received > self._page_received:
            # A page that brought nothing is asked for again within its own time.
            self._left = self.seconds
            self._tries, self._lag_wait, self._mirror = 0, LAG_WAIT, None
        self._pause, self._silence = RETRY_WAIT, SILENCE
        # Without a connection the asking would wait, and keep back what has come.
        if not self.engine.done and self.context.lane.state is LaneState.OPEN:
            self._ask()

    def _ask(self) -> None:
        """Send the request for the next page."""
        context, engine = self.context, self.engine
        if self._sid is None:
            self._inbox = context.connection.new_inbox().encode()
            self._box = Mailbox(self._inbox + b".*", hears_denials=True)
            self._sid, self._line = context.connection.open_box(self._box.interest, self._box)
        # A subject of its own for each request: answers that come late can not be taken for others.
        reply = b"%b.%x" % (self._inbox, next(self._numbers))
        self._box.take_denials()
        engine.trusted = known_answers(context, self.stream, self.reading)
        request = engine.open(reply)
        if self._entered is None:
            self._page_received = engine.received
        try:
            if self._entered is None and context.plugins.enter_fetch is not None:
                self._entered = context.plugins.enter_fetch(self._operation(request))
            body = request.body()
            context.connection.check()
            context.connection.check_size(len(body))
            block = self._line + frames.pub(self._where, reply, body)
            with self.spending() as deadline:
                self._epoch = context.lane.write(block, deadline)
        except BaseException:
            engine.lost()
            raise
        self._line = b""
        if context.lane.lost_epoch >= self._epoch:
            self._box.lost(context.lane.lost_epoch)

    def _operation(self, request: PageRequest) -> DirectReadOperation:
        return DirectReadOperation(
            name=self.name,
            stream=self.stream,
            subjects=request.subjects or ((request.subject,) if request.subject else ()),
            sequence=request.sequence,
            batch=request.batch,
            max_bytes=request.max_bytes,
            timeout=self.seconds,
        )

    def _wait(self) -> bool:
        """Wait for frames of the open page; return False if it has to be asked for again."""
        box = self._box
        while not box.frames:
            if box.failure is not None:
                raise_failure(box.failure)
            for subject, denial in box.take_denials():
                if subject == self._where:
                    raise_failure(denial)
            if box.take_lost() >= self._epoch:
                self.engine.lost()
                return False
            with self.spending() as deadline:
                if self.context.lane.wait(box, deadline.at_most(self._silence)):
                    continue
                if not deadline.expired() and self._may_be_gone(deadline) and not box.frames:
                    self._silence *= 2.0
                    self.engine.lost()
                    return False
            if self._left <= 0.0:
                if self._tries:
                    raise IncompleteMirrorError(self.stream, self._mirror)
                raise RequestTimeoutError(self._where.decode(), self.seconds)
        return True

    def _may_be_gone(self, deadline: Deadline) -> bool:
        """
        Return whether the request may have gone down with the replica that had it.

        Nobody is told so. Who only takes its time, as it looks through much, is not asked twice.
        """
        try:
            probe = deadline.at_most(PROBE_WAIT)
            info = stream_info(self.context, self.stream, probe)
        except PASSING:
            return False
        cluster = info.cluster
        if cluster is None or not cluster.replicas:
            return False
        if cluster.leader is None or any(peer.offline for peer in cluster.replicas):
            return True
        if cluster.leader_since is None or info.ts is None:
            return False
        return info.ts - cluster.leader_since < dt.timedelta(seconds=self.seconds)

    def _look_why_unanswered(self) -> None:
        """
        Wait a little if the stream should answer and nobody does; raise if it never will.

        So it is while a cluster elects a leader, or a server starts again.
        """
        with self.spending() as deadline:
            # Leaderless it does not answer this either.
            with contextlib.suppress(*PASSING):
                probe = deadline.at_most(PROBE_WAIT)
                check_stream(self.context, self.stream, probe, fresh=True)
            if deadline.remaining() <= self._pause:
                raise DirectNotSupportedError(
                    self.stream, needs="a server that answers them, which none does at the moment"
                )
            self.context.lane.wait(self._box, deadline.at_most(self._pause))
        self._pause = min(2.0 * self._pause, RETRY_WAIT_LIMIT)

    @contextlib.contextmanager
    def spending(self) -> Iterator[Deadline]:
        """Give what is left of the page's time to the block, and note what it took."""
        started = time.monotonic()
        try:
            # The error of a deadline names the whole time.
            yield Deadline(started + max(self._left, 0.0), self.seconds)
        finally:
            self._left -= time.monotonic() - started

    def _fail(self, error: Exception) -> None:
        """Keep a fault until all that came before it is handed out."""
        self.engine.done = True
        self.engine.error = None
        self._error = error
        self._leave()
        try:
            self._leave_page(error)
        except Exception as raised:  # noqa: BLE001  (the same, or what a plugin puts in its place)
            self._error = raised

    def _leave_page(self, error: BaseException | None) -> None:
        """Let the plugins around the page see its end."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.leave(self.engine.received - self._page_received, error)

    def _leave(self) -> None:
        """Unsubscribe; what is still on its way is dropped."""
        sid, self._sid = self._sid, None
        if sid is not None:
            self.context.lane.leave(sid)
