"""
Columns made from the bytes of a page have the values that its messages have.
"""

from __future__ import annotations

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetsync.errors import ProtocolError
from jetsync.values import page_columns
from jetsync.values.frame import FrameRun
from jetsync.values.stored import page_of

pa = pytest.importorskip("pyarrow")

# The tests run over both variants of the functions that have compiled twins.
pytestmark = pytest.mark.usefixtures("variant")

COLUMNS = ("subject", "data", "sequence", "timestamp", "headers")

CRLF = b"\r\n"
TIME = b"2026-11-20T16:38:27.709983862Z"


def block_of(own=(), *, first=b"NATS/1.0", subject=b"s.1", sequence=b"5", time=TIME, end=CRLF):
    """Return the header block of a stored message; *end* follows the publisher's last line."""
    block = CRLF.join([first, *own]) + end
    block += b"Nats-Stream: S\r\nNats-Subject: %b\r\nNats-Sequence: %b\r\n" % (subject, sequence)
    block += b"Nats-Time-Stamp: %b\r\nNats-Num-Pending: 3\r\nNats-Last-Sequence: 4\r\n" % time
    return block + CRLF


def run_of(blocks, payload=b"x"):
    """Return the run of messages with these header blocks."""
    data, bounds = b"earlier", []
    for block in blocks:
        data += b"HMSG inbox 1 2\r\n"
        bounds += [len(data), len(data) + len(block), len(data) + len(block) + len(payload)]
        data += block + payload + CRLF
    return FrameRun(b"inbox", data, array("i", bounds))


