"""
Answers that no JetStream server gives: each call raises a clear error, and no thread dies.

A responder on the same server takes the place of JetStream, under an API prefix of its own.
"""

from __future__ import annotations

import json
import threading

import pytest

import jetsync
from helpers.consuming import seen
from helpers.fake_server import FakeServer
from helpers.waiting import eventually
from jetsync._base.deadline import Deadline
from jetsync._proto import frames
from jetsync.consume.feed import SiftedMailbox
from jetsync.testing import HookRecorder

DEEP = b'{"a":' * 100_000

NO_OBJECTS = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    DEEP,
    b"[" * 100_000,
    b'{"seq":NaN}',
    b'{"total":1e400}',
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"error":"text"}',
    b'{"error":[]}',
    b'{"error":1}',
]
"""Answers that are invalid for every request."""

STREAM = b'"config":{"name":"S","subjects":["s"],"retention":"limits","storage":"file"}'
CONSUMER = b'"stream_name":"S","name":"C","config":{"ack_policy":"explicit"}'
WELL = {
    "STREAM.INFO": b'{%b,"state":{"messages":1,"last_seq":1}}' % STREAM,
    "CONSUMER.INFO": b"{%b}" % CONSUMER,
    "CONSUMER.CREATE": b"{%b}" % CONSUMER,
}


class Responder:
    """
    A service that answers the subjects below a prefix as the test configures it.
    """

    def __init__(self, client, prefix):
        self.prefix = prefix
        self.answers = {}
        """
        Answers by the start of the endpoint: a payload, a header block with payload and reply, or a
        function of the request that returns either.
        """
        self._client = client
        self._subscription = client.subscribe(f"{prefix}.>")
        client.flush()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        for message in self._subscription:
            endpoint = message.subject.removeprefix(f"{self.prefix}.")
            starts = [start for start in self.answers if endpoint.startswith(start)]
            if message.reply and starts:
                answer = self.answers[max(starts, key=len)]
                self.send(message.reply, answer(message.data) if callable(answer) else answer)

    def send(self, subject, answer):
        """
        Publish a possibly invalid message, with a reply subject if it has one.
        """
        header, payload, reply = answer if isinstance(answer, tuple) else (None, answer, b"")
        block = frames.message(subject.encode(), reply, header, payload)
        self._client._connection.lane.write(block, Deadline.after(5))

    def close(self):
        self._subscription.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def fake(nats_server, unique):
    """
    A responder that replaces JetStream.
    """
    with jetsync.connect(nats_server.url) as other:
        responder = Responder(other, f"{unique}.API")
        responder.answers.update(WELL)
        yield responder
        responder.close()


@pytest.fixture
def js(client, fake):
    """
    The context whose requests go to the responder.
    """
    return client.jetstream(prefix=fake.prefix, timeout=20)


CALLS = {
    "account": ("INFO", lambda js: js.account_info()),
    "stream info": ("STREAM.INFO", lambda js: js.stream("S")),
    "stream create": ("STREAM.CREATE", lambda js: js.create_stream("S", subjects=["s"])),
    "stream names": ("STREAM.NAMES", lambda js: list(js.stream_names())),
    "streams": ("STREAM.LIST", lambda js: list(js.streams())),
    "purge": ("STREAM.PURGE", lambda js: js.stream("S").purge()),
    "message": ("STREAM.MSG.GET", lambda js: js.stream("S").get_message(1)),
    "consumer info": ("CONSUMER.INFO", lambda js: js.stream("S").consumer("C")),
    "consumer create": (
        "CONSUMER.CREATE",
        lambda js: js.stream("S").create_consumer("C"),
    ),
    "consumer names": ("CONSUMER.NAMES", lambda js: list(js.stream("S").consumer_names())),
    "bucket": ("STREAM.INFO.KV_b", lambda js: js.key_value("b")),
}


LISTS = {
    "stream names": ("STREAM.NAMES", lambda js, stream: js.stream_names()),
    "streams": ("STREAM.LIST", lambda js, stream: js.streams()),
    "bucket names": ("STREAM.NAMES", lambda js, stream: js.key_value_names()),
    "object stores": ("STREAM.LIST", lambda js, stream: js.object_stores()),
    "consumer names": ("CONSUMER.NAMES", lambda js, stream: stream.consumer_names()),
    "consumers": ("CONSUMER.LIST", lambda js, stream: stream.consumers()),
    "subjects": ("STREAM.INFO", lambda js, stream: [stream.info(subjects_filter=">")]),
}


