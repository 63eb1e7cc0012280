"""
Streams on real servers, from 2.10 to the newest.
"""

from __future__ import annotations

import datetime as dt
import json
import threading

import attrs
import pytest

import jetsync
from helpers.traffic import sent_nothing
from jetsync.devserver import DevServer

OLD = ["2.10.26", "2.11.11", "2.12.0", "2.12.8", "2.14.6"]


@pytest.fixture
def filled(js, stream):
    """
    The test's stream with ten messages, A on the odd sequences and B on the even ones.
    """
    for number in range(10):
        js.publish(f"{stream.name}.{'BA'[(number + 1) % 2]}", f"{number + 1}")
    return stream


def raw_config(client, name):
    """
    Read the JSON of a stream's configuration.
    """
    answer = client.request(f"$JS.API.STREAM.INFO.{name}", b"")
    return json.loads(answer.data)["config"]


def sequences(stream):
    """
    List the sequences that a stream has.
    """
    state = stream.info(deleted_details=True).state
    gone = set(state.deleted)
    return [n for n in range(state.first_seq, state.last_seq + 1) if n not in gone]


def connect_to(server, **options):
    """
    Connect to a server that is not the shared one.
    """
    return jetsync.connect(server.url, **options)


class TestCreate:
    def test_creating_the_same_stream_again_changes_nothing(self, js, stream):
        """
        The second call returns the existing stream.
        """
        again = js.create_stream(stream.name, subjects=[f"{stream.name}.>"], storage="memory")
        assert again.cached_info.created == stream.cached_info.created

    def test_creating_another_stream_of_that_name_is_refused(self, js, stream):
        """
        A different configuration raises StreamNameInUseError (10058).
        """
        with pytest.raises(jetsync.StreamNameInUseError) as caught:
            js.create_stream(stream.name, subjects=[f"{stream.name}.A"], storage="memory")
        assert (caught.value.err_code, caught.value.stream) == (10058, stream.name)

    def test_an_overlapping_subject_is_refused(self, js, stream):
        """
        A second stream with the same subject raises SubjectOverlapError (10065).
        """
        with pytest.raises(jetsync.SubjectOverlapError) as caught:
            js.create_stream(f"{stream.name}-2", subjects=[f"{stream.name}.A"])
        assert caught.value.err_code == 10065

    def test_create_or_update_of_a_stream_goes_both_ways(self, js, unique):
        """
        The first call creates, and the second updates. The handle has the server's answer.
        """
        config = jetsync.StreamConfig(name=unique, subjects=[f"{unique}.>"], storage="memory")
        made = js.create_or_update_stream(config)
        assert made.config.max_msgs == -1
        assert js.create_or_update_stream(config, max_msgs=5).config.max_msgs == 5
        js.delete_stream(unique)

    def test_a_wrong_argument_of_a_stream_sends_nothing(self, client, js, unique):
        """
        Names, subjects and types are checked before anything is sent.
        """
        before = client.statistics().bytes_out
        for fields in (
            {"name": "a.b"},
            {"name": unique, "subjects": "a"},
            {"name": unique, "subjects": ["a."]},
            {"name": unique, "max_age": -1},
            {"name": unique, "storage": "paper"},
            {"name": unique, "max_mgs": 5},
        ):
            with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
                js.create_stream(**fields)
        assert sent_nothing(client, before)

    def test_calls_for_a_missing_stream_name_it(self, js, unique):
        """
        Each call raises the same error, which names the stream.
        """
        for ask in (js.stream, js.delete_stream, js.update_stream):
            with pytest.raises(jetsync.StreamNotFoundError) as caught:
                ask(unique)
            assert caught.value.stream == unique

    def test_the_name_of_a_subject(self, js, stream, unique):
        """
        A subject that no stream has raises an error.
        """
        assert js.stream_name_by_subject(f"{stream.name}.A") == stream.name
        with pytest.raises(jetsync.StreamNotFoundError, match="no stream has the subject"):
            js.stream_name_by_subject(f"no.{unique}")


