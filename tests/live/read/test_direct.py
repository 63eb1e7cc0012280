"""
Direct reads on real servers (ADR-31), from 2.10 to the newest.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import jetsync
from helpers.waiting import CLUSTER_CLIENT, blocked, eventually, timed
from jetsync._api.replica_or_leader import direct_get
from jetsync.devserver import DevServer
from jetsync.read.pages import PageReader

PAGED = ["2.11.11", "2.12.8", "2.14.6"]
"""Older servers that know pages."""


@pytest.fixture(params=[*PAGED, None])
def any_server(request, server_for, nats_server):
    """
    Each server version that supports pages.
    """
    return nats_server if request.param is None else server_for(request.param)


@pytest.fixture
def any_js(any_server):
    """
    A JetStream context of such a server.
    """
    with jetsync.connect(any_server.url) as client:
        yield client.jetstream()


def make_foo(js, unique, **config):
    """
    Create a stream of 20 messages, alternately on FOO.A and FOO.B.
    """
    stream = js.create_stream(
        unique,
        subjects=[f"{unique}.>"],
        **{"storage": "memory", "allow_direct": True, **config},
    )
    js.publish_many((f"{unique}.{'BA'[number % 2]}", b"%d" % number) for number in range(1, 21))
    return stream


@pytest.fixture
def foo(any_js, unique):
    """
    That stream, on each server version that supports pages.
    """
    stream = make_foo(any_js, unique)
    yield stream
    stream.delete()


@pytest.fixture
def newest(js, unique):
    """
    That stream, on the newest server.
    """
    stream = make_foo(js, unique)
    yield stream
    stream.delete()


def sequences(batch):
    """
    List the sequences of messages, and compare them with the payloads.
    """
    messages = list(batch)
    assert [int(message.data) for message in messages] == [each.sequence for each in messages]
    return [message.sequence for message in messages]


class Requests:
    """
    The requests that a client sends to the direct API.
    """

    def __init__(self, watcher, name):
        self._watcher = watcher
        self.wire = watcher.subscribe(f"$JS.API.DIRECT.GET.{name}")
        watcher.flush()

    def bodies(self):
        """
        Return the requests so far, without their limit of bytes.
        """
        self._watcher.flush()
        found = []
        while (request := self.wire.next(timeout=0.05)) is not None:
            body = json.loads(request.data)
            assert body.pop("max_bytes") > 0
            found.append(body)
        return found


@pytest.fixture
def requests(nats_server):
    """
    A function that records the direct requests for a stream on the newest server.
    """
    made = []

    def record(stream):
        made.append(Requests(watcher, stream.name))
        return made[-1]

    with jetsync.connect(nats_server.url) as watcher:
        yield record
        # The warning about a dropped subscription would be an error.
        for each in made:
            each.wire.close()


@pytest.mark.versions
class TestBatchForms:
    """
    The six calls of ADR-31 for a batch.
    """

    def test_batch_and_subject(self, foo):
        """
        A batch begins at the first message of the subject.
        """
        batch = foo.get_batch(3, subject=f"{foo.name}.B")
        assert sequences(batch) == [2, 4, 6]
        assert (batch.pending, batch.last_sequence) == (7, 6)

    def test_batch_sequence_and_subject(self, foo):
        """
        A batch begins at a sequence, whichever subject has it.
        """
        assert sequences(foo.get_batch(5, sequence=5, subject=f"{foo.name}.B")) == [
            *(6, 8, 10, 12, 14)
        ]
        assert sequences(foo.get_batch(10, sequence=16, subject=f"{foo.name}.>")) == [
            *(16, 17, 18, 19, 20)
        ]

    def test_batch_start_time_and_subject(self, foo):
        """
        The start time is inclusive, to the nanosecond.
        """
        time_ns = foo.get_message(6).timestamp_ns
        subject = f"{foo.name}.B"
        assert sequences(foo.get_batch(3, start_time=time_ns, subject=subject)) == [6, 8, 10]
        assert sequences(foo.get_batch(3, start_time=time_ns + 1, subject=subject)) == [8, 10, 12]

    def test_batch_max_bytes_and_subject(self, foo):
        """
        At least one message is returned, whatever the size limit.
        """
        batch = foo.get_batch(3, max_bytes=1, subject=f"{foo.name}.>")
        assert sequences(batch) == [1]
        assert (batch.pending, batch.last_sequence) == (19, 1)

    def test_batch_max_bytes_sequence_and_subject(self, foo):
        """
        The batch ends after the message that reaches the size limit.
        """
        size = len(f"{foo.name}.A") + 1
        batch = foo.get_batch(5, max_bytes=size * 3 // 2, sequence=4, subject=f"{foo.name}.>")
        assert sequences(batch) == [4, 5]
        assert (batch.pending, batch.last_sequence) == (15, 5)

    def test_batch_max_bytes_start_time_and_subject(self, foo):
        """
        The limits of messages and bytes apply together.
        """
        time_ns = foo.get_message(6).timestamp_ns
        arguments = {"start_time": time_ns, "subject": f"{foo.name}.>"}
        assert sequences(foo.get_batch(2, max_bytes=10_000, **arguments)) == [6, 7]
        assert sequences(foo.get_batch(9, max_bytes=1, **arguments)) == [6]

    def test_a_batch_without_a_subject_counts_the_remaining_messages(self, foo):
        """
        A batch without a subject has the right counts of remaining messages on all servers.
        """
        batch = foo.get_batch(10)
        assert sequences(batch) == [*range(1, 11)]
        assert (batch.pending, batch.last_sequence) == (10, 10)
        batch = foo.get_batch(3)
        assert sequences(batch) == [1, 2, 3]
        assert batch.pending == 17
        assert sequences(foo.get_batch(5, sequence=5)) == [5, 6, 7, 8, 9]
        batch = foo.get_batch(10, sequence=16)
        assert sequences(batch) == [16, 17, 18, 19, 20]
        assert batch.pending == 0

    def test_a_batch_after_the_end_is_empty(self, foo):
        """
        A batch after the end, in the future or of an unknown subject is empty.
        """
        future = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1)
        for batch in (
            foo.get_batch(10, sequence=21),
            foo.get_batch(10, start_time=future),
            foo.get_batch(10, subject=f"{foo.name}.C"),
        ):
            assert sequences(batch) == []
            assert (batch.pending, batch.last_sequence) == (0, 0)


@pytest.mark.versions
class TestMultiLastForms:
    """
    The six calls of ADR-31 for several subjects.
    """

    def test_a_message_that_two_filters_match_is_returned_once(self, foo):
        """
        Each message is returned once, even if a name and a wildcard match it.
        """
        names = [f"{foo.name}.A", f"{foo.name}.B"]
        for subjects in (names, f"{foo.name}.*", [*names, f"{foo.name}.>", names[0]]):
            batch = foo.get_last_for(subjects)
            assert sequences(batch) == [19, 20]
            assert (batch.up_to_sequence, batch.pending) == (20, 0)
            assert (batch.missing, batch.vanished, batch.later) == ((), 0, ())

    def test_subjects_up_to_sequence(self, foo):
        """
        The snapshot includes the given sequence.
        """
        batch = foo.get_last_for([f"{foo.name}.*"], up_to_sequence=5)
        assert sequences(batch) == [4, 5]
        assert batch.up_to_sequence == 5

    def test_subjects_up_to_time(self, foo):
        """
        The snapshot does not include the given time.
        """
        time_ns = foo.get_message(5).timestamp_ns
        batch = foo.get_last_for([f"{foo.name}.*"], up_to_time=time_ns)
        assert sequences(batch) == [3, 4]
        assert batch.up_to_sequence == 4
        assert sequences(foo.get_last_for([f"{foo.name}.*"], up_to_time=time_ns + 1)) == [4, 5]

    def test_after_deletions(self, foo):
        """
        Earlier snapshots can be read although messages between were deleted.
        """
        # Servers before 2.12.5 look for a time in the wrong half of these sequences.
        for sequence in (1, 4, 6, 7, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20):
            foo.delete_message(sequence)
        for sequence, expected in (
            (3, [2, 3]),
            (5, [2, 5]),
            (7, [2, 5]),
            (9, [5, 8]),
            (10, [5, 8]),
        ):
            batch = foo.get_last_for([f"{foo.name}.*"], up_to_sequence=sequence, timeout=10)
            assert sequences(batch) == expected
            assert batch.up_to_sequence == sequence

    def test_batch_and_subjects(self, foo):
        """
        Pages of one message are complete, although servers 2.11 report wrong counts.
        """
        batch = foo.get_last_for([f"{foo.name}.*"], batch=1)
        assert sequences(batch) == [19, 20]

    def test_batch_subjects_and_up_to_sequence(self, foo):
        """
        An earlier snapshot can be read in pages.
        """
        assert sequences(foo.get_last_for([f"{foo.name}.*"], batch=1, up_to_sequence=5)) == [4, 5]

    def test_batch_subjects_and_up_to_time(self, foo):
        """
        A snapshot by time can be read in pages, for which the first one sets the sequence.
        """
        time_ns = foo.get_message(5).timestamp_ns
        batch = foo.get_last_for([f"{foo.name}.*"], batch=1, up_to_time=time_ns)
        assert sequences(batch) == [3, 4]

    def test_a_snapshot_without_messages_is_empty(self, foo):
        """
        A snapshot without messages is empty, and no error.
        """
        long_ago = dt.datetime(1990, 1, 1, tzinfo=dt.timezone.utc)
        for batch in (
            foo.get_last_for([f"{foo.name}.C"]),
            foo.get_last_for([f"{foo.name}.B"], up_to_sequence=1),
            foo.get_last_for([f"{foo.name}.B"], up_to_time=long_ago),
        ):
            assert sequences(batch) == []
            assert batch.missing == ()


class TestExamples:
    """
    The four examples of ADR-31, sent as raw requests.
    """

    @pytest.fixture
    def bucket(self, js, unique):
        """
        A bucket with the messages of the examples.
        """
        stream = js.create_stream(
            f"KV_{unique}",
            subjects=[f"$KV.{unique}.>"],
            storage="memory",
            max_msgs_per_subject=1,
            allow_direct=True,
        )
        js.publish(f"$KV.{unique}.mykey1", b"hello")
        js.publish(f"$KV.{unique}.mykey2", b"goodbye")
        yield stream
        stream.delete()

    @staticmethod
    def check(message, subject, sequence, data):
        """
        Compare a message with that of the example.
        """
        assert message.subject.endswith(subject)
        assert (message.sequence, message.data) == (sequence, data)

    def test_direct_get_last_by_subj(self, client, bucket, unique):
        """
        The JSON form and the short form return the same last message.
        """
        body = json.dumps({"last_by_subj": f"$KV.{unique}.mykey1"}).encode()
        answer = client.request(f"$JS.API.DIRECT.GET.{bucket.name}", body)
        assert answer.headers["Nats-Sequence"] == "1"
        assert answer.data == b"hello"
        (message,) = bucket.get_last_for([f"$KV.{unique}.mykey1"])
        self.check(message, "mykey1", 1, b"hello")

    def test_direct_get_next_by_subj_starting_at_seq(self, bucket, unique):
        """
        The next message of a subject at or after a sequence is returned.
        """
        self.check(bucket.get_next(f"$KV.{unique}.mykey2", 1), "mykey2", 2, b"goodbye")

    def test_subject_appended_direct_get(self, client, bucket, unique):
        """
        The last message can be requested with the subject in the API subject.
        """
        subject = f"$KV.{unique}.mykey1"
        with client.subscribe(f"$JS.API.DIRECT.GET.{bucket.name}.>") as wire:
            self.check(bucket.get_last(subject), "mykey1", 1, b"hello")
            asked = wire.next(timeout=5)
        assert asked.subject == f"$JS.API.DIRECT.GET.{bucket.name}.{subject}"
        assert asked.data == b""

    def test_illegal_direct_get(self, bucket, unique):
        """
        A request for two messages is rejected.
        """
        request = {"seq": 1, "start_time": "2026-01-01T00:00:00Z"}
        context = bucket._context
        with pytest.raises(jetsync.BadDirectRequestError, match="408 Bad Request"):
            direct_get(context, bucket.name, request, context.deadline(5))


class TestArguments:
    """
    Invalid arguments are rejected before anything is sent.
    """

    NAIVE = dt.datetime(2026, 1, 1)  # noqa: DTZ001
    AWARE = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"batch": 0},
            {"batch": -1},
            {"batch": 1 << 63},
            {"batch": "1"},
            {"batch": True},
            {"batch": 1, "sequence": 0},
            {"batch": 1, "sequence": 1, "start_time": AWARE},
            {"batch": 1, "start_time": NAIVE},
            {"batch": 1, "start_time": "2026-01-01T00:00:00Z"},
            {"batch": 1, "start_time": 1.5},
            {"batch": 1, "max_bytes": 0},
            {"batch": 1, "subject": "a..b"},
            {"batch": 1, "subject": ""},
            {"batch": 1, "timeout": -1},
        ],
    )
    def test_a_sequence_and_a_time_exclude_each_other(self, newest, requests, arguments):
        """
        A sequence and a time exclude each other.
        """
        listener = requests(newest)
        with pytest.raises((ValueError, TypeError)) as caught:
            newest.get_batch(**arguments)
        assert isinstance(caught.value, jetsync.JetSyncError)
        assert listener.bodies() == []

    @pytest.mark.parametrize(
        ("subjects", "arguments"),
        [
            ([], {}),
            ("", {}),
            (["a", "b c"], {}),
            (["a", 5], {}),
            (None, {}),
            (["a"], {"up_to_sequence": 1, "up_to_time": AWARE}),
            (["a"], {"up_to_sequence": 0}),
            (["a"], {"up_to_time": NAIVE}),
            (["a"], {"batch": 0}),
        ],
    )
    def test_several_subjects(self, newest, requests, subjects, arguments):
        """
        A read without subjects, or with both a sequence and a time, is rejected.
        """
        listener = requests(newest)
        with pytest.raises((ValueError, TypeError)) as caught:
            newest.get_last_for(subjects, **arguments)
        assert isinstance(caught.value, jetsync.JetSyncError)
        assert listener.bodies() == []

    @pytest.mark.parametrize(
        "arguments",
        [
            {"start": 0},
            {"end": -1},
            {"start": 1, "start_time": AWARE},
            {"start_time": NAIVE},
            {"page": 0},
            {"max_bytes": 0},
            {"subject": ">.a"},
        ],
    )
    def test_a_scan_rejects_invalid_arguments_in_the_call(self, newest, requests, arguments):
        """
        The call itself rejects invalid arguments.
        """
        listener = requests(newest)
        with pytest.raises(ValueError, match=r".+") as caught:
            newest.scan(**arguments)
        assert isinstance(caught.value, jetsync.JetSyncError)
        assert listener.bodies() == []

    @pytest.mark.parametrize("moment", [NAIVE, "now", True])
    def test_a_time_needs_a_time_zone(self, newest, moment):
        """
        A time needs a time zone.
        """
        with pytest.raises((ValueError, TypeError)):
            newest.get_at(moment)


@pytest.mark.versions
class TestAtATime:
    @pytest.mark.parametrize("direct", [True, False, None])
    def test_the_first_message_since(self, foo, direct):
        """
        ``get_at`` is inclusive to the nanosecond, from the leader and from replicas.
        """
        sixth = foo.get_message(6)
        assert foo.get_at(sixth.timestamp_ns, direct=direct).sequence == 6
        assert foo.get_at(sixth.timestamp_ns + 1, direct=direct).sequence == 7
        day = dt.timedelta(days=1)
        assert foo.get_at(sixth.timestamp - day, direct=direct).sequence == 1
        with pytest.raises(jetsync.MessageNotFoundError):
            foo.get_at(sixth.timestamp + day, direct=direct)

    def test_after_deletions(self, foo):
        """
        Deleted messages are left out.
        """
        time_ns = foo.get_message(6).timestamp_ns
        foo.delete_message(6)
        foo.delete_message(7)
        assert foo.get_at(time_ns).sequence == 8


@pytest.mark.versions
@pytest.mark.parametrize("storage", ["memory", "file"])
@pytest.mark.parametrize("direct", [True, False, None])
def test_the_last_message_of_a_stream(any_js, unique, storage, direct):
    """
    ``get_last`` finds the last message of a stream, although later ones were deleted.
    """
    stream = any_js.create_stream(
        unique, subjects=[unique, f"{unique}.>"], storage=storage, allow_direct=True
    )
    for subject in (f"{unique}.a.b", unique, f"{unique}.a"):
        any_js.publish(subject)
    for sequence in (3, 2, 1):
        assert stream.get_last(">", direct=direct).sequence == sequence
        stream.delete_message(sequence)
    with pytest.raises(jetsync.MessageNotFoundError, match="subject '>'"):
        stream.get_last(">", direct=direct)
    stream.delete()


@pytest.mark.versions
class TestNotSupported:
    def test_a_server_without_pages(self, server_for, unique):
        """
        A 2.10 server is rejected at once, because it would answer with a wrong message.
        """
        with jetsync.connect(server_for("2.10.26").url) as client:
            stream = make_foo(client.jetstream(), unique)
            with client.subscribe(f"$JS.API.DIRECT.GET.{unique}") as wire:
                for read in (
                    lambda: stream.get_batch(3),
                    lambda: stream.get_last_for([f"{unique}.A"]),
                    lambda: stream.get_last_for([f"{unique}.A"], batch=1, up_to_sequence=5),
                    stream.scan,
                    lambda: stream.get_at(1),
                ):
                    with timed(0, 1), pytest.raises(jetsync.NotSupportedError) as caught:
                        read()
                    assert "2.10.26" in str(caught.value)
                client.flush()
                assert wire.next(timeout=0.05) is None
            assert stream.get_message(3).sequence == 3
            stream.delete()

    @pytest.mark.parametrize("version", ["2.10.26", *PAGED, None])
    def test_a_stream_without_direct_gets(self, server_for, nats_server, unique, version):
        """
        A stream without direct gets is rejected within a second.
        """
        server = nats_server if version is None else server_for(version)
        with jetsync.connect(server.url) as client:
            stream = make_foo(client.jetstream(), unique, allow_direct=False)
            for read in (
                lambda: stream.get_batch(3),
                lambda: stream.get_last_for([f"{unique}.A"]),
                stream.scan,
                lambda: stream.get_message(1, direct=True),
            ):
                with timed(0, 1), pytest.raises(jetsync.NotSupportedError):
                    read()
            stream.delete()

    def test_a_stream_that_allows_it_by_now(self, js, unique):
        """
        The configuration is fetched again before a stream is rejected. A stream that no longer
        allows direct gets is rejected at once.
        """
        stream = make_foo(js, unique, allow_direct=False)
        with pytest.raises(jetsync.DirectNotSupportedError):
            stream.get_batch(3)
        js.update_stream(unique, allow_direct=True)
        assert sequences(stream.get_batch(3)) == [1, 2, 3]
        js.update_stream(unique, allow_direct=False)
        with timed(0, 1), pytest.raises(jetsync.DirectNotSupportedError):
            stream.get_batch(3)
        stream.delete()
        for read in (lambda: stream.get_batch(3), lambda: stream.get_message(1, direct=True)):
            with timed(0, 1), pytest.raises(jetsync.StreamNotFoundError):
                read()

    @pytest.fixture
    def readers(self, unique):
        """
        A function that returns the stream for a user who may not publish to the given subjects.
        """
        denied = {
            "nothing": [f"$JS.API.DIRECT.GET.{unique}"],
            "directly": [f"$JS.API.STREAM.MSG.GET.{unique}"],
        }
        users = [
            {"user": name, "password": "x", "permissions": {"publish": {"deny": subjects}}}
            for name, subjects in denied.items()
        ]
        users.append({"user": "admin", "password": "x"})
        with ExitStack() as stack:
            server = stack.enter_context(
                DevServer(config={"authorization": {"timeout": 30, "users": users}})
            )

            def connect(name):
                return stack.enter_context(jetsync.connect(server.url, user=name, password="x"))

            make_foo(connect("admin").jetstream(), unique)
            yield connect

    def test_direct_gets_are_denied(self, readers, unique):
        """
        A user without permission gets an error that names the subject, at once.
        """
        client = readers("nothing")
        stream = client.jetstream().stream(unique)
        for read in (lambda: stream.get_batch(3), stream.scan):
            with timed(0, 2), pytest.raises(jetsync.PermissionDeniedError):
                list(read())
        assert client.statistics().subscriptions == 1

    def test_only_direct_gets_are_allowed(self, readers, unique):
        """
        A user without permission to ask the leader can read directly.
        """
        stream = readers("directly").jetstream().stream(unique)
        assert sequences(stream.scan(subject=f"{unique}.A", page=3)) == [*range(1, 20, 2)]
        assert sequences(stream.get_batch(30)) == [*range(1, 21)]
        assert sequences(stream.get_last_for([f"{unique}.*"], up_to_sequence=5)) == [4, 5]
        assert sequences(stream.get_last_for([f"{unique}.*"], batch=1)) == [19, 20]


def is_served(client, subject):
    """
    Return whether a server believes that somebody answers requests on *subject*.
    """
    try:
        client.request(subject, timeout=0.5)
    except jetsync.NoRespondersError:
        return False
    except jetsync.RequestTimeoutError:
        return True
    return True


class TestWithoutLeader:
    def test_the_only_server_is_down(self, unique):
        """
        While the only server of a stream is down, every read waits for it and says what is missing.
        """
        with DevServer(cluster=3) as server, ExitStack() as stack:
            clients = [
                stack.enter_context(jetsync.connect(url, **CLUSTER_CLIENT)) for url in server.urls
            ]
            stream = make_foo(clients[0].jetstream(), unique, storage="file")
            leader = server.wait_stream_leader(unique)
            # A client of another server, which knows the configuration.
            stream = clients[leader - 1].jetstream().stream(unique)
            assert len(list(stream.scan())) == 20
            subject = f"{unique}.A"
            reads = {
                "get_message": lambda time: [stream.get_message(1, direct=True, timeout=time)],
                "get_last": lambda time: [stream.get_last(subject, direct=True, timeout=time)],
                "get_next": lambda time: [stream.get_next(subject, direct=True, timeout=time)],
                "get_at": lambda time: [stream.get_at(0, direct=True, timeout=time)],
                "get_batch": lambda time: stream.get_batch(1, timeout=time),
                "get_last_for": lambda time: stream.get_last_for(subject, timeout=time),
                "scan": lambda time: stream.scan(end=1, timeout=time),
            }
            server.kill(leader)
            # Until the server of this client sees that, nothing answers a request.
            eventually(lambda: not is_served(clients[leader - 1], f"$JS.API.DIRECT.GET.{unique}"))
            with ThreadPoolExecutor(len(reads)) as pool:

                def begin(time):
                    return {
                        name: pool.submit(lambda read=read: list(read(time)))
                        for name, read in reads.items()
                    }

                texts = {name: str(failed.exception(60)) for name, failed in begin(2).items()}
                # A scan begins with the stream's info.
                assert (
                    texts.pop("scan") == f"no answer on '$JS.API.STREAM.INFO.{unique}' within 2 s"
                )
                text = f"no server that stores stream {unique!r} answered within 2 s"
                assert texts == dict.fromkeys(texts, text)
                # It waits for the info for half of its time, so it may not see the server's return.
                del reads["scan"]
                waiting = begin(60)
                blocked(pool, len(reads))
                server.start(leader)
                found = {
                    name: [message.sequence for message in done.result(90)]
                    for name, done in waiting.items()
                }
            assert found == {name: [19] if "last" in name else [1] for name in reads}


def reaches(js):
    """
    Return whether a domain answers. A leaf node learns of it shortly after it has started.
    """
    try:
        return js.account_info(timeout=1)
    except (jetsync.JetStreamNotEnabledError, jetsync.RequestTimeoutError):
        return None


class TestWhereItIsRead:
    def test_prefix_and_domain(self, unique):
        """
        Every request goes to the domain.
        """
        with ExitStack() as stack:
            config = {"jetstream": {"domain": "hub"}, "leafnodes": {"port": -1}}
            hub = stack.enter_context(DevServer(config=config, name="hub"))
            remote = f"nats-leaf://127.0.0.1:{hub.ports()['leafnodes']}"
            config = {
                "jetstream": {"domain": "leaf"},
                "leafnodes": {"remotes": [{"urls": [remote]}]},
            }
            leaf = stack.enter_context(DevServer(config=config, name="leaf"))
            client = stack.enter_context(jetsync.connect(leaf.url))
            for js in (client.jetstream(domain="hub"), client.jetstream(prefix="$JS.hub.API")):
                eventually(lambda js=js: reaches(js), 20)
                stream = make_foo(js, unique)
                with client.subscribe("$JS.*.*.DIRECT.>") as wire:
                    client.flush()
                    assert sequences(stream.get_batch(3)) == [1, 2, 3]
                    assert sequences(stream.get_last_for([f"{unique}.*"])) == [19, 20]
                    assert sequences(stream.scan(page=10)) == [*range(1, 21)]
                    assert stream.get_at(0).sequence == 1
                    subjects = {wire.next(timeout=5).subject for _ in range(5)}
                assert subjects == {f"$JS.hub.API.DIRECT.GET.{unique}"}
                stream.delete()

    @pytest.mark.versions
    def test_a_mirror(self, any_js, unique):
        """
        A mirror can be read by its own name, and has the same messages as its origin.
        """
        origin = make_foo(any_js, unique)
        mirror = any_js.create_stream(
            f"{unique}-M",
            mirror=jetsync.StreamSource(name=unique),
            storage="memory",
            allow_direct=True,
        )
        eventually(lambda: mirror.info().state.last_seq == 20, 20)
        for _ in range(20):
            assert sequences(mirror.scan(page=6)) == [*range(1, 21)]
            assert sequences(origin.scan(page=6)) == [*range(1, 21)]
            assert sequences(origin.get_last_for([f"{unique}.*"])) == [19, 20]
            assert sequences(mirror.get_last_for([f"{unique}.*"])) == [19, 20]
        mirror.delete()
        origin.delete()


class TestPlugins:
    def test_each_page_is_one_operation(self, nats_server, unique):
        """
        Plugins wrap each page and see each message once, including markers.
        """
        seen, received, markers = [], [], []

        class Listener:
            @jetsync.hookimpl(wrapper=True)
            def jetsync_fetch(self, operation):
                result = yield
                seen.append((operation.name, operation.sequence, operation.batch, result))

            @jetsync.hookimpl
            def jetsync_message_received(self, message):
                received.append(message.sequence)

            @jetsync.hookimpl
            def jetsync_ttl_marker(self, message, reason):
                markers.append((message.sequence, reason))

        with jetsync.connect(nats_server.url, plugins=[Listener()]) as client:
            js = client.jetstream()
            stream = make_foo(js, unique)
            marker = {"Nats-Marker-Reason": "MaxAge"}
            js.publish(f"{unique}.C", b"21", headers=marker)
            assert sequences(stream.scan(page=8)) == [*range(1, 22)]
            assert seen == [
                ("scan", 1, 8, 8),
                ("scan", 9, 8, 8),
                ("scan", 17, 5, 5),
            ]
            assert received == [*range(1, 22)]
            assert sequences(stream.get_batch(2, sequence=20)) == [20, 21]
            (message,) = stream.get_last_for([f"{unique}.C"])
            assert message.marker is jetsync.MarkerReason.MAX_AGE
            assert stream.get_message(21) == message
            assert markers == [(21, jetsync.MarkerReason.MAX_AGE)] * 4
            assert received[21:] == [20, 21, 21, 21]
            assert [each[0] for each in seen[3:]] == ["get_batch", "get_last_for", "get_message"]
            stream.delete()

    def test_a_message_may_be_replaced_or_refused(self, nats_server, newest):
        """
        A plugin can change the messages of a batch. Its error ends the read.
        """

        class Change:
            @jetsync.hookimpl
            def jetsync_message_received(self, message):
                if message.sequence == 4:
                    raise ValueError("no")
                return jetsync.StoredMessage(
                    message.stream, message.subject, message.sequence, 0, data=b"changed"
                )

        with jetsync.connect(nats_server.url, plugins=[Change()]) as client:
            stream = client.jetstream().stream(newest.name)
            assert stream.get_last(f"{newest.name}.A").data == b"changed"
            assert {message.data for message in stream.get_batch(3)} == {b"changed"}
            came = []
            with pytest.raises(jetsync.PluginError):
                came.extend(message.sequence for message in stream.scan())
            assert client.statistics().subscriptions == 1

    def test_a_wrapper_that_refuses(self, nats_server, newest):
        """
        The error of a wrapper is raised after the messages that arrived.
        """

        class Refuse:
            pages = 0

            @jetsync.hookimpl(wrapper=True)
            def jetsync_fetch(self, operation):
                self.pages += 1
                if self.pages == 3:
                    raise ValueError("no more")
                return (yield)

        with jetsync.connect(nats_server.url, plugins=[Refuse()]) as client:
            scan = client.jetstream().stream(newest.name).scan(page=5)
            assert [next(scan).sequence for _ in range(10)] == [*range(1, 11)]
            with pytest.raises(jetsync.PluginError):
                next(scan)
            assert list(scan) == []
            assert client.statistics().subscriptions == 1

    # The call has one more line, at which Python runs no signal handler.
    @pytest.mark.parametrize("step", range(1, 6))
    def test_ctrl_c_leaves_the_wrappers_at_any_step(self, nats_server, newest, step):
        """
        If Ctrl-C interrupts the call that begins a read, the wrappers of all its pages end.
        """
        steps, outcomes = [], []

        class Listener:
            @jetsync.hookimpl(wrapper=True)
            def jetsync_fetch(self, operation):
                outcomes.append("open")
                try:
                    return (yield)
                finally:
                    outcomes[outcomes.index("open")] = "ended"

        def interrupt(frame, event, _):
            if event == "line":
                steps.append(frame.f_lineno)
                if len(steps) == step:
                    raise KeyboardInterrupt
            return interrupt

        begin = PageReader.begin.__code__

        def trace(frame, *_):
            return interrupt if frame.f_code is begin else None

        with jetsync.connect(nats_server.url, plugins=[Listener()]) as client:
            stream = client.jetstream().stream(newest.name)
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                with pytest.raises(KeyboardInterrupt) as caught:
                    stream.scan(page=5)
            finally:
                sys.settrace(before)
            # The traceback keeps the read, so none of them was merely dropped.
            assert caught.traceback
            assert set(outcomes) <= {"ended"}