def listing(endpoint, page):
    """
    Answer requests for a list of two entries whose total grows; fail after 200 of them.
    """
    asked = []

    def answer(request):
        asked.append(request)
        if len(asked) > 200:
            return b'{"error":{"code":500,"err_code":1,"description":"asked too often"}}'
        fields = {"total": 3 + 2 * len(asked), "limit": 2, **json.loads(b"{%b}" % STREAM)}
        names = ["KV_a", "OBJ_b"] if page == "same" or len(asked) == 1 else []
        key = endpoint.partition(".")[0].lower() + "s"
        if endpoint == "STREAM.INFO":
            fields["state"] = {"messages": 2, "last_seq": 2, "subjects": dict.fromkeys(names, 1)}
        elif endpoint.endswith("NAMES"):
            fields[key] = names
        else:
            about = {"stream_name": "S", "state": {"messages": 1, "last_seq": 1}}
            fields[key] = [{"name": each, "config": {"name": each}, **about} for each in names]
        return json.dumps(fields).encode()

    return answer


def created(request):
    """
    Answer every request for a consumer.
    """
    config = json.loads(request)["config"]
    return json.dumps({"stream_name": "S", "name": config["name"], "config": config}).encode()


class TestApi:
    @pytest.mark.parametrize("call", CALLS)
    def test_no_object(self, js, fake, call):
        """
        An answer that is not a JSON object, or whose error is not one, is a protocol error.
        """
        endpoint, ask = CALLS[call]
        for answer in NO_OBJECTS:
            fake.answers = {**WELL, endpoint: answer}
            with pytest.raises(jetsync.ProtocolError):
                ask(js)

    @pytest.mark.parametrize(
        ("call", "answer"),
        [
            ("account", b'{"memory":-1}'),
            ("account", b'{"api":{"level":"4"}}'),
            ("account", b'{"tiers":["x"]}'),
            ("stream info", b'{"config":5}'),
            ("stream info", b'{"config":{"name":"S","subjects":"s"}}'),
            ("stream info", b'{"config":{"name":5}}'),
            ("stream info", b'{%b,"state":{"last_seq":-1}}' % STREAM),
            ("stream info", b'{%b,"state":{"last_seq":true}}' % STREAM),
            ("stream info", b'{%b,"state":{"last_seq":1.5}}' % STREAM),
            ("stream info", b'{%b,"state":{"last_seq":"1"}}' % STREAM),
            ("stream info", b'{%b,"state":{"last_seq":%b}}' % (STREAM, b"9" * 400)),
            ("stream info", b'{%b,"created":5}' % STREAM),
            ("stream create", b'{"config":[]}'),
            ("stream names", b'{"total":1,"streams":5}'),
            ("stream names", b'{"total":"1","streams":["S"]}'),
            ("stream names", b'{"total":-1,"streams":["S"]}'),
            ("streams", b'{"total":1,"streams":["S"]}'),
            ("streams", b'{"total":1,"streams":[{"config":{}}]}'),
            ("purge", b'{"success":true,"purged":-1}'),
            ("purge", b'{"success":true,"purged":"1"}'),
            ("message", b'{"message":{"subject":"s","seq":-1,"time":"2024-01-01T00:00:00Z"}}'),
            ("message", b'{"message":{"subject":"s","seq":true,"time":"2024-01-01T00:00:00Z"}}'),
            ("message", b'{"message":{"subject":5,"seq":1,"time":"2024-01-01T00:00:00Z"}}'),
            ("message", b'{"message":{"subject":"s","seq":1,"time":"yesterday"}}'),
            ("message", b'{"message":{"subject":"s","seq":1,"time":5}}'),
            (
                "message",
                (
                    b'{"message":{"subject":"s","seq":1,"time":"2024-01-01T00:00:00Z",'
                    b'"data":"\xc3\xa9"}}'
                ),
            ),
            ("consumer info", b'{%b,"num_pending":-5}' % CONSUMER),
            ("consumer info", b'{%b,"delivered":{"stream_seq":true}}' % CONSUMER),
            ("consumer names", b'{"total":1,"consumers":true}'),
        ],
    )
    def test_a_wrong_type(self, js, fake, call, answer):
        """
        A value of a wrong type, or out of range, is a protocol error.
        """
        endpoint, ask = CALLS[call]
        fake.answers = {**WELL, endpoint: answer}
        with pytest.raises(jetsync.ProtocolError):
            ask(js)

    @pytest.mark.parametrize("page", ["same", "empty"])
    @pytest.mark.parametrize("call", LISTS)
    def test_a_list_without_an_end_is_a_protocol_error(self, js, fake, call, page):
        """
        A list whose server repeats a page, or sends an empty one too early, ends with an error.
        """
        endpoint, ask = LISTS[call]
        stream = js.stream("S")
        fake.answers = {**WELL, endpoint: listing(endpoint, page)}
        with pytest.raises(jetsync.ProtocolError, match="does not end the list"):
            list(ask(js, stream))

    def test_an_error_of_odd_parts(self, js, fake):
        """
        An error with parts of wrong types is still an ApiError.
        """
        for error in (b'{"code":true,"err_code":1e3}', b'{"code":"4","description":[[]]}'):
            fake.answers = {"STREAM.INFO": b'{"error":%b}' % error}
            with pytest.raises(jetsync.ApiError) as caught:
                js.stream("S")
            assert (caught.value.code, caught.value.err_code) == (500, 0)
        long = b'"wrong last sequence: ' + b"9" * 5000 + b'"'
        fake.answers = {"STREAM.INFO": b'{"error":{"err_code":10071,"description":%b}}' % long}
        with pytest.raises(jetsync.WrongLastSequenceError) as caught:
            js.stream("S")
        assert caught.value.last_sequence is None