class TestContext:
    def test_a_stream_leads_back_to_its_context(self, client, unique):
        """JetStream.of returns a context with the prefix and timeout of the stream's own."""
        made = client.jetstream(timeout=7).create_stream(unique)
        js = jetsync.JetStream.of(made)
        assert repr(js) == repr(client.jetstream())
        assert js.stream(unique).config == made.config

    def test_it_says_whether_its_client_is_connected(self, nats_server):
        """As the client does, for libraries that have no client."""
        with jetsync.connect(nats_server.url) as client:
            js = client.jetstream()
            assert (js.is_connected, js.is_closed) == (True, False)
        assert (js.is_connected, js.is_closed) == (False, True)

    def test_only_a_stream_has_a_context(self):
        """Anything else is refused."""
        with pytest.raises(jetsync.InvalidTypeError):
            jetsync.JetStream.of("ORDERS")


class TestUpdate:
    def test_a_max_age_below_the_duplicate_window(self, js, unique):
        """The error of a max_age that is less than the duplicate window names both fields."""
        js.create_stream(unique, subjects=[unique], storage="memory")
        with pytest.raises(jetsync.StreamConfigInvalidError, match="set duplicate_window to at"):
            js.update_stream(unique, max_age=60)
        js.update_stream(unique, max_age=60, duplicate_window=60)
        js.delete_stream(unique)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", [*OLD, None])
    def test_unknown_configuration_survives_a_round_trip(
        self, server_for, nats_server, unique, version
    ):
        """
        An update without changes sends back the same JSON, with the server's metadata, nanoseconds
        and unknown fields.
        """
        server = nats_server if version is None else server_for(version)
        with connect_to(server) as client:
            js = client.jetstream()
            asked = {
                "name": unique,
                "subjects": [f"{unique}.>"],
                "storage": "memory",
                "retention": "limits",
                "max_age": 98257898496283823,
                "duplicate_window": 123456789,
                "consumer_limits": {"inactive_threshold": 1234567890123456789},
                "republish": {"src": f"{unique}.>", "dest": f"R{unique}.>"},
                "metadata": {"a": "b"},
                "sources": [{"name": "NONE", "opt_start_time": "2020-01-01T00:00:00.123456789Z"}],
            }
            client.request(f"$JS.API.STREAM.CREATE.{unique}", json.dumps(asked).encode())
            before = raw_config(client, unique)
            stream = js.stream(unique)
            stream.update(stream.config)
            assert raw_config(client, unique) == before
            stream.update()
            assert raw_config(client, unique) == before
            stream.update(description="changed")
            assert raw_config(client, unique) == {**before, "description": "changed"}
            js.update_stream(unique, description="again")
            assert raw_config(client, unique) == {**before, "description": "again"}
            stream.delete()

    def test_an_object_replaces_everything(self, stream):
        """
        Fields that are unset in the object return to the server's defaults.
        """
        stream.update(max_msgs=5, description="five")
        whole = jetsync.StreamConfig(subjects=[f"{stream.name}.>"], storage="memory", max_msgs=6)
        info = stream.update(whole)
        assert (info.config.max_msgs, info.config.description) == (6, None)
        assert stream.cached_info is info

    def test_the_object_must_be_for_this_stream(self, stream):
        """
        A configuration of another stream is refused before anything is sent.
        """
        with pytest.raises(jetsync.InvalidArgumentError, match="is for stream 'OTHER'"):
            stream.update(attrs.evolve(stream.config, name="OTHER"))

    def test_an_immutable_field_of_a_stream_is_refused(self, stream):
        """
        The server refuses the change with an ApiError, and the configuration stays.
        """
        with pytest.raises(jetsync.ApiError):
            stream.update(storage="file")
        assert stream.info().config.storage is jetsync.StorageType.MEMORY


