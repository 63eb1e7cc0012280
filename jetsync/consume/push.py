"""
The feed of a consumption from a push consumer: its subscription, mailbox and answers.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING, Final

import attrs

from jetsync import errors, events
from jetsync._api.consumers import info as consumer_info
from jetsync._base.deadline import NO_WAIT
from jetsync._base.log import get_logger
from jetsync._io.listener import Listener
from jetsync._io.mailbox import Mailbox, take_all
from jetsync._proto import frames
from jetsync._proto.push import PushEngine, is_flow_control
from jetsync.consume.auto_acks import give_back
from jetsync.consume.feed import LATE_MESSAGES, Feed, SiftedMailbox, abandon
from jetsync.values.frame import message_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync._base.deadline import Deadline
    from jetsync._io.lane import Lane
    from jetsync._proto.push import PushOptions
    from jetsync.consume.target import PullTarget
    from jetsync.values.frame import Frame

# How the header block of a heartbeat or of a flow control request begins.
STATUS_100: Final = b"NATS/1.0 100"

# Seconds for which a consumer may still seem to have a subscriber that has just left.
LEAVING: Final = 0.5
LEAVING_POLL: Final = 0.05

# Seconds that an answer to the server is kept for the next connection.
KEEP_ANSWER: Final = 5.0

_logger = get_logger("jetsync.consume")


class PushMailbox(SiftedMailbox):
    """
    The messages of a push consumer that no thread has taken into the buffer.

    Of several heartbeats in a row it keeps the newest. Otherwise they would fill the memory of a
    program that is busy for days.

    Without flow control, the server sends every message at once. The mailbox then drops all
    messages after the first one that exceeds a limit, and unsubscribes.

    Threads: the one that reads the socket pushes and wakes. The one that drives takes.
    Locks: none; the queues change by single calls into C.
    """

    def __init__(self, options: PushOptions, engine: PushEngine, lane: Lane) -> None:
        sink = None if options.max_messages is None else self._push
        super().__init__(options.deliver_subject.encode(), engine.sift, lane, sink)
        self.dropped: int = 0
        # Unsubscribes. It must not refer to the owner.
        self.stop: Callable[[], object] = bool
        self._max_messages, self._max_bytes = options.max_messages, options.max_bytes
        # It has the messages that were taken out of this mailbox, but not by the application.
        self._engine = engine
        # At least the bytes of all messages that wait.
        self._size = 0

    @property
    def ready(self) -> bool:
        """Whether a wait is over, also because messages were dropped."""
        return bool(self.dropped) or super().ready

    def wake(self) -> None:
        """Drop the older one if the two newest frames are heartbeats, and wake the thread."""
        arrived = self.frames
        # Only this thread appends. The other one takes from the left, and may take all.
        with contextlib.suppress(IndexError):
            if _is_heartbeat(arrived[-1]) and _is_heartbeat(arrived[-2]):
                newest = arrived.pop()
                try:
                    arrived.pop()
                finally:
                    arrived.append(newest)
        super().wake()

    def _push(self, frame: Frame) -> None:
        if _is_heartbeat(frame):
            # It fits into a full buffer, which a slow program may have for long.
            self.frames.append(frame)
            return
        self._size += message_size(frame)
        waiting = len(self.frames) + len(self._engine.buffer) + self._engine.parked
        if self.dropped or (
            waiting
            and (waiting >= self._max_messages or self._size > self._max_bytes)  # type: ignore[operator]
            and not self._fits(frame)
        ):
            self.dropped += 1
            if self.dropped == 1:
                self.stop()
        else:
            self.frames.append(frame)

    def _fits(self, frame: Frame) -> bool:
        """Return whether there is room, after dropping what is foreign and counting the rest."""
        if self._engine.is_foreign(frame):
            return True
        self.sift()
        engine, waiting = self._engine, self._engine.snapshot()
        while True:
            with contextlib.suppress(RuntimeError):  # Another thread took one.
                waiting += [each for each in list(self.frames) if not _is_heartbeat(each)]
                break
        self._size = sum(map(message_size, waiting), message_size(frame) + engine.parked_bytes)
        assert self._max_messages is not None
        assert self._max_bytes is not None
        count = len(waiting) + engine.parked
        return count < self._max_messages and self._size <= self._max_bytes


class PushFeed(Feed[PushEngine]):
    """
    The subscription of one consumption to the deliver subject of a push consumer.

    Threads: as for :class:`Feed`.
    Locks: none; the reading turn of the consumption protects it.
    """

    def __init__(self, target: PullTarget, options: PushOptions) -> None:
        connection, lane = target.context.connection, target.lane
        answers = connection.new_inbox().encode() + b"."
        engine = PushEngine(answers, options)
        self._box = PushMailbox(options, engine, lane)
        super().__init__(lane, self._box)
        self.begin(target, engine)
        self._options = options
        group = options.deliver_group
        self._listener = Listener(lane, self.box, b"" if group is None else group.encode())
        sid, unsubscribe = self._listener.sid, lane.subscriptions.unsubscribe
        # Not at once, because the thread that reads the socket calls it. Messages that are in
        # flight are still counted.
        stop = functools.partial(unsubscribe, sid, grace=LATE_MESSAGES)
        self._box.stop = lambda: lane.later(0.0, stop)
        # The answers to probes arrive in the same mailbox. Few consumptions ever need one.
        self._answers = Mailbox(answers + b"*", into=self.box)
        self._answers_listener: Listener | None = None
        self._lost_before = 0

    def receive(self, now: float) -> None:
        """
        Pass the frames in the mailbox to the engine, and report what is wrong.

        :meth:`end` gives back the messages that the engine refuses, after it has unsubscribed.
        """
        engine, box, target = self.engine, self._box, self.target
        for status, outcome in engine.receive(take_all(box.frames), now):
            target.report_status(status, outcome)
        if engine.strays.fresh or engine.sifted.fresh:
            target.report_strays(engine.strays, engine.sifted)
        if engine.lost_messages > self._lost_before:
            lost, self._lost_before = engine.lost_messages - self._lost_before, engine.lost_messages
            _logger.warning(
                "messages_lost", stream=target.stream, consumer=target.consumer, messages=lost
            )
            target.context.connection.emit(
                events.MessagesLostEvent(
                    stream=target.stream, consumer=target.consumer, messages=lost
                )
            )
        if box.dropped and engine.error is None:
            subject, dropped = self._options.deliver_subject, box.dropped
            engine.fail(errors.SlowConsumerError(subject, dropped, consumer=target.consumer))
            _logger.warning("slow_consumer", subject=subject, dropped=dropped)
            target.context.connection.emit(
                events.SlowConsumerEvent(
                    stream=target.stream,
                    consumer=target.consumer,
                    subject=subject,
                    dropped=dropped,
                )
            )

    def send(self, now: float) -> bool:
        """Send the subscription, an answer, a probe; return False if nothing can be sent now."""
        engine, lane = self.engine, self.lane
        try:
            if self._listener.line:
                lane.write(self._listener.line, NO_WAIT)
                self._listener.line = b""
            # Also after a reconnect, in which the lane has sent the subscription again.
            engine.subscribed(now)
            answer = engine.answer_due()
            if answer is not None:
                lane.write(frames.pub(answer, b"", b""), NO_WAIT)
                engine.answered()
            probe = engine.probe_due(now)
            if probe is not None:
                self._ask(probe)
        except (errors.DisconnectedError, errors.CallInSignalHandlerError):
            return False
        return True

    def _ask(self, probe: bytes) -> None:
        """Ask the server for the consumer's info."""
        lane, line = self.lane, b""
        if self._answers_listener is None:
            self._answers_listener = Listener(lane, self._answers)
            line = self._answers_listener.line
        lane.write(line + frames.pub(self.target.info_subject, probe, b""), NO_WAIT)

    def end(self, *, closing: bool) -> None:
        """
        Unsubscribe, and give back what will not be taken.

        Unless it is closing, the messages that have arrived can still be taken.
        """
        engine, target = self.engine, self.target
        if not closing:
            self.receive(time.monotonic())
        unused = engine.take_all() if closing else engine.take_refused()
        if self._answers_listener is not None:
            self._answers_listener.end()
        give = functools.partial(_give_back, target.lane, target.wants_acks)
        abandon(self.box, self._listener, unused, give)
        answer = engine.last_answer()
        if answer is not None:
            _answer_last(target.lane, answer)


