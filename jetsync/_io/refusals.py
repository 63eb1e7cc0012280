"""
Which messages the server has refused.

If the server refuses a message, it sends a line that names only the subject, and no answer. It
answers every other message. So if a subject has as many refusals as messages that wait for an
answer, the server has refused all of these.

Core messages have no answer, and callers may give up waiting for one. Such messages are
*untracked*. If a subject may have untracked messages in flight, a refusal proves nothing about the
others, and their outcome is unknown.

The loop thread looks at the messages in flight only after a refusal. Until then, nothing is
counted.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync._base.deadline import NO_WAIT
from jetsync._io.mailbox import take_all
from jetsync._io.outbox import PING
from jetsync._io.replies import Waiter
from jetsync.errors import PermissionDeniedError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._io.lane import Lane

# How many subjects of untracked messages are kept until the oldest can be forgotten.
MOST_SUBJECTS: Final = 1 << 14

# Stands for every subject among the untracked ones.
EVERY: Final = ""
_ONLY_EVERY: Final = frozenset({EVERY})

# A subject may have fewer refusals than messages in flight. PAUSE is the time between two looks for
# more refusals. PATIENCE after the last refusal, the outcome of the messages is unknown. In
# seconds.
PAUSE: Final = 0.01
PATIENCE: Final = 1.0

# Seconds, in addition to `request_timeout`, in which a call writes the message that it has noted.
GRACE: Final = 5.0

# Seconds between two checks whether the server has answered a PING.
PONG_CHECK: Final = 0.5


@attrs.define
class _Refused:
    """
    The refusals of one subject on one connection that are not assigned to messages yet.
    """

    error: PermissionDeniedError
    epoch: int
    count: int = 0
    until: float = 0.0


class Refusals:
    """
    Assigns refusals to messages.

    Threads: any thread adds to ``untracked`` and ``batches`` and calls :meth:`add`,
    :meth:`make_room` and :meth:`take_core`; the loop thread calls the rest.
    Locks: none; what several threads use changes by single calls into C.

    Args:
        timeout: The longest time that a core message waits before it is written, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        # The subjects of core messages, and of messages whose callers gave up. A subject is added
        # before the message is written, or before it is forgotten.
        self.untracked: set[str] = set()
        # Atomic batches and fast publishers that are in use. Their messages are not answered one by
        # one. Each function returns whether a batch may have messages to a subject. It must not
        # refer to the owner of the batch.
        self.batches: dict[str, Callable[[bytes], bool]] = {}
        # The last refusals, with the time at which each was read. They explain why a batch is
        # incomplete.
        self.denials: deque[tuple[float, PermissionDeniedError]] = deque(maxlen=100)
        # Whether core messages were published after the last flush that the server confirmed, and
        # which of them the server has refused.
        self.has_published: bool = False
        self._core: deque[PermissionDeniedError] = deque(maxlen=100)
        # The untracked subjects that will be forgotten next.
        self._older: set[str] = set()
        self._timeout = timeout
        self._refused: dict[bytes, _Refused] = {}
        self._is_scheduled = False

    def add(self, subject: bytes) -> None:
        """Note an untracked message to *subject* that the server may refuse."""
        self.untracked.add(subject.decode())

    def make_room(self, lane: Lane) -> None:
        """Forget subjects if there are too many; any thread, never waits."""
        untracked = self.untracked
        if len(untracked) <= MOST_SUBJECTS:
            return
        if self._older:
            # Too many again before these were forgotten. In this order, so that no subject is
            # missing in between.
            untracked.add(EVERY)
            untracked.intersection_update(_ONLY_EVERY)
        else:
            lane.later(0.0, self._forget_later, lane)

    def take_core(self) -> list[PermissionDeniedError]:
        """Take the refusals of core messages, after a flush; any thread."""
        self.has_published = False
        return take_all(self._core)

    def deny(self, operation: str, subject: str, lane: Lane) -> None:
        """Fail the calls that the server refuses by refusing *subject*."""
        error = PermissionDeniedError(subject, operation)
        self.denials.append((time.monotonic(), error))
        is_known = False
        if operation == "publish":
            is_known, error = self.note(error, lane)
        for receiver in lane.subscriptions.receivers():
            is_known |= receiver.denied(operation, subject.encode(), error)
        # Pulls and acks are not core messages of the application.
        is_own = is_known or subject.startswith("$JS.")
        if operation == "publish" and self.has_published and not is_own:
            self._core.append(PermissionDeniedError(subject, operation))
        # Wake the thread that reads the socket, because it only waits for bytes.
        lane.reader.wake_reader()

    def note(self, error: PermissionDeniedError, lane: Lane) -> tuple[bool, PermissionDeniedError]:
        """
        Note a refused publish.

        Returns whether the refusal may be about a message that waits for an answer, and the error
        for receivers that know their subjects. Its ``sent`` is true if the message stays unknown.
        """
        subject = error.subject.encode()
        refused = self._refused.get(subject)
        is_first = refused is None or refused.epoch != lane.epoch
        if refused is None or is_first:
            refused = self._refused[subject] = _Refused(error, lane.epoch)
        refused.count += 1
        refused.until = time.monotonic() + PATIENCE
        if is_first or self.batches:
            return self._decide(subject, refused, lane)
        return True, error

    def _decide(
        self, subject: bytes, refused: _Refused, lane: Lane
    ) -> tuple[bool, PermissionDeniedError]:
        """Tell the receivers which messages are refused, or look again later."""
        concerned: list[tuple[Any, list[Any]]] = [
            (receiver, keys)
            for receiver in lane.subscriptions.receivers()
            if (keys := receiver.in_flight(subject))
        ]
        batches = sum([uses(subject) for uses in list(self.batches.values())])
        # Messages of batches are counted as the batch.
        single = sum([not getattr(key, "in_batch", False) for _, keys in concerned for key in keys])
        is_known = bool(batches or concerned)
        error, name = refused.error, refused.error.subject
        # Last: a subject is added here before its message is forgotten.
        if self._may_be_untracked(name):
            is_certain = False
        elif batches:
            # One refused message is enough to refuse its batch. So the refusal is certainly about
            # the batch only if nothing else has messages to this subject.
            is_certain = batches + single == 1
        else:
            is_certain = refused.count >= single
            if not is_certain and time.monotonic() < refused.until:
                if not self._is_scheduled:
                    self._is_scheduled = True
                    lane.later(PAUSE, self._look_again, lane)
                return is_known, error
        if not is_certain:
            error = PermissionDeniedError(name, "publish", sent=True)
            # The other messages may be refused later.
            self.untracked.add(name)
            self._forget_later(lane)
        del self._refused[subject]
        for receiver, keys in concerned:
            receiver.refuse(keys, error)
        return is_known, error

    def _look_again(self, lane: Lane) -> None:
        """Decide about the refusals that are fewer than the messages in flight."""
        self._is_scheduled = False
        for subject, refused in list(self._refused.items()):
            if refused.epoch == lane.epoch > lane.lost_epoch:
                self._decide(subject, refused, lane)
            else:
                del self._refused[subject]
        lane.reader.wake_reader()

    def _may_be_untracked(self, subject: str) -> bool:
        wanted = subject, EVERY
        return not (self.untracked.isdisjoint(wanted) and self._older.isdisjoint(wanted))

    def _forget_later(self, lane: Lane) -> None:
        """Forget the untracked subjects once the server has processed their messages."""
        if self._older:
            return
        self._older, self.untracked = self.untracked, set()
        # By then, each call that has noted its message has written it.
        lane.later(self._timeout + GRACE, self._forget, lane, None)

    def _forget(self, lane: Lane, pong: Waiter | None) -> None:
        """
        Forget the older subjects if the server has answered *pong*, the PING after their messages.

        If that connection is lost, it refuses nothing any more. None means to send the PING.
        """
        if pong is not None and pong.ready:
            # Later: the loop first handles the refusals that came before the PONG.
            lane.later(0.0, self._older.clear)
            return
        if pong is None:
            pong = Waiter(b"PING")
            try:
                lane.write(PING, NO_WAIT, pong=pong)
            except TransportError:
                pong = None
        lane.later(PONG_CHECK, self._forget, lane, pong)
