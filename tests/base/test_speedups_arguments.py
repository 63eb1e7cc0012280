"""
Wrong arguments of the compiled functions are errors, and their classes support the collector.

Python takes some of these arguments, so that the differential fuzzer cannot draw them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import struct
import subprocess
import sys
import threading
import tracemalloc
import weakref
from array import array
from collections import deque
from pathlib import Path

import pytest

from helpers.variants import COMPILED, NOT_COMPILED, PYTHON
from jetsync._base import speedups
from jetsync.consume.consumption import Consumption, TakingStorage
from jetsync.errors import MessageAlreadyAckedError
from jetsync.values.frame import FrameRun
from jetsync.values.message import Message
from jetsync.values.stored import StoredMessage

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not COMPILED, reason=NOT_COMPILED)

FRAME = (b"a", b"r", None, b"x")
COLUMNS = ("subject", "data", "sequence", "timestamp", "headers")
STORED = (
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\nNats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: 5\r\n"
    b"Nats-Time-Stamp: 2026-11-20T16:38:27.7Z\r\nNats-Num-Pending: 3\r\nNats-Last-Sequence: 4\r\n"
    b"\r\n"
)
"""The header block of a stored message."""


class RefusedError(Exception):
    """What an argument raises."""


class Answering:
    """Bounds or names that give any answer, or raise an error."""

    def __init__(self, answer):
        self.answer = answer

    def __repr__(self):
        return f"<answers {self.answer!r}>"

    def tobytes(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def __contains__(self, name):
        return self.tobytes()


class Pretender:
    """No class, but an object with the bases of one."""

    __bases__ = (Message, StoredMessage)


NO_CLASSES = [Pretender(), object, int, type, Pretender, None, 5]


class TestClasses:
    @pytest.mark.parametrize("kind", [*NO_CLASSES, StoredMessage])
    def test_only_messages_are_made(self, kind):
        """A maker of anything but a subclass of the storage is refused."""
        with pytest.raises(TypeError, match="subclass"):
            COMPILED["plain_maker"](kind, None)

    @pytest.mark.parametrize("kind", [*NO_CLASSES, Message])
    def test_only_stored_messages_are_made(self, kind):
        """Stored messages of anything but a subclass of their storage are refused."""
        with pytest.raises(TypeError, match="subclass"):
            COMPILED["stored_of_run"](kind, b"abc", array("i", [0, 1, 2]))

    def test_a_replaced_base_class_changes_nothing(self, monkeypatch):
        """The functions check for the base classes of the module, whatever its attributes are."""
        for name in ("MessageStorage", "StoredStorage"):
            monkeypatch.setattr(speedups._compiled, name, object)
        self.test_only_messages_are_made(object)
        self.test_only_stored_messages_are_made(object)
        assert COMPILED["plain_maker"](Message, None)(FRAME).data == b"x"


class TestArguments:
    @pytest.mark.parametrize("name", sorted(PYTHON))
    @pytest.mark.parametrize("count", [0, 1, 20])
    def test_the_number_of_arguments_is_checked(self, name, count):
        """Another number of arguments is a TypeError."""
        with pytest.raises(TypeError, match="arguments"):
            COMPILED[name](*[None] * count)

    @pytest.mark.parametrize("frame", [None, [], (), FRAME[:3], (*FRAME, b""), list(FRAME)])
    def test_a_frame_is_a_tuple_of_four_parts(self, frame):
        """A maker refuses other objects than frames."""
        with pytest.raises(TypeError, match="four parts"):
            COMPILED["plain_maker"](Message, None)(frame)

    @pytest.mark.parametrize(
        "bounds",
        [[-1, 0, 1], [0, -1, 1], [2, 1, 3], [1, 3, 2], [0, 1, 4], [5, 5, 5], [0, 0, 0, 0, 0, 4]],
    )
    def test_positions_outside_of_the_data_are_refused(self, bounds):
        """Positions that are outside of the data, or not in order, are a ValueError."""
        with pytest.raises(ValueError, match="outside"):
            COMPILED["stored_of_run"](StoredMessage, b"abc", array("i", bounds))

    @pytest.mark.parametrize("bounds", [None, 5, [0, 1, 2], b"012"])
    def test_bounds_that_are_no_array(self, bounds):
        """Bounds without bytes are an error."""
        with pytest.raises((AttributeError, TypeError)):
            COMPILED["stored_of_run"](StoredMessage, b"abc", bounds)

    @pytest.mark.parametrize(
        ("place", "wrong"),
        [
            (0, [("a", b"x")]),
            (0, None),
            *((place, None) for place in (1, 2, 3, 4)),
            *((place, 1 << 63) for place in (1, 2, 3)),
        ],
    )
    def test_wrong_arguments_of_extend(self, place, wrong):
        """An argument of another type or a number out of range is an error, and nothing is read."""
        stage = COMPILED["Stage"]({"a": b"a"}, b"")
        arguments = [iter([("a", b"x")]), 5, 100, 100, b"", None]
        arguments[place] = wrong
        with pytest.raises((TypeError, ValueError, OverflowError)):
            stage.extend(*arguments)
        assert stage.last == 0

    def test_an_iterable_is_no_iterator(self):
        """The error says what is allowed."""
        with pytest.raises(TypeError, match="items must be an iterator"):
            COMPILED["Stage"]({}, b"").extend([], 5, 100, 100, b"", None)

    @pytest.mark.parametrize("place", range(5))
    def test_wrong_arguments_of_cut(self, place):
        """An argument of another type is an error."""
        arguments = [b"MSG a 5 0\r\n\r\nPING\r\n", {b"5": Message}, [], [], 5]
        arguments[place] = object()
        with pytest.raises((AttributeError, TypeError, SystemError)):
            COMPILED["cut"](*arguments)

    @pytest.mark.parametrize("found", [None, "5", 1 << 80, 0.5])
    def test_express_returns_no_position(self, found):
        """If a receiver returns something else than a position, the call ends with an error."""

        class Box:
            push = [].append

            def express(self, data, position):
                return found

        with pytest.raises((TypeError, OverflowError)):
            COMPILED["cut"](b"MSG a 5 0\r\n\r\n", {b"5": Box()}, [], [], 2047)

    @pytest.mark.parametrize("place", range(4))
    def test_wrong_arguments_of_take_page(self, place):
        """An argument of another type is a TypeError, and a position outside finds nothing."""
        arguments = [b"HMSG a1 5 0 0\r\n\r\n", 0, b"a", b"5"]
        assert COMPILED["take_page"](*arguments)
        arguments[place] = None
        with pytest.raises(TypeError):
            COMPILED["take_page"](*arguments)
        arguments = [b"HMSG a1 5 0 0\r\n\r\n", [-1, -(1 << 60), 1 << 60, 18][place], b"a", b"5"]
        assert COMPILED["take_page"](*arguments) is None

    @pytest.mark.parametrize(
        "bounds",
        [
            [-1, 1, 2], [0, 11, 12], [0, 2, 1], [2, 1, 3], [0, -1, 2], [0, 1, 4, 3, 5, 6],
            [0, 1, 2, 3, 4, 11], [11, 11, 11], [0, 1, (1 << 31) - 1], [-(1 << 31), 0, 1],
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("names", [COLUMNS, []])
    def test_positions_of_columns_outside_of_the_data_are_refused(self, bounds, names):
        """Positions outside of the data, or of parts that overlap, are a ValueError."""
        with pytest.raises(ValueError, match="outside"):
            COMPILED["columns"]([FrameRun(b"a", b"0123456789", array("i", bounds))], names)

    @pytest.mark.parametrize(
        ("place", "wrong", "error"),
        [
            *((0, data, TypeError) for data in (None, "text", bytearray(b"x"), 5)),
            *((1, bounds, AttributeError) for bounds in (None, 5, [0, 1, 1], b"012")),
            (1, Answering(None), TypeError),
            (1, Answering("text"), TypeError),
            (1, Answering(bytearray(12)), TypeError),
            (1, Answering(RefusedError()), RefusedError),
            (2, None, TypeError),
            (2, 5, TypeError),
            (2, Answering(RefusedError()), RefusedError),
        ],
    )
    def test_wrong_arguments_of_columns(self, place, wrong, error):
        """An argument of another type, or the error of one, is an error."""
        arguments = [b"x", array("i", [0, 1, 1]), COLUMNS]
        arguments[place] = wrong
        data, bounds, names = arguments
        whole = FrameRun(b"a", b"x", array("i", [0, 1, 1]))
        with pytest.raises(error):
            COMPILED["columns"]([whole, FrameRun(b"a", data, bounds)], names)

    @pytest.mark.parametrize(
        ("runs", "error"),
        [(None, TypeError), (5, TypeError), ([None], AttributeError), ([5, b"x"], AttributeError)],
    )
    def test_columns_of_something_else_than_runs(self, runs, error):
        """Runs that are no sequence, or no runs, are an error."""
        with pytest.raises(error):
            COMPILED["columns"](runs, COLUMNS)

    def test_columns_of_more_than_2_gib(self):
        """An error is raised, because positions in the columns are C ints."""
        run = FrameRun(b"a", bytes(1 << 20), array("i", [0, 0, 1 << 20]))
        with pytest.raises(ValueError, match="2 GiB"):
            COMPILED["columns"]([run] * (1 << 11), [])
        assert COMPILED["columns"]([run] * ((1 << 11) - 1), []) == {}
        two = FrameRun(b"a", run.data, array("i", [0, 0, 1 << 19, 1 << 19, 1 << 19, 1 << 20]))
        with pytest.raises(ValueError, match="2 GiB"):
            COMPILED["columns"]([two] * (1 << 11), [])
        # Bytes of others before a run do not count.
        run = FrameRun(b"a", bytes(1 << 20), array("i", [(1 << 20) - 1, 1 << 20, 1 << 20]))
        assert COMPILED["columns"]([run] * (1 << 12), []) == {}

    def test_bounds_of_columns_that_are_not_whole(self):
        """Without whole messages, columns are empty, whatever the size of the bounds is."""
        empty = {"data": (bytes(4), b"")}
        assert COMPILED["columns"]([], ["data"]) == empty
        for bounds in (array("i"), array("i", [7, 8]), Answering(b"odd")):
            assert COMPILED["columns"]([FrameRun(b"a", b"", bounds)] * 2, ["data"]) == empty
        assert COMPILED["columns"]([FrameRun(b"a", b"", array("i"))], []) == {}

    def test_names_that_change_the_bounds_of_columns(self):
        """Bounds that change while the names are looked at are checked after that."""
        bounds = array("i", [0, 1, 1])

        class Names:
            def __contains__(self, name):
                bounds[:] = array("i", [0, 1, 1 << 30])
                return True

        with pytest.raises(ValueError, match="outside"):
            COMPILED["columns"]([FrameRun(b"a", b"x", bounds)], Names())

    def test_bounds_that_change_the_runs_of_columns(self):
        """Runs that are removed while one of them is read are read all the same."""

        class Bounds:
            def tobytes(self):
                runs.clear()
                return array("i", [0, 1, 1]).tobytes()

        runs = [FrameRun(b"a", b"x", Bounds()), FrameRun(b"a", b"y", array("i", [0, 0, 1]))]
        assert COMPILED["columns"](runs, ["data"])["data"][1] == b"y"


ACKS = b"".join(b"MSG p.%d 5 4\r\n{%d}\r\n" % (number, number) for number in range(10, 40))
PACKED = b"".join(struct.pack("=QQ", number, number) for number in range(10, 40))
"""What a compiled run of these acks has as its only part."""


class TestAckRuns:
    @pytest.mark.parametrize("place", [1, 2, 3])
    @pytest.mark.parametrize("wrong", [None, "p.", 5, bytearray(b"p."), [b"p."]])
    def test_wrong_arguments_of_ack_taker(self, place, wrong):
        """What is not bytes is a TypeError, and nothing is made."""
        arguments = [len, b"p.", b"5", b"{"]
        arguments[place] = wrong
        with pytest.raises(TypeError):
            COMPILED["ack_taker"](*arguments)

    @pytest.mark.parametrize("arguments", [(), (ACKS,), (ACKS, 0, 0), (None, 0), (ACKS, None)])
    def test_wrong_arguments_of_a_taker(self, arguments):
        """Anything but bytes and a position is a TypeError."""
        runs = []
        with pytest.raises(TypeError):
            COMPILED["ack_taker"](runs.append, b"p.", b"5", b"{")(*arguments)
        assert runs == []

    @pytest.mark.parametrize(
        "position", [-1, -(1 << 62), 1, 5, len(ACKS) - 1, len(ACKS), len(ACKS) + 1, 1 << 62]
    )
    def test_positions_without_acks(self, position):
        """At a position outside of the data, or inside of a frame, nothing is taken."""
        runs = []
        take = COMPILED["ack_taker"](runs.append, b"p.", b"5", b"{")
        assert take(ACKS, position) == position
        assert runs == []
        with pytest.raises(OverflowError):
            take(ACKS, 1 << 80)

    def test_a_run_has_packed_acks(self):
        """A run has one part with all acks, and the position is after them."""
        runs = []
        assert COMPILED["ack_taker"](runs.append, b"p.", b"5", b"{")(ACKS, 0) == len(ACKS)
        assert runs == [[PACKED]]

    @pytest.mark.parametrize("size", range(70))
    def test_every_end_of_the_data(self, size):
        """However many bytes are there, only whole frames are read."""
        runs, data = [], ACKS[:size]
        after = COMPILED["ack_taker"](runs.append, b"p.", b"5", b"{")(data, 0)
        assert after in {0, data.rfind(b"\r\nMSG ") + 2, len(data)}
        assert runs == ([[PACKED[: 16 * data[:after].count(b"}\r\n")]]] if after else [])

    @pytest.mark.parametrize(
        ("prefix", "sid", "plain"),
        [
            (b"", b"", b""), (b"p.", b"5", b""), (b"p.", b"", b"{"), (b"x" * 5000, b"5", b"{"),
            (b"p.", b"5" * 5000, b"{"), (b"p.", b"5", b"{" * 5000), (b"\0", b"\xff", b"\r\n"),
        ],
    )  # fmt: skip
    def test_any_form(self, prefix, sid, plain):
        """Acks that have another form are not taken, whatever it is."""
        assert COMPILED["ack_taker"](len, prefix, sid, plain)(ACKS, 0) == 0

    def test_an_error_of_push(self):
        """The error of ``push`` is raised."""
        with pytest.raises(RefusedError):
            COMPILED["ack_taker"](raising(RefusedError), b"p.", b"5", b"{")(ACKS, 0)
        with pytest.raises(TypeError):
            COMPILED["ack_taker"](None, b"p.", b"5", b"{")(ACKS, 0)

    def test_push_may_drop_the_taker(self):
        """A run is complete before it is passed on, so the taker may go meanwhile."""
        takers = []

        def push(run):
            takers.clear()
            gc.collect()

        takers.append(COMPILED["ack_taker"](push, b"p.", b"5", b"{"))
        assert takers[0](ACKS, 0) == len(ACKS)

    def test_a_cycle_through_a_taker_is_collected(self):
        """The collector finds a taker whose ``push`` refers to it."""

        class Held:
            def push(self, run):
                pass

        held = Held()
        held.take = COMPILED["ack_taker"](held.push, b"p.", b"5", b"{")
        alive = weakref.ref(held)
        del held
        gc.collect()
        assert alive() is None


class Falling:
    """A message that does something when it is dropped."""

    def __init__(self, call):
        self.call = call

    def __del__(self):
        self.call()


class TestEndAcks:
    @pytest.mark.parametrize(
        ("place", "wrong"),
        [
            *((0, wrong) for wrong in (None, [], 5)),
            *((1, wrong) for wrong in (None, [], 5, [[PACKED]])),
            *((2, wrong) for wrong in (None, -1, 0.5, "9")),
            *((3, wrong) for wrong in (None, "{", bytearray(b"{"), 5)),
            *((4, wrong) for wrong in ((), 5, deque())),
        ],
    )
    def test_wrong_arguments(self, place, wrong):
        """An argument of another type is a TypeError, and no message is taken."""
        in_flight = {10: "ten"}
        arguments = [in_flight, iter([[PACKED]]), 2, b"{", []]
        arguments[place] = wrong
        with pytest.raises(TypeError):
            COMPILED["end_acks"](*arguments)
        assert in_flight == {10: "ten"}

    @pytest.mark.parametrize(
        "part",
        [
            None, 5, "10", (), (b"10",), (b"10", b"10", b"10"), [b"10", b"10"], (10, 10),
            (b"10", None), (None, b"10"), (b"", b"1"), (b"1", b""), (b"x", b"1"), (b"1", b"-1"),
            (b"1", b"1" * 20), (b"1" * 20, b"1"), (b"1 ", b"1"), (bytearray(b"1"), b"1"),
        ],
    )  # fmt: skip
    def test_parts_that_are_no_acks(self, part):
        """What is no ack in a run is a TypeError, and the acks before it were processed."""
        in_flight, acked = {10: "ten", 11: "eleven"}, []
        with pytest.raises(TypeError):
            COMPILED["end_acks"](in_flight, iter([[(b"10", b"7"), part]]), 2, b"{", acked)
        assert (in_flight, acked) == ({11: "eleven"}, [("ten", 7)])

    @pytest.mark.parametrize("size", [0, 1, 8, 15])
    def test_a_part_that_ends_in_an_ack(self, size):
        """Bytes after the last whole ack are not read."""
        in_flight = dict.fromkeys(range(50), "m")
        found = COMPILED["end_acks"](in_flight, iter([[PACKED + PACKED[:size]]]), 2, b"{", None)
        assert found == (None, 30, 10, 39)
        assert [*in_flight] == [*range(10), *range(40, 50)]

    @pytest.mark.parametrize(
        "answer",
        [
            None, 5, (), (b"p.1",), (b"p.1", b"", None), (b"p.1", b"", None, b"{1}", b""),
            ("p.1", b"", None, b"{1}"), (b"p.1", b"", None, "{1}"), (b"p.1", b"", None, None),
            (b"p.1", b"", None, b"{"), (b"p.1", b"", None, b""), (b"p.", b"", None, b"{1}"),
            (b"", b"", None, b"{1}"), (b"p.1", b"", None, bytearray(b"{1}")),
        ],
    )  # fmt: skip
    def test_answers_that_are_no_acks(self, answer):
        """What is no plain ack is returned, and the next answer is still in the iterator."""
        answers = iter([(b"p.1", b"", None, b"{7}"), answer, "next"])
        found = COMPILED["end_acks"]({1: "one"}, answers, 2, b"{", None)
        assert found == (answer, 1, 7, 7)
        assert next(answers) == "next"

    def test_an_iterator_that_raises(self):
        """The error of the iterator is raised."""

        def answers():
            yield [PACKED]
            raise RefusedError

        with pytest.raises(RefusedError):
            COMPILED["end_acks"]({}, answers(), 2, b"{", None)

    @pytest.mark.parametrize("keeps", [True, False])
    def test_a_message_that_changes_everything(self, keeps):
        """The finalizer of a message may change the run, the messages and the acked ones."""
        in_flight, acked, run = {}, [], [PACKED, (b"1", b"2"), PACKED]

        def change():
            run.clear()
            in_flight.clear()
            acked.clear()
            gc.collect(0)

        in_flight.update((number, Falling(change)) for number in range(10, 40))
        found = COMPILED["end_acks"](in_flight, iter([run]), 2, b"{", acked if keeps else None)
        assert found == (None, 30, 10, 39) if keeps else found[1] == 1
        assert len(acked) == 30 * keeps
        acked.clear()

    def test_keys_that_raise(self):
        """The error of a comparison is raised, and the message stays."""

        class Key:
            def __hash__(self):
                return hash(10)

            def __eq__(self, other):
                raise RefusedError

        in_flight = {Key(): "ten"}
        with pytest.raises(RefusedError):
            COMPILED["end_acks"](in_flight, iter([[PACKED]]), 2, b"{", None)
        assert len(in_flight) == 1

    def test_no_reference_is_kept(self):
        """A message that was taken is released, and so are its number and the answers."""

        class Held:
            pass

        message = Held()
        alive = weakref.ref(message)
        in_flight, acked = {10: message}, []
        del message
        COMPILED["end_acks"](in_flight, iter([[PACKED]]), 2, b"{", acked)
        assert alive() is not None
        acked.clear()
        assert alive() is None


class TestStage:
    @pytest.mark.parametrize(
        "arguments", [(), ({},), (None, b""), ([], b""), ({}, "x"), ({}, None), ({}, b"", b"")]
    )
    def test_wrong_arguments_of_a_stage(self, arguments):
        """A stage is made of a dictionary and bytes."""
        with pytest.raises(TypeError):
            COMPILED["Stage"](*arguments)
        with pytest.raises(TypeError):
            COMPILED["Stage"]({}, b"", suffix=b"")

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("begin", (None,)), ("begin_in_headers", ("x",)), ("append", (None,)),
            ("append", ("x",)), ("append", ()), ("append", (b"x", 1, 2)),
            ("stage", ()), ("stage", ("a",)), ("stage", ("a", b"x", b"", None, 1)),
            ("stage", ("a", b"x", None)), ("stage", ("a", b"x", "h")), ("allow", (0, 1, 1)),
            ("allow", (-1, 1, 1, 1)), ("allow", ((1 << 62) + 1, 1, 1, 1)),
            ("allow", (None, 1, 1, 1)), ("allow", (0, None, 1, 1)), ("allow", (0, 1, 1.5, 1)),
            ("allow", (0, 1 << 63, 1, 1)), ("allow", (0, 1, 1, None)),
            ("allow", (0, 1, -(1 << 63) - 1, 1)), ("take", (1,)), ("take", ({}, 1)),
            ("close", (1,)),
            ("add", (b"a", b"x", b"")), ("add", ("a", b"x", b"", None)),
            ("add", (b"a", "x", b"", None)),
            ("add", (b"a", b"x", None, None)), ("permit", (1,)), ("permit", (None, 1)),
            ("permit", (1, 1.5)),
        ],
    )  # fmt: skip
    def test_wrong_arguments_change_nothing(self, name, arguments):
        """A wrong argument of a method is an error, and the stage stays as it is."""
        stage = COMPILED["Stage"]({"a": b"a"}, b"")
        stage.allow(5, 1, 10, 1000)
        stage.append(b"frame")
        with pytest.raises((TypeError, ValueError, OverflowError)):
            getattr(stage, name)(*arguments)
        assert (stage.last, stage.count, stage.size, stage.places) == (6, 1, 5, 1)
        assert stage.take() == b"frame"

    def test_a_target_that_is_no_bytes(self):
        """A subject that is known by something else than bytes is a TypeError."""
        stage = COMPILED["Stage"]({"a": "a"}, b"")
        stage.allow(0, 1, 10, 1000)
        with pytest.raises(TypeError):
            stage.stage("a", b"x")
        assert (stage.last, stage.count, stage.places) == (0, 0, 1)

    def test_a_key_that_changes_the_stage(self):
        """A comparison of subjects may use the stage, and its error is raised."""

        class Key:
            def __hash__(self):
                return hash("a")

            def __eq__(self, other):
                stage.begin(b"q.")
                stage.take()
                if fails:
                    raise RefusedError
                return True

        fails = []
        stage = COMPILED["Stage"]({Key(): b"b"}, b"")
        stage.allow(0, 9, 10, 1000)
        assert stage.stage("a", b"x") == 0
        fails.append(1)
        with pytest.raises(RefusedError):
            stage.stage("a", b"x")

    def test_a_new_stage_is_closed(self):
        """A stage that never began has no message, and stages none."""
        stage = COMPILED["Stage"]({"a": b"a"}, b"")
        assert (stage.stage("a", b""), stage.take(), stage.close()) == (0, b"", 0)
        stage.written()
        assert stage.close_if_empty()

    def test_a_cycle_through_a_stage_is_collected(self):
        """The collector finds a stage whose known subjects refer to it."""

        class Held:
            pass

        held, targets = Held(), {}
        held.stage = targets["x"] = COMPILED["Stage"](targets, b"")
        targets["held"] = held
        alive = weakref.ref(held)
        del held, targets
        gc.collect()
        assert alive() is None

    def test_the_memory_of_a_large_frame_is_released(self):
        """A stage does not keep the memory of a large frame that was written."""
        stage = COMPILED["Stage"]({"a": b"a"}, b"")
        tracemalloc.start()
        try:
            stage.append(bytes(8 << 20))
            stage.take()
            stage.written()
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
        finally:
            tracemalloc.stop()
        stage.append(b"x")
        assert stage.take() == b"x"


class Plain(Message):
    """A subclass with a dictionary, which may refer to itself."""


class PlainStored(StoredMessage):
    """As above."""


STORAGES = [
    (
        Message,
        ["_subject", "_raw_reply", "_raw_headers", "_data", "_acker", "_headers", "_metadata"],
    ),
    (StoredMessage, ["_block", "_data", "_headers", "_parts"]),
    (TakingStorage, ["_quick"]),
]


class Taker(TakingStorage):
    """Stands for a consumption: says which of its methods was called."""

    def __init__(self, *quick):
        self._quick = quick

    def _take_next(self):
        return "Python took one"


def raising(error):
    """Return a function that raises an error."""

    def call(*_):
        raise error

    return call


def parts(frames=(FRAME, FRAME), low=-1, make=None, record=None):
    """Return what a consumption or a batch takes its messages from."""
    buffer, make = deque(frames), make or COMPILED["plain_maker"](Message, None)
    return [buffer, buffer.popleft, [low], make, record]


class Records(list):
    """A list with a method of its own."""

    def append(self, _):
        raise RefusedError


class Reply(bytes):
    """A reply subject with a method of its own."""

    __slots__ = ()

    def startswith(self, *_):
        return False


REPLIES = [
    b"",
    b"$JS",
    b"$JS.ACK",
    b"$JS.ACK.",
    b"$JS.ACK.a",
    b"$JS.ACKS.",
    b"r",
    Reply(b"$JS.ACK.a"),
]


class TestAckers:
    @pytest.mark.parametrize("acker", [None, "empty", object()])
    @pytest.mark.parametrize("reply", [*REPLIES, "empty", None, 5])
    def test_an_acker_is_taken_as_in_python(self, acker, reply):
        """Both variants take the same acker, or raise the same error and take none."""

        def taken(name):
            message = Message(b"a", reply, None, b"", acker)
            if acker == "empty":
                del message._acker
            if reply == "empty":
                del message._raw_reply
            try:
                result = getattr(message, name)()
            except Exception as error:  # noqa: BLE001 - all errors are compared.
                result = type(error), str(error), error.__suppress_context__
            return result, message.is_acked

        assert taken("_take_acker") == taken("_take_acker_or_raise")

    def test_one_of_many_threads_takes_the_acker(self):
        """If threads take the acker of a message at the same time, one of them gets it."""
        acker, most = object(), 4
        messages = [Message(b"a", b"$JS.ACK.a", None, b"", acker) for _ in range(2000)]
        got, ready = [], threading.Barrier(most)

        def take():
            ready.wait()
            for message in messages:
                with contextlib.suppress(MessageAlreadyAckedError):
                    got.append(message._take_acker())

        threads = [threading.Thread(target=take) for _ in range(most)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [acker] * len(messages)


class TestTaking:
    def test_messages_are_taken_from_the_buffer(self):
        """A message is made of each frame in the buffer, and then Python is called."""
        taker = Taker(*parts([(b"1", b"r", None, b"x"), (b"2", b"r", b"h", b"y")]))
        taken = [next(taker), next(taker)]
        assert [(message.subject, message.data) for message in taken] == [("1", b"x"), ("2", b"y")]
        assert next(taker) == "Python took one"

    @pytest.mark.parametrize("low", [1, 2, sys.maxsize])
    def test_python_takes_if_a_pull_is_due(self, low):
        """If few frames would be left, nothing is taken, and Python is called."""
        quick = parts(low=low)
        assert next(Taker(*quick)) == "Python took one"
        assert len(quick[0]) == 2

    def test_the_mark_may_change(self):
        """The mark below which a pull is due is read for each message."""
        quick = parts(low=0)
        taker = Taker(*quick)
        assert isinstance(next(taker), Message)
        assert next(taker) == "Python took one"
        quick[2][0] = -1
        assert isinstance(next(taker), Message)

    def test_another_thread_takes_the_frame(self):
        """If the buffer turns out to be empty, Python is called, without the error."""
        quick = parts()
        quick[1] = raising(IndexError("empty"))
        assert next(Taker(*quick)) == "Python took one"
        quick[1] = lambda: quick[0].clear() or FRAME
        assert next(Taker(*quick)) != "Python took one"

    def test_a_pull_is_due_after_all(self):
        """If other threads took frames meanwhile, the frame is put back, and Python is called."""
        quick = parts(low=0)
        quick[1] = lambda: quick[0].clear() or FRAME
        assert next(Taker(*quick)) == "Python took one"
        assert list(quick[0]) == [FRAME]

    @pytest.mark.parametrize("make", [len, raising(RefusedError), print, None])
    def test_other_makers_are_called_by_python(self, make):
        """Only what `plain_maker` returns is called without Python."""
        quick = parts()
        quick[3] = make
        assert next(Taker(*quick)) == "Python took one"
        assert list(quick[0]) == [FRAME, FRAME]

    def test_a_frame_that_is_none_goes_to_python(self):
        """A frame of which no message can be made is not lost."""
        quick = parts([FRAME[:3]])
        assert next(Taker(*quick)) == "Python took one"
        assert list(quick[0]) == [FRAME[:3]]

    def test_each_message_is_recorded(self):
        """The list gets each message that is returned, and no other."""
        record = []
        taker = Taker(*parts(low=0, record=record))
        taken = next(taker)
        assert record == [taken]
        assert next(taker) == "Python took one"
        assert record == [taken]

    @pytest.mark.parametrize("record", [(), deque(), 5, Records()])
    def test_a_record_that_is_no_list(self, record):
        """Anything but a list or None is left to Python, and nothing is taken."""
        quick = parts(record=record)
        assert next(Taker(*quick)) == "Python took one"
        assert len(quick[0]) == 2

    def test_an_error_while_taking(self):
        """Other errors than IndexError are raised."""
        quick = parts()
        quick[1] = raising(RefusedError)
        with pytest.raises(RefusedError):
            next(Taker(*quick))

    @pytest.mark.parametrize(
        "quick", [None, (), (1, 2, 3, 4), [1, 2, 3, 4, 5], (deque([FRAME]), None, [-1], None)]
    )
    def test_without_the_five_parts_python_takes(self, quick):
        """Anything but five parts is left to Python, and so is a field without a value."""
        taker = Taker()
        taker._quick = quick
        assert next(taker) == "Python took one"
        del taker._quick
        assert next(taker) == "Python took one"

    @pytest.mark.parametrize("place", [0, 2])
    @pytest.mark.parametrize("wrong", [None, 5, (), [], [None], ["x"], [1 << 80], b"x", object()])
    def test_a_buffer_or_mark_that_is_none(self, place, wrong):
        """What cannot be compared is left to Python."""
        quick = parts()
        quick[place] = wrong
        if not (place == 0 and wrong):
            assert next(Taker(*quick)) == "Python took one"

    def test_each_frame_goes_to_one_of_many_threads(self):
        """If threads take frames at the same time, each of them is taken once, and none is lost."""
        count, most = 20_000, 4
        taker = Taker(*parts([(b"%d" % number, b"r", None, b"x") for number in range(count)]))
        taken, ready = [[] for _ in range(most)], threading.Barrier(most)

        def take(mine):
            ready.wait()
            while isinstance(message := next(taker), Message):
                mine.append(int(message.subject))

        threads = [threading.Thread(target=take, args=[mine]) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(number for mine in taken for number in mine) == [*range(count)]

    def test_other_threads_replace_the_parts(self):
        """Threads may take frames while another one replaces and deletes the parts."""
        taker, over = Taker(), threading.Event()

        def take():
            while not over.is_set():
                assert isinstance(next(taker), (Message, str))

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3000):
            taker._quick = tuple(parts([FRAME] * 3))
            del taker._quick
        over.set()
        for thread in threads:
            thread.join()

    def test_taking_a_message_keeps_nothing(self):
        """A message that was taken and dropped leaves no reference to its frame or to the parts."""
        frame = tuple(bytes([65 + number]) * 500 for number in range(4))
        maker = COMPILED["plain_maker"](Message, None)
        takers = [Taker(*parts([frame], make=make)) for make in (maker, len)]
        takers += [Taker(*parts([frame], low=1)), Taker(*parts([]))]
        held = [frame, *frame, *(taker._quick for taker in takers)]
        before = [sys.getrefcount(each) for each in held]
        for taker in takers:
            next(taker)
        # The buffer of the first one held the frame.
        before[0] -= 1
        assert [sys.getrefcount(each) for each in held] == before

    def test_an_object_without_parts_is_no_iterator_yet(self):
        """A consumption whose constructor did not run has no message, and raises AttributeError."""
        with pytest.raises(AttributeError):
            next(TakingStorage.__new__(TakingStorage))
        with pytest.raises(AttributeError):
            next(Consumption.__new__(Consumption))

    def test_the_parts_may_be_replaced_meanwhile(self):
        """A call that drops the parts does not leave the iterator with freed objects."""
        quick = parts()
        taker = Taker(*quick)

        def take():
            taker._quick = None
            quick.clear()
            gc.collect()
            return FRAME

        taker._quick = (quick[0], take, *quick[2:])
        assert isinstance(next(taker), Message)


class TestCollector:
    @pytest.mark.parametrize(
        ("kind", "field"), [(kind, field) for kind, fields in STORAGES for field in fields]
    )
    def test_a_cycle_through_each_field_is_collected(self, kind, field):
        """The collector finds a message that refers to itself, and releases what it refers to."""

        class Own(kind):
            __slots__ = ()

        class Held:
            pass

        message, held = Own.__new__(Own), Held()
        held.message = message
        setattr(message, field, held)
        alive, its_class = weakref.ref(held), weakref.ref(Own)
        del message, held, Own
        gc.collect()
        assert alive() is None
        assert its_class() is None

    @pytest.mark.parametrize(
        ("kind", "field"), [(kind, field) for kind, fields in STORAGES for field in fields]
    )
    def test_each_field_is_released(self, kind, field):
        """An object that is dropped releases what its fields refer to, without the collector."""

        class Held:
            pass

        message, held = kind.__new__(kind), Held()
        setattr(message, field, held)
        alive = weakref.ref(held)
        del held
        assert alive() is not None
        del message
        assert alive() is None

    @pytest.mark.parametrize("kind", [Plain, PlainStored])
    def test_subclasses_have_storage_of_their_own(self, kind):
        """A subclass may have attributes, weak references and a finalizer."""
        gone = []

        class Own(kind):
            def __del__(self):
                gone.append(self.own)

        if kind is Plain:
            message = COMPILED["plain_maker"](Own, None)(FRAME)
        else:
            (message,) = COMPILED["stored_of_run"](Own, b"abc", array("i", [0, 1, 2]))
        message.own, message.itself = 7, message
        alive = weakref.ref(message)
        assert alive() is message
        del message
        gc.collect()
        assert (alive(), gone) == (None, [7])

    @pytest.mark.parametrize("kind", [Message, StoredMessage])
    def test_empty_fields_raise_attribute_errors(self, kind):
        """A field without a value raises AttributeError, and can be deleted once."""
        message = kind.__new__(kind)
        with pytest.raises(AttributeError):
            _ = message.data
        message._data = b"x"
        del message._data
        with pytest.raises(AttributeError):
            del message._data

    def test_a_long_chain_of_messages_is_freed(self):
        """Messages that refer to each other in a long chain do not exhaust the stack."""
        first = Message.__new__(Message)
        for _ in range(200_000):
            following = Message.__new__(Message)
            following._data = first
            first = following
        del first, following

    def test_an_unfinished_list_is_not_visible(self):
        """Callbacks of the collector see no list with empty places."""
        count, lengths = 5000, []

        def look(phase, info):
            lengths.extend(len(each) for each in gc.get_objects() if type(each) is list)

        gc.callbacks.append(look)
        try:
            made = COMPILED["stored_of_run"](PlainStored, b"abc", array("i", [0, 1, 2] * count))
            # Since 3.12, the collector runs after the call, when the list is complete.
            assert count not in lengths or sys.version_info >= (3, 12)
            gc.collect()
        finally:
            gc.callbacks.remove(look)
        assert len(made) == count
        assert count in lengths


def calls():
    """Calls of all functions, by name, that succeed if there is memory."""

    class Box:
        def __init__(self):
            self.frames = []
            self.push = self.frames.append
            self.express = None

    lines = b"HMSG a1 5 12 13\r\nNATS/1.0\r\n\r\nx\r\nMSG a 5 r 300\r\n%b\r\nPING\r\n" % (
        b"y" * 300
    )
    page = b"HMSG a1 5 12 13\r\nNATS/1.0\r\n\r\nx\r\n" * 100
    bounds = array("i", [0, 1, 2] * 10)
    make = COMPILED["plain_maker"](Message, None)
    pair = ("a", b"x" * 600)

    def extend(items):
        stage = COMPILED["Stage"]({"a": b"a"}, b"s")
        stage.extend(items, 1 << 41, 10_000, 10_000, b"block", object())
        return stage.take({})

    size = len(STORED) + 1
    places = [number * size + place for number in range(30) for place in (0, size - 1, size)]
    stored = FrameRun(b"a", (STORED + b"x") * 30, array("i", places))
    take = COMPILED["ack_taker"](len, b"p.", b"5", b"{")
    # Python has the smaller ones already.
    packed = b"".join(struct.pack("=QQ", number, number) for number in range(300, 340))

    def end(acked):
        answers = [[packed, (b"345", b"999")], (b"p.346", b"", None, b"{999}")]
        COMPILED["end_acks"](dict.fromkeys(range(300, 400), "m"), iter(answers), 2, b"{", acked)

    return {
        # Many, because free-threaded builds keep the memory of the last few tuples and functions.
        "ack_taker": lambda: [COMPILED["ack_taker"](len, b"p.", b"5", b"{") for _ in range(50)],
        "take_acks": lambda: take(ACKS * 10, 0),
        "end_acks": lambda: end(None),
        "end_acks kept": lambda: end([]),
        "cut": lambda: COMPILED["cut"](lines, {b"5": Box()}, [], [], 1 << 20),
        "take_page": lambda: COMPILED["take_page"](page, 0, b"a", b"5"),
        "stored_of_run": lambda: COMPILED["stored_of_run"](StoredMessage, page, bounds),
        "columns": lambda: COMPILED["columns"]([stored] * 2, COLUMNS),
        # Many, because free-threaded builds keep the memory of the last few tuples and functions.
        "plain_maker": lambda: [COMPILED["plain_maker"](Message, None) for _ in range(50)],
        "make": lambda: make(FRAME),
        "take_next": lambda: [next(taker) for taker in [Taker(*parts([FRAME] * 50))] * 50],
        "extend": lambda: extend(iter([pair] * 5)),
    }


@pytest.mark.parametrize("name", calls() if COMPILED else [])
def test_every_allocation_may_fail(name):
    """If any one allocation fails, the call raises MemoryError and does not crash."""
    testcapi = pytest.importorskip("_testcapi", reason="makes allocations fail")
    call, failures = calls()[name], 0
    call()
    # More than the allocations of each call.
    for place in range(400):
        try:
            testcapi.set_nomemory(place, place + 1)
            call()
        except MemoryError:
            failures += 1
        finally:
            testcapi.remove_mem_hooks()
    assert failures
    call()


def test_without_memory_no_message_is_lost():
    """If an allocation fails, each message is in flight or acked, and never both."""
    testcapi = pytest.importorskip("_testcapi", reason="makes allocations fail")
    numbers = range(300, 340)
    run = [b"".join(struct.pack("=QQ", number, number) for number in numbers)]
    ended = set()
    for place in range(200):
        in_flight, acked, answers = dict(zip(numbers, numbers, strict=True)), [], iter([run])
        try:
            testcapi.set_nomemory(place, place + 1)
            COMPILED["end_acks"](in_flight, answers, 2, b"{", acked)
        except MemoryError:
            pass
        finally:
            testcapi.remove_mem_hooks()
        assert sorted([*in_flight, *(item for item, _ in acked)]) == [*numbers]
        ended.add(len(acked))
    assert {0, len(numbers)} < ended


@pytest.mark.soak  # `tox run -e pure` runs these tests, too.
def test_the_storage_in_python():
    """The tests of messages pass with the storage in Python, which is chosen at import."""
    names = ("message", "message_read_only", "stored")
    files = [TESTS / "values" / f"test_{name}.py" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *files],
        cwd=TESTS.parent,
        env={**os.environ, "JETSYNC_SPEEDUPS": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "JETSYNC_SPEEDUPS=0" in done.stdout


def test_objects_of_classes_with_storage_of_their_own():
    """``maker`` refuses a class that its own ``__new__`` completes, and names that are none."""
    for wrong in (int, tuple, RefusedError, 5):
        with pytest.raises(TypeError, match="a class without __new__"):
            COMPILED["maker"](wrong, ("a",))
    with pytest.raises(TypeError, match="and a tuple"):
        COMPILED["maker"](Answering, ["a"])
    with pytest.raises(TypeError):
        COMPILED["maker"](Answering, (5,))(1)
