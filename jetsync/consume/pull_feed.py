"""
The feed of a consumption from a pull consumer: it sends pulls, and receives what they bring.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._base.log import get_logger
from jetsync._io.mailbox import take_all
from jetsync._proto import frames
from jetsync._proto.consume import ConsumeEngine
from jetsync.consume.inbox import ConsumerKeeper, PullInbox
from jetsync.events import PullOutcome

if TYPE_CHECKING:
    from jetsync._hooks.calls import Entered
    from jetsync._io.mailbox import Mailbox
    from jetsync._proto.consume import ConsumeOptions
    from jetsync._proto.pull import PullRequest
    from jetsync.consume.target import PullTarget

# After this many refused pulls in a row, a warning is logged: the server may refuse all later ones.
REFUSALS_WARNED: Final = 5

_logger = get_logger("jetsync.consume")


class PullFeed:
    """
    The pulls of one consumption.

    Threads: the one that drives the consumption.
    Locks: none; the reading turn of the consumption protects it.
    """

    def __init__(self, target: PullTarget, options: ConsumeOptions) -> None:
        self._target = target
        self._options = options
        self._inbox = PullInbox(target)
        self.engine: Final = ConsumeEngine(self._inbox.engine, options, target.pins)
        self.box: Final[Mailbox] = self._inbox.box
        self.keeper: ConsumerKeeper | None = None
        if options.inactive_threshold is not None:
            self.keeper = ConsumerKeeper(target, options.priorities, options.inactive_threshold)
        # The plugins around the open pulls, by the reply subjects of the pulls.
        self.entered: dict[bytes, Entered] = {}

    def receive(self, now: float) -> None:
        """Pass the frames in the mailbox to the engine, and report the statuses."""
        engine = self.engine
        for status, outcome in engine.receive(take_all(self.box.frames), now):
            self._target.report_status(status, outcome)
            if outcome is PullOutcome.RETRIED and engine.refusals == REFUSALS_WARNED:
                _logger.warning(
                    "pulls_refused",
                    stream=self._options.stream,
                    consumer=self._options.consumer,
                    code=status.code,
                    # Some have no text.
                    description=status.description or status.rule.meaning,
                )
        if engine.refused:
            self._target.give_back(engine.take_refused())
        pulls = engine.pulls
        if pulls.strays.fresh or pulls.sifted.fresh:
            self._target.report_strays(pulls.strays, pulls.sifted)

    def send(self, now: float) -> bool:
        """Send the pulls that are due, and the probe; return False if nothing can be sent now."""
        engine = self.engine
        while (request := engine.next_pull(now)) is not None:
            if not self._pull(request):
                return False
        probe = engine.probe_due(now)
        if probe is not None:
            with contextlib.suppress(errors.TransportError, errors.CallInSignalHandlerError):
                block = frames.pub(self._target.info_subject, probe, b"")
                self._target.lane.write(block, Deadline(now, 0.0))
        return True

    def leave_ended(self) -> None:
        """Leave the plugins around pulls that have ended."""
        pulls = self.engine.pulls
        for subject in [subject for subject in self.entered if subject not in pulls]:
            self.entered.pop(subject).leave(None, None)

    def end(self, *, closing: bool) -> None:
        """
        Send no more pulls, unsubscribe, and give back what will not be taken.

        Unless it is closing, the messages that have arrived can still be taken.
        """
        engine, inbox = self.engine, self._inbox
        if not closing:
            self.receive(time.monotonic())
        unused = engine.take_all() if closing else engine.take_refused()
        # Servers before 2.14 refuse a pull for its group and still serve it.
        maybe_served = isinstance(engine.error, errors.InvalidGroupError)
        if engine.pulls.is_idle and not inbox.box.frames and not maybe_served:
            inbox.close()
            self._target.give_back(unused)
        else:
            inbox.abandon(unused, acked=self._target.wants_acks)
        engine.pulls.clear()

    def _pull(self, request: PullRequest) -> bool:
        """Send one pull; return False if that is not possible now."""
        target = self._target
        entered: Entered | None = None
        if target.context.plugins.enter_fetch is not None:
            entered = target.enter("consume", request, request.expires)
        try:
            pull = self._inbox.pull(target.subject, request, Deadline(time.monotonic(), 0.0))
        except BaseException as error:
            if entered is not None:
                with contextlib.suppress(type(error)):
                    entered.leave(None, error)
            # The call that a signal handler interrupted sends the pull later.
            if isinstance(error, (errors.DisconnectedError, errors.CallInSignalHandlerError)):
                return False
            raise
        if entered is not None:
            self.entered[pull.subject] = entered
        return True
