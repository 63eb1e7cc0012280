"""
Which messages the server has refused.

For a refused message the server sends a line that names only the subject. A message that is not
refused is answered, and a refused one is not. So all messages to a subject that wait for an answer
are refused if there are as many refusals. If other messages to the subject may be in flight, which
nobody counts, nothing is certain.

Counting costs nothing until the server refuses a message. Then the loop thread looks at what is in
flight.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync._base.deadline import Deadline
from jetsync._io.outbox import PING, LaneState
from jetsync._io.replies import Waiter
from jetsync.errors import PermissionDeniedError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._io.lane import Lane
    from jetsync.values.frame import Frame

# How many subjects of messages that nobody counts are kept. Above that, each one is in doubt.
MOST_SUBJECTS: Final = 1 << 14

# Seconds between two looks at the messages in flight, while there are more of them than refusals,
# and seconds after the last refusal until their outcome is unknown.
PAUSE: Final = 0.01
PATIENCE: Final = 1.0

# Seconds, in addition to `request_timeout`, in which a call surely writes the message that it has
# noted.
GRACE: Final = 5.0


@attrs.define
class _Refused:
    """
    The refusals of one subject on one connection that are not assigned to messages yet.
    """

    error: PermissionDeniedError
    epoch: int
    count: int = 0
    until: float = 0.0


class _Fence(Waiter):
    """
    The receiver of a PONG that no thread waits for.
    """

    __slots__ = ("_passed",)

    def __init__(self, passed: Callable[[], object]) -> None:
        super().__init__(b"PING")
        self._passed = passed

    def deliver(self, frame: Frame) -> None:
        """Note that the server has processed everything before the PING."""
        super().deliver(frame)
        self._passed()


class _Every:
    """
    A set that contains each subject.
    """

    def __contains__(self, subject: str) -> bool:
        return True

    def __len__(self) -> int:
        return 0

    def add(self, subject: str) -> None:
        """Do nothing: it is a member."""


class Refusals:
    """
    Assigns refusals to messages. The loop thread calls :meth:`note`, and any thread the rest.

    Args:
        timeout: The longest time that a core message waits before it is written, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        # The subjects of core messages, and of messages whose callers gave up. A subject is added
        # before the message is written, or before it is forgotten.
        self.untracked: set[str] | _Every = set()
        # Atomic batches and fast publishers that are in use. Their messages are not answered one by
        # one. Each function returns whether a batch may have messages to a subject. It must not
        # refer to the owner of the batch.
        self.batches: dict[str, Callable[[bytes], bool]] = {}
        # What `untracked` was before the PING on this connection, 0 if there is none.
        self._settling: list[set[str] | _Every] = []
        self._fence_epoch = 0
        self._grace = timeout + GRACE
        self._refused: dict[bytes, _Refused] = {}
        self._is_scheduled = False

    def add(self, subject: bytes) -> None:
        """Note a message to *subject* that the server may refuse and that nobody counts."""
        self.untracked.add(subject.decode())

    def forget_subjects(self, lane: Lane) -> None:
        """Doubt every refusal, because too many subjects were added; any thread."""
        self.untracked = _Every()
        lane.later(0.0, self._settle, lane)

    def note(self, error: PermissionDeniedError, lane: Lane) -> tuple[bool, PermissionDeniedError]:
        """
        Note a refused publish.

        Returns whether messages that are counted may be concerned. If it is already clear that the
        message cannot be found out, the ``sent`` of the returned error is true.
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
        shares: list[tuple[Any, list[Any]]] = [
            (receiver, receiver.in_flight(subject)) for receiver in lane.receivers()
        ]
        batches = [uses for uses in list(self.batches.values()) if uses(subject)]
        count = sum([not getattr(key, "in_batch", False) for _, keys in shares for key in keys])
        # Last: a subject is added here before its message is forgotten.
        name = refused.error.subject
        is_doubtful = any(name in subjects for subjects in (*self._settling, self.untracked))
        # One refusal is enough to refuse a batch.
        is_certain = len(batches) + count <= 1 or (not batches and refused.count >= count)
        error = refused.error
        is_known = bool(batches) or any(keys for _, keys in shares)
        if is_doubtful or not is_certain:
            if not (is_doubtful or batches) and time.monotonic() < refused.until:
                if not self._is_scheduled:
                    self._is_scheduled = True
                    lane.later(PAUSE, self._look_again, lane)
                return is_known, error
            error = PermissionDeniedError(name, "publish", sent=True)
            # The other messages may be refused later.
            self.untracked.add(name)
            self._settle(lane)
        del self._refused[subject]
        for receiver, keys in shares:
            if keys:
                receiver.refuse(keys, error)
        return is_known, error

    def _look_again(self, lane: Lane) -> None:
        self._is_scheduled = False
        for subject, refused in list(self._refused.items()):
            if refused.epoch == lane.epoch > lane.lost_epoch:
                self._decide(subject, refused, lane)
            else:
                del self._refused[subject]
        lane.wake_reader()

    def _settle(self, lane: Lane) -> None:
        """Forget the subjects in ``untracked`` once the server has answered a PING."""
        epoch = lane.epoch
        if self._fence_epoch == epoch or lane.state is not LaneState.OPEN:
            return
        self._fence_epoch = epoch
        self._settling.append(self.untracked)
        self.untracked = set()
        # Later: a call that has noted its message may write it after the PING.
        fence = _Fence(lambda: lane.later(self._grace, self._forget, epoch))
        try:
            lane.write(PING, Deadline.after(0.0), pong=fence)
        except TransportError:
            self._fence_epoch = 0

    def _forget(self, epoch: int) -> None:
        if epoch == self._fence_epoch:
            self._settling.clear()
            self._fence_epoch = 0
