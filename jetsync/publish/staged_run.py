"""
A run of messages that a caller has added one by one and that are sent together.

A call that takes the lock of its publisher and writes costs about 3 us. Staging costs a third of
it. The run is sent by a call that finds it full, by a call that is about to wait, or by the loop
thread after a short pause. The loop thread only joins the frames and sends them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from jetsync._base.deadline import Deadline
from jetsync.errors import DisconnectedError, TransportError

if TYPE_CHECKING:
    from jetsync._io.lane import Lane

# A run is full at this many messages or bytes. With 128-byte messages, runs of half that length
# cost a sixth more CPU. Longer runs let the server idle.
RUN_MESSAGES: Final = 128
RUN_BYTES: Final = 64 << 10

# The largest message that is staged: bytes of headers and payload together.
SMALL: Final = RUN_BYTES // RUN_MESSAGES

# Seconds between two sends of the loop thread. If the last write of an atomic batch is older than
# this, the next message is written at once.
RUN_PAUSE: Final = 0.002

_NO_WAIT: Final = Deadline(0.0, 0.0)


class StagedRun:
    """
    Frames that wait to be sent on one connection.

    A thread may stage a frame under *lock* while there are *places* and the run is not over. All
    other calls are for the publisher, which holds its own lock and has set *places* to 0.
    """

    __slots__ = ("_lane", "epoch", "frames", "is_armed", "is_over", "lock", "places", "size")

    def __init__(self, lane: Lane) -> None:
        # Held for a few steps only, so waiting for it needs no deadline.
        self.lock: threading.RLock = threading.RLock()
        # How many more frames may be staged.
        self.places: int = 0
        # Whether no more frames may be staged until the publisher has read an answer.
        self.is_over: bool = False
        # The connection that has to send the frames.
        self.epoch: int = 0
        self.frames: list[bytes] = []
        # Bytes of the frames that the publisher has added; others are small.
        self.size: int = 0
        # Whether the loop thread is going to send the staged frames.
        self.is_armed: bool = False
        self._lane = lane

    @property
    def is_full(self) -> bool:
        """Whether to send the run before more is staged."""
        return len(self.frames) >= RUN_MESSAGES or self.size >= RUN_BYTES

    def add(self, frames: list[bytes]) -> None:
        """Add frames at the end, and have the loop thread send them."""
        # The loop thread may be sending the frames before them.
        with self.lock:
            self.frames += frames
            self.size += sum(map(len, frames))
            self.arm()

    def arm(self) -> None:
        """Have the loop thread send the staged frames."""
        if not self.is_armed:
            # In this order: after Ctrl-C in between, the next call arms it once more.
            self._lane.later(0.0, self._send)
            self.is_armed = True

    def take(self) -> list[bytes]:
        """Return the frames and forget them."""
        with self.lock:
            frames, self.frames = self.frames, []
            self.size = 0
        return frames

    def _send(self) -> None:
        """Send the frames, and again after each pause in which some were staged; loop thread."""
        with self.lock:
            if not self.frames:
                self.is_armed = False
                return
            try:
                self._lane.write(b"".join(self.frames), _NO_WAIT, self.epoch)
                self.take()
            except DisconnectedError:
                pass  # The socket is full.
            except TransportError:
                # The connection is lost. The publisher reports the frames as lost.
                self.is_armed = False
                return
        self._lane.later(RUN_PAUSE, self._send)
