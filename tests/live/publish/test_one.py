"""
Publishing one message on real servers: acknowledged, refused and unknown outcomes.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

import jetsync
from helpers.connections import client_of
from helpers.streams import memory_stream
from helpers.traffic import sent_nothing
from helpers.waiting import at_some_pace, eventually, timed
from jetsync import Expect, PubAck
from jetsync.devserver import DevServer
from jetsync.hookspecs import hookimpl

VERSIONS = ["2.10.26", "2.11.11", "2.12.8", "2.14.6", None]
"""Servers whose answers differ; None is the newest."""

WITH_TTL = VERSIONS[1:]


class TestAck:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_the_ack_says_where_the_message_is(self, js_of, unique, version):
        """
        Every server's form of an ack gives the same fields.
        """
        js = js_of(version)
        memory_stream(js, unique)
        assert js.publish(f"{unique}.A", b"1") == PubAck(stream=unique, sequence=1)
        assert js.publish(f"{unique}.A", b"2", msg_id="m") == PubAck(stream=unique, sequence=2)
        again = js.publish(f"{unique}.A", b"2", msg_id="m")
        assert again == PubAck(stream=unique, sequence=2, duplicate=True)
        js.delete_stream(unique)

    def test_the_ack_names_the_domain(self, unique):
        """
        A server with a JetStream domain names it in each ack.
        """
        with (
            DevServer(config={"jetstream": {"domain": "hub"}}) as server,
            jetsync.connect(server.url) as client,
        ):
            js = client.jetstream(domain="hub")
            memory_stream(js, unique)
            expected = PubAck(stream=unique, sequence=1, domain="hub")
            assert js.publish(f"{unique}.A") == expected

    def test_the_ack_of_a_counter_has_its_value(self, js, unique):
        """
        The ack has a counter's value, exact however large it is.
        """
        memory_stream(js, unique, allow_msg_counter=True, allow_direct=True)
        step = "10000000000000000000000001"
        assert js.publish(f"{unique}.hits", headers={"Nats-Incr": "+5"}).value == 5
        ack = js.publish(f"{unique}.hits", headers={"Nats-Incr": step})
        assert ack.value == int(step) + 5
        js.delete_stream(unique)

    def test_messages_are_stored_unchanged(self, js, stream):
        """
        Payloads of every kind are stored, and header values with their order, case, spaces and
        accents.
        """
        headers = jetsync.Headers()
        headers.add("A", "one")
        headers.add("b", "ends with a space ")
        headers.add("A", "caf\u00e9")
        for data in (b"bytes", bytearray(b"array"), memoryview(b"view"), "t\u00e9xt", b""):
            sequence = js.publish(f"{stream.name}.A", data, headers=headers).sequence
            stored = stream.get_message(sequence)
            expected = data.encode() if isinstance(data, str) else bytes(data)
            assert stored.data == expected
            assert stored.subject == f"{stream.name}.A"
            assert list(stored.headers.items()) == [
                ("A", "one"),
                ("b", "ends with a space "),
                ("A", "caf\u00e9"),
            ]

    def test_the_callers_headers_stay_as_they_are(self, js, stream):
        """
        Id, ttl and expectations are added to the message, not to the caller's mapping.
        """
        headers = {"A": ["1", "2"], "Nats-Msg-Id": "old"}
        before = {"A": ["1", "2"], "Nats-Msg-Id": "old"}
        ack = js.publish(
            f"{stream.name}.A", headers=headers, msg_id="new", expect=Expect(last_sequence=0)
        )
        assert headers == before
        assert stream.get_message(ack.sequence).headers.get_all("Nats-Msg-Id") == ["new"]


class TestDuplicates:
    def test_an_id_counts_within_the_window(self, js, unique):
        """
        A second message with an id is a duplicate within the window, and stored after it.
        """

        def attempt(pace):
            stream = js.create_or_update_stream(
                unique, subjects=[f"{unique}.>"], storage="memory", duplicate_window=pace
            )
            same = {"msg_id": f"same{pace}"}
            first = js.publish(f"{unique}.A", b"1", **same)
            second = js.publish(f"{unique}.A", b"2", **same)
            assert (second.duplicate, second.sequence) == (True, first.sequence)
            assert stream.info().state.last_seq == first.sequence
            later = eventually(
                lambda: not (ack := js.publish(f"{unique}.A", b"3", **same)).duplicate and ack,
                10 * pace,
            )
            assert later.sequence == first.sequence + 1

        at_some_pace(attempt)
        js.delete_stream(unique)


class TestExpectations:
    @pytest.fixture
    def three(self, js, stream):
        """
        The test's stream with A at 1 and 2, and B at 3; the last message's id is "id-3".
        """
        js.publish(f"{stream.name}.A", b"1")
        js.publish(f"{stream.name}.A", b"2")
        js.publish(f"{stream.name}.B", b"3", msg_id="id-3")
        return stream

    @pytest.mark.parametrize(
        ("subject", "expect"),
        [
            ("A", {"last_sequence": 3}),
            ("A", {"last_subject_sequence": 2}),
            ("new", {"last_subject_sequence": 0}),
            ("A", {"last_subject_sequence": 3, "last_subject_sequence_subject": "{}.B"}),
            ("A", {"last_subject_sequence": 3, "last_subject_sequence_subject": "{}.*"}),
            ("A", {"last_msg_id": "id-3"}),
            ("A", {"stream": "{}"}),
            ("A", {"stream": "{}", "last_sequence": 3, "last_msg_id": "id-3"}),
        ],
    )
    def test_expectations_that_hold(self, js, three, subject, expect):
        """
        A message is stored if its expectations hold: of its own subject, another one, and several
        at once.
        """
        expect = {
            name: value.format(three.name) if isinstance(value, str) else value
            for name, value in expect.items()
        }
        ack = js.publish(f"{three.name}.{subject}", expect=Expect(**expect))
        assert ack.sequence == 4

    @pytest.mark.parametrize(
        ("expect", "error", "err_code"),
        [
            (Expect(last_sequence=2), jetsync.WrongLastSequenceError, 10071),
            (Expect(last_sequence=0), jetsync.WrongLastSequenceError, 10071),
            (Expect(last_subject_sequence=1), jetsync.WrongLastSequenceError, 10071),
            (Expect(last_subject_sequence=0), jetsync.WrongLastSequenceError, 10071),
            (Expect(last_msg_id="id-2"), jetsync.WrongLastMessageIdError, 10070),
            (Expect(stream="OTHER"), jetsync.WrongStreamError, 10060),
        ],
    )
    def test_expectations_that_do_not_hold(self, js, three, expect, error, err_code):
        """
        Each failing expectation has its error, including those of zero, and nothing is stored.
        """
        with pytest.raises(error) as caught:
            js.publish(f"{three.name}.A", expect=expect)
        assert caught.value.err_code == err_code
        assert caught.value.code == 400
        assert three.info().state.last_seq == 3

    def test_the_error_has_the_last_sequence(self, js, three):
        """
        The error has the sequence to expect next, of the stream or of the subject.
        """
        for subject, expect, last in (
            ("A", Expect(last_sequence=1), 3),
            ("A", Expect(last_subject_sequence=1), 2),
        ):
            with pytest.raises(jetsync.WrongLastSequenceError) as caught:
                js.publish(f"{three.name}.{subject}", expect=expect)
            assert (caught.value.last_sequence, caught.value.stream) == (last, three.name)


class TestNoStream:
    def test_it_is_tried_three_times(self, js, unique):
        """
        After two waits of 250 ms the error is raised, with the number of attempts.
        """
        subject = f"nobody.{unique}"
        with timed(0.5, 1.0), pytest.raises(jetsync.NoStreamResponseError) as caught:
            js.publish(subject)
        assert (caught.value.subject, caught.value.attempts) == (subject, 3)
        assert isinstance(caught.value, jetsync.PublishError)

    def test_no_retries_means_one_attempt(self, js, unique):
        """
        Without retries the first error is raised.
        """
        with pytest.raises(jetsync.NoStreamResponseError) as caught:
            js.publish(f"nobody.{unique}", retries=0)
        assert caught.value.attempts == 1

    def test_a_stream_that_appears_meanwhile_takes_it(self, js, unique):
        """
        The stream is created after 300 ms, and the third attempt is stored.
        """

        def attempt(pace):
            timer = threading.Timer(0.3 * pace, memory_stream, (js, unique))
            timer.start()
            try:
                with timed(0.4 * pace, pace):
                    ack = js.publish(f"{unique}.A", retry_wait=0.25 * pace)
                assert ack == PubAck(stream=unique, sequence=1)
            finally:
                timer.join()
                js.delete_stream(unique)

        at_some_pace(attempt)

    def test_the_timeout_caps_the_retries(self, js, unique):
        """
        Of ten retries half a second apart, those that fit into the timeout are made. The call does
        not wait for the next one.
        """

        def attempt(pace):
            options = {"timeout": 0.7 * pace, "retries": 10, "retry_wait": 0.5 * pace}
            with timed(0.5 * pace, pace), pytest.raises(jetsync.NoStreamResponseError) as caught:
                js.publish(f"nobody.{unique}", **options)
            assert caught.value.attempts in {1, 2}

        at_some_pace(attempt)


class TestUnknownOutcome:
    def test_a_publish_without_an_ack_is_stored_but_unknown(self, js, unique):
        """
        The message is stored and no ack comes, so the outcome is unknown.
        """
        stream = memory_stream(js, unique, no_ack=True)
        with timed(0.2, 0.5), pytest.raises(jetsync.PublishOutcomeUnknownError) as caught:
            js.publish(f"{unique}.A", timeout=0.2)
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.subject, caught.value.msg_id) == (f"{unique}.A", None)
        assert stream.info().state.messages == 1
        js.delete_stream(unique)

    def test_a_written_message_is_unknown_and_can_be_sent_again(self, victim, fragile, unique):
        """
        The outcome of a message that was written is unknown. With its id it can be sent again.
        """
        stream = memory_stream(fragile, unique)
        victim.pause()
        try:
            with timed(0.3, 0.6), pytest.raises(jetsync.PublishOutcomeUnknownError) as caught:
                fragile.publish(f"{unique}.A", b"once", msg_id="id-1", timeout=0.3)
        finally:
            victim.resume()
        assert caught.value.msg_id == "id-1"
        ack = fragile.publish(f"{unique}.A", b"once", msg_id="id-1")
        assert (ack.sequence, ack.duplicate) == (1, True)
        assert stream.info().state.messages == 1
        fragile.delete_stream(unique)

    def test_a_connection_that_is_lost_in_flight(self, victim, fragile, unique):
        """
        The call ends with the connection, before its timeout.
        """
        fragile.create_stream(unique, subjects=[f"{unique}.>"])
        victim.pause()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(fragile.publish, f"{unique}.A", b"?", timeout=20)
            eventually(lambda: client_of(fragile).statistics().requests_in_flight)
            victim.kill()
            with timed(0.0, 3.0), pytest.raises(jetsync.PublishOutcomeUnknownError):
                waiting.result(20)
        victim.start()

    def test_closing_the_client_wakes_a_publish_as_unknown(self, victim, unique):
        """
        Closing in another thread wakes the call, whose message may have been stored.
        """
        client = jetsync.connect(victim.url)
        js = client.jetstream()
        memory_stream(js, unique, no_ack=True)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(js.publish, f"{unique}.A", timeout=20)
            eventually(lambda: client.statistics().requests_in_flight)
            client.close()
            with timed(0.0, 1.0), pytest.raises(jetsync.PublishOutcomeUnknownError):
                waiting.result(20)
        with pytest.raises(jetsync.ConnectionClosedError):
            js.publish(f"{unique}.A")


class TestRetryWait:
    def test_closing_the_client_ends_it(self, nats_server, unique):
        """
        A publish that waits before its next attempt raises as soon as the client is closed.
        """
        client = jetsync.connect(nats_server.url)
        js = client.jetstream()

        def publish():
            with pytest.raises(jetsync.ConnectionClosedError):
                js.publish(unique, retry_wait=20, timeout=30)

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(publish)
            time.sleep(0.5)
            assert not future.done()
            client.close()
            future.result(20)


class TestDisconnected:
    def test_an_error_is_not_followed_by_a_late_delivery(self, victim, fragile, unique):
        """
        Without a connection the message is not sent, not even after a reconnect.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"])
        client = client_of(fragile)
        victim.stop()
        try:
            eventually(lambda: not client.is_connected)
            with timed(0.5, 0.8), pytest.raises(jetsync.DisconnectedError) as caught:
                fragile.publish(f"{unique}.A", b"late", timeout=0.5)
        finally:
            victim.start()
        assert isinstance(caught.value, (ConnectionError, TimeoutError))
        assert not isinstance(caught.value, jetsync.PublishOutcomeUnknownError)
        eventually(lambda: client.is_connected)
        assert fragile.publish(f"{unique}.A", b"now").sequence == 1
        assert stream.get_message(1).data == b"now"
        fragile.delete_stream(unique)

    def test_a_connection_that_comes_back_in_time_is_enough(self, victim, fragile, unique):
        """
        A publish waits for the connection within its own time.
        """
        fragile.create_stream(unique, subjects=[f"{unique}.>"])
        victim.stop()
        eventually(lambda: not client_of(fragile).is_connected)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(fragile.publish, f"{unique}.A", timeout=20)
            victim.start()
            assert waiting.result(20).sequence == 1
        fragile.delete_stream(unique)


