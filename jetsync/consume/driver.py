"""
The driver of a consume engine: it sends pulls and probes, and feeds the engine with frames.

A user's thread drives it, one at a time. Nothing here waits except :meth:`ConsumeDriver.wait`.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from jetsync._base import log as _log
from jetsync._base.deadline import Deadline
from jetsync._io.outbox import LaneState
from jetsync._proto import frames
from jetsync._proto.consume import ConsumeEngine
from jetsync.consume.acks import give_back
from jetsync.consume.inbox import PullInbox, enter_fetch, report_silence, report_status
from jetsync.errors import (
    CallInSignalHandlerError,
    DisconnectedError,
    InvalidGroupError,
    NoHeartbeatError,
    TransportError,
)
from jetsync.events import PullOutcome

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._hooks.calls import Entered
    from jetsync._proto.consume import ConsumeOptions, StatusNote
    from jetsync._proto.pins import Pins
    from jetsync._proto.pull import PullRequest
    from jetsync.values.frame import Frame

# Seconds of one wait for a connection, after which the end of the consumption is noticed.
CONNECTION_POLL: Final = 0.1

# The number of refused pulls in a row at which a warning is logged, because it may go on forever.
REFUSALS_WARNED: Final = 5

_logger = _log.get_logger("jetsync.consume")


class ConsumeDriver:
    """
    The pulls of one consumption; used by one thread at a time.

    Args:
        context: The context that the messages are pulled through.
        options: What to pull.
        acked: Whether the consumer wants acknowledgements.
        recovers: Whether lost connections and missed heartbeats are waited out.
        pins: The pin ids of the consumer's priority groups.
    """

    def __init__(
        self,
        context: Context,
        options: ConsumeOptions,
        *,
        acked: bool,
        recovers: bool,
        pins: Pins | None,
    ) -> None:
        self._context = context
        self._lane = context.lane
        self._options = options
        self._acked = acked
        self._recovers = recovers
        self._inbox = PullInbox(context)
        self.engine: ConsumeEngine = ConsumeEngine(self._inbox.engine, options, pins)
        consumer = f"{options.stream}.{options.consumer}"
        self._subject = f"{context.prefix}.CONSUMER.MSG.NEXT.{consumer}".encode()
        self._info_subject = f"{context.prefix}.CONSUMER.INFO.{consumer}".encode()
        # The plugins around the open pulls, by the reply subjects of the pulls.
        self._entered: dict[bytes, Entered] = {}
        self.is_open: bool = True
        # Whether something was due that could not be sent.
        self._blocked = False
        # How often the connection was lost.
        self.losses: int = 0

    def wake(self) -> None:
        """Make the thread that waits look again; thread-safe."""
        self._lane.interrupt(self._inbox.box)

    def step(self) -> None:
        """Take what has arrived, and send what is due."""
        if not self.is_open:
            return
        engine, now = self.engine, time.monotonic()
        if self._inbox.box.ready:
            self._take_news(now)
        self._blocked = self._lane.state is not LaneState.OPEN
        if not self._blocked:
            silent_for = engine.look(now)
            if silent_for is not None:
                self._report_silence(silent_for)
        if not self._recovers and (self.losses or engine.misses):
            engine.fail(
                NoHeartbeatError(consumer=self._options.consumer, stream=self._options.stream)
            )
        if not self._blocked:
            self._send(now)
        if self._entered:
            self._leave_ended()

    def _take_news(self, now: float) -> None:
        """Take frames, losses and refusals out of the mailbox."""
        box, engine = self._inbox.box, self.engine
        box.clear_interrupt()
        if box.frames:
            self._receive(now)
        lost = box.take_lost()
        if lost:
            engine.lost(lost, now)
            self.losses += 1
        for subject, denial in box.take_denials():
            if subject == self._subject:
                engine.fail(denial)
        if box.failure is not None:
            engine.fail(box.failure)

    def wait(self, deadline: Deadline) -> None:
        """Wait until there is something to do, at most until *deadline*."""
        box = self._inbox.box
        if self._blocked:
            # The lane wakes writers as soon as there is a connection, and room to write.
            if not box.ready:
                with contextlib.suppress(TransportError):
                    self._lane.write(b"", deadline.at_most(CONNECTION_POLL))
            return
        due = self.engine.next_look()
        if due is not None and due < deadline.at:
            deadline = Deadline(due, deadline.total)
        self._lane.wait(box, deadline)

    def close(self, *, keep: bool) -> None:
        """
        Send no more pulls, unsubscribe and give back what will not be taken; safe to repeat.

        With *keep*, the messages that have arrived can still be taken.
        """
        if not self.is_open:
            return
        self.is_open = False
        engine, inbox = self.engine, self._inbox
        if keep:
            self._receive(time.monotonic())
        unused, engine.refused = engine.refused, []
        if not keep:
            unused += self._empty_buffer()
        # Servers before 2.14 refuse a pull for its group and still serve it.
        maybe_served = isinstance(engine.error, InvalidGroupError)
        if engine.pulls.is_idle and not inbox.box.frames and not maybe_served:
            inbox.close()
            if self._acked:
                give_back(self._lane, unused)
        else:
            inbox.abandon(unused, acked=self._acked)
        engine.pulls.clear()
        if self._entered:
            self._leave_ended()

    def discard(self) -> None:
        """Give back what a call of :meth:`close` has kept."""
        unused = self._empty_buffer()
        if self._acked:
            give_back(self._lane, unused)

    def _empty_buffer(self) -> list[Frame]:
        """Take all frames out of the buffer, while other threads may take some."""
        taken: list[Frame] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.engine.buffer.popleft())
        return taken

    def _receive(self, now: float) -> None:
        engine = self.engine
        for note in engine.receive(self._inbox.box.drain(), now):
            self._report(note)
        if engine.refused:
            refused, engine.refused = engine.refused, []
            if self._acked:
                give_back(self._lane, refused)

    def _send(self, now: float) -> None:
        """Send the pulls that are due, and the probe of the consumer."""
        engine = self.engine
        while (request := engine.due(now)) is not None:
            if not self._pull(request):
                self._blocked = True
                return
        probe = engine.probe_due(now)
        if probe is not None:
            with contextlib.suppress(TransportError, CallInSignalHandlerError):
                self._lane.write(frames.pub(self._info_subject, probe, b""), Deadline(now, 0.0))

    def _pull(self, request: PullRequest) -> bool:
        """Send one pull; return False if that is not possible now."""
        options = self._options
        entered = enter_fetch(
            self._context,
            "consume",
            options.stream,
            options.consumer,
            request,
            timeout=request.expires,
        )
        try:
            pull = self._inbox.pull(self._subject, request, Deadline(time.monotonic(), 0.0))
        except BaseException as error:
            if entered is not None:
                with contextlib.suppress(type(error)):
                    entered.leave(None, error)
            # The call that a signal handler interrupted sends the pull later.
            if isinstance(error, (DisconnectedError, CallInSignalHandlerError)):
                return False
            raise
        if entered is not None:
            self._entered[pull.subject] = entered
        return True

    def _leave_ended(self) -> None:
        """Leave the plugins around pulls that have ended."""
        pulls = self.engine.pulls
        for subject in [subject for subject in self._entered if subject not in pulls]:
            self._entered.pop(subject).leave(None, None)

    def _report(self, note: StatusNote) -> None:
        options, status = self._options, note.status
        report_status(self._context, options.stream, options.consumer, status, note.outcome)
        if note.outcome is PullOutcome.RETRIED and self.engine.refusals == REFUSALS_WARNED:
            _logger.warning(
                _log.PULLS_REFUSED,
                stream=options.stream,
                consumer=options.consumer,
                code=status.code,
                description=status.description,
            )

    def _report_silence(self, silent_for: float) -> None:
        options = self._options
        self._context.connection.probe()
        _logger.warning(
            _log.HEARTBEAT_MISSED,
            stream=options.stream,
            consumer=options.consumer,
            silent_for=round(silent_for, 3),
        )
        report_silence(
            self._context, options.stream, options.consumer, options.heartbeat, silent_for
        )
