from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.acks import acks_of
from jetsync._io.mailbox import Mailbox
from jetsync._proto import ack_runs
from jetsync._proto.frames import Splitter
from jetsync._proto.pipeline import Pipeline

# The tests run over both variants of the functions that have compiled twins.
pytestmark = pytest.mark.usefixtures("variant")

SID = b"1000000"
PREFIX = b"_INBOX.w."
PLAIN = b'{"stream":"S","seq":'


def ack_line(token, payload, sid=SID, subject=b"_INBOX.w."):
    """Return an answer as a server writes it."""
    return b"MSG %b%b %b %d\r\n%b\r\n" % (subject, token, sid, len(payload), payload)


def plain_line(token, sequence):
    """Return a plain ack as a server writes it."""
    return ack_line(b"%d" % token, PLAIN + b"%d}" % sequence)


@pytest.fixture
def acks():
    """A mailbox of acks that has learned how plain ones start."""
    box = Mailbox(b"_INBOX.w.*")
    box.express = ack_runs.ack_taker(box.push, PREFIX, SID, PLAIN)
    return box


class TestRuns:
    def test_plain_acks_are_taken_at_once(self, acks):
        """Several plain acks are taken at once, as numbers and sequences."""
        splitter = Splitter({SID: acks})
        touched = []
        splitter.feed(plain_line(1, 11) + plain_line(2, 12) + plain_line(3, 13), touched, [])
        assert touched == [acks]
        assert acks.ready
        (run,) = acks.drain()
        assert acks_of(run) == [(1, 11), (2, 12), (3, 13)]
        assert not acks.ready

    @pytest.mark.parametrize("size", [1, 5, 6, 20, 45, 46, 53, 58, 59, 60, 100])
    def test_a_part_of_a_frame_is_left(self, acks, size):
        """A frame that has not arrived in full is taken with what follows."""
        splitter = Splitter({SID: acks})
        last = plain_line(3, 13) + plain_line(4, 14)
        splitter.feed(plain_line(1, 11) + plain_line(2, 12) + last[:size], [], [])
        taken = acks.drain()
        assert isinstance(taken[0], list)
        splitter.feed(last[size:], [], [])
        ended = [
            number
            for one in (*taken, *acks.drain())
            for number in (
                [number for number, _ in acks_of(one)]
                if isinstance(one, list)
                else [int(one[0].removeprefix(PREFIX))]
            )
        ]
        assert ended == [1, 2, 3, 4]

    def test_one_ack_is_a_frame(self, acks):
        """A single ack is not worth a run."""
        Splitter({SID: acks}).feed(plain_line(1, 11), [], [])
        assert acks.drain() == [(b"_INBOX.w.1", b"", None, PLAIN + b"11}")]

    @pytest.mark.parametrize("digits", [19, 20, 21])
    @pytest.mark.parametrize("place", ["number", "sequence"])
    def test_long_numbers_are_read_frame_by_frame(self, acks, digits, place):
        """Only numbers and sequences that fit into 64 bits are in runs."""
        long = 10**digits - 1
        number, sequence = (long, 5) if place == "number" else (5, long)
        Splitter({SID: acks}).feed(plain_line(number, sequence) * 2, [], [])
        taken = acks.drain()
        if digits == 19:
            assert list(map(acks_of, taken)) == [[(number, sequence)] * 2]
        else:
            ack = (PREFIX + b"%d" % number, b"", None, PLAIN + b"%d}" % sequence)
            assert taken == [ack] * 2

    @pytest.mark.parametrize("size", [b"022", b"+22", b"2 2", b"122", b"x 22"])
    def test_sizes_that_no_server_writes(self, acks, size):
        """A size in another form is left to the splitter."""
        data = plain_line(1, 11) + plain_line(2, 12)
        data = data.replace(b" 23\r", b" %b\r" % size.replace(b"22", b"23"))
        assert acks.express(data, 0) == 0
        assert not acks.frames

    @pytest.mark.parametrize("sequence", [b"1", b"111", b"1111", b"", b"1}"])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_sequences_of_another_size(self, acks, sequence, place):
        """If an ack is longer or shorter than its line declares, no run is taken."""
        lines = [plain_line(number, 11) for number in (1, 2, 3, 4)]
        lines[place] = lines[place].replace(b":11}", b":%b}" % sequence)
        assert acks.express(b"".join(lines), 0) == 0
        assert not acks.frames

    @pytest.mark.parametrize("junk", [b"x", b"\n", b"MSG", b" ", b"}", b"\r\n", b"MSG _INBOX.w."])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_bytes_between_frames(self, acks, junk, place):
        """If there is anything between frames, no run is taken."""
        lines = [plain_line(number, 11) for number in (1, 2, 3, 4)]
        lines[place] += junk
        data = b"".join(lines)
        assert acks.express(data, 0) == 0
        assert not acks.frames

    def test_before_it_has_learned(self):
        """Until it has seen an ack, the mailbox returns each one as a frame."""
        box = Mailbox(b"_INBOX.w.*")
        assert box.express is None
        Splitter({SID: box}).feed(plain_line(1, 1) * 3, [], [])
        assert all(isinstance(one, tuple) for one in box.drain())

    @pytest.mark.parametrize(
        "other",
        [
            b"PING\r\n",
            b"-ERR 'x'\r\n",
            ack_line(b"9", b'{"stream":"S","seq":9,"duplicate": true}'),
            ack_line(b"9", b'{"error":{"code":400}}'),
            ack_line(b"9", b""),
            ack_line(b"9", PLAIN + b"9}", sid=b"1000001"),
            ack_line(b"9", PLAIN + b"9}", subject=b"_INBOX.v."),
            ack_line(b"x", PLAIN + b"9}"),
            ack_line(b"9", b"hello\r\n" + plain_line(77, 77)),
            b"HMSG _INBOX.w.9 1000000 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
            b"MSG _INBOX.w.9 1000000 r 22\r\n" + PLAIN + b"9}\r\n",
        ],
    )
    def test_anything_else(self, acks, other):
        """If another frame stands between acks, no ack is lost or taken twice."""
        splitter = Splitter({SID: acks, b"1000001": Mailbox()})
        splitter.feed(plain_line(1, 1) + other + plain_line(2, 2) + plain_line(3, 3), [], [])
        assert not any(isinstance(one, list) for one in acks.frames)
        ours = [b"_INBOX.w.1", b"_INBOX.w.2", b"_INBOX.w.3"]
        assert [one[0] for one in acks.drain() if one[0] in {*ours, b"_INBOX.w.77"}] == ours

    @pytest.mark.parametrize("size", [0, 1, 21, 23, 220, 10**9])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_wrong_sizes(self, acks, size, place):
        """An ack whose size is not the one that its line declares ends the connection."""
        lines = [plain_line(number, 5) for number in (1, 2, 3, 4)]
        lines[place] = lines[place].replace(b" 22\r\n", b" %d\r\n" % size)
        splitter = Splitter({SID: acks})
        with pytest.raises(ValueError, match=r"frame|line"):
            # A frame that is said to be larger would end in what follows.
            splitter.feed(b"".join(lines) + b"x" * 400, [], [])
        assert not any(isinstance(one, list) for one in acks.drain())

    def test_longer_sequences(self, acks):
        """Acks are read in runs again after the sequences have got one more digit."""
        splitter = Splitter({SID: acks})
        for first in (7, 97, 997, 10**18 - 3, 10**18 + 3):
            numbers = range(first, first + 6)
            splitter.feed(b"".join(plain_line(number, number) for number in numbers), [], [])
            taken = acks.drain()
            ends = [
                acks_of(one if isinstance(one, list) else [(one[0][9:], one[3][20:-1])])
                for one in taken
            ]
            found = [sequence for end in ends for _, sequence in end]
            assert found == [*numbers]
        assert isinstance(taken[0], list)

    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("plain"), st.integers(0, 30)),
                st.tuples(st.just("plain"), st.integers(0, 30)),
                st.tuples(st.just("duplicate"), st.integers(0, 30)),
                st.tuples(st.just("error"), st.integers(0, 30)),
                st.tuples(st.just("503"), st.integers(0, 30)),
                st.tuples(st.just("ping"), st.just(0)),
                st.tuples(st.just("other"), st.just(0)),
            ),
            max_size=30,
        ),
        st.lists(st.integers(0, 3000), max_size=5),
    )
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_same_books(self, answers, places):
        """Acks end the same messages with the same sequences, read in runs or one by one."""
        pieces = []
        for sequence, (kind, number) in enumerate(answers, 1):
            token = b"%d" % number
            pieces.append(
                {
                    "plain": plain_line(number, sequence),
                    "duplicate": ack_line(token, PLAIN + b'%d,"duplicate": true}' % sequence),
                    "error": ack_line(token, b'{"error":{"code":400,"err_code":10071}}'),
                    "503": b"HMSG _INBOX.w.%b %b 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % (token, SID),
                    "ping": b"PING\r\n",
                    "other": ack_line(b"0", PLAIN + b"5}", sid=b"1000007", subject=b"o."),
                }[kind]
            )
        data = b"".join(pieces)
        cuts = [0, *sorted(place for place in places if place < len(data)), len(data)]
        books = []
        for in_runs in (True, False):
            box = Mailbox(b"_INBOX.w.*")
            if in_runs:
                box.express = ack_runs.ack_taker(box.push, PREFIX, SID, PLAIN)
            other = Mailbox()
            splitter = Splitter({SID: box, b"1000007": other})
            pipeline = Pipeline(b"_INBOX.w.")
            pipeline.in_flight.update((number, f"m{number}") for number in range(31))
            foreign = []
            for start, end in itertools.pairwise(cuts):
                splitter.feed(data[start:end], [], foreign)
                pipeline.receive(box.drain())
            failed = [(number, type(error)) for number, _, error in pipeline.failed]
            ends = (sorted(pipeline.in_flight), sorted(failed, key=str), sorted(pipeline.refused))
            books.append((ends, foreign, len(other.frames), pipeline.tally.count))
        assert books[0] == books[1]
