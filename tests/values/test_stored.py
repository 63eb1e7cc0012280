from __future__ import annotations

import datetime as dt
import pickle

import pytest

from helpers.stored_pages import IDS, MOMENT, ORDINARY, PAGES, run_of
from jetsync.errors import InvalidArgumentError, ProtocolError
from jetsync.values.frame import FrameRun
from jetsync.values.headers import Headers, encode_headers
from jetsync.values.message import Message
from jetsync.values.stored import StoredMessage, StoredPage, page_of, quick_parts, time_of
from jetsync.values.ttl import MarkerReason

# The tests run over both variants of the functions that have compiled twins.
pytestmark = pytest.mark.usefixtures("variant")

ADDED = (
    b"Nats-Stream: DG\r\nNats-Subject: dg.A\r\nNats-Sequence: 5\r\n"
    b"Nats-Time-Stamp: 2026-11-20T16:38:27.709983862Z\r\n"
)
MOMENT_NS = 1795192707709983862


def direct(own=b"", more=b"", data=b"x"):
    """Make a message from an answer, with these headers of its own."""
    return StoredMessage.from_direct(b"NATS/1.0\r\n" + own + ADDED + more + b"\r\n", data)


class TestFromDirect:
    @pytest.mark.parametrize("more", [b"", b"Nats-Num-Pending: 8\r\nNats-Last-Sequence: 0\r\n"])
    def test_headers_that_servers_add_become_attributes(self, more):
        """Headers that servers add to an answer become the attributes of the message."""
        message = direct(more=more)
        assert (message.stream, message.subject, message.sequence) == ("DG", "dg.A", 5)
        assert message.timestamp == MOMENT
        assert message.timestamp_ns == MOMENT_NS
        assert message.data == b"x"
        assert message.headers == {}
        assert message.headers is message.headers

    def test_own_headers(self):
        """The headers are those of the stored message, without those that servers add."""
        message = direct(b"A: 1\r\nA: 2\r\nb: x \r\n")
        assert message.headers.items() == [("A", "1"), ("A", "2"), ("b", "x ")]
        assert message.raw_headers == b"NATS/1.0\r\nA: 1\r\nA: 2\r\nb: x \r\n" + ADDED + b"\r\n"
        assert StoredMessage("S", "a", 1, 0, message.headers).raw_headers is None

    @pytest.mark.parametrize("end", [b"", b"\r\n", b"\r\njunk\r\n"])
    def test_server_wins(self, end):
        """If a stored message has a server's headers itself, the server's values count."""
        own = ADDED.replace(b"DG", b"fake").replace(b"-Sequence: 5", b"-Sequence: 99") + end
        message = direct(own)
        assert (message.stream, message.sequence) == ("DG", 5)
        assert quick_parts(message) == (5, MOMENT, True)
        assert page_of([[message]]).sequences == [5]
        assert message.headers["Nats-Stream"] == "fake"
        assert message.headers["Nats-Sequence"] == "99"

    @pytest.mark.parametrize(
        ("own", "headers"),
        [
            (b"NATS/1.0\r\nA: b\r\njunk\r\n", {"A": "b"}),
            (b"NATS/1.0\r\nA: b", {"A": "b"}),
            (b"NATS/1.0 503\r\n", {}),
            (b"NATS/1", {}),
            (b"hello world\r\n", {}),
        ],
    )
    def test_a_stored_message_with_any_header_bytes_has_all_parts(self, own, headers):
        """A message with any bytes as headers has all its parts, read together or one by one."""
        message = StoredMessage.from_direct(own + ADDED + b"\r\n", b"x")
        assert (message.stream, message.subject, message.sequence) == ("DG", "dg.A", 5)
        assert message.headers == headers
        assert quick_parts(message) == (5, MOMENT, True)
        assert page_of([[message]]).timestamps_ns == [MOMENT_NS]
        copied = pickle.loads(pickle.dumps(message))
        assert (copied, copied.raw_headers) == (message, message.raw_headers)

    @pytest.mark.parametrize(
        "own",
        [
            b"N\r\na: bc\r\n",
            b"NATS/1.0\r\n",
            b"NATS/2.0\r\n",
            b"\r\na: bcd\r\n",
            b"a: b\r\nc:\r\n",
            b"NATS/1.0 503\r\na: b\r\n",
            b"\r\n",
        ],
        ids=ascii,
    )
    def test_each_way_to_read_a_header_block_finds_the_same_headers(self, own):
        """A consumer, a direct read, a table and the stream API read the same headers."""
        pytest.importorskip("pyarrow")
        block = own + ADDED + b"Nats-Num-Pending: 8\r\nNats-Last-Sequence: 0\r\n\r\n"
        stored = StoredMessage.from_direct(block, b"x")
        delivered = Message(b"dg.A", b"", own + b"\r\n", b"x").headers
        assert stored.headers == delivered
        assert StoredMessage("S", "a", 1, 0, raw_headers=own + b"\r\n").headers == delivered
        assert quick_parts(stored)[2] or not delivered
        table = page_of([run_of([stored])]).to_arrow(["headers"])
        assert dict(table["headers"][0].as_py()) == delivered.to_dict()

    def test_a_direct_read_shows_the_reason_and_ttl_of_a_marker(self):
        """A marker has its reason and time-to-live on direct reads."""
        message = direct(
            b"Nats-Marker-Reason: MaxAge\r\nNats-TTL: 5s\r\nNats-Rollup: sub\r\n", data=b""
        )
        assert message.marker is MarkerReason.MAX_AGE
        assert message.ttl == 5.0
        assert direct().marker is None
        assert direct().ttl is None

    def test_an_answer_without_a_required_header_fails_when_read(self):
        """An answer without a required header is a ProtocolError when the attribute is read."""
        message = StoredMessage.from_direct(b"NATS/1.0\r\nA: b\r\n\r\n", b"x")
        assert message.headers == {"A": "b"}
        with pytest.raises(ProtocolError, match="Nats-Sequence"):
            _ = message.sequence