ACKS = [
    *NO_OBJECTS,
    b'{"stream":"S","seq":-1}',
    b'{"stream":"S","seq":true}',
    b'{"stream":"S","seq":1.0}',
    b'{"stream":"S","seq":%b}' % (b"9" * 30),
    b'{"stream":5,"seq":1}',
    b'{"stream":"S","seq":1,"duplicate":"yes"}',
    b'{"stream":"S","seq":1,"domain":5}',
    b'{"stream":"S","seq":1,"val":5}',
]


class TestAcks:
    @pytest.mark.parametrize("way", ["publish", "publish_many", "publisher"])
    def test_a_meaningless_ack_leaves_the_outcome_unknown(self, client, fake, way):
        """
        A meaningless ack leaves the outcome unknown, and the error states the reason.
        """
        js, subject = client.jetstream(timeout=20), f"{fake.prefix}.PUB"

        def publish():
            if way == "publish":
                js.publish(subject, b"x")
            elif way == "publish_many":
                js.publish_many([(subject, b"x")])
            else:
                with js.publisher() as publisher:
                    publisher.publish(subject, b"x").result(20)

        for answer in ACKS:
            fake.answers = {"PUB": answer}
            with pytest.raises(jetsync.JetSyncError) as caught:
                publish()
            error = caught.value
            if isinstance(error, jetsync.PublishManyError):
                error = error.report.failures[0].error
            assert isinstance(error, jetsync.PublishOutcomeUnknownError)
            assert isinstance(error.__cause__, jetsync.ProtocolError)

    def test_acks_of_another_shape(self, client, fake):
        """
        A publisher survives acks with numbers that are too long, after plain ones.
        """
        js, subject = client.jetstream(timeout=20), f"{fake.prefix}.PUB"
        with js.publisher() as publisher:
            fake.answers = {"PUB": b'{"stream":"S","seq":1}'}
            assert publisher.publish(subject).result(20).sequence == 1
            fake.answers = {"PUB": b'{"stream":"S","seq":%b}' % (b"1" * 5000)}
            futures = [publisher.publish(subject) for _ in range(50)]
            for future in futures:
                assert isinstance(future.exception(20), jetsync.PublishOutcomeUnknownError)
            fake.answers = {"PUB": b'{"stream":"S","seq":2}'}
            assert publisher.publish(subject).result(20).sequence == 2


