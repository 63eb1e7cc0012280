from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetsync._io.mailbox import Mailbox
from jetsync._proto.frames import Splitter
from jetsync._proto.page_runs import PageRuns, join_frames

# The tests run over both variants of the functions that have compiled twins.
pytestmark = pytest.mark.usefixtures("variant")

SID = b"1000000"


def stored_line(page, block, payload, reply=b"", sid=SID):
    """Return a message with headers as a server writes it."""
    sizes = b"%d %d" % (len(block), len(block) + len(payload))
    arguments = b" ".join(filter(None, [b"_INBOX.p.%x" % page, sid, reply, sizes]))
    return b"HMSG %b\r\n%b%b\r\n" % (arguments, block, payload)


BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"


def page_box():
    """Return a mailbox that splits pages."""
    box = Mailbox(b"_INBOX.p.*")
    box.express = PageRuns(box.push, box.interest, SID).take
    return box


def all_frames(box):
    """Take all frames, of runs and between them."""
    return list(itertools.chain.from_iterable(join_frames(box.drain())))


class TestPages:
    def test_all_whole_frames_are_taken_and_the_rest_later(self):
        """All whole frames are taken, and the rest when it has arrived."""
        box, touched = page_box(), []
        splitter = Splitter({SID: box})
        data = stored_line(10, BLOCK, b"1") + stored_line(10, BLOCK, b"2")
        end = stored_line(10, b"NATS/1.0 204 EOB\r\n\r\n", b"")
        splitter.feed(data + end[:-1], touched, [])
        assert touched == [box]
        first = [(b"_INBOX.p.a", b"", BLOCK, b"1"), (b"_INBOX.p.a", b"", BLOCK, b"2")]
        assert all_frames(box) == first
        splitter.feed(end[-1:], touched, [])
        assert all_frames(box) == [(b"_INBOX.p.a", b"", b"NATS/1.0 204 EOB\r\n\r\n", b"")]

    @pytest.mark.parametrize("missing", [1, 2])
    def test_cut_line(self, missing):
        """A line that is not complete is kept, whatever the payload before it contains."""
        # With line ends only, every position that a cut size points to ends a line.
        first = stored_line(10, BLOCK, b"\r\n" * 1000)
        for padding in (b"", b"x"):
            data = stored_line(10, BLOCK, padding) + first + first
            box = page_box()
            splitter = Splitter({SID: box})
            size = len(data) - len(first) + first.index(b"\r\n") + 2 - missing
            splitter.feed(data[:size], [], [])
            splitter.feed(data[size:], [], [])
            payloads = [frame[3] for frame in all_frames(box)]
            assert payloads == [padding, b"\r\n" * 1000, b"\r\n" * 1000]

    @pytest.mark.parametrize(
        "sizes", [b"9 8", b"-1 8", b"x 8", b"8 +8", b"8 1_0", b"9999999999 9999999999"]
    )
    def test_hostile_sizes(self, sizes):
        """Sizes that no server sends end the connection, also between other frames."""
        line = b"HMSG _INBOX.p.a %b %b\r\n" % (SID, sizes)
        with pytest.raises(ValueError, match=r"HMSG|bytes"):
            Splitter({SID: page_box()}).feed(stored_line(10, BLOCK, b"") + line, [], [])

    @pytest.mark.parametrize("place", [0, 1])
    def test_no_line_end(self, place):
        """A message has to end where its line says."""
        lines = [stored_line(10, BLOCK, b"1"), stored_line(10, BLOCK, b"2")]
        lines[place] = lines[place][:-2] + b"xx"
        with pytest.raises(ValueError, match="line end"):
            Splitter({SID: page_box()}).feed(b"".join(lines), [], [])

    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("stored"), st.integers(9, 11)),
                st.tuples(st.just("stored"), st.integers(9, 11)),
                st.tuples(st.just("nested"), st.integers(9, 11)),
                st.tuples(st.just("reply"), st.integers(9, 11)),
                st.tuples(st.sampled_from(["plain", "ping", "error", "other"]), st.just(0)),
            ),
            max_size=30,
        ),
        st.lists(st.integers(0, 3000), max_size=5),
    )
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_a_run_has_the_same_frames_as_single_reads(self, answers, places):
        """Frames are the same, taken in a run or one by one."""
        data = b"".join(
            {
                "stored": stored_line(page, BLOCK, b"x" * page),
                "nested": stored_line(page, BLOCK, stored_line(page, BLOCK, b"y")),
                "reply": stored_line(page, BLOCK, b"z", reply=b"r"),
                "plain": b"MSG _INBOX.p.9 %b 2\r\nhi\r\n" % SID,
                "ping": b"PING\r\n",
                "error": b"-ERR 'x'\r\n",
                "other": stored_line(9, BLOCK, b"o", sid=b"1000007"),
            }[kind]
            for kind, page in answers
        )
        cuts = [0, *sorted(place for place in places if place < len(data)), len(data)]
        results = []
        for box in (page_box(), Mailbox(b"_INBOX.p.*")):
            other, foreign = Mailbox(), []
            splitter = Splitter({SID: box, b"1000007": other})
            for start, end in itertools.pairwise(cuts):
                splitter.feed(data[start:end], [], foreign)
            results.append((all_frames(box), other.drain(), foreign))
        assert results[0] == results[1]