class TestQuickParts:
    @pytest.mark.parametrize(
        "time",
        ["16:38:27", "16:38:27.5", "16:38:27.709983862", "16:38:27.000000999", "23:59:60.25"],
    )
    @pytest.mark.parametrize("own", [b"", b"A: 1\r\n"])
    def test_same_parts(self, time, own):
        """The parts are the same, read together or one by one."""
        block = direct(own).raw_headers.replace(b"16:38:27.709983862", time.encode())
        message = StoredMessage.from_direct(block, b"x")
        assert quick_parts(message) == (5, message.timestamp, bool(own))

    def test_other_block(self):
        """A block in another form is read header by header."""
        message = StoredMessage("S", "a", 7, MOMENT)
        assert quick_parts(message) == (7, MOMENT, True)
        with pytest.raises(ProtocolError, match="Nats-Sequence"):
            quick_parts(StoredMessage.from_direct(b"NATS/1.0\r\nA: b\r\n\r\n", b"x"))


class TestMadeFromParts:
    def test_equal_to_direct(self):
        """The same message is equal and has the same hash for each way of reading."""
        made = StoredMessage("DG", "dg.A", 5, MOMENT_NS, Headers({"A": "1"}), b"x")
        read = direct(b"A: 1\r\n")
        assert made == read
        assert hash(made) == hash(read)
        assert made != StoredMessage("DG", "dg.A", 6, MOMENT_NS, Headers({"A": "1"}), b"x")
        assert made != direct()
        assert made != 5

    def test_the_time_of_a_stored_message_is_aware_and_exact(self):
        """The time is an aware datetime, exact to the microsecond."""
        message = StoredMessage("S", "a", 1, MOMENT)
        assert message.timestamp == MOMENT
        assert message.timestamp_ns == MOMENT_NS // 1000 * 1000
        assert (message.headers, message.data) == ({}, b"")

    def test_naive_datetime(self):
        """A naive datetime raises ValueError."""
        with pytest.raises(InvalidArgumentError):
            StoredMessage("S", "a", 1, MOMENT.replace(tzinfo=None))

    def test_raw_headers(self):
        """The headers can be given as a block, which may have any bytes and stays readable."""
        block = b"NATS/1.0\r\nA: 1\r\n" + ADDED.replace(b"5", b"99") + b"\r\n"
        message = StoredMessage("S", "a", 1, MOMENT, raw_headers=block)
        assert (message.stream, message.sequence, message.raw_headers) == ("S", 1, block)
        assert message.headers.items()[:2] == [("A", "1"), ("Nats-Stream", "DG")]
        assert quick_parts(message) == (1, MOMENT, True)
        copied = pickle.loads(pickle.dumps(message))
        assert (copied, copied.raw_headers) == (message, block)
        assert StoredMessage("S", "a", 1, MOMENT, raw_headers=b"noise").headers == {}

    @pytest.mark.parametrize("raw", [False, True])
    def test_a_marker_of_the_stream_api_is_a_marker_too(self, raw):
        """A marker that was read through the stream API is a marker, too."""
        headers = Headers({"Nats-Marker-Reason": "Purge", "Nats-TTL": "never"})
        block = encode_headers(headers.items())
        given = {"raw_headers": block} if raw else {"headers": headers}
        message = StoredMessage("S", "a", 1, 0, **given)
        assert message.marker is MarkerReason.PURGE
        assert message.ttl == "never"
        assert StoredMessage("S", "a", 1, 0).marker is None


