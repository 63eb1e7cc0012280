"""
Staging: numbers, frames, and when a message may be staged.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.interrupts import handled_at, interrupted_at, steps_of
from jetsync import errors
from jetsync.publish import stage as _stage

# The tests run over both variants of the stage.
pytestmark = pytest.mark.usefixtures("variant")

SUFFIX = b".1.%b%%"
"""A suffix with the characters of a format."""


@pytest.fixture
def stage():
    """The stage is open for three messages of at most 10 bytes, the first of which has number 3."""
    return opened(3)


def opened(places, last=2):
    """Return an open stage."""
    stage = _stage.Stage({"a": b"a", "ü.b": "ü.b".encode()}, SUFFIX)
    stage.begin(b"r%d.")
    stage.allow(last, places, 10, 1 << 20)
    return stage


class SameHash:
    """A key that calls a function when a subject with its hash is looked up."""

    def __init__(self, subject):
        self.subject = subject
        self.call = lambda: None

    def __hash__(self):
        return hash(self.subject)

    def __eq__(self, other):
        self.call()
        return False


def ended_meanwhile(stage, calls):
    """Call methods of a stage, as another thread may do at any step."""
    with ThreadPoolExecutor(1) as pool:
        for call in calls:
            pool.submit(getattr(stage, call)).result(20)


ENDS = [("stop",), ("close",), ("stop", "close")]
"""How the owner, or the loop, ends a stage."""


def state(stage):
    """Return what a stage says about its messages."""
    return stage.last, stage.count, stage.size, stage.places


class TestFrames:
    def test_staged_messages_are_numbered_and_framed(self, stage):
        """Messages are numbered when they are staged, and their frames have these numbers."""
        assert stage.stage("a", b"x\0z") == 3
        assert stage.stage("ü.b", b"%d", b"N\r\n\r\n") == 4
        assert stage.stage("a", b"") == 5
        assert stage.take() == (
            b"PUB a r%d.3" + SUFFIX + b" 3\r\nx\0z\r\n"
            b"HPUB \xc3\xbc.b r%d.4" + SUFFIX + b" 5 7\r\nN\r\n\r\n%d\r\n"
            b"PUB a r%d.5" + SUFFIX + b" 0\r\n\r\n"
        )

    def test_frames_of_the_owner_come_after_the_staged_ones(self, stage):
        """A frame that the owner appends has the next number, and its bytes are counted."""
        stage.stage("a", b"x")
        assert stage.close() == 3
        stage.append(b"large")
        assert state(stage) == (4, 2, 6, 0)
        stage.allow(4, 1, 10, 1000)
        assert stage.stage("a", b"y") == 5
        frame = b"PUB a r%%d.%d" + SUFFIX.replace(b"%", b"%%") + b" 1\r\n%b\r\n"
        assert stage.take() == frame % (3, b"x") + b"large" + frame % (5, b"y")

    @pytest.mark.parametrize("last", [8, 98, 99, (1 << 62) - 2])
    def test_numbers(self, last):
        """Numbers may have up to 19 digits."""
        stage = opened(2, last)
        assert stage.stage("a", b"") == last + 1
        assert stage.stage("a", b"") == last + 2
        assert [int(line.split(b".")[1]) for line in stage.take().split(b"\r\n") if line] == [
            last + 1,
            last + 2,
        ]

    def test_another_batch_begins_at_one(self, stage):
        """A stage that begins another batch has no message, and is closed."""
        stage.stage("a", b"x")
        stage.append(b"y")
        stage.begin(b"q.")
        assert (*state(stage), stage.take()) == (0, 0, 0, 0, b"")
        assert stage.stage("a", b"x") == 0
        stage.allow(0, 1, 10, 1000)
        assert stage.stage("a", b"x") == 1
        assert stage.take().startswith(b"PUB a q.1.1.")

    @pytest.mark.parametrize("last", [0, 8, 98, (1 << 62) - 3])
    def test_numbers_in_the_header(self, last):
        """The number may be in the header block, whose size counts its digits."""
        stage = _stage.Stage({"a": b"a"}, b"%\r\n")
        stage.begin_in_headers(b"N: %d")
        stage.allow(last, 2, 10, 1000)
        assert stage.stage("a", b"xyz") == last + 1
        assert stage.stage("a", b"", b"A:1\r\n\r\n") == last + 2
        one = b"N: %%d%d%%\r\n\r\n" % (last + 1)
        two = b"N: %%d%d%%\r\nA:1\r\n\r\n" % (last + 2)
        assert stage.take() == b"HPUB a %d %d\r\n%bxyz\r\nHPUB a %d %d\r\n%b\r\n" % (
            len(one), len(one) + 3, one, len(two), len(two), two,
        )  # fmt: skip
        stage.begin(b"r.")
        stage.allow(0, 1, 10, 1000)
        stage.stage("a", b"x")
        assert stage.take() == b"PUB a r.1%\r\n 1\r\nx\r\n"


class TestAddAll:
    """Encoded messages that are appended together."""

    def test_it_stops_at_a_full_stage(self, stage):
        """It takes no message after the one that fills the stage."""
        messages = iter(
            [(b"a", b"", b"12345"), (b"b", b"NATS/1.0\r\n\r\n", b"6"), (b"a", b"", b"")]
        )

        assert not stage.add_all(messages, 10)
        assert (stage.last, stage.count, stage.size) == (4, 2, 18)
        assert stage.add_all(messages, 100)
        assert stage.add_all(messages, 100)
        assert (stage.last, stage.count) == (5, 3)
        assert stage.take() == (
            b"PUB a r%d.3.1.%b%% 5\r\n12345\r\n"
            b"HPUB b r%d.4.1.%b%% 12 13\r\nNATS/1.0\r\n\r\n6\r\n"
            b"PUB a r%d.5.1.%b%% 0\r\n\r\n"
        )

    def test_an_error_of_the_iterator(self, stage):
        """If the iterator raises, the messages before it are staged."""

        def iterate():
            yield b"a", b"", b"x"
            raise KeyError

        with pytest.raises(KeyError):
            stage.add_all(iterate(), 100)
        assert (stage.last, stage.count) == (3, 1)

    @pytest.mark.parametrize("messages", [5, [5], [(b"a", b"")]])
    def test_other_arguments(self, stage, messages):
        """Anything but an iterator of three parts is an error."""
        with pytest.raises((TypeError, ValueError)):
            stage.add_all(iter(messages) if isinstance(messages, list) else messages, 100)


class TestWritten:
    def test_what_is_not_written_is_taken_again(self, stage):
        """Frames that were taken stay until they are written, and their numbers are used once."""
        stage.stage("a", b"x")
        taken = stage.take()
        stage.stage("a", b"y")
        assert stage.take().startswith(taken)
        assert stage.count == 2
        stage.written()
        assert (*state(stage), stage.take()) == (4, 0, 0, 1, b"")
        assert stage.stage("a", b"z") == 5

    def test_messages_that_come_during_a_write_stay(self, stage):
        """A message that is staged between taking and writing stays for the next write."""
        stage.stage("a", b"x")
        stage.take()
        stage.stage("a", b"y")
        stage.written()
        assert stage.count == 1
        assert b"y" in stage.take()
        stage.allow(4, 1, 10, 1000)
        assert stage.stage("a", b"z") == 5
        assert [part[-1:] for part in stage.take().split(b"\r\n")[1::2]] == [b"y", b"z"]

    def test_without_a_taken_frame_nothing_is_written(self, stage):
        """Frames that were never taken are never forgotten."""
        stage.written()
        stage.stage("a", b"x")
        stage.allow(3, 1, 10, 1000)
        stage.written()
        assert stage.count == 1

    def test_many_blocks(self):
        """Blocks of all sizes keep the order, also if the stage grows while a block is written."""
        stage, found, last = opened(0, 0), [], 0
        for count in [1, 200, 3, 0, 150, 7]:
            stage.allow(last, count, 10, 1000)
            for number in range(count):
                last = stage.stage("a", b"%d" % number)
                if number % 50 == 9:
                    found.append(stage.take())
                if number % 50 == 11:
                    stage.written()
        found.append(stage.take())
        lines = b"".join(found).split(b"\r\n")[:-1:2]
        assert [int(line.split(b".")[1]) for line in lines] == list(range(1, last + 1))


class TestPlaces:
    @pytest.mark.parametrize("places", [-(1 << 62), -1, 0])
    def test_no_place(self, places):
        """A message is staged only if there is a place for it."""
        stage = opened(places)
        assert (stage.stage("a", b"x"), stage.count) == (0, 0)

    def test_a_place(self, stage):
        """A staged message takes a place."""
        assert [stage.stage("a", b"x") for _ in range(4)] == [3, 4, 5, 0]
        assert state(stage) == (5, 3, 3, 0)

    @pytest.mark.parametrize(
        "message",
        [
            ("unknown", b"x"), ("a", "x"), ("a", bytearray(b"x")), (b"a", b"x"), (None, b"x"),
            ("a", bytes(11)), ("a", bytes(6), bytes(5)), ([], b"x"), ("a", None),
        ],
    )  # fmt: skip
    def test_other_messages(self, stage, message):
        """A message that is large, or no plain pair with a known subject, is not staged."""
        assert (stage.stage(*message), stage.count) == (0, 0)

    def test_types_derived_from_text_and_bytes(self, stage):
        """Only exact types are staged, because others may change what they look like."""

        class Text(str):
            __slots__ = ()

        class Data(bytes):
            __slots__ = ()

        assert (stage.stage(Text("a"), b"x"), stage.stage("a", Data(b"x"))) == (0, 0)

    def test_the_largest(self, stage):
        """A message may have exactly as many bytes as allowed."""
        assert stage.stage("a", bytes(10)) == 3
        assert stage.stage("a", bytes(4), bytes(6)) == 4

    def test_a_message_that_would_fill_the_stage(self, stage):
        """A message is not staged if the stage would be full with it."""
        stage.allow(2, 9, 10, 16)
        assert stage.stage("a", bytes(9)) == 3
        assert stage.stage("a", bytes(3), bytes(4)) == 0
        assert stage.stage("a", bytes(2), bytes(4)) == 4
        assert stage.stage("a", bytes(1)) == 0
        stage.take()
        stage.written()
        assert stage.stage("a", bytes(10)) == 5

    def test_known_subjects_may_change(self):
        """The owner may add subjects to the known ones, and drop them all."""
        targets = {}
        stage = _stage.Stage(targets, b"")
        stage.allow(0, 9, 9, 1000)
        assert stage.stage("a", b"") == 0
        targets["a"] = b"b"
        assert stage.stage("a", b"") == 1
        targets.clear()
        assert stage.stage("a", b"") == 0
        assert stage.take() == b"PUB b 1 0\r\n\r\n"


class TestEnd:
    def test_a_closed_stage(self, stage):
        """A closed stage takes no message, and keeps those that it has."""
        stage.stage("a", b"x")
        assert stage.close() == 3
        assert (stage.stage("a", b"y"), stage.count) == (0, 1)

    def test_a_stopped_stage(self, stage):
        """A stopped stage takes no message until the owner opens it."""
        stage.stop()
        assert (stage.stage("a", b"x"), stage.count) == (0, 0)
        stage.allow(2, 1, 10, 1000)
        assert stage.stage("a", b"x") == 3

    @pytest.mark.parametrize("calls", ENDS)
    def test_a_stage_that_ends_while_a_subject_is_looked_up(self, calls):
        """A message is not staged if its stage is stopped or closed after the first look."""
        key = SameHash("a")
        # In this order, so that the key is compared with the subject.
        targets = {key: b"", "a": b"a"}
        stage = _stage.Stage(targets, SUFFIX)
        stage.begin(b"r.")
        stage.allow(2, 3, 10, 1000)
        assert stage.stage("a", b"x") == 3
        key.call = lambda: ended_meanwhile(stage, calls)
        assert stage.stage("a", b"y") == 0
        assert (stage.last, stage.count, stage.take().count(SUFFIX)) == (3, 1, 1)

    def test_a_stage_that_ends_before_a_message_is_added(self, stage, monkeypatch):
        """A message of any size is not staged if its stage is stopped after the first look."""
        if not hasattr(stage, "_lock"):
            pytest.skip("the compiled stage calls nothing meanwhile")
        look = _stage.refuse_reentry

        def end(lock):
            monkeypatch.undo()
            ended_meanwhile(stage, ("stop", "close"))
            look(lock)

        monkeypatch.setattr(_stage, "refuse_reentry", end)
        assert stage.add(b"a", bytes(100), b"", None) == 0
        assert (stage.last, stage.count, stage.take()) == (2, 0, b"")

    def test_it_is_closed_only_if_it_is_empty(self, stage):
        """The loop closes a stage only if all messages are written."""
        stage.stage("a", b"x")
        assert not stage.close_if_empty()
        assert stage.stage("a", b"y") == 4
        stage.take()
        stage.written()
        assert stage.close_if_empty()
        assert stage.stage("a", b"z") == 0

    def test_no_message_is_left_in_a_stage_that_was_closed_as_empty(self):
        """While threads stage, the stage is empty once a call says that it is closed and empty."""
        for _ in range(50):
            stage = opened(10**6, 0)
            start = threading.Barrier(3)

            def staging(stage=stage, start=start):
                start.wait()
                for _ in range(200):
                    stage.stage("a", b"x")

            with ThreadPoolExecutor(2) as pool:
                running = [pool.submit(staging) for _ in range(2)]
                start.wait()
                while not stage.close_if_empty():
                    stage.take()
                    stage.written()
                count, last = stage.count, stage.last
                for each in running:
                    each.result()
            assert (count, stage.count, stage.last) == (0, 0, last)


def test_threads_stage_each_number_once():
    """Four threads stage while another one takes: each number is used once, and none is lost."""
    stage = opened(4000, 0)
    written, numbers = [], [[], [], [], []]

    def staging(mine):
        while number := stage.stage("a", b"x"):
            mine.append(number)

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(staging, mine) for mine in numbers]
        while not all(each.done() for each in running):
            written.append(stage.take())
            stage.written()
    written.append(stage.take())
    assert sorted(itertools.chain(*numbers)) == list(range(1, 4001))
    assert all(mine == sorted(mine) for mine in numbers)
    lines = b"".join(written).split(b"\r\n")[:-1:2]
    assert [int(line.split(b".")[1]) for line in lines] == list(range(1, 4001))


def test_a_forked_child_stages_nothing_and_waits_for_no_lock():
    """A stopped stage needs no lock, whose owner may not exist in a forked child."""
    stage = opened(3)
    if not hasattr(stage, "_lock"):
        pytest.skip("the compiled stage has no lock in Python")
    with stage._lock, ThreadPoolExecutor(1) as pool:
        pool.submit(stage.stop).result(5)
        assert pool.submit(stage.stage, "a", b"x").result(5) == 0


def test_the_loop_waits_for_no_thread():
    """If a thread is interrupted while it stages, the loop does not wait for it."""
    stage = opened(3)
    if not hasattr(stage, "_lock"):
        pytest.skip("the compiled stage has no lock in Python")
    with stage._lock, ThreadPoolExecutor(1) as pool:
        assert pool.submit(stage.close_if_empty).result(5) is False
        assert pool.submit(stage.take).result(5) == b""
        pool.submit(stage.written).result(5)
    assert stage.close_if_empty()


class TestInterrupts:
    """
    An exception, or a call, of a signal handler at each step.
    """

    @pytest.mark.parametrize("header", [b"", b"N\r\n\r\n"])
    def test_ctrl_c_leaves_a_message_staged_or_not(self, header):
        """If Ctrl-C strikes, the message is staged with its number or not at all."""
        steps = steps_of(lambda: opened(3).stage("a", b"x", header))
        for step in range(1, steps + 1):
            stage = opened(3)
            interrupted_at(step, lambda stage=stage: stage.stage("a", b"x", header))
            count = stage.count
            assert count in {0, 1}
            assert stage.close() == 2 + count
            stage.allow(2 + count, 1, 10, 1000)
            assert stage.stage("a", b"y") == 3 + count
            assert stage.take().count(SUFFIX) == count + 1

    @pytest.mark.parametrize("call", ["stage", "close"])
    def test_a_handler_that_interrupts_staging_changes_nothing(self, call):
        """A handler may stage a message before or after the interrupted call, but not inside it."""
        messages = {"stage": ("a", b"h"), "close": ()}
        steps = steps_of(lambda: opened(3).stage("a", b"x"))
        for step in range(1, steps + 1):
            stage, handled = opened(3), []

            def handler(stage=stage, handled=handled):
                try:
                    handled.append(getattr(stage, call)(*messages[call]))
                except errors.CallInSignalHandlerError:
                    handled.append(None)

            _, number = handled_at(step, lambda stage=stage: stage.stage("a", b"x"), handler)
            numbers = [each for each in (number, *handled) if each and call == "stage"] or [number]
            frames = stage.take()
            for each in filter(None, numbers):
                assert b".%d.1" % each in frames
            assert stage.count == len(set(filter(None, numbers)))
