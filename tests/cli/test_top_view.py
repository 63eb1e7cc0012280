"""
What `jetsync top` draws on screens of several sizes.
"""

from __future__ import annotations

import datetime as dt
import io
from types import SimpleNamespace

import attrs
import pytest
from rich.cells import cell_len
from rich.console import Console

import jetsync
from jetsync.cli._reports import ago, in_order, rate
from jetsync.cli._samples import Sample, consumer_dict, delivered, sampled, stored, stream_dict
from jetsync.cli._top_view import Screenful, View, compact

NOW = dt.datetime(2026, 8, 6, tzinfo=dt.timezone.utc)

NAMES = ("ORDERS", "注文ストリーム", "x" * 70, "a\x1b[2Jb")


def stream_of(name, messages=0, consumers=0):
    """
    Return the row of a stream.
    """
    state = jetsync.StreamState(messages=messages, consumer_count=consumers, last_ts=NOW)
    info = jetsync.StreamInfo(config=jetsync.StreamConfig(name=name), state=state)
    return stream_dict(Sample(info, NOW, 12.5), {})


def consumer_of(name, pending=0):
    """
    Return the row of a consumer.
    """
    info = jetsync.ConsumerInfo(stream_name="ORDERS", name=name, num_pending=pending)
    return consumer_dict(Sample(info, NOW, None))


def drawn(streams, consumers, width, height, *, sort="lag", offset=0, status="", waiting=0):
    """
    Return the lines of a screen.
    """
    view = View(streams, consumers, 5, 0.012, waiting, NOW)
    shown = Screenful("nats-server", view, sort, offset, status, width, height)
    file = io.StringIO()
    Console(file=file, width=width, height=height, force_terminal=False).print(shown.content())
    return file.getvalue().splitlines()


class TestScreens:
    @pytest.mark.parametrize("width", [50, 80, 120])
    @pytest.mark.parametrize("height", [12, 24])
    @pytest.mark.parametrize("count", [0, 1, 1000])
    def test_a_screen_is_never_exceeded(self, width, height, count):
        """
        No line is wider than the screen, and there are not more lines.
        """
        streams = [stream_of(name, 10**number) for number, name in enumerate(NAMES[: count + 1])]
        consumers = [consumer_of(f"{NAMES[n % 4]}{n}", n) for n in range(count)]

        lines = drawn(streams, consumers, width, height)

        assert max(map(cell_len, lines)) <= width
        assert len(lines) <= height
        assert "\x1b" not in "".join(lines)
        assert lines[-1].startswith("q quit")

    def test_the_largest_lag_comes_first(self):
        """
        The consumers with the largest lag are on top, and the line at the bottom says how many.
        """
        consumers = [consumer_of(f"worker-{number:04}", number) for number in range(1000)]

        lines = drawn([stream_of("ORDERS")], consumers, 80, 24)
        assert [line.split()[0] for line in lines if "worker-" in line][:2] == [
            "worker-0999",
            "worker-0998",
        ]
        assert lines[-1].rstrip().endswith("consumers 1 to 16 of 1,000")
        lines = drawn([stream_of("ORDERS")], consumers, 80, 24, sort="name", offset=10)
        assert next(line for line in lines if "worker-" in line).startswith("worker-0010")

    def test_a_problem_replaces_the_keys(self):
        """
        The last line says what is wrong.
        """
        lines = drawn([], [], 80, 24, status="no answer\nwithin 5s")
        assert lines[-1].rstrip() == "no answer\\nwithin 5s"

    def test_streams_that_wait_for_their_turn(self):
        """
        A line says if some consumers are from an earlier answer.
        """
        assert "consumers of 3 streams from earlier" in drawn([], [], 120, 24, waiting=3)[1]


class TestRates:
    def info(self, last, seconds, created=NOW):
        """
        Return the info of a stream.
        """
        state = jetsync.StreamState(last_seq=last)
        return jetsync.StreamInfo(
            state=state, created=created, ts=NOW + dt.timedelta(seconds=seconds)
        )

    def test_a_rate_needs_two_samples_of_one_stream(self):
        """
        The rate is that between two samples, by the clock of the server.
        """
        first = sampled(self.info(10, 0), None, stored)
        assert first.rate is None
        assert sampled(self.info(30, 4), first, stored).rate == 5
        assert sampled(self.info(30, 0), first, stored).rate is None
        assert sampled(self.info(30, 4, NOW + dt.timedelta(1)), first, stored).rate is None

    def test_a_reset_consumer_has_no_rate(self):
        """
        A consumer that was moved back has delivered less than before.
        """

        def info(count, seconds):
            position = jetsync.SequenceInfo(consumer_seq=count)
            time = NOW + dt.timedelta(seconds=seconds)
            return jetsync.ConsumerInfo(delivered=position, ts=time)

        first = sampled(info(10, 0), None, delivered)
        assert sampled(info(12, 1), first, delivered).rate == 2
        assert sampled(info(0, 1), first, delivered).rate is None


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999_999, "999,999"), (1_234_567, "1.23M"), (123_456_789, "123M"), (5e12, "5,000G")],
)
def test_large_numbers_are_short(count, text):
    """
    A number has at most 7 characters.
    """
    assert compact(int(count)) == text


def test_rates_and_ages():
    """
    Small rates have a decimal, and an age has one unit.
    """
    assert [rate(each) for each in (None, 0, 0.25, 12.6, 12345.6)] == [
        *("", "0", "0.2", "13", "12,346"),
    ]
    assert [ago(each) for each in (None, 5, 90, 7200, 200_000)] == ["never", "5s", "2m", "2h", "2d"]


def test_rows_without_a_number_come_last():
    """
    Rows with the same number are sorted by name.
    """
    rows = [{"stream": name, "lag": lag} for name, lag in (("b", 1), ("a", None), ("c", 1))]
    assert [row["stream"] for row in in_order(rows, "lag")] == ["b", "c", "a"]


def test_a_consumer_that_was_moved_back_has_no_rate():
    """
    After a reset, a consumer has delivered fewer messages than before, which is no rate.
    """
    start = dt.datetime(2026, 8, 6, tzinfo=dt.timezone.utc)
    before, now = (
        SimpleNamespace(created=start, ts=start + dt.timedelta(seconds=second), count=count)
        for second, count in ((1, 9), (2, 4))
    )
    first = sampled(before, None, lambda info: info.count)
    assert sampled(now, first, lambda info: info.count).rate is None
    assert sampled(now, attrs.evolve(first, info=now), lambda info: info.count).rate == 0