def shown(text):
    """Return text as in a column, in which escapes of invalid bytes are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def from_messages(run):
    """Return the rows of a run, message by message, or the error of its first bad message."""
    try:
        return [
            (
                shown(message.subject),
                message.data,
                message.sequence,
                message.timestamp_ns,
                [
                    (shown(name), [*map(shown, values)])
                    for name, values in message.headers.to_dict().items()
                ],
            )
            for message in page_of([run])
        ]
    except ProtocolError as error:
        return type(error)


def from_columns(*runs):
    """Return the same rows from the columns of the page."""
    try:
        batch = page_of(runs).to_arrow(COLUMNS)
    except ProtocolError as error:
        return type(error)
    batch.validate(full=True)
    batch = batch.set_column(3, "timestamp", batch["timestamp"].cast(pa.int64()))
    return list(zip(*batch.to_pydict().values(), strict=True))


def columns_of(*runs):
    """Return the names of the columns that are made from the bytes of a page."""
    return {*page_columns.columns(runs, COLUMNS)}


names = st.sampled_from([b"A", b"B", b"Trace-Id", "\u00fc".encode(), b"Nats-Msg-Id", b"a b"])
values = st.one_of(
    st.binary(max_size=8).filter(lambda value: b"\n" not in value and value.isascii()),
    st.text(max_size=6).map(lambda text: text.replace("\n", "").encode("utf-8", "ignore")),
)
usual_lines = st.builds(
    lambda name, space, value: name + b":" + space + value,
    names,
    st.sampled_from([b" ", b" ", b" ", b"", b"  "]),
    values,
)
odd_lines = st.one_of(
    usual_lines,
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"",
            b"no colon",
            b":no name",
            b" folded",
            b"\tfolded: too",
            b" ",
            b"A: 1",
            b"A: 1\nB: 2",
            b"A: 1\rB: 2",
            b"A: \xff",
            b"\xff: 1",
            b"\xc3: \xa9",
            b"\xed\xa0\x80: \xed\xb3\xbf",
            b"Nats-Stream: x",
            b"Nats-Stream: ",
            b"Nats-Subject: fake",
            b"Nats-Sequence: 9",
            b"Nats-Time-Stamp: " + TIME,
            b"Nats-Num-Pending: 1",
            b"NATS/1.0",
        ]
    ),
)
usual_blocks = st.builds(
    block_of,
    st.lists(usual_lines, max_size=5),
    subject=st.sampled_from([b"s.1", b"s.2", "s.\u00fc".encode(), b"s"]),
    sequence=st.sampled_from([b"1", b"22", b"007", b"9223372036854775807"]),
    time=st.sampled_from([TIME, b"1969-12-31T23:59:59.5Z", b"2024-02-29T00:00:00Z"]),
)
odd_blocks = st.builds(
    block_of,
    st.lists(odd_lines, max_size=5),
    first=st.sampled_from(
        [b"NATS/1.0", b"NATS/1.0", b"NATS/1.0 503 No", b"", b"A: 1", b"\xff", b"N\r\na: bc"]
    ),
    subject=st.sampled_from([b"s.1", b"", b"\xff", b"a b", b"\xc3", b"Nats-Stream: x"]),
    sequence=st.sampled_from([b"1", b"0", b"", b"-1", b"+1", b"0x1", b"a", b"1" * 18, b" 1"]),
    time=st.sampled_from(
        [
            TIME,
            b"2016-12-31T23:59:60.25Z",
            b"2026-11-20T17:38:27.5+01:00",
            b"2026-11-20T16:38Z",
            b"2026-11-20 16:38:27Z",
            b"2026-02-29T00:00:00Z",
            b"2026-11-20T24:00:00Z",
            b"",
            b"x",
        ]
    ),
    end=st.sampled_from([CRLF, CRLF, b"", b"\r", b"\n"]),
)


def cut_or_changed(block, place, change):
    """Return a block without its end, or with another byte in one place."""
    place = place % len(block) if block else 0
    return block[:place] + (b"" if change is None else bytes([change]) + block[place + 1 :])


broken_blocks = st.builds(
    cut_or_changed, usual_blocks, st.integers(0, 400), st.none() | st.integers(0, 255)
)


FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class TestProperties:
    @FEW
    @given(st.lists(usual_blocks, min_size=1, max_size=6), st.binary(max_size=4))
    def test_usual_blocks(self, blocks, payload):
        """Pages of usual messages have the rows of their messages."""
        run = run_of(blocks, payload)
        assert from_columns(run) == from_messages(run)

    @FEW
    @given(st.lists(st.one_of(usual_blocks, odd_blocks, broken_blocks), min_size=1, max_size=4))
    def test_odd_blocks(self, blocks):
        """Pages with blocks in any form have the rows of their messages, or the same error."""
        run = run_of(blocks)
        assert from_columns(run) == from_messages(run)


class TestTimes:
    @pytest.mark.parametrize(
        ("time", "fits"),
        [
            (b"0001-01-01T00:00:00Z", False),
            (b"1677-12-31T23:59:59.999999999Z", False),
            (b"1678-01-01T00:00:00Z", True),
            (b"2261-12-31T23:59:59.999999999Z", True),
            (b"2262-01-01T00:00:00Z", False),
            (b"00\xff1-01-01T00:00:00Z", False),
        ],
        ids=ascii,
    )
    def test_times_that_may_not_fit_into_64_bits_are_read_message_by_message(self, time, fits):
        """No time is wrapped around, which Arrow did before version 18."""
        run = run_of([block_of(), block_of(time=time)])
        assert ("timestamp" in columns_of(run)) is fits
        if fits:
            assert from_columns(run) == from_messages(run)

    @pytest.mark.parametrize("digits", [1, 20, 21])
    def test_a_sequence_has_as_many_digits_as_the_largest_number(self, digits):
        """A sequence with more than 20 digits is an error, even if the first ones are zeros."""
        run = run_of([block_of(), block_of(sequence=b"7".zfill(digits))])
        assert from_columns(run) == from_messages(run)
        assert (from_columns(run) is ProtocolError) == (digits > 20)


class TestHeaders:
    @pytest.mark.parametrize(
        "own",
        [
            [[], []],
            [[b"A: 1", b"B: 2"], [], [b"B: 3", b"A: 4"]],
            [[b"A: 1", b"A: 2", b"B:3", b"B:  4"], [b"A:"]],
            [[b"A: a:b"], ["\u00fc: \u20ac".encode()]],
        ],
        ids=["none", "several", "repeated", "text"],
    )
    def test_usual_headers_are_read_together(self, own):
        """Headers in the usual form become a column without an object for each message."""
        run = run_of([*map(block_of, own)])
        assert columns_of(run) == {*COLUMNS}
        assert from_columns(run) == from_messages(run)

    @pytest.mark.parametrize(
        "line", [b"A: 1\r\n folded", b"A: \xff", b"\xff: 1", b"A: 1\r\n\tB: 2"], ids=ascii
    )
    def test_only_odd_headers_are_read_message_by_message(self, line):
        """A block whose headers have another form does not slow down the other columns."""
        run = run_of([block_of([line]), block_of([b"A: 1"])])
        assert columns_of(run) == {*COLUMNS[:-1]}
        assert from_columns(run) == from_messages(run)

    def test_a_block_that_is_cut_off_has_no_columns(self):
        """No publisher's line is taken for the server's if the end of a block is missing."""
        block = block_of([b"A: 1", b"B: 2", b"Nats-Subject: other"])
        cut = block[: block.index(b"Nats-Last-Sequence")] + b"Nats-Last-Sequence"
        run = run_of([cut])
        assert "subject" not in columns_of(run)
        assert from_columns(run) == from_messages(run)

    def test_a_block_that_lacks_a_line_of_the_server_has_no_columns(self):
        """The subject is the last one of a block, as in its message, and not the one before it."""
        block = block_of([b"A: 1"]).replace(b"Nats-Stream: S", b"Nats-Subject: other")
        run = run_of([block.replace(b"Nats-Last-Sequence: 4\r\n", b"")])
        assert columns_of(run) == {"data"}
        assert from_columns(run) == from_messages(run)

    def test_many_headers(self):
        """A message with a hundred headers has all of them."""
        own = [b"H%d: %d" % (number, number) for number in range(100)]
        run = run_of([block_of(own), block_of([*own[:64], *own[:64]])])
        assert "sequence" in columns_of(run)
        assert from_columns(run) == from_messages(run)


class TestSeveralRuns:
    def test_the_messages_of_all_runs_follow_one_another(self):
        """The columns of several runs are those of their messages in one run."""
        blocks = [
            block_of(
                [b"A: %d" % number] * (number % 3),
                subject=b"s.%d" % number,
                sequence=b"%d" % number,
            )
            for number in range(1, 9)
        ]
        runs = [run_of(blocks[:1]), run_of(blocks[1:6], b"more"), run_of(blocks[6:], b"")]
        parts = [from_columns(run) for run in runs]
        assert from_columns(*runs) == [row for part in parts for row in part]
        assert columns_of(*runs) == {*COLUMNS}

    def test_runs_of_the_same_data(self):
        """Runs may share their data, and bytes between them belong to no column."""
        whole = run_of([block_of(sequence=b"%d" % number) for number in range(4)])
        runs = [
            FrameRun(whole.subject, whole.data, whole.bounds[3 * number : 3 * number + 3])
            for number in (0, 2, 3)
        ]
        assert page_of(runs).to_arrow(["sequence", "data"]).to_pydict() == {
            "sequence": [0, 2, 3], "data": [b"x"] * 3,
        }  # fmt: skip

    def test_one_unusual_message_is_enough(self):
        """If a header of one run is not UTF-8, the headers of no run are a column."""
        runs = [run_of([block_of()]), run_of([block_of([b"A: \xff"])]), run_of([block_of()])]
        assert columns_of(*runs) == {*COLUMNS} - {"headers"}

    def test_a_page_keeps_its_messages(self):
        """A page has the same messages and payloads before and after its columns are made."""
        runs = [run_of([block_of()], b"1"), run_of([block_of()] * 2, b"2")]
        page = page_of(runs)
        for _ in range(2):
            assert page.to_arrow(["data"]).to_pydict() == {"data": [b"1", b"2", b"2"]}
            assert page.data == [b"1", b"2", b"2"]
        buffer, places = page.payloads
        assert [buffer[a:b] for a, b in zip(places[0::2], places[1::2], strict=True)] == page.data
        assert page.to_arrow(["data"]).to_pydict() == {"data": [b"1", b"2", b"2"]}


class TestShifted:
    def test_each_number_is_shifted(self):
        """The sums are an array of C ints, also for negative numbers."""
        places, by = array("i", [5, 7, 1 << 20]), array("i", [-5, 1, -5])
        assert page_columns.shifted(places, by) == array("i", [0, 8, (1 << 20) - 5])

    @pytest.mark.parametrize("by", [1, (1 << 31) - 1])
    def test_positions_above_2_gib(self, by):
        """An error is raised, because other numbers would be other bytes of the page."""
        with pytest.raises(ValueError, match="overflow"):
            page_columns.shifted(array("i", [0, (1 << 31) - 1]), array("i", [0, by]))