@pytest.mark.versions
class TestOlderServers:
    @pytest.mark.parametrize(
        ("version", "fields", "expected"),
        [
            ("2.10.26", {"allow_atomic": True}, ("allow_atomic", "API level 2")),
            ("2.10.26", {"allow_msg_ttl": True}, ("allow_msg_ttl", "API level 1")),
            ("2.10.26", {"subject_delete_marker_ttl": 5}, ("subject_delete_marker_ttl", "2.11")),
            ("2.11.11", {"allow_msg_counter": True}, ("allow_msg_counter", "2.12")),
            ("2.11.11", {"allow_batched": True}, ("allow_batched", "2.14")),
            ("2.12.0", {"allow_batched": True}, ("allow_batched", "API level 4")),
            ("2.12.8", {"allow_batched": True}, ("allow_batched", "API level 4")),
            ("2.14.6", {"template_owner": "x"}, ("template_owner", "2.12 or earlier")),
            ("2.14.6", {"extra": {"zzz": 1}}, ("zzz", "knows this field")),
        ],
    )
    def test_a_field_that_the_server_does_not_know_is_reported(
        self, server_for, unique, version, fields, expected
    ):
        """
        The error is the same for servers that drop a field and servers that refuse it.
        """
        feature, level = expected
        with connect_to(server_for(version)) as client:
            js = client.jetstream()
            with pytest.raises(jetsync.NotSupportedError) as caught:
                js.create_stream(unique, subjects=[unique], storage="memory", **fields)
            error = caught.value
            assert (error.feature, error.server) == (feature, version)
            assert level in error.needs
            # Servers from 2.12 up refuse the request, the older ones have made the stream.
            made = list(js.stream_names(unique)) == [unique]
            assert made is (version < "2.12")
            assert ("was created without" in str(error)) is made

    @pytest.mark.parametrize("version", OLD)
    def test_values_that_old_servers_add_to_a_stream_are_no_error(
        self, server_for, unique, version
    ):
        """
        Values that servers add, change or omit raise no error.
        """
        with connect_to(server_for(version)) as client:
            js = client.jetstream()
            made = js.create_stream(
                unique,
                subjects=[f"{unique}.>"],
                storage="file",
                max_msgs=0,
                max_age=60,
                duplicate_window=30,
                compression="s2",
                allow_direct=True,
                allow_rollup_hdrs=True,
                allow_msg_ttl=False,
                description="",
                metadata={"a": "b"},
                placement=jetsync.Placement(),
                consumer_limits=jetsync.ConsumerLimits(max_ack_pending=5),
                republish=jetsync.Republish(dest=f"R{unique}.>"),
                discard="new",
            )
            mirror = js.create_stream(
                f"{unique}-M",
                mirror=jetsync.StreamSource(unique),
                mirror_direct=False,
                storage="memory",
            )
            assert made.update(max_msgs=7).config.max_msgs == 7
            mirror.delete()
            made.delete()

    def test_markers_force_their_companions(self, js, unique):
        """
        With markers, the server clears deny_purge, and jetsync raises no error.
        """
        stream = js.create_stream(
            unique, storage="memory", subject_delete_marker_ttl=5, deny_purge=True
        )
        assert stream.config.allow_msg_ttl
        assert not stream.config.deny_purge
        stream.delete()


