"""
What connects a consume engine to the connection: pulls and probes out, frames in, events told.

Driven by one thread at a time, which is a user's: there is no thread of its own. Nothing here waits
except :meth:`ConsumeDriver.wait`.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from jetsync import events
from jetsync._base import log as _log
from jetsync._base.deadline import Deadline
from jetsync._io.outbox import LaneState
from jetsync._proto import frames
from jetsync._proto.consume import ConsumeEngine
from jetsync.consume.inbox import PullInbox, give_back
from jetsync.errors import (
    CallInSignalHandlerError,
    DisconnectedError,
    InvalidGroupError,
    TransportError,
)

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._hooks.calls import Entered
    from jetsync._proto.consume import ConsumeOptions, StatusNote
    from jetsync._proto.pins import Pins
    from jetsync._proto.pull import PullRequest
    from jetsync.values.frame import Frame

LOOK: Final = 0.1
"""Seconds between two looks at whether a consumption goes on, while there is no connection."""

REFUSALS_TOLD: Final = 5
"""After how many refusals in a row a warning is logged: it may go on like that for ever."""

_logger = _log.get_logger("jetsync.consume")


class ConsumeDriver:
    """
    The pulls of one consumption; used by one thread at a time.

    Args:
        context: Where to pull.
        options: What to pull.
        acked: Whether the consumer wants acknowledgements.
        pins: The pins of the consumer's groups.
    """

    def __init__(
        self,
        context: Context,
        options: ConsumeOptions,
        *,
        acked: bool,
        pins: Pins | None = None,
    ) -> None:
        self._context = context
        self._options = options
        self._acked = acked
        self._inbox = PullInbox(context)
        self.engine = ConsumeEngine(self._inbox.engine, options, pins)
        consumer = f"{options.stream}.{options.consumer}"
        self._subject = f"{context.prefix}.CONSUMER.MSG.NEXT.{consumer}".encode()
        self._info_subject = f"{context.prefix}.CONSUMER.INFO.{consumer}".encode()
        self._entered: dict[bytes, Entered] = {}
        """The plugins around the pulls that are open."""

        self.is_open = True
        self._behind = False
        """Whether something was due that could not be sent."""

        self.losses = 0
        """How often the connection was lost."""

    def wake(self) -> None:
        """Make the thread that waits look again; any thread."""
        self._context.lane.interrupt(self._inbox.box)

    def turn(self) -> None:
        """Take what has come, and send what is due."""
        box, engine = self._inbox.box, self.engine
        if not self.is_open:
            return
        box.clear_interrupt()
        now = time.monotonic()
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
        self._behind = self._context.lane.state is not LaneState.OPEN
        if not self._behind:
            silence = engine.look(now)
            if silence is not None:
                self._context.connection.probe()
                self._tell_silence(silence.silent_for)
            self._send(now)
        if self._entered:
            self._leave_ended()

    def wait(self, deadline: Deadline) -> None:
        """Wait until there is something to do, at most until *deadline*."""
        lane, box = self._context.lane, self._inbox.box
        if self._behind:
            # The lane wakes its writers as soon as there is a connection, and room.
            if not box.ready:
                with contextlib.suppress(TransportError):
                    lane.write(b"", deadline.at_most(LOOK))
            return
        due = self.engine.next_look()
        if due is not None and due < deadline.at:
            deadline = Deadline(due, deadline.total)
        lane.wait(box, deadline)

    def close(self, *, keep: bool) -> None:
        """
        Send no more pulls, unsubscribe and give back what nobody takes; safe to repeat.

        Args:
            keep: Whether what has come so far is still to be taken.
        """
        if not self.is_open:
            return
        self.is_open = False
        engine, inbox = self.engine, self._inbox
        if keep:
            self._receive(time.monotonic())
        unused = engine.refused
        engine.refused = []
        if not keep:
            unused += self._take_buffer()
        # Servers before 2.14 serve a pull that they refused for its group all the same.
        refused = isinstance(engine.error, InvalidGroupError)
        if engine.pulls.is_idle and not inbox.box.frames and not refused:
            inbox.close()
            if self._acked:
                give_back(self._context.lane, unused)
        else:
            inbox.abandon(unused, acked=self._acked)
        engine.pulls.clear()
        if self._entered:
            self._leave_ended()

    def discard(self) -> None:
        """Give back what was kept at the end after all."""
        unused = self._take_buffer()
        if self._acked:
            give_back(self._context.lane, unused)

    def _take_buffer(self) -> list[Frame]:
        """Take all that is in the buffer, while other threads may take single messages."""
        taken: list[Frame] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.engine.buffer.popleft())
        return taken

    def _receive(self, now: float) -> None:
        engine = self.engine
        for note in engine.receive(self._inbox.box.drain(), now):
            self._tell_status(note)
        if engine.refused:
            refused, engine.refused = engine.refused, []
            if self._acked:
                give_back(self._context.lane, refused)

    def _send(self, now: float) -> None:
        """Send the pulls that are due, and the question after the consumer."""
        engine = self.engine
        while (request := engine.due(now)) is not None:
            if not self._pull(request):
                self._behind = True
                return
        probe = engine.probe_due(now)
        if probe is not None:
            with contextlib.suppress(TransportError, CallInSignalHandlerError):
                block = frames.pub(self._info_subject, probe, b"")
                self._context.lane.write(block, Deadline(now, 0.0))

    def _pull(self, request: PullRequest) -> bool:
        """Send one pull; return False if that is not possible now."""
        enter = self._context.plugins.enter_fetch
        entered = None if enter is None else enter(self._operation(request))
        try:
            pull = self._inbox.send(self._subject, request, Deadline.after(0.0))
        except BaseException as error:
            if entered is not None:
                with contextlib.suppress(type(error)):
                    entered.leave(None, error)
            if isinstance(error, (DisconnectedError, CallInSignalHandlerError)):
                # A signal handler leaves it to the next look.
                return False
            raise
        if entered is not None:
            self._entered[pull.subject] = entered
        return True

    def _operation(self, request: PullRequest) -> events.FetchOperation:
        return events.FetchOperation(
            name="consume",
            stream=self._options.stream,
            consumer=self._options.consumer,
            max_messages=request.max_messages,
            max_bytes=request.max_bytes,
            expires=request.expires,
            heartbeat=request.heartbeat,
            group=request.group,
            timeout=request.expires,
        )

    def _leave_ended(self) -> None:
        """Let the plugins around pulls that have ended see that."""
        pulls = self.engine.pulls
        for subject in [subject for subject in self._entered if subject not in pulls]:
            self._entered.pop(subject).leave(None, None)

    def _tell_status(self, note: StatusNote) -> None:
        status = note.status
        _logger.debug(
            _log.PULL_STATUS,
            stream=self._options.stream,
            consumer=self._options.consumer,
            code=status.code,
            description=status.description,
        )
        if note.outcome is events.PullOutcome.RETRIED and self.engine.refusals == REFUSALS_TOLD:
            _logger.warning(
                _log.PULLS_REFUSED,
                stream=self._options.stream,
                consumer=self._options.consumer,
                code=status.code,
                description=status.description,
            )
        if self._context.plugins.status is not None:
            self._context.plugins.status(
                events.PullStatusEvent(
                    stream=self._options.stream,
                    consumer=self._options.consumer,
                    code=status.code,
                    description=status.description,
                    outcome=note.outcome,
                    pending_messages=status.pending_messages,
                    pending_bytes=status.pending_bytes,
                )
            )

    def _tell_silence(self, silent_for: float) -> None:
        options = self._options
        _logger.warning(
            _log.HEARTBEAT_MISSED,
            stream=options.stream,
            consumer=options.consumer,
            silent_for=round(silent_for, 3),
        )
        if self._context.plugins.status is not None:
            self._context.plugins.status(
                events.HeartbeatMissedEvent(
                    stream=options.stream,
                    consumer=options.consumer,
                    heartbeat=options.heartbeat,
                    silent_for=silent_for,
                )
            )
