"""
The staging of a fast publisher: messages that were added one by one and are sent together.

A call that takes the turn and writes costs about 3 us, and staging costs a fifth of it.
A call that finds the staging full encodes and sends the staged messages. So does a call that is
about to wait, and the loop thread after a short pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetsync._base.locks import short_lock
from jetsync.errors import TransportError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from jetsync._io.lane import Lane

# The staging is full at this many messages or bytes. With 128-byte messages, half as many cost a
# sixth more CPU. With more, the server idles meanwhile.
MOST_STAGED: Final = 128
MOST_STAGED_BYTES: Final = 64 << 10

# The largest message that is staged: bytes of headers and payload together.
SMALL: Final = MOST_STAGED_BYTES // MOST_STAGED

# Seconds between two sends of the loop thread. If the last write of an atomic batch is older than
# this, the next message is written at once.
STAGING_PAUSE: Final = 0.002


class Staging:
    """
    Messages that have numbers and wait to be sent on one connection.

    A message may be staged while there are *places* and the staging is not stopped. The publisher
    sets *places* to 0 before it makes any other call.

    Args:
        lane: The lane.
    """

    # Threads: any for `stage`, the loop thread for `_send`, and for the rest those that hold the
    # turn of the publisher.
    # Locks: the staging lock, `lock`, protects `places`, `last`, `frames`, `size` and `is_armed`.
    # Any thread sets `is_stopped` without it.

    __slots__ = (
        "_lane", "_was_taken", "epoch", "form", "frames", "is_armed", "is_stopped", "last",
        "lock", "places", "prefix", "size", "small",
    )  # fmt: skip

    def __init__(self, lane: Lane) -> None:
        # Held for a few steps only, so waiting for it needs no deadline.
        self.lock: threading.RLock = short_lock()
        # How many more messages may be staged.
        self.places: int = 0
        # The sequence of the last staged message. The publisher tells the engine once for many.
        # Telling it for each message costs 5 % of the CPU of `add`.
        self.last: int = 0
        # Whether no more messages may be staged until the publisher has read an answer.
        self.is_stopped: bool = False
        # The largest message that may be staged.
        self.small: int = 0
        # The connection that has to send the messages.
        self.epoch: int = 0
        # The reply subject up to the sequence, and the format of frames without headers.
        self.prefix: bytes = b""
        self.form: bytes = b""
        # Frames, and the arguments of the format. Making many frames at once costs a third less
        # than making each one when its message is staged.
        self.frames: list[bytes | tuple[bytes, int, int, bytes]] = []
        # Bytes of the frames that `add` has appended. Staged messages are too small to count.
        self.size: int = 0
        # Whether the loop thread is going to send the staged messages.
        self.is_armed: bool = False
        # Whether the publisher has taken messages since the loop thread last looked.
        self._was_taken = False
        self._lane = lane

    @property
    def is_full(self) -> bool:
        """Whether to send the staged messages before more are staged."""
        return len(self.frames) >= MOST_STAGED or self.size >= MOST_STAGED_BYTES

    def stage(
        self, target: bytes, payload: bytes, frame: Callable[[bytes, int], bytes] | None = None
    ) -> int:
        """
        Stage a valid and small message, and return its number; any thread, without the publisher
        lock.

        Return 0 if the publisher has to read answers, to wait for room or to write first.

        Args:
            target: The subject.
            payload: The payload.
            frame: Makes the frame of a message with headers, given the prefix and its sequence.
        """
        if self.is_stopped:
            # Before the staging lock is taken: in a forked child, its owner may not exist.
            return 0
        with self.lock:
            places = self.places
            if places <= 0 or self.is_stopped:
                return 0
            # A signal handler that interrupts the next steps must not stage another message.
            self.places = 0
            self.last = seq = self.last + 1
            if frame is None:
                self.frames.append((target, seq, len(payload), payload))
            else:
                self.frames.append(frame(self.prefix, seq))
            if not self.is_armed:
                self.arm()
            self.places = places - 1
            return seq

    def add(self, frames: list[bytes]) -> None:
        """Add frames at the end, and have the loop thread send them."""
        # The loop thread may be sending the frames before them.
        with self.lock:
            self.frames += frames
            self.size += sum(map(len, frames))
            self.arm()

    def arm(self) -> None:
        """Have the loop thread send the staged messages."""
        if not self.is_armed:
            self._lane.later(0.0, self._send)
            self.is_armed = True

    def take(self) -> list[bytes]:
        """Return the frames of the staged messages and forget them."""
        with self.lock:
            frames = self._made()
            self.frames, self.size, self._was_taken = [], 0, True
        return frames

    def _made(self) -> list[bytes]:
        form = self.form
        return [frame if type(frame) is bytes else form % frame for frame in self.frames]

    def _send(self) -> None:
        """
        Send the messages that no call has sent, and look again after a pause; loop thread.

        Ends after a pause in which no message was staged.
        """
        # The loop thread waits for no lock here: a signal handler may have interrupted the thread
        # that holds it, and may wait for the loop.
        if self.lock.acquire(blocking=False):
            try:
                if not self._send_staged():
                    return
            finally:
                self.lock.release()
        self._lane.later(STAGING_PAUSE, self._send)

    def _send_staged(self) -> bool:
        """Send what was staged, and return whether to look again; the staging lock is held."""
        # Calls that add one message after another send full blocks. Sending smaller ones here, and
        # arming the loop for each block, cost a tenth of the CPU of such a program.
        if not self._was_taken:
            if not self.frames:
                self.is_armed = False
                return False
            try:
                if self._lane.outbox.write_nowait(b"".join(self._made()), self.epoch):
                    self.frames, self.size = [], 0
            except TransportError:
                # The connection is lost. The publisher reports the frames as lost.
                self.is_armed = False
                return False
        self._was_taken = False
        return True