def bind(target: PullTarget, options: PushOptions, deadline: Deadline) -> PushOptions:
    """
    Check that a push consumer has no other subscriber, and complete its options.

    The server would send each message to both subscribers, so both would handle it. Without
    permission to ask for the consumer's info, nothing is checked.

    Raises:
        ConsumerInUseError: There is another subscriber, and no queue group.
        ConsumerNotFoundError: The consumer no longer exists.
    """
    if options.deliver_group is not None:
        return options
    context, until = target.context, deadline.at_most(LEAVING)
    while True:
        try:
            info = consumer_info(context, target.stream, target.consumer, deadline)
        except errors.PermissionDeniedError:
            return options
        if not info.push_bound:
            break
        if until.expired():
            raise errors.ConsumerInUseError(target.consumer, stream=target.stream)
        # A subscriber that has just left may still be counted.
        context.connection.closing.wait(min(LEAVING_POLL, until.remaining()))
    if target.wants_acks:
        return options
    return attrs.evolve(options, delivered=info.delivered.consumer_seq)


def _give_back(lane: Lane, acked: bool, unused: Iterable[Frame]) -> None:  # noqa: FBT001 - bound.
    """Nak messages that are not taken, and answer the requests among them."""
    unused = list(unused)
    if acked:
        give_back(lane, unused)
    for _, reply, _, _ in unused:
        if is_flow_control(reply):
            _answer_last(lane, reply)


def _answer_last(lane: Lane, reply: bytes) -> None:
    """
    Answer a request of flow control at the end, although not all messages before it were taken.

    Without the answer, the server would send the next subscriber nothing until that one finds the
    request in a heartbeat, and some clients never look for it.
    """
    lane.post_nowait(frames.pub(reply, b"", b""), keep=KEEP_ANSWER)


def _is_heartbeat(frame: Frame) -> bool:
    header = frame[2]
    return header is not None and not frame[1] and header.startswith(STATUS_100)
