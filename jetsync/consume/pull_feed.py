"""
The feed of a pull consumer: it sends pulls, and receives what they bring.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._base.deadline import NO_WAIT
from jetsync._base.log import get_logger
from jetsync._io.mailbox import take_all
from jetsync._proto import frames
from jetsync._proto.consume import ConsumeEngine
from jetsync.consume.feed import Feed
from jetsync.events import PullOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync._hooks.calls import Entered
    from jetsync._proto.fetch import FetchEngine
    from jetsync._proto.pull import PullRequest
    from jetsync.consume.inbox import PullInbox
    from jetsync.consume.target import PullTarget
    from jetsync.values.frame import Frame

# After this many refused pulls in a row, a warning is logged: the server may refuse all later ones.
REFUSALS_WARNED: Final = 5

_logger = get_logger("jetsync.consume")


class PullFeed(Feed["ConsumeEngine | FetchEngine"]):
    """
    The pulls of one fetch or consumption.

    Threads: as for :class:`Feed`.
    Locks: none; the iteration of the batch or the reading turn of the consumption protects it.

    Args:
        target: The consumer.
        inbox: What pulls are answered on; a fetch returns it to the pool.
        engine: What decides.
        name: The public method that pulls, if plugins wrap each pull. They wrap a fetch as a whole.
    """

    def __init__(
        self,
        target: PullTarget,
        inbox: PullInbox,
        engine: ConsumeEngine | FetchEngine,
        name: str | None = None,
    ) -> None:
        super().__init__(target, engine, inbox.box)
        self._inbox = inbox
        self._enters = name if target.context.plugins.enter_fetch is not None else None
        # The plugins around the open pulls, by the reply subjects of the pulls.
        self.entered: dict[bytes, Entered] = {}

    def end(self, *, closing: bool, unused: Iterable[Frame] = ()) -> None:
        """
        Send no more pulls, return the inbox or unsubscribe, and nak what will not be taken.

        Unless it is closing, the messages that have arrived can still be taken.
        """
        engine, inbox = self.engine, self._inbox
        if not closing:
            self.receive(time.monotonic())
        if engine.buffer or engine.refused:
            unused = [*(engine.take_all() if closing else engine.take_refused()), *unused]
        if engine.may_be_served or inbox.box.frames or inbox.box.failure is not None:
            inbox.abandon(unused, acked=self.target.wants_acks)
            engine.pulls.clear()
        else:
            if unused:
                self.target.give_back(unused)
            if isinstance(engine, ConsumeEngine):
                # The statistics of a consumption that has ended still show its pulls.
                inbox.close()
            else:
                self.target.pool.append(inbox)
        if self.entered:
            self.leave_ended()

    def receive(self, now: float) -> None:
        """Pass the frames in the mailbox to the engine, and report the statuses."""
        engine, target = self.engine, self.target
        for status, outcome in engine.receive(take_all(self.box.frames), now):
            target.report_status(status, outcome)
            if outcome is PullOutcome.RETRIED and engine.refusals == REFUSALS_WARNED:
                _logger.warning(
                    "pulls_refused",
                    stream=target.stream,
                    consumer=target.consumer,
                    code=status.code,
                    # Some have no text.
                    description=status.description or status.rule.meaning,
                )
        if engine.refused:
            target.give_back(engine.take_refused())
        pulls = engine.pulls
        if pulls.strays.fresh or pulls.sifted.fresh:
            target.report_strays(pulls.strays, pulls.sifted)

    def send(self, now: float) -> bool:
        """Send the pulls that are due, and the probe; return False if nothing can be sent now."""
        engine = self.engine
        while (request := engine.next_pull(now)) is not None:
            if not self.pull(request):
                return False
        probe = engine.probe_due(now)
        if probe is not None:
            with contextlib.suppress(errors.TransportError, errors.CallInSignalHandlerError):
                block = frames.pub(self.target.info_subject, probe, b"")
                self.lane.write(block, NO_WAIT)
        return True

    def leave_ended(self) -> None:
        """Leave the plugins around pulls that have ended."""
        pulls = self.engine.pulls
        for subject in [subject for subject in self.entered if subject not in pulls]:
            self.entered.pop(subject).leave(None, None)

    def pull(self, request: PullRequest) -> bool:
        """Send one pull; return False if that is not possible now."""
        target = self.target
        entered: Entered | None = None
        if self._enters is not None:
            entered = target.enter(self._enters, request, request.expires)
        try:
            pull = self._inbox.pull(target.subject, request, NO_WAIT)
        except BaseException as error:
            if entered is not None:
                with contextlib.suppress(type(error)):
                    entered.leave(None, error)
            # The call that a signal handler interrupted sends the pull later.
            if isinstance(error, (errors.DisconnectedError, errors.CallInSignalHandlerError)):
                self.blocked = True
                return False
            raise
        if entered is not None:
            self.entered[pull.subject] = entered
        return True
