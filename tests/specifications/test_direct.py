"""
ADR-31, direct get: one test for each clause, by its id.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import jetsync
from helpers.streams import memory_stream
from helpers.waiting import timed
from helpers.wire import Wire
from jetsync._api.replica_or_leader import direct_get
from jetsync.devserver import DevServer
from jetsync.values.codec import format_time
from jetsync.values.headers import Headers

single = pytest.mark.parametrize("rig", ["2.10.26", None], indirect=True)
paged = pytest.mark.parametrize("rig", ["2.11.11", None], indirect=True)
"""Servers that know pages: the oldest counts some messages wrongly."""

PENDING, LAST, UP_TO = "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence"


def fill(rig, count=20, **fields):
    """
    Create a stream whose messages have their sequence as payload, alternately on B and A.
    """
    stream = rig.stream(**{"allow_direct": True, **fields})
    rig.js.publish_many((rig("BA"[n % 2 == 0]), b"%d" % n) for n in range(1, count + 1))
    rig.wire.clear()
    return stream


def sequences(messages):
    """
    Return the sequences of messages.
    """
    return [message.sequence for message in messages]


def requests(rig):
    """
    Return the direct requests that were sent.
    """
    return rig.wire.published(f"$JS.API.DIRECT.GET.{rig.name}") + rig.wire.published(
        f"$JS.API.DIRECT.GET.{rig.name}.>"
    )


def bodies(rig):
    """
    Return the content of the direct requests, without the limit of bytes that jetsync adds.
    """
    found = [request.json() or {} for request in requests(rig)]
    for body in found:
        body.pop("max_bytes", None)
    return found


def time_of(stream, sequence):
    """
    Return the time of a message, in nanoseconds and as it is sent.
    """
    message = stream.get_message(sequence, direct=False)
    text = message.timestamp.strftime("%Y-%m-%dT%H:%M:%S")
    return message.timestamp_ns, text


class TestRequests:
    @pytest.mark.clause("DG-17", "DG-20", "DG-22", "DG-24")
    @single
    def test_one_message(self, rig):
        """
        Messages are requested by sequence, or as the first of a subject, at or after a sequence.
        """
        stream = fill(rig)
        assert stream.get_message(5).data == b"5"
        assert stream.get_next(rig("A")).data == b"2"
        assert stream.get_next(rig("B"), 6).data == b"7"
        asked = rig.wire.published(f"$JS.API.DIRECT.GET.{rig.name}")
        assert [request.json() for request in asked] == [
            {"seq": 5},
            {"next_by_subj": rig("A"), "seq": 1},
            {"next_by_subj": rig("B"), "seq": 6},
        ]

    @pytest.mark.clause("DG-21", "DG-31", "DG-33", "DG-34")
    @single
    def test_the_last_message_of_a_subject(self, rig):
        """
        The last message of a subject is requested in the subject-appended form, without a payload.
        All tokens after the name of the stream are the subject.
        """
        stream = fill(rig)
        rig.js.publish(rig("with.more.tokens"), b"deep")
        rig.wire.clear()
        assert stream.get_last(rig("A")).data == b"20"
        assert stream.get_last(rig("with.more.tokens")).data == b"deep"
        assert [(request.subject, request.data) for request in requests(rig)] == [
            (f"$JS.API.DIRECT.GET.{rig.name}.{rig(token)}", b"")
            for token in ("A", "with.more.tokens")
        ]

    @pytest.mark.clause("DG-23")
    @paged
    def test_the_first_message_since_a_time(self, rig):
        """
        A time is sent in RFC 3339, and its message is included.
        """
        stream = fill(rig)
        time_ns, text = time_of(stream, 7)
        rig.wire.clear()
        assert stream.get_at(time_ns).sequence == 7
        (body,) = bodies(rig)
        assert body.pop("start_time").startswith(text)
        assert set(body) <= {"next_by_subj"}

    @pytest.mark.clause("DG-25", "DG-41", "DG-43", "DG-44", "DG-45")
    @paged
    def test_batches(self, rig):
        """
        A batch of a subject begins at 1, at a sequence or at a time. The client sends the 1.
        """
        stream = fill(rig)
        time_ns, text = time_of(stream, 9)
        rig.wire.clear()
        subject = rig("B")
        assert sequences(stream.get_batch(3, subject=subject)) == [1, 3, 5]
        assert sequences(stream.get_batch(3, sequence=8, subject=subject)) == [9, 11, 13]
        assert sequences(stream.get_batch(3, start_time=time_ns, subject=subject)) == [9, 11, 13]
        first, second, third = bodies(rig)
        assert first == {"batch": 3, "seq": 1, "next_by_subj": subject}
        assert second == {"batch": 3, "seq": 8, "next_by_subj": subject}
        assert third.pop("start_time").startswith(text)
        assert third == {"batch": 3, "next_by_subj": subject}

    @pytest.mark.clause("DG-26", "DG-36", "DG-46", "DG-47", "DG-48")
    @paged
    def test_batches_that_are_limited_in_bytes(self, rig):
        """
        The same batches can be limited in bytes. The message that reaches the limit is included.
        """
        stream = fill(rig)
        time_ns, _ = time_of(stream, 9)
        rig.wire.clear()
        size = len(rig("B")) + 1
        arguments = {"max_bytes": size * 3 // 2, "subject": rig("B")}
        assert sequences(stream.get_batch(9, **arguments)) == [1, 3]
        assert sequences(stream.get_batch(9, sequence=4, **arguments)) == [5, 7]
        assert sequences(stream.get_batch(9, start_time=time_ns, **arguments)) == [9, 11]
        found = [request.json() for request in requests(rig)]
        assert [set(body) - {"batch", "next_by_subj"} for body in found] == [
            {"max_bytes", "seq"},
            {"max_bytes", "seq"},
            {"max_bytes", "start_time"},
        ]
        assert {body["max_bytes"] for body in found} == {size * 3 // 2}

    @pytest.mark.clause("DG-27", "DG-51", "DG-52", "DG-59")
    @paged
    def test_the_last_messages_of_subjects(self, rig):
        """
        A wildcard returns the last message of each subject below it, and a list those of its
        subjects only.
        """
        stream = fill(rig)
        rig.js.publish(rig("C"), b"21")
        rig.wire.clear()
        assert sequences(stream.get_last_for([rig("*")])) == [19, 20, 21]
        assert sequences(stream.get_last_for([rig("A"), rig("C")])) == [20, 21]
        assert [body["multi_last"] for body in bodies(rig)] == [[rig("*")], [rig("A"), rig("C")]]
        assert {frozenset(body) for body in bodies(rig)} == {frozenset({"multi_last"})}

    @pytest.mark.clause("DG-28", "DG-53", "DG-60", "DG-63")
    @paged
    def test_the_last_messages_up_to_a_sequence(self, rig):
        """
        Subjects are read as they were at a sequence, also in pages. The request has the time of
        the next message, so that the end tells up to which sequence the server has looked.
        """
        # In memory, servers before 2.12.5 do not always find a message by its time.
        stream = fill(rig, storage="file")
        after = format_time(stream.get_message(6).timestamp_ns)
        rig.wire.clear()
        assert sequences(stream.get_last_for([rig("*")], up_to_sequence=5)) == [4, 5]
        assert bodies(rig)[-1] == {"multi_last": [rig("*")], "up_to_time": after}
        rig.wire.clear()
        assert sequences(stream.get_last_for([rig("*")], batch=1, up_to_sequence=5)) == [4, 5]
        pages = [body for body in bodies(rig) if body.get("batch") == 1]
        assert pages[0] == {"multi_last": [rig("*")], "up_to_time": after, "batch": 1}
        assert pages[1] == {**pages[0], "seq": 5}
        ends = [frame for frame in rig.wire.answers() if frame.status == 204]
        assert {end.headers[UP_TO] for end in ends} == {"5"}

    @pytest.mark.clause("DG-29", "DG-61", "DG-64", "DG-65")
    @paged
    def test_the_last_messages_up_to_a_time(self, rig):
        """
        Subjects are read as they were before a time, also in pages. Servers leave out a message of
        exactly this time.
        """
        stream = fill(rig)
        time_ns, text = time_of(stream, 5)
        rig.wire.clear()
        assert sequences(stream.get_last_for([rig("*")], up_to_time=time_ns)) == [3, 4]
        assert sequences(stream.get_last_for([rig("*")], up_to_time=time_ns + 1)) == [4, 5]
        assert sequences(stream.get_last_for([rig("*")], batch=1, up_to_time=time_ns)) == [3, 4]
        found = [body for body in bodies(rig) if "up_to_time" in body]
        assert all(body["up_to_time"].startswith(text) for body in found)
        assert {frozenset(body) for body in found} >= {
            frozenset({"multi_last", "up_to_time"}),
            frozenset({"multi_last", "up_to_time", "batch"}),
        }

    @pytest.mark.clause("DG-30", "DG-56", "DG-57", "DG-58", "DG-62")
    @paged
    def test_pages_of_subjects(self, rig):
        """
        Each further page begins after the last message and repeats the time of the snapshot.
        All messages are returned, although the end of a page of 2.11 counts one too few.
        """
        stream = rig.stream(allow_direct=True, storage="file")
        rig.js.publish_many((rig(f"k{n}"), b"%d" % n) for n in range(1, 9))
        rig.wire.clear()
        assert sequences(stream.get_last_for([rig("*")], batch=7)) == list(range(1, 9))
        first, second = bodies(rig)
        assert first["batch"] == second["batch"] == 7
        assert second["seq"] == 8
        assert first["up_to_time"] == second["up_to_time"]
        ends = [frame for frame in rig.wire.answers() if frame.status == 204]
        assert [end.headers[PENDING] for end in ends] == {
            "2.11.11": ["0", "0"],
            None: ["1", "0"],
        }[rig.version]
        assert (ends[0].headers[LAST], ends[0].headers[UP_TO]) == ("7", "8")

    @pytest.mark.clause("DG-19")
    @pytest.mark.parametrize("version", [pytest.param("2.11.11", marks=pytest.mark.versions), None])
    def test_all_fields_can_be_used(self, version, unique):
        """
        The calls use every field that the text lists. ``last_by_subj`` has the appended form, and a
        user who may not ask the leader needs ``up_to_seq``.
        """
        denied = {"publish": {"deny": ["$JS.API.STREAM.MSG.GET.>"]}}
        users = [{"user": "u", "password": "p", "permissions": denied}]
        with (
            DevServer(version, config={"authorization": {"timeout": 30, "users": users}}) as server,
            Wire(server.url) as wire,
            jetsync.connect(wire.url, user="u", password="p") as client,
        ):
            rig = SimpleNamespace(wire=wire, name=unique)
            js = client.jetstream()
            stream = memory_stream(js, unique, allow_direct=True)
            js.publish_many((f"{unique}.{n % 2}", b"%d" % n) for n in range(1, 7))
            time_ns = stream.get_message(3).timestamp_ns
            subjects = [f"{unique}.*"]
            assert sequences(
                stream.get_batch(2, start_time=time_ns, subject=subjects[0], max_bytes=1000)
            ) == [3, 4]
            assert sequences(stream.get_last_for(subjects, up_to_time=time_ns)) == [1, 2]
            assert sequences(stream.get_last_for(subjects, up_to_sequence=3)) == [2, 3]
            used = {name for request in requests(rig) for name in request.json() or ()}
            assert used == {
                *("seq", "next_by_subj", "batch", "max_bytes", "start_time"),
                *("multi_last", "up_to_seq", "up_to_time"),
            }
            wire.clear()
            assert stream.get_last(f"{unique}.1").sequence == 5
            assert requests(rig)[0].subject.endswith(f".{unique}.1")

    @pytest.mark.clause("DG-42")
    def test_a_sequence_and_a_time_exclude_each_other(self, rig):
        """
        The client refuses both, and sends nothing.
        """
        stream = fill(rig)
        time_ns, _ = time_of(stream, 5)
        rig.wire.clear()
        for call in (
            lambda: stream.get_batch(3, sequence=1, start_time=time_ns),
            lambda: stream.scan(start=1, start_time=time_ns),
        ):
            with pytest.raises(jetsync.InvalidArgumentError):
                call()
        rig.client.flush()
        assert rig.wire.published() == []


class TestAnswers:
    @pytest.mark.clause("DG-70", "DG-71", "DG-75", "DG-76")
    @single
    def test_one_message(self, rig):
        """
        The answer is the stored message with its own headers and those that describe it, and has no
        status. The time is RFC 3339.
        """
        stream = rig.stream(allow_direct=True)
        rig.js.publish(rig("A"), b"{not json", headers={"Own": "yes"})
        rig.wire.clear()
        message = stream.get_message(1)
        (request,) = requests(rig)
        (answer,) = rig.wire.replies(request)
        assert (answer.data, message.data) == (b"{not json", b"{not json")
        assert answer.status is None
        headers = answer.headers
        assert (headers["Own"], message.headers["Own"]) == ("yes", "yes")
        assert (message.stream, message.subject) == (rig.name, rig("A"))
        assert (headers["Nats-Stream"], headers["Nats-Subject"]) == (rig.name, rig("A"))
        assert (headers["Nats-Sequence"], message.sequence) == ("1", 1)
        date, _, rest = headers["Nats-Time-Stamp"].partition("T")
        assert message.timestamp.strftime("%Y-%m-%d") == date
        seconds, _, fraction = rest.removesuffix("Z").partition(".")
        assert message.timestamp.strftime("%H:%M:%S") == seconds
        assert message.timestamp_ns % 10**9 == int(fraction.ljust(9, "0"))

    @pytest.mark.clause("DG-40")
    @paged
    def test_one_message_has_no_end(self, rig):
        """
        A request without ``batch`` has one answer, without a count.
        """
        stream = fill(rig)
        stream.get_next(rig("A"))
        rig.client.flush()
        (request,) = requests(rig)
        (answer,) = rig.wire.replies(request)
        assert "batch" not in request.json()
        assert PENDING not in answer.headers

    @pytest.mark.clause("DG-35", "DG-38", "DG-66", "DG-72", "DG-73")
    @paged
    def test_a_batch(self, rig):
        """
        One request gets all messages on its reply subject, and then the status 204 EOB with the
        number of messages that are left and the last sequence.
        """
        stream = fill(rig)
        batch = stream.get_batch(4, subject=rig("A"))
        assert sequences(batch) == [2, 4, 6, 8]
        assert (batch.pending, batch.last_sequence) == (6, 8)
        (request,) = requests(rig)
        *messages, end = rig.wire.replies(request)
        assert [message.data for message in messages] == [b"2", b"4", b"6", b"8"]
        assert [message.headers[LAST] for message in messages] == ["0", "2", "4", "6"]
        assert Headers.parse(end.header)[:2] == (204, "EOB")
        assert (end.data, end.headers[PENDING], end.headers[LAST]) == (b"", "6", "8")
        too_many = {"2.11.11": 1, None: 0}[rig.version]
        assert [int(message.headers[PENDING]) - too_many for message in messages] == [9, 8, 7, 6]

    @pytest.mark.clause("DG-49", "DG-54", "DG-55", "DG-74")
    @paged
    def test_several_subjects(self, rig):
        """
        The pages of several subjects belong to one sequence, which the end of each page names, also
        if the subjects change meanwhile.
        """
        stream = rig.stream(allow_direct=True)
        rig.js.publish_many((rig(f"k{n % 4}"), b"%d" % n) for n in range(1, 9))
        rig.wire.clear()
        batch = stream.get_last_for([rig("*")], batch=1)
        found = [next(iter(batch)).sequence]
        rig.js.publish_many((rig(f"k{n % 4}"), b"new") for n in range(4))
        found += sequences(batch)
        assert found == [5, 6, 7, 8]
        assert (batch.up_to_sequence, batch.missing) == (8, ())
        ends = [frame for frame in rig.wire.answers() if frame.status == 204]
        assert [end.headers[UP_TO] for end in ends] == ["8"] * 4
        assert [end.headers[LAST] for end in ends] == ["5", "6", "7", "8"]
        answers = [rig.wire.replies(request) for request in requests(rig)]
        assert [len(page) for page in answers if page[-1].status == 204] == [2] * 4

    @pytest.mark.clause("DG-37")
    @paged
    def test_each_page_has_a_limit_in_bytes(self, rig):
        """
        Every request for many messages has a limit in bytes below that of servers.
        """
        stream = fill(rig)
        list(stream.scan())
        list(stream.get_batch(5))
        list(stream.get_last_for([rig("*")]))
        limits = [request.json()["max_bytes"] for request in requests(rig)]
        assert len(limits) == 3
        assert all(0 < limit < 64 << 20 for limit in limits)

    @pytest.mark.clause("DG-67")
    @single
    def test_nothing_matches(self, rig):
        """
        The status 404 raises an error if one message was asked for. Many are an empty result.
        """
        stream = fill(rig)
        for call in (
            lambda: stream.get_message(1000, direct=True),
            lambda: stream.get_last(rig("none"), direct=True),
            lambda: stream.get_next(rig("A"), 1000, direct=True),
        ):
            rig.wire.clear()
            with pytest.raises(jetsync.MessageNotFoundError):
                call()
            (request,) = requests(rig)
            assert [answer.status for answer in rig.wire.replies(request)] == [404]
        if rig.version is None:
            rig.wire.clear()
            assert list(stream.get_batch(5, sequence=1000)) == []
            assert list(stream.get_last_for([rig("none")])) == []
            assert {frame.status for frame in rig.wire.answers() if frame.status} == {404}

    @pytest.mark.clause("DG-68", "DG-77")
    @paged
    @pytest.mark.parametrize("request_body", [{}, {"seq": 1, "start_time": "2026-01-01T00:00:00Z"}])
    def test_an_invalid_request(self, rig, request_body):
        """
        The status 408 without a payload answers an empty or invalid request, and is an error.
        """
        fill(rig)
        context = rig.js._context
        with pytest.raises(jetsync.BadDirectRequestError, match="408"):
            direct_get(context, rig.name, request_body, context.deadline(5))
        (request,) = requests(rig)
        (answer,) = rig.wire.replies(request)
        assert (answer.status, answer.data) == (408, b"")

    @pytest.mark.clause("DG-50", "DG-69")
    @paged
    def test_too_many_subjects(self, rig):
        """
        The status 413 answers more than 1,024 subjects. jetsync splits the read, or raises it.
        """
        stream = rig.stream(allow_direct=True)
        rig.js.publish_many((rig(f"k{n}"), b"x") for n in range(1, 1031))
        rig.wire.clear()
        with pytest.raises(jetsync.TooManySubjectsError):
            list(stream.get_last_for([rig("*")], split=False))
        assert 413 in {frame.status for frame in rig.wire.answers() if frame.status}
        rig.wire.clear()
        found = stream.get_last_for([rig("*")])
        assert sorted(sequences(found)) == list(range(1, 1031))
        parts = [body["multi_last"] for body in bodies(rig)]
        assert all(len(part) <= 1024 for part in parts)


class TestStreams:
    @pytest.mark.clause("DG-13", "DG-14")
    @single
    def test_the_setting_is_off_by_default(self, rig):
        """
        ``allow_direct`` is off by default, also with ``max_msgs_per_subject``, and can be set.
        """
        stream = rig.stream(max_msgs_per_subject=5)
        assert not stream.info().config.allow_direct
        stream.update(allow_direct=True)
        assert stream.info().config.allow_direct is True
        rig.js.publish(rig("A"), b"x")
        rig.wire.clear()
        assert stream.get_last(rig("A")).data == b"x"
        assert len(requests(rig)) == 1

    @pytest.mark.clause("DG-16")
    @single
    def test_buckets_switch_it_on(self, rig):
        """
        The streams of key-value buckets and object stores allow direct gets.
        """
        rig.js.create_key_value(rig.name, storage="memory")
        rig.js.create_object_store(rig.name, storage="memory")
        for name in (f"KV_{rig.name}", f"OBJ_{rig.name}"):
            assert rig.js.stream(name).info().config.allow_direct is True
        rig.js.delete_object_store(rig.name)

    @pytest.mark.clause("DG-18")
    @single
    def test_a_stream_without_direct_gets(self, rig):
        """
        A stream without direct gets answers nothing. Reads of one message ask the leader, and the
        others raise an error at once.
        """
        stream = fill(rig, allow_direct=False)
        with timed(0.0, 1.0), pytest.raises(jetsync.NoRespondersError):
            rig.client.request(f"$JS.API.DIRECT.GET.{rig.name}", b'{"seq":1}', timeout=20)
        rig.wire.clear()
        assert stream.get_message(3).data == b"3"
        assert stream.get_last(rig("A")).data == b"20"
        assert len(rig.wire.published("$JS.API.STREAM.MSG.GET.>")) == 2
        error = jetsync.NotSupportedError if rig.version else jetsync.DirectNotSupportedError
        for call in (
            lambda: list(stream.get_batch(3)),
            lambda: list(stream.get_last_for([rig("A")])),
        ):
            with timed(0.0, 1.0), pytest.raises(error):
                call()
        assert requests(rig) == []

    @pytest.mark.clause("DG-12")
    @single
    def test_the_leader_can_be_asked(self, rig):
        """
        ``direct=False`` uses the get API of the leader.
        """
        stream = fill(rig)
        assert stream.get_message(3, direct=False).data == b"3"
        assert stream.get_last(rig("A"), direct=False).data == b"20"
        assert stream.get_next(rig("A"), 3, direct=False).data == b"4"
        assert requests(rig) == []
        asked = rig.wire.published(f"$JS.API.STREAM.MSG.GET.{rig.name}")
        assert [request.json() for request in asked] == [
            {"seq": 3},
            {"last_by_subj": rig("A")},
            {"next_by_subj": rig("A"), "seq": 3},
        ]

    @pytest.mark.clause("DG-03", "DG-05", "DG-11")
    @single
    def test_mirror_direct(self, rig):
        """
        ``mirror_direct`` can be given. Servers set it as the upstream's ``allow_direct``, and
        refuse it on another stream.
        """
        rig.stream(allow_direct=True)
        for value in (True, False):
            rig.wire.clear()
            mirror = rig.js.create_stream(
                f"{rig.name}-{value}",
                mirror=jetsync.StreamSource(rig.name),
                mirror_direct=value,
                storage="memory",
            )
            (request,) = rig.wire.published("$JS.API.STREAM.CREATE.>")
            assert request.json()["mirror_direct"] is value
            assert mirror.info().config.mirror_direct is True
        with pytest.raises(jetsync.StreamConfigInvalidError):
            rig.js.create_stream(f"{rig.name}-P", subjects=["p"], mirror_direct=True)