class TestRefused:
    def test_wrong_arguments_send_nothing(self, client, js, stream):
        """
        Wrong values raise ValueError and wrong types TypeError, nothing is sent, and the connection
        stays.
        """
        subject = f"{stream.name}.A"
        values = [
            {"subject": ""},
            {"subject": "a b"},
            {"subject": "a\r\nPUB x 0\r\n"},
            {"subject": "a..b"},
            {"subject": ".a"},
            {"subject": "a."},
            {"subject": "a.*"},
            {"subject": "a.>"},
            {"headers": {"": "x"}},
            {"headers": {"a:b": "x"}},
            {"headers": {"a b": "x"}},
            {"headers": {"A": "x\r\nB: y"}},
            {"headers": {"A": "x\ny"}},
            {"headers": {"A\r": "x"}},
            {"headers": {"A": 5}},
            {"headers": {5: "x"}},
            {"msg_id": ""},
            {"msg_id": "a\nb"},
            {"data": "\ud800"},
            {"ttl": 0},
            {"timeout": -1},
            {"timeout": float("nan")},
            {"retries": -1},
            {"retry_wait": -0.1},
        ]
        types = [
            {"subject": None},
            {"subject": b"bytes"},
            {"subject": 7},
            {"data": None},
            {"data": 5},
            {"data": {"a": 1}},
            {"headers": 5},
            {"msg_id": 5},
            {"timeout": "1"},
            {"retries": 1.5},
            {"retries": True},
        ]
        before = client.statistics().bytes_out
        for fields in values:
            with pytest.raises(jetsync.InvalidArgumentError) as caught:
                js.publish(**{"subject": subject, **fields})
            assert isinstance(caught.value, ValueError), fields
        for fields in types:
            with pytest.raises(jetsync.InvalidTypeError) as caught:
                js.publish(**{"subject": subject, **fields})
            assert isinstance(caught.value, TypeError), fields
        assert sent_nothing(client, before)
        assert js.publish(subject).sequence == 1
        assert client.statistics().reconnects == 0

    def test_a_wrong_expectation_is_refused_where_it_is_made(self):
        """
        Expectations that no server understands are refused by their constructor.
        """
        for fields in (
            {"last_sequence": -1},
            {"last_subject_sequence_subject": "a"},
            {"last_subject_sequence": 1, "last_subject_sequence_subject": "a b"},
            {"stream": "a.b"},
        ):
            with pytest.raises(ValueError, match=r"."):
                Expect(**fields)
        for fields in ({"last_sequence": "1"}, {"last_msg_id": 5}):
            with pytest.raises(TypeError):
                Expect(**fields)

    def test_a_payload_that_is_too_large(self, client, js, stream):
        """
        One byte too many is refused locally, headers included, and the connection stays.
        """
        limit = client.server.max_payload
        header = len(b"NATS/1.0\r\nA: b\r\n\r\n")
        before = client.statistics().bytes_out
        with pytest.raises(jetsync.MaxPayloadError) as caught:
            js.publish(f"{stream.name}.A", bytes(limit + 1))
        assert (caught.value.size, caught.value.limit) == (limit + 1, limit)
        with pytest.raises(jetsync.MaxPayloadError):
            js.publish(f"{stream.name}.A", bytes(limit - header + 1), headers={"A": "b"})
        assert sent_nothing(client, before)
        assert js.publish(f"{stream.name}.A", bytes(limit)).sequence == 1
        assert js.publish(f"{stream.name}.A", bytes(limit - header), headers={"A": "b"})
        assert client.statistics().reconnects == 0

    def test_a_limit_of_the_stream(self, js, unique):
        """
        A message that the stream refuses raises an error of its own class, and is not stored.
        """
        stream = memory_stream(js, unique, max_msg_size=5, max_msgs=1, discard="new")
        with pytest.raises(jetsync.MessageTooLargeError) as caught:
            js.publish(f"{unique}.A", b"123456")
        assert (caught.value.err_code, caught.value.stream) == (10054, unique)
        js.publish(f"{unique}.A", b"12345")
        with pytest.raises(jetsync.StreamFullError) as caught:
            js.publish(f"{unique}.A", b"1")
        assert caught.value.err_code == 10077
        assert stream.info().state.messages == 1
        js.delete_stream(unique)

    def test_a_publish_to_a_denied_subject_keeps_the_connection(self, unique):
        """
        The server's refusal ends the call at once and the connection stays.
        """
        users = [{"user": "u", "password": "p", "permissions": {"publish": {"deny": ["*.secret"]}}}]
        with (
            DevServer(config={"authorization": {"timeout": 30, "users": users}}) as server,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            js = client.jetstream()
            memory_stream(js, unique)
            with timed(0.0, 1.0), pytest.raises(jetsync.PermissionDeniedError) as caught:
                js.publish(f"{unique}.secret")
            assert (caught.value.subject, caught.value.operation) == (
                f"{unique}.secret",
                "publish",
            )
            assert js.publish(f"{unique}.open").sequence == 1


class TestTtl:
    @pytest.fixture
    def with_ttl(self, js_of, unique):
        """
        A factory of streams that allow a ttl per message, by server version.
        """
        made = []

        def with_ttl(version):
            js = js_of(version)
            made.append(js)
            return js, memory_stream(js, unique, allow_msg_ttl=True, allow_direct=True)

        yield with_ttl
        for js in made:
            js.delete_stream(unique)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", WITH_TTL)
    def test_values_from_one_second_up_are_stored(self, with_ttl, version):
        """
        Numbers, durations and "never" are stored as headers and read back.
        """
        js, stream = with_ttl(version)
        for given, stored, read in (
            (1, "1", 1.0),
            (1.0, "1", 1.0),
            (1.5, "1.5s", 1.5),
            (90.0, "90", 90.0),
            (dt.timedelta(hours=1), "3600", 3600.0),
            (dt.timedelta(milliseconds=2500), "2.5s", 2.5),
            ("never", "never", "never"),
        ):
            sequence = js.publish(f"{stream.name}.A", ttl=given).sequence
            message = stream.get_message(sequence)
            assert (message.headers["Nats-TTL"], message.ttl) == (stored, read)

    @pytest.mark.parametrize(
        "value",
        [
            0.5,
            0,
            -1,
            "x",
            "5",
            "Never",
            True,
            float("nan"),
            float("inf"),
            1e12,
            b"never",
            [],
            0.999,
        ],
    )
    def test_other_values_are_refused_here(self, client, js, stream, value):
        """
        Any other value is a ValueError, and nothing is sent.
        """
        before = client.statistics().bytes_out
        with pytest.raises(jetsync.InvalidTtlError) as caught:
            js.publish(f"{stream.name}.A", ttl=value)
        assert isinstance(caught.value, ValueError)
        assert sent_nothing(client, before)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", WITH_TTL)
    def test_headers_that_servers_take(self, with_ttl, version):
        """
        Headers that others wrote are stored unchanged, and read as the server interprets them.
        """
        js, stream = with_ttl(version)
        for text, read in (
            ("5", 5.0),
            ("5s", 5.0),
            ("1m30s", 90.0),
            ("1h", 3600.0),
            ("1000ms", 1.0),
            ("1500ms", 1.5),
            ("1.5s", 1.5),
            ("never", "never"),
            ("NEVER", "never"),
            ("Never", "never"),
            ("", None),
            ("00", None),
            ("99999999999", 99999999999.0),
        ):
            sequence = js.publish(f"{stream.name}.A", headers={"Nats-TTL": text}).sequence
            message = stream.get_message(sequence)
            assert (message.headers["Nats-TTL"], message.ttl) == (text, read)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", WITH_TTL)
    def test_headers_that_servers_refuse(self, with_ttl, version):
        """
        The server refuses each of them with 10165, and the stream stays empty.
        """
        js, stream = with_ttl(version)
        refused = "0 0s 500ms 999ms -1 -5s 0.5 1.5 +5 1e3 5d 1w 5S abc 0x10 9999999999999999999"
        for text in [*refused.split(), "2562048h", "5 "]:
            with pytest.raises(jetsync.MessageTtlInvalidError) as caught:
                js.publish(f"{stream.name}.A", headers={"Nats-TTL": text})
            assert caught.value.err_code == 10165, text
        assert stream.info().state.messages == 0

    @pytest.mark.versions
    @pytest.mark.parametrize("version", WITH_TTL)
    def test_two_headers_and_a_header_in_lower_case(self, with_ttl, version):
        """
        The first of two headers counts. A name in another case is no time-to-live, for jetsync and
        the server.
        """
        js, stream = with_ttl(version)
        twice = js.publish(f"{stream.name}.A", headers={"Nats-TTL": ["5", "10"]}).sequence
        lower = js.publish(f"{stream.name}.A", headers={"nats-ttl": "1"}).sequence
        assert stream.get_message(twice).ttl == 5.0
        assert stream.get_message(lower).ttl is None

    @pytest.mark.versions
    @pytest.mark.parametrize("version", WITH_TTL)
    def test_a_stream_that_takes_none(self, js_of, unique, version):
        """
        Without allow_msg_ttl, a ttl is refused with 10166, also "never". An invalid one stays
        10165.
        """
        js = js_of(version)
        stream = memory_stream(js, unique)
        for ttl in (5, "never"):
            with pytest.raises(jetsync.MessageTtlDisabledError) as caught:
                js.publish(f"{unique}.A", ttl=ttl)
            assert (caught.value.err_code, caught.value.stream) == (10166, unique)
        with pytest.raises(jetsync.MessageTtlInvalidError):
            js.publish(f"{unique}.A", headers={"Nats-TTL": "abc"})
        assert stream.info().state.messages == 0
        js.delete_stream(unique)

    @pytest.mark.versions
    def test_a_server_that_knows_none(self, js_of, unique):
        """
        With 2.10, a stream and a message with a time-to-live are refused before anything is sent.
        """
        js = js_of("2.10.26")
        with pytest.raises(jetsync.NotSupportedError):
            memory_stream(js, unique, allow_msg_ttl=True)
        stream = js.create_or_update_stream(unique, subjects=[f"{unique}.>"], storage="memory")
        with pytest.raises(jetsync.NotSupportedError):
            js.publish(f"{unique}.A", ttl=1)
        assert stream.info().state.messages == 0
        js.delete_stream(unique)

    def test_it_expires(self, with_ttl):
        """
        The message exists at first and expires after its second; "never" outlives it.
        """
        js, stream = with_ttl(None)

        def attempt(pace):
            stream.purge()
            short = js.publish(f"{stream.name}.A", b"short", ttl=pace)
            long = js.publish(f"{stream.name}.B", b"long", ttl="never")
            with timed(0.8 * pace, 2.2 * pace):
                assert stream.get_message(short.sequence).data == b"short"
                eventually(lambda: stream.info().state.messages == 1, 3.0 * pace)
            with pytest.raises(jetsync.MessageNotFoundError):
                stream.get_message(short.sequence)
            assert stream.get_message(long.sequence).data == b"long"

        at_some_pace(attempt)


class TestPrepare:
    def test_a_plugin_changes_the_message(self, nats_server, js, stream):
        """
        Subject, payload, headers and id are sent as the plugin returns them.
        """

        class Stamp:
            @hookimpl
            def jetsync_prepare_message(self, message):
                return attrs.evolve(
                    message,
                    subject=message.subject + ".stamped",
                    data=bytes(message.data).upper(),
                    headers={"Stamp": "1"},
                    msg_id="stamped",
                )

        with jetsync.connect(nats_server.url, plugins=[Stamp()]) as client:
            ack = client.jetstream().publish(f"{stream.name}.A", b"data")
        stored = stream.get_message(ack.sequence)
        assert (stored.subject, stored.data) == (f"{stream.name}.A.stamped", b"DATA")
        assert dict(stored.headers.items()) == {"Stamp": "1", "Nats-Msg-Id": "stamped"}

    def test_a_plugin_vetoes_the_message(self, nats_server, stream):
        """
        The error names the plugin and the hook, nothing is sent, and the next message passes.
        """

        class Veto:
            name = "veto"

            @hookimpl
            def jetsync_prepare_message(self, message):
                if message.data == b"no":
                    raise KeyError("not this one")

        with jetsync.connect(nats_server.url, plugins=[Veto()]) as client:
            js = client.jetstream()
            before = client.statistics().bytes_out
            with pytest.raises(jetsync.PluginError) as caught:
                js.publish(f"{stream.name}.A", b"no")
            assert (caught.value.plugin, caught.value.hook) == ("veto", "jetsync_prepare_message")
            assert isinstance(caught.value.__cause__, KeyError)
            assert sent_nothing(client, before)
            assert js.publish(f"{stream.name}.A", b"yes").sequence == 1

    def test_a_subject_that_a_plugin_returns_is_checked_too(self, nats_server, stream):
        """
        An invalid subject that a plugin returns is refused before it is sent.
        """

        class Breaks:
            @hookimpl
            def jetsync_prepare_message(self, message):
                return attrs.evolve(message, subject="a b")

        with jetsync.connect(nats_server.url, plugins=[Breaks()]) as client:
            with pytest.raises(jetsync.InvalidSubjectError):
                client.jetstream().publish(f"{stream.name}.A", b"x")
            assert client.is_connected


class TestThreads:
    def test_many_threads_share_one_context(self, js, stream):
        """
        Each thread gets the ack of its own message.
        """

        def publish(number):
            return [
                (ack.sequence, b"%d-%d" % (number, turn))
                for turn in range(25)
                for ack in [js.publish(f"{stream.name}.{number}", b"%d-%d" % (number, turn))]
            ]

        with ThreadPoolExecutor(8) as pool:
            acked = [pair for pairs in pool.map(publish, range(8)) for pair in pairs]
        assert sorted(sequence for sequence, _ in acked) == list(range(1, 201))
        for sequence, data in acked[::10]:
            assert stream.get_message(sequence).data == data