class TestInfo:
    def test_deleted_details(self, filled):
        """
        The sequences are only listed on request. Their number is always there.
        """
        filled.delete_message(3)
        filled.delete_message(5, secure=True)
        state = filled.info(deleted_details=True).state
        assert (state.deleted, state.num_deleted) == ([3, 5], 2)
        state = filled.info().state
        assert (state.deleted, state.num_deleted) == ([], 2)

    def test_deleting_twice(self, filled):
        """
        A second delete of a message raises MessageNotFoundError.
        """
        filled.delete_message(3)
        with pytest.raises(jetsync.MessageNotFoundError):
            filled.delete_message(3)

    def test_subject_counts(self, js, stream):
        """
        The result has the counts of the matching subjects only.
        """
        a, b = f"{stream.name}.A", f"{stream.name}.B"
        for subject in [a] * 8 + [b] * 10:
            js.publish(subject, b"")
        assert stream.info(subjects_filter=a).state.subjects == {a: 8}
        assert stream.info(subjects_filter=">").state.subjects == {a: 8, b: 10}
        assert stream.info(subjects_filter="no").state.subjects == {}
        assert stream.info().state.subjects == {}

    def test_more_subjects_than_a_page_has(self, js, unique):
        """
        Servers return 100,000 subjects at a time, and jetsync requests all of them.
        """
        stream = js.create_stream(unique, subjects=[f"{unique}.*"], storage="memory")
        js.publish_many((f"{unique}.{number}", b"") for number in range(100_010))
        subjects = stream.info(subjects_filter=">", timeout=30).state.subjects
        assert len(subjects) == 100_010
        assert set(subjects.values()) == {1}
        stream.delete()

    def test_info_is_cached(self, js, stream):
        """
        The handle keeps the last answer, and only info() sends a request.
        """
        before = stream.cached_info
        js.publish(f"{stream.name}.A", b"1")
        assert stream.cached_info is before
        assert stream.info().state.messages == 1
        assert stream.cached_info.state.messages == 1
        assert repr(stream) == f"<Stream '{stream.name}' 1 messages up to 1>"

    def test_the_account_has_its_usage_and_the_api_level(self, client, js, stream):
        """
        The answer has the usage of the account and the API level of the server.
        """
        account = js.account_info()
        assert account.streams >= 1
        assert account.api.level == client.server.api_level >= 5
        assert account.limits.max_streams == -1


class TestLists:
    @pytest.fixture(scope="class")
    @classmethod
    def crowd(cls):
        """
        A server with 260 streams and nothing else.
        """
        with DevServer() as server, connect_to(server) as client:
            js = client.jetstream()
            for number in range(260):
                js.create_stream(f"S{number:03d}", subjects=[f"s.{number}"], storage="memory")
            yield client

    def test_streams_come_in_pages(self, crowd):
        """
        260 streams are listed, as names and as handles.
        """
        js = crowd.jetstream()
        expected = [f"S{number:03d}" for number in range(260)]
        assert list(js.stream_names()) == expected
        assert [stream.name for stream in js.streams()] == expected
        assert [stream.config.name for stream in js.streams("s.7")] == ["S007"]

    @pytest.mark.parametrize(("verb", "listing"), [("NAMES", "stream_names"), ("LIST", "streams")])
    def test_ten_of_them_cost_one_request(self, crowd, verb, listing):
        """
        A page is requested when its first entry is needed.
        """
        js = crowd.jetstream()
        with crowd.subscribe(f"$JS.API.STREAM.{verb}") as requests:
            found = getattr(js, listing)()
            crowd.flush()
            assert not requests_seen(crowd, requests)
            assert len([next(found) for _ in range(10)]) == 10
            assert requests_seen(crowd, requests) == [{"offset": 0}]
            remaining = list(found)
            assert len(remaining) == 250
            offsets = [{"offset": 255}] if verb == "LIST" else []
            assert requests_seen(crowd, requests) == offsets

    def test_the_loop_that_deletes_everything(self, crowd):
        """
        A loop that deletes each stream deletes all of them.
        """
        js = crowd.jetstream()
        count = 0
        for stream in js.streams():
            stream.delete()
            count += 1
        assert count == 260
        assert list(js.stream_names()) == []


def requests_seen(client, subscription):
    """
    Return the requests that a subscription has received.
    """
    client.flush()
    seen = []
    while True:
        try:
            message = subscription.next(timeout=0.05)
        except TimeoutError:
            return seen
        if message is None:
            return seen
        seen.append(json.loads(message.data))


