from __future__ import annotations

import itertools
import json
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.examples import examples
from jetsync import errors
from jetsync._proto.direct import BatchRead, size_of
from jetsync._proto.direct_last import MAX_SUBJECTS, LastRead, chunks
from jetsync.values.frame import FrameRun

STREAM = "S"
BIG = 1 << 20


def message(sequence, *, left=0, subject="a", own=b"", data=b"", last=0, numbered=True):
    """The frame of a message with *left* messages after it, without a reply subject."""
    numbers = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (left, last)
    block = (
        b"NATS/1.0\r\n%bNats-Stream: S\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\n"
        b"Nats-Time-Stamp: 2026-11-20T16:38:27.7Z\r\n%b\r\n"
        % (own, subject.encode(), sequence, numbers if numbered else b"")
    )
    return block, data


def status(line, **headers):
    """Frame of a status; ``num_pending=1`` is the header Nats-Num-Pending."""
    names = {"num_pending": "Num-Pending", "last": "Last-Sequence", "up_to": "UpTo-Sequence"}
    lines = "".join(f"Nats-{names[name]}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0 {line}\r\n{lines}\r\n".encode(), b""


def eob(left, last=0, **headers):
    """Frame of the end of a page."""
    return status("204 EOB", num_pending=left, last=last, **headers)


def answer(engine, *frames, reply=b"_INBOX.1", trusted=frozenset()):
    """Request a page, pass these frames, and return the request and the sequences."""
    request = engine.open(reply, trusted)
    return request, take(engine, *frames, reply=reply)


def take(engine, *frames, reply=b"_INBOX.1"):
    """Pass these frames to the open page, and return the sequences."""
    return sequences(engine.take([(reply, b"", *frame) for frame in frames]))


def sequences(frames):
    """The sequences of messages."""
    return [int(frame[2].split(b"Nats-Sequence: ")[-1].split(b"\r\n")[0]) for frame in frames]


def batch_read(**arguments):
    """A read of up to ten messages in pages of three by default."""
    return BatchRead(STREAM, **{"limit": 10, "page": 3, "page_bytes": BIG, **arguments})


def last_read(*subjects, **arguments):
    """A read of these subjects in one part."""
    return LastRead(STREAM, [subjects or ("a", "b")], page_bytes=BIG, **arguments)


class TestRequest:
    @pytest.mark.parametrize(
        ("engine", "fields"),
        [
            (batch_read(), {"seq": 1, "batch": 3, "max_bytes": BIG}),
            (
                batch_read(sequence=4, subject="foo.>", limit=2),
                {"seq": 4, "next_by_subj": "foo.>", "batch": 2, "max_bytes": BIG},
            ),
            (
                batch_read(start_time="2024-11-04T23:45:02.060192Z"),
                {"start_time": "2024-11-04T23:45:02.060192Z", "batch": 3, "max_bytes": BIG},
            ),
            (batch_read(size_limit=5), {"seq": 1, "batch": 3, "max_bytes": 5}),
            (batch_read(end=2), {"seq": 1, "batch": 2, "max_bytes": BIG}),
            (last_read("a", "b.>"), {"multi_last": ("a", "b.>"), "max_bytes": BIG}),
            (
                last_read("ü", moment=23, page=2),
                {"multi_last": ("ü",), "up_to_seq": 23, "batch": 2, "max_bytes": BIG},
            ),
            (
                last_read("a", up_to_time="2024-11-05T00:50:25Z", after=7),
                {
                    "multi_last": ("a",),
                    "up_to_time": "2024-11-05T00:50:25Z",
                    "seq": 8,
                    "max_bytes": BIG,
                },
            ),
        ],
    )
    def test_what_is_sent(self, engine, fields):
        """
        A request has the given fields, and always a limit of bytes.
        """
        assert engine.open(b"_INBOX.1") == fields


class TestBatchPages:
    def test_pages_grow(self):
        """
        A full page is followed by one of twice as many messages, up to the largest page.
        """
        engine = batch_read(limit=None, page=2, largest_page=5)
        asked, sequence = [], 0
        for size in (2, 4, 3, 5, 5):
            frames = [message(sequence + number) for number in range(1, size + 1)]
            sequence += size
            asked.append(answer(engine, *frames, eob(9))[0]["batch"])
        assert asked == [2, 4, 5, 5, 5]

    def test_what_is_wanted_is_requested_first(self):
        """
        Pages have what the caller wants, and none is read ahead after it; later as much again.
        """
        engine = batch_read(limit=None, wanted=4)
        asked, ahead, sequence = [], [], 0
        for size in (3, 1, 3, 1, 3):
            frames = [message(sequence + number) for number in range(1, size + 1)]
            sequence += size
            asked.append(answer(engine, *frames, eob(9))[0]["batch"])
            ahead.append(engine.reads_ahead)
        assert asked == [3, 1, 3, 1, 3]
        assert ahead == [True, False, True, False, True]

    def test_a_wanted_page_whose_end_is_lost(self):
        """
        If only the end of the last wanted page is lost, the next request asks for as much again.
        """
        engine = batch_read(limit=None, wanted=2)
        engine.open(b"_INBOX.1")
        take(engine, message(1, left=5), message(2, left=4))
        engine.lost()
        assert engine.open(b"_INBOX.2") == {"seq": 3, "batch": 2, "max_bytes": BIG}

    def test_the_next_page_begins_after_the_last_message(self):
        """
        A batch continues while the end of a page reports remaining messages.
        """
        engine = batch_read(limit=None)
        first, came = answer(engine, message(1), message(5), message(9), eob(2, 9))
        assert (first.get("seq"), came) == (1, [1, 5, 9])
        assert (engine.is_open, engine.done, engine.pending) == (False, False, 2)
        second, came = answer(engine, message(11), message(12), eob(0, 12))
        assert (second.get("seq"), came) == (10, [11, 12])
        assert (engine.done, engine.verdict, engine.last_sequence) == (True, "drained", 12)

    def test_only_the_end_counts(self):
        """
        The count in messages is not used, because servers 2.11 report one too many.
        """
        engine = batch_read(limit=None)
        answer(engine, message(1, left=2), message(2, left=1), eob(0, 2))
        assert engine.done

    def test_a_limit_ends_it(self):
        """
        The last request is limited to the rest, and the remaining messages are reported.
        """
        engine = batch_read(limit=5)
        answer(engine, message(1), message(2), message(3), eob(17, 3))
        request, _ = answer(engine, message(4), message(5), eob(15, 5))
        assert request.get("batch") == 2
        assert (engine.done, engine.verdict, engine.pending) == (True, None, 15)

    def test_a_page_without_a_message_ends_it(self):
        """
        A page without a message ends the read, whatever its counts. Otherwise it would never end.
        """
        engine = batch_read()
        answer(engine, eob(5, 0))
        assert (engine.done, engine.verdict) == (True, "drained")

    def test_not_found_means_an_empty_page(self):
        """
        "Not found" means an empty read without remaining messages.
        """
        engine = batch_read(sequence=21)
        _, came = answer(engine, status("404 Message Not Found"))
        assert (came, engine.done, engine.pending, engine.error) == ([], True, 0, None)
        assert engine.last_sequence == 0

    def test_messages_after_the_end_are_left_out(self):
        """
        Messages published during a scan do not extend it.
        """
        engine = batch_read(limit=None, end=3, page=100)
        request, came = answer(engine, message(2), message(3), message(4), message(5))
        assert (request.get("batch"), came) == (3, [2, 3])
        assert (engine.done, engine.reached_end, engine.received) == (True, True, 2)
        assert take(engine, eob(3, 5)) == []

    def test_last_sequence_at_the_end(self):
        """
        Frames after the end do not change the last sequence.
        """
        engine = batch_read(limit=None, end=3, page=100)
        _, came = answer(engine, message(2), message(3))
        assert (came, take(engine, message(4), message(5))) == ([2, 3], [])
        assert (engine.done, engine.last_sequence, engine.received) == (True, 3, 2)

    def test_messages_from_the_leader_are_skipped(self):
        """
        A message from the leader is not requested again.
        """
        engine = batch_read(limit=None, end=9)
        answer(engine, message(1), eob(0, 1))
        assert engine.position == 2
        engine.skip(4)
        assert (engine.done, engine.open(b"r").get("seq")) == (False, 5)
        engine.lost()
        engine.skip(9)
        assert engine.done

    def test_a_time_is_asked_for_once(self):
        """
        After the first message, requests use sequences instead of the time.
        """
        engine = batch_read(start_time="2024-11-04T23:45:02Z")
        answer(engine, message(7), message(8), message(9), eob(1, 9))
        request = engine.open(b"r")
        assert (request.get("start_time"), request.get("seq")) == (None, 10)

    @pytest.mark.parametrize(
        ("own", "size"), [(b"", 4), (b"K: v\r\n", 4 + len(b"NATS/1.0\r\nK: v\r\n\r\n"))]
    )
    def test_sizes_are_those_of_servers(self, own, size):
        """
        The size counts subject, stored headers and payload, and nothing that servers add.
        """
        assert size_of((b"r", b"", *message(1, own=own, data=b"xyz"))) == size

    def test_a_limit_of_bytes_over_pages(self):
        """
        If a page is smaller than the size limit, the rest is requested.
        """
        engine = batch_read(size_limit=100, page_bytes=60)
        answer(engine, message(1, data=b"x" * 59), eob(4, 1))
        request, _ = answer(engine, message(2, data=b"x" * 60), eob(3, 2))
        assert request.get("max_bytes") == 40
        assert (engine.done, engine.pending) == (True, 3)

    def test_the_server_decides_where_bytes_end(self):
        """
        A page that was requested with the whole size limit is the last one.
        """
        engine = batch_read(size_limit=50)
        answer(engine, message(1), eob(4, 1))
        assert engine.done


class TestLost:
    def test_it_continues_after_the_last_message(self):
        """
        After a lost connection, the rest of the page is requested with another reply subject.
        """
        engine = batch_read(limit=5)
        answer(engine, message(1), message(2))
        engine.lost()
        request = engine.open(b"_INBOX.2")
        assert (request.get("seq"), request.get("batch")) == (3, 3)
        assert take(engine, message(3), eob(9), reply=b"_INBOX.1") == []
        assert take(engine, message(3), message(4), message(5), reply=b"_INBOX.2") == [3, 4, 5]

    def test_late_answers_are_sorted_out(self):
        """
        Late answers to an earlier request are dropped.
        """
        engine = batch_read()
        engine.open(b"_INBOX.1")
        engine.lost()
        engine.open(b"_INBOX.2")
        frames = [(reply, b"", *message(1)) for reply in (b"_INBOX.1", b"_INBOX.2")]
        assert sequences(engine.take(frames)) == [1]

    def test_before_anything_came(self):
        """
        If nothing arrived before the loss, the same request is sent again.
        """
        engine = batch_read(start_time="2024-11-04T23:45:02Z")
        first = engine.open(b"_INBOX.1")
        engine.lost()
        assert engine.open(b"_INBOX.2") == first

    def test_only_the_end_was_missing(self):
        """
        If only the end of the page is lost, nothing more is requested.
        """
        engine = batch_read(limit=2)
        answer(engine, message(1, left=8), message(2, left=7))
        engine.lost()
        assert (engine.done, engine.pending) == (True, 7)


class TestStatuses:
    @pytest.mark.parametrize("make", [batch_read, last_read])
    @pytest.mark.parametrize(
        ("line", "error"),
        [
            ("408 Bad Request", errors.BadDirectRequestError),
            ("408 Empty Request", errors.BadDirectRequestError),
            ("412 Required Api Level", errors.RequiredApiLevelError),
            ("413 Too Many Results", errors.TooManySubjectsError),
            ("500 whatever", errors.UnknownStatusError),
            ("299 Fine", errors.UnknownStatusError),
        ],
    )
    def test_each_status_of_a_direct_read_has_its_own_error(self, make, line, error):
        """
        Each status has its own error, with the server's text.
        """
        engine = make()
        answer(engine, status(line))
        assert type(engine.error) is error
        assert line in str(engine.error)
        assert (engine.is_open, engine.done) == (False, True)

    @pytest.mark.parametrize("make", [batch_read, last_read])
    def test_no_server_answers(self, make):
        """
        If no server answers, the page can be requested again.
        """
        engine = make()
        answer(engine, status("503"))
        assert (engine.verdict, engine.done, engine.error) == ("unanswered", False, None)
        engine.open(b"_INBOX.2")
        assert engine.verdict is None

    @pytest.mark.parametrize("make", [batch_read, last_read])
    def test_a_message_of_a_server_without_pending_is_not_handed_out(self, make):
        """
        A first message without Nats-Num-Pending is not handed out.
        """
        engine = make()
        _, came = answer(engine, message(7, subject="wrong", numbered=False))
        assert came == []
        assert isinstance(engine.error, errors.NotSupportedError)
        assert engine.done

    @pytest.mark.parametrize("make", [batch_read, last_read])
    @pytest.mark.parametrize("own", [b"NATS/1.0 404 Gone", b"NATS/1.0", b"NATS/1", b"noise\r\n"])
    def test_a_page_takes_messages_with_any_header_bytes(self, make, own):
        """
        A message with any bytes as headers is a message, also as the first or last one of a run.
        """
        engine = make()
        frames = [message(number, left=2 - number) for number in (1, 2)]
        frames = [(block.replace(b"NATS/1.0\r\n", own), data) for block, data in frames]
        engine.open(b"_INBOX.1")
        came = [take(engine, frame) for frame in frames]
        came.append(take(engine, eob(0, 2, up_to=2)))
        assert [*itertools.chain.from_iterable(came)] == [1, 2]
        assert (engine.answered_by, engine.error) == ("S", None)
        assert engine.verdict != "stranger"

    @pytest.mark.parametrize("name", [b"Num-Pending: ", b"Sequence: "])
    def test_a_malformed_number(self, name):
        """
        The read fails at the page of a message whose number cannot be read, and drops the page.
        """
        engine = batch_read()
        block, data = message(1, left=1)
        assert answer(engine, (block.replace(name, name + b"x"), data))[1] == []
        assert isinstance(engine.error, errors.ProtocolError)

    def test_messages_before_an_error_are_kept(self):
        """
        Messages before an error are handed out.
        """
        engine = batch_read()
        assert answer(engine, message(1), status("500 broken"))[1] == [1]
        assert engine.error is not None


class TestLastPages:
    def test_the_snapshot_of_a_single_page(self):
        """
        Messages of a single page are held back until its end reports the moment.
        """
        engine = last_read("a.*")
        _, came = answer(engine, message(3, left=1), message(4, left=0))
        assert (came, engine.moment) == ([], None)
        assert take(engine, eob(0, 4, up_to=9)) == [3, 4]
        assert (engine.moment, engine.done, engine.vanished, engine.pending) == (9, True, 0, 0)

    def test_more_pages_need_a_moment(self):
        """
        If there are more pages, the first one is dropped, because other servers may answer the
        rest.
        """
        engine = last_read("a.*")
        _, came = answer(engine, message(3, left=2), message(4, left=1), eob(1, 4, up_to=9))
        assert (came, engine.verdict, engine.done, engine.received) == ([], "cut", False, 0)
        engine.begin_again(8, "T")
        request, came = answer(engine, message(3, left=1), eob(1, 3, up_to=8))
        assert (request.get("up_to_time"), request.get("up_to_seq"), came) == ("T", None, [3])
        request, came = answer(engine, message(7, left=0), eob(0, 7, up_to=8))
        assert (request.get("seq"), request.get("up_to_time"), came) == (4, "T", [7])
        assert (engine.moment, engine.done, engine.vanished) == (8, True, 0)

    def test_a_server_that_lags(self):
        """
        The page of a server that has not reached the moment is dropped and requested again.
        """
        engine = last_read("a.*", moment=8, up_to_time="T")
        _, came = answer(engine, message(2, left=1), message(4, left=0), eob(0, 4, up_to=6))
        assert (came, engine.verdict, engine.done) == ([], "lagging", False)
        assert (engine.received, engine.vanished, engine.blocks) == (0, 0, [])
        request, came = answer(engine, message(4, left=1), message(7), eob(0, 7, up_to=8))
        assert (request.get("seq"), request.get("up_to_time"), came) == (None, "T", [4, 7])
        assert (engine.verdict, engine.done, engine.vanished) == (None, True, 0)

    def test_a_time_that_means_another_sequence_by_now(self):
        """
        If the message with the time was removed, the next request uses the sequence.
        """
        engine = last_read("a.*", moment=8, up_to_time="T")
        _, came = answer(engine, message(2, left=1), message(9, left=0), eob(0, 9, up_to=9))
        assert (came, engine.verdict) == ([], None)
        request, came = answer(engine, message(2, left=0), eob(0, 2, up_to=8))
        assert (request.get("up_to_time"), request.get("up_to_seq"), came) == (None, 8, [2])
        assert engine.done

    def test_only_the_messages_count(self):
        """
        The count at a page's end is not used, because servers 2.11 report one too few.
        """
        engine = last_read("a.*", moment=9)
        answer(engine, message(3, left=2), message(4, left=1), eob(0, 4, up_to=9))
        assert not engine.done
        answer(engine, message(7, left=0), eob(0, 7, up_to=9))
        assert engine.done

    def test_subjects_without_a_message_are_no_error(self):
        """
        Subjects without a message are no error.
        """
        engine = last_read()
        _, came = answer(engine, status("404 No Results"))
        assert (came, engine.verdict, engine.done) == ([], "nothing", False)
        engine.confirm()
        assert (engine.done, engine.error) == (True, None)

    @pytest.mark.parametrize("end", [status("404 No Results"), eob(0, up_to=8)])
    def test_an_empty_page_is_confirmed(self, end):
        """
        An empty page is requested again or confirmed, because lagging servers send the same answer.
        """
        engine = last_read(moment=8, up_to_time="T")
        answer(engine, end)
        assert (engine.verdict, engine.done) == ("nothing", False)
        answer(engine, end)
        engine.confirm()
        assert (engine.verdict, engine.done, engine.vanished) == (None, True, 0)

    def test_a_page_of_another_stream(self):
        """
        A page of another stream is dropped and requested again, unless that stream is trusted.
        """
        for engine in (last_read(), last_read(moment=8), batch_read()):
            other = [
                (block.replace(b"Nats-Stream: S", b"Nats-Stream: M"), data)
                for block, data in (message(4, left=1), message(6))
            ]
            _, came = answer(engine, other[0])
            assert (came, engine.verdict, engine.is_open) == ([], "stranger", True)
            assert engine.answered_by == "M"
            assert take(engine, other[1]) == []
            assert take(engine, eob(0, last=6, up_to=8)) == []
            assert (engine.is_open, engine.done, engine.received) == (False, False, 0)
            known = frozenset({b"M"})
            _, came = answer(engine, *other, eob(0, last=6, up_to=8), trusted=known)
            assert (came, engine.verdict == "stranger", engine.from_itself) == (
                [4, 6],
                False,
                False,
            )

    def test_vanished_messages_are_counted(self):
        """
        The count of vanished messages is based on the first message of the part.
        """
        engine = last_read("a.*", moment=9)
        answer(engine, message(2, left=5), message(3, left=4), eob(4, 3, up_to=9))
        answer(engine, message(7, left=0), eob(0, 7, up_to=9))
        assert (engine.done, engine.vanished) == (True, 3)
        assert engine.subjects() == {"a"}

    def test_named_subjects_without_a_message(self):
        """
        A read by name keeps the names that brought no message, and no headers of ended parts.
        """
        engine = last_read("a.*", moment=9)
        engine.begin_again(9, names=[("a", "b"), ("c", "d"), ("e",)])
        answer(engine, message(3, left=1, subject="b"), eob(1, 3, up_to=9))
        assert (len(engine.blocks), engine.absent) == (1, set())
        answer(engine, message(4, subject="a"), eob(0, 4, up_to=9))
        assert (engine.blocks, engine.absent) == ([], set())
        answer(engine, message(5, subject="d"), eob(0, 5, up_to=9))
        assert (engine.blocks, engine.absent) == ([], {"c"})
        answer(engine, status("404 No Results"))
        engine.confirm()
        assert (engine.done, engine.absent) == (True, {"c", "e"})

    def test_a_lost_first_page_is_requested_again(self):
        """
        A first page that is lost is requested from the beginning, because its moment is not known.
        """
        engine = last_read("a.*")
        answer(engine, message(3, left=2), message(4, left=1))
        engine.lost()
        request, came = answer(engine, message(4, left=0), eob(0, 4, up_to=12), reply=b"_INBOX.2")
        assert (request.get("seq"), request.get("up_to_seq"), came) == (None, None, [4])
        assert (engine.moment, engine.vanished) == (12, 0)

    def test_a_lost_page_by_time_is_asked_for_again(self):
        """
        A lost page by time is dropped, because its moment is not known.
        """
        engine = last_read("a.*", moment=9, up_to_time="T")
        assert answer(engine, message(3, left=2), message(4, left=1))[1] == []
        engine.lost()
        request, came = answer(
            engine, message(3, left=1), message(4), eob(0, 4, up_to=9), reply=b"_INBOX.2"
        )
        assert (request.get("seq"), came, engine.vanished) == (None, [3, 4], 0)
        assert not engine.release()

    def test_a_lost_later_page_continues(self):
        """
        A later page that is lost continues after the last message, with the same moment.
        """
        engine = last_read("a.*", moment=9)
        _, came = answer(engine, message(3, left=2), message(4, left=1))
        engine.lost()
        request = engine.open(b"_INBOX.2")
        assert (came, request.get("seq"), request.get("up_to_seq")) == ([3, 4], 5, 9)

    def test_a_message_that_was_removed_early(self):
        """
        If a message is removed before the moment is known, the read needs a given moment.
        """
        engine = last_read("a.*")
        _, came = answer(engine, message(3, left=2), status("404 Message Not Found"))
        assert (came, engine.verdict, engine.done) == ([], "cut", False)
        engine.begin_again(8)
        assert engine.open(b"r").get("up_to_seq") == 8
        assert engine.verdict is None

    def test_a_message_that_was_removed_later(self):
        """
        If a message is removed later, the page continues after it, and it counts as vanished.
        """
        engine = last_read("a.*", moment=9)
        assert answer(engine, message(3, left=2), status("404 Message Not Found"))[1] == [3]
        request, _ = answer(engine, message(5, left=0), eob(0, 5, up_to=9))
        assert (request.get("seq"), engine.done, engine.vanished) == (4, True, 1)

    def test_a_message_that_was_removed_from_a_page_by_time(self):
        """
        A page by time without an end is dropped, and requested by the sequence.
        """
        engine = last_read("a.*", moment=9, up_to_time="T")
        assert answer(engine, message(3, left=2), status("404 Message Not Found"))[1] == []
        request, came = answer(engine, message(3, left=0), eob(0, 3, up_to=9))
        assert (request.get("up_to_seq"), request.get("up_to_time"), came) == (9, None, [3])

    def test_the_first_message_was_removed(self):
        """
        If the first message of a part is removed, it counts as vanished too.
        """
        engine = last_read("a.*", moment=9)
        answer(engine, status("404 Message Not Found"))
        answer(engine, message(5, left=0), eob(0, 5, up_to=9))
        assert (engine.done, engine.vanished) == (True, 1)

    def test_a_moment_before_everything(self):
        """
        A moment before the first message requests nothing, because servers read 0 as "not given".
        """
        engine = last_read("a.*")
        answer(engine, status("404 Message Not Found"))
        engine.begin_again(0)
        assert engine.done

    def test_an_end_without_a_sequence(self):
        """
        An end without a sequence is an error.
        """
        engine = last_read()
        answer(engine, message(3), eob(0, 3))
        assert isinstance(engine.error, errors.ProtocolError)

    def test_held_back_messages_are_released(self):
        """
        Held-back messages of a single page are released if the server stalls.
        """
        engine = last_read()
        answer(engine, message(3, left=1), message(4))
        assert sequences(engine.release()) == [3, 4]
        assert engine.release() == []

    def test_a_request_of_too_many_subjects_can_be_split(self):
        """
        A request that matches too many subjects is reported, so that they can be split.
        """
        engine = last_read()
        answer(engine, status("413 Too Many Results"))
        assert engine.verdict == "too many"
        assert isinstance(engine.error, errors.TooManySubjectsError)

    def test_parts_follow_each_other(self):
        """
        Parts are requested one after the other, with the same moment.
        """
        engine = LastRead(STREAM, [("a",), ("b",), ("c",)], moment=9, page_bytes=BIG)
        answer(engine, message(7), eob(0, 7, up_to=9))
        request, _ = answer(engine, status("404 No Results"))
        assert (request.get("multi_last"), request.get("seq")) == (("b",), None)
        engine.confirm()
        request, _ = answer(engine, message(2, subject="c"), eob(0, 2, up_to=9))
        assert (request.get("multi_last"), request.get("up_to_seq")) == (("c",), 9)
        assert (engine.done, engine.received, engine.vanished) == (True, 2, 0)


class TestChunks:
    @given(st.lists(st.text("abü", min_size=1), max_size=50), st.integers(1, 60))
    def test_all_in_their_order(self, names, room):
        """
        Parts have all names in order, and each fits or has a single name.
        """
        parts = chunks(names, room)
        assert [name for part in parts for name in part] == names
        for part in parts:
            size = len(json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode())
            assert len(part) == 1 or size <= room + 1

    def test_no_more_than_a_server_resolves(self):
        """
        A part has at most 1,024 names.
        """
        parts = chunks([str(number) for number in range(2500)], BIG)
        assert [len(part) for part in parts] == [MAX_SUBJECTS, MAX_SUBJECTS, 452]


class ModelStream:
    """
    A model of a stream and its server, with limits per subject and known server faults.
    """

    def __init__(self, keep, old_counts):
        self.messages = {}
        self.last = 0
        self.written = []
        self._keep = keep
        self._wrong = int(old_counts)

    def publish(self, subject):
        """Store a message, and remove the oldest one of its subject if necessary."""
        self.last += 1
        self.messages[self.last] = subject
        self.written.append(subject)
        mine = [number for number, other in self.messages.items() if other == subject]
        if self._keep and len(mine) > self._keep:
            del self.messages[mine[0]]

    def delete(self, place):
        """Delete one of the messages."""
        if self.messages:
            del self.messages[sorted(self.messages)[place % len(self.messages)]]

    def replica(self, behind):
        """Return the same stream on a server that lags by *behind* messages."""
        other = ModelStream(self._keep, self._wrong)
        for subject in self.written[: max(0, self.last - behind)]:
            other.publish(subject)
        return other

    def state_at(self, sequence):
        """Return the last sequence of each subject, as if no message had been removed."""
        return {subject: n for n, subject in enumerate(self.written[:sequence], 1)}

    def batch(self, request):
        """Answer a batch."""
        found = sorted(number for number in self.messages if number >= request.get("seq"))
        if not found:
            return [status("404 Message Not Found")]
        sent = found[: request.get("batch")]
        left = len(found)
        frames = [
            message(number, left=left - place - 1 + self._wrong, subject=self.messages[number])
            for place, number in enumerate(sent)
        ]
        return [*frames, eob(left - len(sent), sent[-1])]

    def last_of(self, request):
        """Answer a read of several subjects."""
        moment = request.get("up_to_seq") or self.last
        if request.get("up_to_time") is not None:
            later = [number for number in self.messages if number >= int(request.get("up_to_time"))]
            moment = min(later, default=self.last + 1) - 1
        newest = {}
        for number in sorted(self.messages):
            if number <= moment and self.messages[number] in request.get("multi_last"):
                newest[self.messages[number]] = number
        found = sorted(number for number in newest.values() if number >= (request.get("seq") or 1))
        if not newest:
            return [status("404 No Results")]
        sent = found[: request.get("batch")]
        frames = [
            message(number, left=len(found) - place - 1, subject=self.messages[number])
            for place, number in enumerate(sent)
        ]
        left = max(0, len(found) - len(sent) - self._wrong)
        return [*frames, eob(left, sent[-1] if sent else 0, up_to=moment)]


SUBJECTS = ("a", "b", "c", "d", "e")
CHANGES = st.lists(
    st.one_of(st.sampled_from(SUBJECTS), st.integers(0, 30)),
    max_size=4,
)
LOSSES = st.dictionaries(st.integers(0, 9), st.integers(0, 7), max_size=4)
"""The pages that a lost connection cuts off, and after how many messages."""


def change(model, changes):
    """Publish to subjects and delete by sequence. Return the sequences that a read may miss."""
    for each in changes:
        if isinstance(each, str):
            model.publish(each)
        else:
            model.delete(each)


class TestProperties:
    @given(
        st.lists(st.sampled_from(SUBJECTS), max_size=30),
        st.lists(CHANGES, max_size=40),
        st.integers(1, 7),
        st.booleans(),
        LOSSES,
    )
    @settings(max_examples=examples(300), deadline=None)
    def test_a_scan_is_complete(self, start, meanwhile, page, old_counts, losses):
        """
        A scan reads each message that is not deleted, once and in order, and none after its end,
        whatever happens between pages.
        """
        model = ModelStream(0, old_counts)
        change(model, start)
        there = set(model.messages)
        engine = BatchRead(STREAM, end=model.last, page=page, page_bytes=BIG)
        if engine.reached_end:
            engine.stop()
        came = []
        for number, changes in enumerate([*meanwhile, *([()] * 80)]):
            if engine.done:
                break
            reply = b"_INBOX.%d" % number
            frames = model.batch(engine.open(reply))
            if losses.get(number) is not None:
                frames = frames[:-1][: losses[number]]
            came += take(engine, *frames, reply=reply)
            if engine.is_open:
                engine.lost()
            change(model, changes)
        assert engine.done
        assert came == sorted(set(came))
        assert set(came) <= there
        assert there & set(model.messages) <= set(came)

    @given(
        st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=30),
        st.lists(
            st.tuples(st.lists(st.sampled_from(SUBJECTS), max_size=4), st.integers(0, 4)),
            max_size=20,
        ),
        st.integers(1, 3),
        st.integers(0, 3),
        st.booleans(),
        LOSSES,
    )
    @settings(max_examples=examples(300), deadline=None)
    def test_many_subjects_are_of_one_moment(
        self, start, meanwhile, page, keep, old_counts, losses
    ):
        """
        Each subject has its message of the snapshot, whichever servers answer and however far they
        lag.
        """
        model = ModelStream(keep, old_counts)
        change(model, start)
        engine = LastRead(STREAM, [SUBJECTS], page=page, page_bytes=BIG)
        came = []
        for number, (changes, behind) in enumerate([*meanwhile, *([((), 0)] * 40)]):
            if engine.done:
                break
            if engine.verdict == "nothing" and not any(
                engine.position <= there <= (engine.moment or there) for there in model.messages
            ):
                # The leader gives the same counts.
                engine.confirm()
                continue
            if engine.verdict == "cut":
                engine.begin_again(model.last, str(model.last + 1))
            reply = b"_INBOX.%d" % number
            # A server that gets the sequence alone has had the request by time before.
            by_sequence = engine.moment is not None and engine._up_to_time is None
            server = model.replica(0 if by_sequence else behind)
            frames = server.last_of(engine.open(reply))
            if losses.get(number) is not None:
                frames = frames[:-1][: losses[number]]
            came += take(engine, *frames, reply=reply)
            if engine.is_open:
                engine.lost()
            change(model, changes)
        assert engine.done
        if engine.moment is None:
            # The only server that was asked had no messages yet.
            assert came == []
            return
        assert came == sorted(set(came))
        state = model.state_at(engine.moment)
        assert {model.written[number - 1]: number for number in came}.items() <= state.items()
        assert engine.vanished <= len(state) - len(came)
        if not keep:
            assert len(came) == len(state)