class TestBatches:
    """
    A stream that accepts batches according to its info, and sends invalid answers.
    """

    INFO = (
        b'{"config":{"name":"S","subjects":["%b.PUB"],"allow_atomic":true,"allow_batched":true,'
        b'"metadata":{"_nats.level":"5","_nats.ver":"2.15.1"}}}'
    )

    @pytest.mark.parametrize("answer", NO_OBJECTS[1:])
    @pytest.mark.parametrize("way", ["atomic", "fast"])
    def test_a_meaningless_ack_ends_a_batch_with_its_cause(self, js, fake, way, answer):
        """
        A batch with a meaningless ack ends with an error whose cause is the ack's.
        """
        fake.answers = {
            "STREAM.NAMES": b'{"total":1,"streams":["S"]}',
            "STREAM.INFO": self.INFO % fake.prefix.encode(),
            "PUB": answer,
        }
        messages = [(f"{fake.prefix}.PUB", b"x")] * 3

        def publish():
            if way == "atomic":
                js.publish_batch(messages, timeout=20)
            else:
                with js.fast_publisher(timeout=20) as publisher:
                    publisher.add_many(messages)

        with pytest.raises(jetsync.JetSyncError) as caught:
            publish()
        causes, error = [], caught.value
        while error is not None:
            causes.append(type(error))
            error = error.__cause__
        assert jetsync.ProtocolError in causes


def direct(**changes):
    """
    The header block of a direct get's answer.
    """
    fields = {
        "Nats-Stream": "S",
        "Nats-Subject": "s",
        "Nats-Sequence": "1",
        "Nats-Time-Stamp": "2024-01-01T00:00:00.5Z",
        "Nats-Num-Pending": "1",
        "Nats-Last-Sequence": "0",
    }
    fields.update({f"Nats-{name.replace('_', '-')}": value for name, value in changes.items()})
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


NUMBERS = ["-1", "+1", "1_0", "x", "", "9" * 4300, str(1 << 64), "1.5"]


class TestDirect:
    @pytest.mark.parametrize("number", NUMBERS)
    def test_an_invalid_sequence_is_a_protocol_error_when_read(self, js, fake, number):
        """
        An invalid sequence is a protocol error when it is read.
        """
        fake.answers["DIRECT.GET"] = (direct(Sequence=number), b"x", b"")
        message = js.stream("S").get_message(1, direct=True)
        with pytest.raises(jetsync.ProtocolError):
            _ = message.sequence

    @pytest.mark.parametrize("time", ["", "x", "9999-99-99T00:00:00Z", "9" * 5000])
    def test_an_invalid_time_is_a_protocol_error_when_read(self, js, fake, time):
        """
        An invalid time is a protocol error when it is read.
        """
        fake.answers["DIRECT.GET"] = (direct(Time_Stamp=time), b"x", b"")
        message = js.stream("S").get_message(1, direct=True)
        with pytest.raises(jetsync.ProtocolError):
            _ = message.timestamp

    @pytest.mark.parametrize("code", ["9" * 4300, "-4", "x4"])
    def test_a_status(self, js, fake, code):
        """
        An invalid status code is a protocol error.
        """
        fake.answers["DIRECT.GET"] = (f"NATS/1.0 {code} Oops\r\n\r\n".encode(), b"", b"")
        with pytest.raises(jetsync.ProtocolError):
            js.stream("S").get_message(1, direct=True)

    @pytest.mark.parametrize("number", ["-1", "+1", "1_0", "x", "9" * 4300, "1.5"])
    @pytest.mark.parametrize("header", ["Sequence", "Num_Pending"])
    def test_an_invalid_number_ends_a_read_of_many_messages(self, js, fake, header, number):
        """
        An invalid number ends a read of many messages.
        """
        info = b'"metadata":{"_nats.level":"5","_nats.ver":"2.15.1"}'
        fake.answers["STREAM.INFO"] = b'{"config":{"name":"S","allow_direct":true,%b}}' % info
        fake.answers["DIRECT.GET"] = (direct(**{header: number}), b"x", b"")
        with pytest.raises(jetsync.ProtocolError):
            list(js.stream("S").get_batch(batch=5))