class TestPurge:
    @pytest.mark.parametrize(
        ("arguments", "left"),
        [
            ({}, []),
            ({"subject": "A"}, [2, 4, 6, 8, 10]),
            ({"sequence": 5}, [5, 6, 7, 8, 9, 10]),
            ({"keep": 3}, [8, 9, 10]),
            ({"subject": "B", "sequence": 8}, [1, 3, 5, 7, 8, 9, 10]),
            ({"subject": "B", "keep": 3}, [1, 3, 5, 6, 7, 8, 9, 10]),
            ({"keep": 0}, []),
            ({"sequence": 0}, []),
            ({"subject": "B", "keep": 0}, [1, 3, 5, 7, 9]),
            ({"sequence": 100}, []),
            ({"keep": 100}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
            ({"subject": "none"}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ],
    )
    def test_remaining_messages(self, filled, arguments, left):
        """
        Each combination of arguments leaves the right messages and returns the count.
        """
        if "subject" in arguments:
            arguments = {**arguments, "subject": f"{filled.name}.{arguments['subject']}"}
        assert filled.purge(**arguments) == 10 - len(left)
        assert sequences(filled) == left

    def test_an_explicit_zero_is_on_the_wire(self, client, filled):
        """
        An explicit 0 is sent.
        """
        with client.subscribe(f"$JS.API.STREAM.PURGE.{filled.name}") as requests:
            filled.purge(keep=0)
            filled.purge(sequence=0)
            assert requests_seen(client, requests) == [{"keep": 0}, {"seq": 0}]

    @pytest.mark.parametrize("arguments", [{"sequence": 5, "keep": 3}, {"sequence": 0, "keep": 0}])
    def test_a_sequence_and_a_count_exclude_each_other(self, filled, arguments):
        """
        The call raises an error and removes nothing.
        """
        with pytest.raises(jetsync.InvalidArgumentError, match="exclude each other"):
            filled.purge(**arguments)
        assert len(sequences(filled)) == 10

    @pytest.mark.parametrize("arguments", [{"keep": -1}, {"sequence": 1.5}, {"subject": "a."}])
    def test_nonsense_is_refused(self, filled, arguments):
        """
        Invalid arguments raise an error before anything is sent.
        """
        with pytest.raises((ValueError, TypeError)):
            filled.purge(**arguments)
        assert len(sequences(filled)) == 10


class TestMessages:
    @pytest.fixture(params=["leader", "direct"])
    def read(self, request, js, stream):
        """
        The stream of the test, read from the leader or by direct gets.
        """
        if request.param == "direct":
            stream.update(allow_direct=True)
        for number in range(10):
            js.publish(f"{stream.name}.{'BA'[(number + 1) % 2]}", f"{number + 1}")
        return stream

    def test_by_sequence(self, read):
        """
        The message has all of its parts.
        """
        message = read.get_message(3)
        assert (message.stream, message.subject) == (read.name, f"{read.name}.A")
        assert (message.sequence, message.data) == (3, b"3")
        age = dt.datetime.now(dt.timezone.utc) - message.timestamp
        assert abs(age) < dt.timedelta(minutes=1)

    def test_a_deleted_one(self, read):
        """
        Both ways of reading raise MessageNotFoundError (10037).
        """
        read.delete_message(3)
        for sequence in (3, 11):
            with pytest.raises(jetsync.MessageNotFoundError) as caught:
                read.get_message(sequence)
            assert (caught.value.err_code, caught.value.stream) == (10037, read.name)

    def test_next_and_last(self, read):
        """
        Messages are found by subject, with and without wildcards.
        """
        assert read.get_next(f"{read.name}.*", 4).sequence == 4
        assert read.get_next(f"{read.name}.A", 4).sequence == 5
        assert read.get_next(f"{read.name}.A").sequence == 1
        assert read.get_last(f"{read.name}.B").sequence == 10
        assert read.get_last(f"{read.name}.>").sequence == 10
        for ask in (read.get_last, read.get_next):
            with pytest.raises(jetsync.MessageNotFoundError):
                ask(f"{read.name}.C")

    def test_headers_and_empty_payloads(self, js, read):
        """
        A header keeps both of its values, and an empty payload is b"".
        """
        headers = jetsync.Headers([("K", "one"), ("K", "two"), ("lower", "case")])
        for data in (b"", b"x"):
            sequence = js.publish(f"{read.name}.A", data, headers=headers).sequence
            for message in (read.get_message(sequence), read.get_last(f"{read.name}.A")):
                assert message.data == data
                assert message.headers.get_all("K") == ["one", "two"]
                assert message.headers["lower"] == "case"
        plain = js.publish(f"{read.name}.A", b"").sequence
        assert read.get_message(plain).data == b""
        assert len(read.get_message(plain).headers) == 0

    @pytest.mark.versions
    @pytest.mark.parametrize("version", [*OLD, None])
    def test_both_ways_give_the_same_message(self, server_for, nats_server, unique, version):
        """
        A direct get returns the same message as the leader, with headers and nanoseconds.
        """
        server = nats_server if version is None else server_for(version)
        with connect_to(server) as client:
            js = client.jetstream()
            stream = js.create_stream(
                unique, subjects=[f"{unique}.>"], storage="memory", allow_direct=True
            )
            js.publish(f"{unique}.A", b"\x00\xff", headers={"K": "v"})
            js.publish(f"{unique}.B", b"")
            for ask in (
                lambda direct: stream.get_message(1, direct=direct),
                lambda direct: stream.get_last(f"{unique}.*", direct=direct),
                lambda direct: stream.get_next(f"{unique}.B", direct=direct),
            ):
                by_direct, by_leader = ask(True), ask(False)
                assert by_direct == by_leader
                assert by_direct.timestamp_ns == by_leader.timestamp_ns
            stream.delete()

    def test_requests_on_the_wire(self, client, filled):
        """
        The request for the last message has the subject in its own subject, for permissions.
        """
        filled.update(allow_direct=True)
        with client.subscribe(f"$JS.API.DIRECT.GET.{filled.name}.>") as requests:
            filled.get_last(f"{filled.name}.A")
            filled.get_message(1)
            seen = subjects_seen(client, requests)
        assert seen == [f"$JS.API.DIRECT.GET.{filled.name}.{filled.name}.A"]

    def test_plugins_see_reads_and_markers(self, nats_server, unique):
        """
        Plugins are called for each read, and for each marker.
        """
        reads, markers = [], []

        class Listener:
            @jetsync.hookimpl(wrapper=True)
            def jetsync_fetch(self, operation):
                reads.append((operation.name, operation.sequence, operation.subjects))
                return (yield)

            @jetsync.hookimpl
            def jetsync_ttl_marker(self, message, reason):
                markers.append((message.sequence, reason))

        with connect_to(nats_server, plugins=[Listener()]) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, storage="memory", allow_direct=True)
            js.publish(unique, b"")
            js.publish(unique, b"", headers={"Nats-Marker-Reason": "MaxAge"})
            stream.get_message(1)
            stream.get_next(unique, 2)
            stream.get_last(unique, direct=False)
            stream.delete()
        assert reads == [
            ("get_message", 1, ()),
            ("get_next", 2, (unique,)),
            ("get_last", None, (unique,)),
        ]
        assert markers == [(2, jetsync.MarkerReason.MAX_AGE)] * 2

    def test_insisting_on_direct(self, filled):
        """
        Without direct gets, direct=True raises an error, and None asks the leader.
        """
        with pytest.raises(jetsync.DirectNotSupportedError) as caught:
            filled.get_message(1, direct=True)
        assert filled.name in str(caught.value)
        assert filled.get_message(1).sequence == 1

    def test_a_stream_that_stopped_allowing_it(self, js, filled):
        """
        A handle with an older configuration falls back to the leader.
        """
        filled.update(allow_direct=True)
        js.update_stream(filled.name, allow_direct=False)
        assert filled.cached_info.config.allow_direct
        assert filled.get_last(f"{filled.name}.B").sequence == 10

    @pytest.mark.parametrize("sequence", [0, -1, True, "1", 1.0])
    def test_the_sequence_of_a_message_is_a_number_from_one(self, stream, sequence):
        """
        Other values raise an error before anything is sent.
        """
        with pytest.raises((ValueError, TypeError)):
            stream.get_message(sequence)


class TestMirrorsAndSources:
    def wait_for(self, stream, messages):
        """
        Wait until a mirror or source has copied this many messages.
        """
        done = threading.Event()
        for _ in range(100):
            if stream.info().state.messages >= messages:
                return
            done.wait(0.05)
        pytest.fail(f"{stream!r} did not reach {messages} messages")

    def test_a_mirror_has_the_same_sequences(self, js, filled):
        """
        A mirror has the same sequences and accepts no messages itself.
        """
        mirror = js.create_stream(
            f"{filled.name}-M", mirror=jetsync.StreamSource(filled.name), storage="memory"
        )
        self.wait_for(mirror, 10)
        for sequence in (1, 10):
            mine, theirs = mirror.get_message(sequence), filled.get_message(sequence)
            assert (mine.subject, mine.data) == (theirs.subject, theirs.data)
        info = mirror.info()
        assert info.mirror is not None
        assert (info.mirror.name, info.mirror.lag) == (filled.name, 0)
        with pytest.raises(jetsync.NoStreamResponseError):
            js.publish(mirror.name, b"", retries=0)
        mirror.delete()

    def test_a_source_renames_subjects(self, js, filled):
        """
        A source can rename subjects with a transform.
        """
        name = filled.name
        target = js.create_stream(
            f"{name}-T",
            subjects=[f"{name}-T.own"],
            storage="memory",
            sources=[
                jetsync.StreamSource(
                    name,
                    subject_transforms=[
                        jetsync.SubjectTransform(f"{name}.*", f"{name}-T.{{{{wildcard(1)}}}}")
                    ],
                )
            ],
        )
        self.wait_for(target, 10)
        counts = target.info(subjects_filter=">").state.subjects
        assert counts == {f"{name}-T.A": 5, f"{name}-T.B": 5}
        assert [source.name for source in target.cached_info.sources] == [name]
        target.delete()


class TestNotEnabled:
    def test_an_account_without_jetstream(self):
        """
        The error is raised at once and has both codes.
        """
        accounts = {
            "A": {"users": [{"user": "a", "password": "a"}]},
            "B": {"jetstream": True, "users": [{"user": "b", "password": "b"}]},
        }
        with (
            DevServer(config={"accounts": accounts, "no_auth_user": "b"}) as server,
            connect_to(server, user="a", password="a") as client,
        ):
            js = client.jetstream(timeout=5)
            for ask in (js.account_info, lambda: js.create_stream("S")):
                with pytest.raises(jetsync.JetStreamNotEnabledError, match=r"503.*10039"):
                    ask()

    def test_no_responders_means_that_jetstream_is_not_enabled(self):
        """
        No responders means that JetStream is not enabled.
        """
        with DevServer(jetstream=False) as server, connect_to(server) as client:
            js = client.jetstream(timeout=5)
            with pytest.raises(jetsync.JetStreamNotEnabledError, match=r"503.*10039"):
                js.account_info()
            with pytest.raises(jetsync.JetStreamNotEnabledError):
                list(js.streams())


class TestDomain:
    @pytest.fixture(scope="class")
    @classmethod
    def leaf(cls):
        """
        A leaf node with its own JetStream, connected to a hub whose domain is ``hub``.
        """
        hub_config = {"jetstream": {"domain": "hub"}, "leafnodes": {"port": -1}}
        with DevServer(config=hub_config, name="hub") as hub:
            remote = f"nats-leaf://127.0.0.1:{hub.ports()['leafnodes']}"
            leaf_config = {
                "jetstream": {"domain": "leaf"},
                "leafnodes": {"remotes": [{"urls": [remote]}]},
            }
            with DevServer(config=leaf_config, name="leaf") as leaf:
                yield hub, leaf

    def test_everything_goes_to_the_domain(self, leaf, unique):
        """
        All API subjects have the prefix of the domain.
        """
        _, here = leaf
        with connect_to(here) as client, connect_to(here) as watcher:
            js = client.jetstream(domain="hub")
            with watcher.subscribe("$JS.>") as wire:
                watcher.flush()
                wait_until_answered(js)
                stream = js.create_stream(
                    unique, subjects=[f"{unique}.>"], storage="memory", allow_direct=True
                )
                assert stream.info().domain == "hub"
                js.publish(f"{unique}.A", b"1")
                assert stream.get_message(1, direct=True).data == b"1"
                assert stream.get_message(1, direct=False).data == b"1"
                assert stream.get_last(f"{unique}.A").data == b"1"
                consumer = stream.create_consumer("c")
                assert list(stream.consumer_names()) == ["c"]
                (message,) = consumer.fetch(1, expires=5)
                message.ack_sync()
                assert consumer.info().num_ack_pending == 0
                assert stream.purge() == 1
                assert unique in js.stream_names()
                seen = subjects_seen(watcher, wire)
                assert unique not in client.jetstream().stream_names()
                stream.delete()
            api = [one for one in seen if not one.startswith(("$JS.ACK.", "$JS.EVENT."))]
            assert len(api) >= 10
            assert [one for one in api if not one.startswith("$JS.hub.API.")] == []

    def test_an_unknown_domain(self, leaf):
        """
        An unknown domain raises an error at once.
        """
        with connect_to(leaf[1]) as client:
            js = client.jetstream(domain="nowhere", timeout=20)
            with pytest.raises(jetsync.JetStreamNotEnabledError, match="nowhere"):
                js.account_info()


def wait_until_answered(js):
    """
    Wait until the hub's domain answers on the leaf node.
    """
    pause = threading.Event()
    for _ in range(100):
        try:
            js.account_info(timeout=5)
        except (jetsync.JetStreamNotEnabledError, jetsync.RequestTimeoutError):
            pause.wait(0.05)
        else:
            return
    pytest.fail("the leaf node never reached the hub")


def subjects_seen(client, subscription):
    """
    Return the subjects that a subscription has received.
    """
    client.flush()
    seen = []
    while True:
        try:
            message = subscription.next(timeout=0.2)
        except TimeoutError:
            return seen
        if message is None:
            return seen
        seen.append(message.subject)


class TestLimits:
    def test_limits_are_typed_errors(self, js, unique):
        """
        Each error has its codes and its stream.
        """
        stream = js.create_stream(
            unique,
            subjects=[f"{unique}.>"],
            storage="memory",
            discard="new",
            max_msgs=2,
            max_msg_size=5,
            max_consumers=1,
        )
        js.publish(f"{unique}.A", b"1")
        js.publish(f"{unique}.A", b"2")
        with pytest.raises(jetsync.StreamFullError) as full:
            js.publish(f"{unique}.A", b"3")
        assert (full.value.code, full.value.err_code, full.value.stream) == (503, 10077, unique)
        with pytest.raises(jetsync.MessageTooLargeError) as large:
            js.publish(f"{unique}.A", b"123456")
        assert (large.value.code, large.value.err_code, large.value.stream) == (400, 10054, unique)
        stream.create_consumer("one")
        with pytest.raises(jetsync.MaxConsumersError) as many:
            stream.create_consumer("two")
        assert (many.value.err_code, many.value.stream) == (10026, unique)
        stream.delete()

    def test_a_limit_per_subject(self, js, unique):
        """
        With discard_new_per_subject, a full subject refuses new messages.
        """
        stream = js.create_stream(
            unique,
            subjects=[f"{unique}.>"],
            storage="memory",
            discard="new",
            max_msgs_per_subject=1,
            discard_new_per_subject=True,
        )
        js.publish(f"{unique}.A", b"1")
        with pytest.raises(jetsync.ApiError) as caught:
            js.publish(f"{unique}.A", b"2")
        assert (caught.value.err_code, caught.value.stream) == (10077, unique)
        js.publish(f"{unique}.B", b"3")
        stream.delete()
