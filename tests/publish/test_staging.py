"""
The staging of a fast publisher: the writes of the loop thread, and their end.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jetsync import errors
from jetsync.publish.staging import MOST_STAGED, MOST_STAGED_BYTES, STAGING_PAUSE, Staging


class Lane:
    """
    A lane that records writes, and delayed calls of the loop.
    """

    def __init__(self):
        self.outbox = self
        self.blocks = []
        self.calls = []
        self.error = None
        self.has_room = True

    def write_nowait(self, block, epoch):
        if self.error is not None:
            raise self.error
        if self.has_room:
            self.blocks.append((epoch, block))
        return self.has_room

    def later(self, seconds, call):
        self.calls.append((seconds, call))

    def run(self):
        """Make the next delayed call and return its delay in seconds."""
        seconds, call = self.calls.pop(0)
        call()
        return seconds


@pytest.fixture
def lane():
    """A lane without a server."""
    return Lane()


@pytest.fixture
def staging(lane):
    """The staging has two frames for connection 3, which the loop thread is going to send."""
    staging = Staging(lane)
    staging.epoch = 3
    staging.frames += [b"one", b"two"]
    staging.arm()
    return staging


class TestPause:
    def test_the_loop_sends_the_messages_of_one_pause_in_one_write(self, lane, staging):
        """The loop sends the messages of one pause in one write, until a pause brings none."""
        staging.arm()
        assert lane.run() == 0.0
        staging.frames.append(b"three")
        assert lane.run() == STAGING_PAUSE
        assert lane.blocks == [(3, b"onetwo"), (3, b"three")]
        assert lane.run() == STAGING_PAUSE
        assert lane.calls == []
        staging.frames.append(b"four")
        staging.arm()
        assert lane.run() == 0.0
        assert lane.blocks[2:] == [(3, b"four")]

    def test_frames_that_cannot_be_written_stay_for_the_next_try(self, lane, staging):
        """If nothing can be written, the frames stay and the loop tries again."""
        lane.has_room = False
        lane.run()
        assert staging.frames == [b"one", b"two"]
        lane.has_room = True
        assert lane.run() == STAGING_PAUSE
        assert lane.blocks == [(3, b"onetwo")]

    @pytest.mark.parametrize("error", [errors.ConnectionLostError, errors.ConnectionClosedError])
    def test_frames_of_a_lost_connection_stay_for_the_owner(self, lane, staging, error):
        """If the connection is lost, the frames stay for the owner, who reports them as lost."""
        lane.error = error()
        lane.run()
        assert (lane.blocks, lane.calls, staging.is_armed) == ([], [], False)
        assert staging.take() == [b"one", b"two"]


class TestPlaces:
    @pytest.mark.parametrize("places", [-1, 0])
    def test_no_place(self, staging, places):
        """A message is staged only if there is a place for it."""
        staging.places = places
        assert staging.stage(b"a", b"three") == 0
        assert staging.frames == [b"one", b"two"]

    def test_a_place(self, staging):
        """A staged message takes a place and the next number."""
        staging.places = 1
        assert staging.stage(b"a", b"three") == 1
        assert (staging.places, staging.frames[2:]) == (0, [(b"a", 1, 5, b"three")])


class TestOwner:
    def test_add_while_the_loop_sends(self, lane, staging, monkeypatch):
        """A frame that the owner adds while the loop thread sends others is sent after them."""
        threads = []
        write = lane.write_nowait

        def writes(*arguments):
            if not threads:
                threads.append(threading.Thread(target=staging.add, args=([b"three"],)))
                threads[0].start()
                # Without the lock, the thread would end here.
                threads[0].join(0.05)
            return write(*arguments)

        monkeypatch.setattr(lane, "write_nowait", writes)
        lane.run()
        threads[0].join()
        lane.run()
        assert lane.blocks == [(3, b"onetwo"), (3, b"three")]

    def test_frames_that_the_owner_takes_are_not_sent_by_the_loop(self, lane, staging):
        """Frames that the owner takes are not sent by the loop."""
        staging.size = 6
        assert staging.take() == [b"one", b"two"]
        assert (staging.frames, staging.size) == ([], 0)
        lane.run()
        assert lane.run() == STAGING_PAUSE
        assert (lane.blocks, lane.calls) == ([], [])

    def test_the_loop_leaves_the_next_block_to_a_busy_owner(self, lane, staging):
        """While the owner takes full blocks, the loop leaves the next one to it for a pause."""
        staging.take()
        staging.frames.append(b"three")
        lane.run()
        assert lane.blocks == []
        lane.run()
        assert lane.blocks == [(3, b"three")]

    def test_the_loop_waits_for_no_thread(self, lane, staging):
        """If a thread is interrupted while it stages, the loop tries again after a pause."""
        with staging.lock, ThreadPoolExecutor(1) as pool:
            assert pool.submit(lane.run).result(5) == 0.0
            assert lane.blocks == []
        assert lane.run() == STAGING_PAUSE
        assert lane.blocks == [(3, b"onetwo")]

    def test_it_is_full_by_its_messages_or_its_bytes(self, staging):
        """It is full by its messages or by its bytes."""
        assert not staging.is_full
        staging.size = MOST_STAGED_BYTES
        assert staging.is_full
        staging.take()
        staging.frames += [b""] * MOST_STAGED
        assert staging.is_full


class TestStage:
    @pytest.fixture
    def staging(self, lane):
        """The staging has room for three messages, the first of which has the number 3."""
        staging = Staging(lane)
        staging.last = 2
        staging.prefix, staging.form, staging.places = b"r.", b"%b r.%d %d %b.", 3
        return staging

    def test_staged_messages_are_numbered_and_framed_at_the_end(self, staging):
        """Messages are numbered when they are staged, and their frames are made at the end."""
        assert staging.stage(b"a", b"xyz") == 3
        assert staging.stage(b"b", b"", lambda prefix, number: b"h %b%d." % (prefix, number)) == 4
        assert staging.stage(b"c", b"%d") == 5
        assert staging.stage(b"d", b"") == 0
        assert staging.take() == [b"a r.3 3 xyz.", b"h r.4.", b"c r.5 2 %d."]

    def test_a_stopped_staging_takes_no_message(self, staging):
        """A stopped staging takes no message."""
        staging.is_stopped = True
        assert (staging.stage(b"a", b""), staging.frames) == (0, [])

    def test_the_loop_sends(self, lane, staging):
        """The first message has the loop thread send what is staged."""
        staging.stage(b"a", b"x")
        staging.stage(b"a", b"y")
        assert lane.run() == 0.0
        assert lane.blocks == [(0, b"a r.3 1 x.a r.4 1 y.")]