class TestPulls:
    STATUSES = (
        b"NATS/1.0 " + b"9" * 4300 + b" Oops\r\n\r\n",
        b"NATS/1.0 -408 Oops\r\n\r\n",
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: x\r\n\r\n",
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Bytes: " + b"9" * 4300 + b"\r\n\r\n",
        b"NATS/2.0 408 Request Timeout\r\n\r\n",
    )

    @pytest.mark.parametrize("status", STATUSES)
    def test_an_invalid_status_ends_a_fetch(self, js, fake, status):
        """
        An invalid status ends a fetch.
        """
        fake.answers["CONSUMER.MSG.NEXT"] = (status, b"", b"")
        consumer = js.stream("S").consumer("C")
        with pytest.raises(jetsync.ProtocolError):
            list(consumer.fetch(5))

    @pytest.mark.parametrize("status", STATUSES)
    def test_an_invalid_status_ends_a_consumption(self, js, fake, status):
        """
        An invalid status ends an iteration over a consumption.
        """
        fake.answers["CONSUMER.MSG.NEXT"] = (status, b"", b"")
        consumer = js.stream("S").consumer("C")
        with consumer.consume() as messages, pytest.raises(jetsync.ProtocolError):
            messages.next(timeout=20)

    @pytest.mark.parametrize("status", STATUSES)
    def test_consume_with_a_handler(self, js, fake, status):
        """
        An invalid status ends a consumption with a handler, and is its error.
        """
        fake.answers["CONSUMER.MSG.NEXT"] = (status, b"", b"")
        consumption = js.stream("S").consumer("C").consume(lambda message: None)
        assert consumption.wait(timeout=20)
        assert isinstance(consumption.error, jetsync.ProtocolError)

    @pytest.mark.parametrize("status", STATUSES)
    def test_an_invalid_status_ends_an_ordered_consumer(self, js, fake, status):
        """
        An invalid status ends an ordered consumer.
        """
        fake.answers["CONSUMER.CREATE"] = created
        fake.answers["CONSUMER.MSG.NEXT"] = (status, b"", b"")
        with (
            js.stream("S").ordered_consumer().consume() as messages,
            pytest.raises(jetsync.ProtocolError),
        ):
            messages.next(timeout=20)

    @pytest.mark.parametrize("answer", NO_OBJECTS[1:])
    def test_a_probe(self, js, fake, answer):
        """
        An invalid answer to its consumer info request ends a consumption.
        """
        consumer = js.stream("S").consumer("C")
        fake.answers["CONSUMER.MSG.NEXT"] = (b"NATS/1.0 503\r\n\r\n", b"", b"")
        fake.answers["CONSUMER.INFO"] = answer
        with consumer.consume() as messages, pytest.raises(jetsync.ProtocolError):
            messages.next(timeout=20)


ANSWERS = [
    (None, b"+ACK", b""),
    (None, b"x", b"reply"),
    (b"NATS/1.0\r\na: b\r\n\r\n", b"x", b""),
    (b"N\r\na: bc\r\n\r\n", b"x", b""),
    (b"", b"x", b""),
]


@pytest.fixture
def meddler(nats_server, unique):
    """
    Another client that answers each pull and each read of a stream with messages of its own.
    """
    with jetsync.connect(nats_server.url) as other:

        def answer(message):
            blocks = [
                frames.message(message.reply.encode(), reply, header, payload)
                for header, payload, reply in ANSWERS
            ]
            other._connection.lane.write(b"".join(blocks * 8), Deadline.after(5))

        def run(requests):
            for message in requests:
                answer(message)

        def meddle(stream):
            endpoints = f"CONSUMER.MSG.NEXT.{stream}.>", f"DIRECT.GET.{stream}"
            for endpoint in endpoints:
                requests = other.subscribe(f"$JS.API.{endpoint}")
                thread = threading.Thread(target=run, args=(requests,), daemon=True)
                thread.start()
                threads.append((requests, thread))
            other.flush()

        threads = []
        yield meddle
        for requests, thread in threads:
            requests.close()
            thread.join(10)


def handled(consumer):
    """Return the first five payloads that a handler gets."""
    found = []
    consumer.consume(lambda message: found.append(message.data), stop_after=5).wait(timeout=20)
    return found


READS = {
    "fetch": lambda stream, consumer: [each.data for each in consumer.fetch(5)],
    "next": lambda stream, consumer: [consumer.next().data for _ in range(5)],
    "consume": lambda stream, consumer: [each.data for each in consumer.consume(stop_after=5)],
    "handler": lambda stream, consumer: handled(consumer),
    "ordered fetch": lambda stream, _: [each.data for each in stream.ordered_consumer().fetch(5)],
    "ordered consume": lambda stream, _: [
        each.data for each in stream.ordered_consumer().consume(stop_after=5)
    ],
}