@pytest.mark.parametrize("page", PAGES, ids=IDS)
class TestColumns:
    def test_a_column_has_the_values_of_each_message(self, page):
        """A column has the values of each message, whichever server or program wrote them."""
        messages = list(page)
        assert page.subjects == [message.subject for message in messages]
        assert page.sequences == [message.sequence for message in messages]
        assert page.timestamps_ns == [message.timestamp_ns for message in messages]
        assert page.data == [message.data for message in messages]

    def test_two_positions_are_those_of_a_payload_in_the_buffer(self, page):
        """Two positions for each message are those of its payload in the buffer."""
        data, messages = page.data, list(page)
        buffer, places = page.payloads
        ends = zip(places[0::2], places[1::2], strict=True)
        assert [buffer[start:end] for start, end in ends] == data
        assert (page.data, list(page)) == (data, messages)

    def test_an_index_counts_from_either_end(self, page):
        """An index counts messages from either end, and one that is too large is an IndexError."""
        messages = list(page)
        count = len(messages)
        assert len(page) == count
        assert [page[place] for place in range(-count, count)] == messages * 2
        assert list(page[1:3]) == messages[1:3]
        for place in (count, -count - 1):
            with pytest.raises(IndexError, match="messages"):
                _ = page[place]

    def test_a_page_survives_pickling(self, page):
        """A page survives pickling."""
        assert list(pickle.loads(pickle.dumps(page))) == list(page)


class TestPage:
    def test_shared_data(self):
        """The buffer of payloads does not grow with the number of runs that share their data."""
        whole = run_of(ORDINARY)
        runs = [
            FrameRun(whole.subject, whole.data, whole.bounds[place : place + 3])
            for place in range(0, len(whole.bounds), 3)
        ]
        page = page_of(runs)
        buffer, _ = page.payloads
        assert len(buffer) < len(whole.data)
        assert list(page) == ORDINARY

    def test_the_buffer_of_payloads_is_kept(self):
        """The buffer of one run is its own data, and that of several runs is made once."""
        one, several = run_of(ORDINARY), [run_of(ORDINARY[:1]), run_of(ORDINARY[1:])]
        assert page_of([one]).payloads[0] is one.data
        page = page_of(several)
        assert page.payloads[0] is page.payloads[0]

    def test_runs_that_another_thread_joins(self):
        """If another thread joins the runs while they are read, the page still has its runs."""

        class Runs(list):
            def __iter__(self):
                page._runs = [run_of(ORDINARY)]
                return super().__iter__()

        runs = [run_of(ORDINARY[:1]), run_of(ORDINARY[1:])]
        page = page_of(Runs(runs))
        assert page._frame_runs() == runs

    def test_is_a_sequence(self):
        """A page is a sequence of its messages, and a slice is a page."""
        page = StoredPage(ORDINARY)
        assert (len(page), page[1], list(page)) == (4, ORDINARY[1], ORDINARY)
        assert page[-2:].sequences == [7, 8]
        assert repr(page) == "<StoredPage of 4 messages, sequences 5 to 8>"
        assert repr(page[:0]) == "<StoredPage of 0 messages>"
        assert not page[:0]

    def test_forged_headers(self):
        """A message whose own headers look like those of a server adds no row to the columns."""
        forged = ADDED.replace(b"dg.A", b"forged")[len(b"Nats-Stream: DG\r\n") :]
        # A block ends at its first empty line, unless a server has sent something else.
        page = StoredPage([direct(forged + b"\r\n"), direct(data=b"y")])
        assert page.subjects == ["dg.A", "dg.A"]
        assert page.sequences == [5, 5]

    def test_a_message_of_a_page_needs_its_headers(self):
        """A message without a required header is a ProtocolError."""
        page = StoredPage([*ORDINARY, StoredMessage.from_direct(b"NATS/1.0\r\n\r\n", b"x")])
        with pytest.raises(ProtocolError, match="Nats-Subject"):
            _ = page.sequences


@pytest.mark.parametrize("message", [direct(b"A: 1\r\n"), StoredMessage("S", "a", 1, MOMENT)])
def test_a_stored_message_survives_pickling(message):
    """A message survives pickling and stays equal."""
    assert pickle.loads(pickle.dumps(message)) == message


def test_the_repr_is_one_line_without_the_payload():
    """The repr is one line and does not show the payload."""
    assert repr(direct()) == "<StoredMessage 'dg.A' 1 bytes, stream 'DG' sequence 5>"


def test_time_of():
    """Nanoseconds become an aware datetime without the errors of floats."""
    assert time_of(MOMENT_NS) == MOMENT
    assert time_of(-1) == dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize("message", [direct(b"A: 1\r\n"), StoredMessage("S", "a", 1, MOMENT)])
def test_replace(message):
    """
    A copy has another payload or other headers, and the place and the time of the original.
    """
    message.headers  # noqa: B018 - it is parsed.
    before = dict(message.headers.to_dict())
    copied = message.replace(data="open")
    assert copied.data == b"open"
    assert copied.headers == before
    changed = copied.replace(headers={"B": "2"})
    assert changed.headers == {"B": "2"}
    assert changed.raw_headers == b"NATS/1.0\r\nB: 2\r\n\r\n"
    assert changed.data == b"open"
    for each in (copied, changed):
        assert (each.stream, each.subject, each.sequence, each.timestamp_ns) == (
            message.stream,
            message.subject,
            message.sequence,
            message.timestamp_ns,
        )
    assert message.headers == before
    assert changed.replace(headers={}).raw_headers is None