FOREIGN = [
    (None, b"+ACK"),
    (b"NATS/1.0\r\na: b\r\n\r\n", b"x"),
    (b"N\r\na: bc\r\n\r\n", b"x"),
    (b"", b"x"),
]


def run_of(*frames, reply=b"_INBOX.1"):
    """Return frames with headers as one run."""
    data, bounds = b"earlier", []
    for block, payload in frames:
        data += b"HMSG"
        bounds += [len(data), len(data) + len(block), len(data) + len(block) + len(payload)]
        data += block + payload + b"\r\n"
    return FrameRun(reply, data, array("i", bounds))


class TestForeign:
    @pytest.mark.parametrize("place", range(4))
    @pytest.mark.parametrize(
        ("in_runs", "foreign"),
        # No frame of a run is without headers.
        [*itertools.product([False], FOREIGN), *itertools.product([True], FOREIGN[1:])],
        ids=ascii,
    )
    def test_frames_of_other_clients_are_dropped(self, foreign, place, in_runs):
        """A frame that no server sends is no message, wherever it is in a page."""
        frames = [message(1, left=2), message(2, left=1), message(3, left=0), eob(0)]
        frames.insert(place, foreign)
        engine = batch_read()
        engine.open(b"_INBOX.1")
        whole = run_of(*frames) if in_runs else [(b"_INBOX.1", b"", *frame) for frame in frames]
        assert sequences(engine.take(whole)) == [1, 2, 3]
        assert (engine.done, engine.error, engine.received) == (True, None, 3)
        assert engine.strays.report() == {"foreign": 1, "surplus": 0}

    @pytest.mark.parametrize("frames", [[eob(0)], [message(1, left=0)], [message(1), eob(0)]])
    def test_a_run_of_answers_is_not_split(self, frames):
        """The messages of a run without foreign frames stay a run."""
        engine = batch_read()
        engine.open(b"_INBOX.1")
        assert isinstance(engine.take(run_of(*frames)), FrameRun)
        assert not engine.strays.fresh