def status_recorder(url, **options):
    """Return a recorder of events and a client with it."""
    recorder = HookRecorder("jetsync_status")
    return recorder, jetsync.connect(url, plugins=[recorder], **options)


class TestForeignAnswers:
    @pytest.mark.parametrize("read", READS)
    def test_answers_of_another_client_are_not_messages(self, nats_server, unique, meddler, read):
        """
        A read hands out the messages of its consumer and nothing else, and reports the others once.
        """
        recorder, client = status_recorder(nats_server.url)
        with client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[unique])
            consumer = stream.create_consumer("C", ack_policy="none")
            meddler(unique)
            threading.Timer(0.5, js.publish_many, [[(unique, b"%d" % n) for n in range(5)]]).start()
            assert READS[read](stream, consumer) == [b"0", b"1", b"2", b"3", b"4"]
            eventually(lambda: len(seen(recorder, "stray_messages")) == 1)
        (event,) = seen(recorder, "stray_messages")
        assert (event.reason, event.stream, event.redelivered) == ("foreign", unique, False)
        assert event.subject.startswith("_INBOX.")
        assert 1 <= event.messages <= 40 * 5

    def test_a_watch(self, client, unique, meddler):
        """
        A watch, and the keys of a bucket, are those of the bucket although another client answers.
        """
        bucket = client.jetstream().create_key_value(unique)
        meddler(f"KV_{unique}")
        for name in "abc":
            bucket.put(name, b"1")
        with bucket.watch() as watch:
            assert [entry.key for entry in watch.initial(timeout=20)] == ["a", "b", "c"]
            bucket.put("d", b"1")
            assert watch.next(timeout=20).key == "d"
        assert sorted(bucket.keys()) == ["a", "b", "c", "d"]

    @pytest.mark.parametrize("way", ["messages", "pages", "batch", "last"])
    def test_a_direct_read(self, client, unique, meddler, way):
        """
        A read without a consumer hands out what the stream has, whoever answers as well.
        """
        stream = client.jetstream().create_stream(
            unique, subjects=[f"{unique}.*"], allow_direct=True
        )
        expected = [b"%d" % number for number in range(500)]
        client.jetstream().publish_many(
            [(f"{unique}.{number}", payload) for number, payload in enumerate(expected)]
        )
        meddler(unique)
        for _ in range(5):
            if way == "pages":
                found = [data for page in stream.scan().pages() for data in page.data]
            elif way == "batch":
                found = [message.data for message in stream.get_batch(batch=500)]
            elif way == "last":
                found = [message.data for message in stream.get_last_for(f"{unique}.*")]
            else:
                found = [message.data for message in stream.scan()]
            assert found == expected


class TestSurplus:
    @pytest.mark.parametrize("policy", ["explicit", "none"])
    @pytest.mark.parametrize("read", ["fetch", "consume"])
    def test_no_more_is_handed_out_than_a_pull_asked_for(self, nats_server, unique, read, policy):
        """
        If a server sends more than a pull asked for, the rest is refused and reported.
        """
        with FakeServer(nats_server.port) as proxy:
            recorder, client = status_recorder(proxy.url)
            with client:
                stream = client.jetstream().create_stream(unique, subjects=[unique])
                consumer = stream.create_consumer("C", ack_policy=policy)
                boxes = client._connection.lane.subscriptions.boxes
                batch = consumer.fetch(10) if read == "fetch" else consumer.consume(max_messages=10)
                client.flush()
                (sid,) = [sid for sid, box in boxes.items() if isinstance(box, SiftedMailbox)]
                reply = "$JS.ACK.%s.C.1.%d.%d.1700000000000000000.0"
                proxy.inject(
                    b"".join(
                        frames.pub(
                            unique.encode(), (reply % (unique, n, n)).encode(), b"x"
                        ).replace(
                            b"PUB %b " % unique.encode(), b"MSG %b %b " % (unique.encode(), sid)
                        )
                        for n in range(1, 41)
                    )
                )
                if read == "fetch":
                    assert [each.sequence for each in batch] == [*range(1, 11)]
                else:
                    assert [batch.next().sequence for _ in range(10)] == [*range(1, 11)]
                    assert batch.next(timeout=0) is None
                    batch.close()
            (event,) = seen(recorder, "stray_messages")
            assert (event.reason, event.messages) == ("surplus", 30)
            assert event.redelivered is (policy == "explicit")
