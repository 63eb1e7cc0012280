"""
Messages whose workers died, on real servers of several versions.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.streams import memory_stream, messages_in
from helpers.waiting import blocked, eventually
from jetsync.testing import CutProxy, HookRecorder
from jetsync.values.dead_letter import dead_letter

ADVISORIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"

WAIT = 0.3
"""The `ack_wait` of the consumers."""


class Case:
    """
    A stream, a consumer of it, and a stream for dead letters.
    """

    def __init__(self, js, name, retention, **consumer):
        self.js = js
        self.name = name
        self.stream = memory_stream(js, name, retention=retention)
        self.dead = memory_stream(js, f"{name}-DEAD")
        self.target = f"{name}-DEAD.orders"
        self.worker = self.stream.create_consumer(
            "worker", **{"max_deliver": 2, "ack_wait": WAIT, **consumer}
        )

    def publish(self, count, subject="a"):
        self.js.publish_many((f"{self.name}.{subject}", b"%d" % n) for n in range(count))

    def take(self):
        """Take what there is, and answer none of it."""
        return list(self.worker.fetch(100, expires=2 * WAIT)) or None

    def letters(self, **options):
        return self.stream.dead_letters("worker", self.target, **options)

    def stored(self):
        """The data of the dead letters."""
        return sorted(message.data for message in messages_in(self.dead))


@pytest.fixture(params=["2.10.26", "2.11.11", "2.12.8", "2.14.6", None])
def case_of(request, js_of, unique):
    """
    A function that makes a case on a server of each version.
    """
    js, made = js_of(request.param), []

    def case_of(retention, **consumer):
        made.append(Case(js, unique, retention, **consumer))
        return made[-1]

    yield case_of
    for case in made:
        js.delete_stream(case.name)
        js.delete_stream(case.dead.name)


@pytest.fixture
def case(js, unique):
    """
    A work queue on the newest server.
    """
    case = Case(js, unique, "workqueue")
    yield case
    js.delete_stream(case.name)
    js.delete_stream(case.dead.name)


def thread(act):
    """
    Start a thread, which does not keep a failed run from ending.
    """
    made = threading.Thread(target=act, daemon=True)
    made.start()
    return made


def die(case):
    """
    Have the server give up all messages of a case.
    """

    def is_over():
        case.take()
        info = case.worker.info()
        return info.num_ack_pending == info.num_pending == 0

    eventually(is_over, 20)


class TestVersions:
    pytestmark = pytest.mark.versions

    @pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
    def test_advisories(self, case_of, retention):
        """
        While it listens, each message that the server gives up gets one dead letter. The server
        keeps it no longer for the consumer.
        """
        case = case_of(retention)
        found = []
        taking = thread(lambda: found.extend(message.data for message in case.letters(idle=4)))
        case.publish(3)
        die(case)
        taking.join(40)
        assert sorted(found) == case.stored() == [b"0", b"1", b"2"]
        (letter, *_) = messages_in(case.dead)
        reason = letter.headers["Jetsync-Dead-Letter-Reason"]
        assert reason == "delivered 2 times, never acknowledged"
        eventually(lambda: case.worker.info().num_redelivered == 0)
        if retention != "limits":
            eventually(lambda: case.stream.info().state.messages == 0)

    def test_a_work_queue_is_scanned(self, case_of):
        """
        Messages that a work queue's server gave up while nobody listened are found later.
        """
        case = case_of("workqueue")
        case.publish(3)
        die(case)
        # These two are not given up.
        case.publish(2, "b")
        assert sorted(message.data for message in case.letters(idle=1)) == [b"0", b"1", b"2"]
        assert case.stored() == [b"0", b"1", b"2"]
        eventually(lambda: case.stream.info().state.messages == 2)
        assert list(case.letters(idle=1)) == []

    @pytest.mark.parametrize("retention", ["limits", "interest"])
    def test_stored_advisories(self, case_of, retention):
        """
        If a stream stores the advisories, nothing is missed on streams of other kinds either.
        """
        case = case_of(retention)
        kept = case.js.create_stream(
            f"{case.name}-ADVISORIES",
            subjects=[f"{ADVISORIES}.{case.name}.*"],
            retention="workqueue",
            storage="memory",
        )
        case.publish(3)
        die(case)
        eventually(lambda: kept.info().state.messages == 3)
        found = [message.data for message in case.letters(idle=1, advisories=kept.name)]
        assert sorted(found) == case.stored() == [b"0", b"1", b"2"]
        eventually(lambda: kept.info().state.messages == 0)
        eventually(lambda: case.worker.info().num_redelivered == 0)
        case.js.delete_stream(kept.name)


def test_put_back(case):
    """
    `replay` makes the original of a message that no worker has acknowledged.
    """
    case.publish(1)
    die(case)
    assert len(list(case.letters(idle=4))) == 1
    (letter,) = messages_in(case.dead)
    assert case.js.publish_many([jetsync.replay(letter)]).count == 1
    again = case.worker.next(expires=10)
    assert (again.subject, again.data, again.sequence) == (f"{case.name}.a", b"0", 2)


class TestOnce:
    def test_a_worker_died_after_it_stored_the_dead_letter(self, case):
        """
        A message that has a dead letter gets no second one, however long ago it was stored.
        """
        case.dead.update(duplicate_window=0.1)
        case.publish(2)
        first = case.worker.next(expires=10)
        letter = dead_letter(
            case.target,
            stream=case.name,
            consumer="worker",
            sequence=first.sequence,
            timestamp_ns=first.metadata.timestamp_ns,
            deliveries=1,
            subject=first.subject,
            raw_headers=None,
            data=first.data,
            reason="given up",
        )
        case.js.publish_many([letter])
        die(case)
        assert [message.data for message in case.letters(idle=1)] == [b"1"]
        assert case.stored() == [b"0", b"1"]
        eventually(lambda: case.stream.info().state.messages == 0)

    def test_two_at_once(self, case):
        """
        Two processes that listen store one dead letter of each message.
        """
        case.publish(50)
        found = []

        def take():
            with jetsync.connect(case.js._context.connection.server.url) as client:
                stream = client.jetstream().stream(case.name)
                found.extend(stream.dead_letters("worker", case.target, idle=3))

        both = [thread(take) for _ in range(2)]
        die(case)
        for each in both:
            each.join(60)
        assert len(found) == len(case.stored()) == 50


class TestTrouble:
    def test_the_stream_of_the_dead_letters_is_away(self, case):
        """
        A dead letter that cannot be stored is stored later, and its message stays until then.
        """
        case.publish(1)
        die(case)
        letters = case.letters()
        case.js.delete_stream(case.dead.name)
        found = []
        taking = thread(lambda: found.append(next(letters)))
        taking.join(6)
        assert (found, case.stream.info().state.messages) == ([], 1)
        memory_stream(case.js, case.dead.name)
        taking.join(60)
        assert [message.data for message in found] == case.stored() == [b"0"]
        letters.close()

    def test_after_a_reconnect(self, case, nats_server):
        """
        Advisories that the client misses while it is disconnected are made up for.
        """
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.05) as client,
        ):
            letters = client.jetstream().stream(case.name).dead_letters("worker", case.target)
            found = []
            before = client.statistics().bytes_in
            thread(lambda: found.extend(letters))
            # The answer to the first scan: after it, the next one is far off.
            eventually(lambda: client.statistics().bytes_in > before)
            proxy.refuse()
            proxy.cut()
            case.publish(1)
            die(case)
            proxy.accept()
            eventually(lambda: found)

    @pytest.mark.parametrize(
        "advisory",
        [
            b"nonsense",
            b"[]",
            b"[" * 100_000,
            b"{}",
            b'{"stream_seq": 1e400, "deliveries": 2}',
            b'{"stream_seq": 0, "deliveries": 2}',
            b'{"stream_seq": -1, "deliveries": 2}',
            b'{"stream_seq": "1", "deliveries": 2}',
            b'{"stream_seq": 1, "deliveries": null}',
            b'{"stream_seq": 1, "deliveries": 1%b}' % (b"0" * 4200),
        ],
        ids=range(10),
    )
    def test_what_is_no_advisory(self, case, nats_server, caplog, advisory):
        """
        A message of another client on the subject of advisories is skipped, whatever it contains.
        """
        case.publish(1)
        found = []
        taking = thread(lambda: found.extend(case.letters(idle=1)))
        eventually(lambda: case.js._context.connection.subscriptions)
        with jetsync.connect(nats_server.url) as client:
            client.publish(f"{ADVISORIES}.{case.name}.worker", advisory)
            client.flush()
            eventually(lambda: "advisory_invalid" in caplog.text)
            # The iterator still works.
            die(case)
            taking.join(30)
        assert [message.data for message in found] == [b"0"]

    def test_what_is_no_advisory_is_not_kept(self, case):
        """
        A stream of advisories delivers a malformed one once.
        """
        topic = f"{ADVISORIES}.{case.name}.worker"
        kept = case.js.create_stream(
            f"{case.name}-KEPT", subjects=[topic], retention="workqueue", storage="memory"
        )
        case.js.publish(topic, b"nonsense")
        assert list(case.letters(idle=1, advisories=kept.name)) == []
        eventually(lambda: kept.info().state.messages == 0)
        case.js.delete_stream(kept.name)

    def test_a_message_that_is_gone(self, case, nats_server, caplog):
        """
        An advisory about a message that was deleted is skipped.
        """
        case.publish(1)
        die(case)
        case.stream.delete_message(1)
        letters = case.letters(idle=1)
        found = []
        taking = thread(lambda: found.extend(letters))
        eventually(lambda: case.js._context.connection.subscriptions)
        with jetsync.connect(nats_server.url) as client:
            topic = f"{ADVISORIES}.{case.name}.worker"
            client.publish(topic, json.dumps({"stream_seq": 1, "deliveries": 2}))
            client.flush()
            taking.join(30)
        assert found == []
        assert "dead_letter_gone" in caplog.text

    def test_an_advisory_about_an_earlier_consumer(self, case, nats_server, caplog):
        """
        A message that the consumer has yet to deliver gets no dead letter, and stays.
        """
        case.publish(1)
        die(case)
        case.stream.delete_consumer("worker")
        case.worker = case.stream.create_consumer("worker", max_deliver=2, ack_wait=60)
        found = []
        taking = thread(lambda: found.extend(case.letters(idle=1)))
        eventually(lambda: case.js._context.connection.subscriptions)
        with jetsync.connect(nats_server.url) as client:
            topic = f"{ADVISORIES}.{case.name}.worker"
            client.publish(topic, json.dumps({"stream_seq": 1, "deliveries": 2}))
            client.flush()
            eventually(lambda: "advisory_outdated" in caplog.text)
            taking.join(30)
        assert (found, case.stored()) == ([], [])
        assert case.worker.next(expires=20).data == b"0"

    def test_a_hint_at_what_may_be_missing(self, js, unique, caplog):
        """
        On a stream that keeps acknowledged messages, the log says that messages may be missing.
        """
        case = Case(js, unique, "limits")
        case.publish(2)
        die(case)
        assert list(case.letters(idle=0)) == []
        assert "dead_letters_may_be_missing" in caplog.text
        js.delete_stream(case.name)
        js.delete_stream(case.dead.name)


class TestEnds:
    @pytest.mark.parametrize("how", ["close", "drain"])
    def test_with_the_client(self, case, nats_server, how):
        """
        The iteration ends when the client is closed or drained, without an error.
        """
        client = jetsync.connect(nats_server.url)
        letters = client.jetstream().stream(case.name).dead_letters("worker", case.target)
        ended = threading.Event()

        def take():
            assert list(letters) == []
            ended.set()

        thread(take)
        eventually(lambda: client._connection.subscriptions)
        getattr(client, how)()
        assert ended.wait(20)
        client.close()

    def test_the_consumer_is_deleted(self, case):
        """
        The iteration raises if the consumer or the stream is deleted.
        """
        letters = case.letters()
        case.stream.delete_consumer("worker")
        with pytest.raises(jetsync.ConsumerNotFoundError):
            next(letters)

    def test_one_call_at_a_time(self, case):
        """
        A second call is refused while one waits for a message.
        """
        letters = case.letters(idle=3)
        taking = thread(lambda: list(letters))
        eventually(lambda: letters.is_running)
        with pytest.raises(jetsync.ConflictingUseError, match="iterator of dead letters"):
            next(letters)
        taking.join(40)


class TestChecks:
    @pytest.mark.parametrize(
        "fields", [{"max_deliver": -1}, {"ack_policy": "none", "max_deliver": 1}]
    )
    def test_a_consumer_whose_messages_are_never_given_up(self, js, stream, unique, fields):
        """
        A consumer that the server never gives messages up for is refused.
        """
        stream.create_consumer("endless", **fields)
        with pytest.raises(jetsync.InvalidArgumentError, match="'endless' needs ack_policy"):
            stream.dead_letters("endless", f"{unique}.dead")

    def test_names_with_hyphens_share_no_reader(self, js, unique):
        """
        Advisories of stream `a-b` with consumer `c`, and of `a` with `b-c`, are read separately.
        """
        pairs = ((f"{unique}-b", "c"), (unique, "b-c"))
        dead = memory_stream(js, f"{unique}-DEAD")
        kept = js.create_stream(
            f"{unique}-ADVISORIES",
            subjects=[f"{ADVISORIES}.{name}.*" for name, _ in pairs],
            storage="memory",
        )
        for name, consumer in pairs:
            stream = memory_stream(js, name)
            stream.create_consumer(consumer, max_deliver=1)
            stream.dead_letters(consumer, f"{dead.name}.x", advisories=kept.name)
        assert len(list(kept.consumers())) == 2
        for name in (*(name for name, _ in pairs), dead.name, kept.name):
            js.delete_stream(name)

    def test_arguments(self, case):
        """
        Wrong arguments are refused at the call.
        """
        for error, arguments in (
            (jetsync.ConsumerNotFoundError, ("nobody", case.target)),
            (jetsync.InvalidNameError, ("a.b", case.target)),
            (jetsync.InvalidSubjectError, ("worker", "dead.*")),
            (jetsync.NoStreamResponseError, ("worker", f"nowhere.{case.name}")),
        ):
            with pytest.raises(error):
                case.stream.dead_letters(*arguments)
        with pytest.raises(jetsync.InvalidArgumentError, match="get its own") as caught:
            case.stream.dead_letters("worker", f"{case.name}.dead")
        assert caught.value.argument == "subject"
        with pytest.raises(jetsync.InvalidArgumentError, match="does not store"):
            case.letters(advisories=case.dead.name)
        with pytest.raises(jetsync.StreamNotFoundError):
            case.letters(advisories="NOWHERE")
        with pytest.raises(jetsync.InvalidArgumentError, match="idle"):
            case.letters(idle=-1)


def test_events(case, nats_server):
    """
    Plugins get the same event as for dead letters of handlers.
    """
    recorder = HookRecorder("jetsync_status")
    case.publish(1)
    die(case)
    with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
        stream = client.jetstream().stream(case.name)
        (message,) = stream.dead_letters("worker", case.target, idle=1)
    events = [call["event"] for call in recorder.of("jetsync_status")]
    (event,) = [each for each in events if isinstance(each, jetsync.DeadLetterEvent)]
    assert (event.sequence, event.deliveries, event.error) == (message.sequence, 2, None)


def test_one_call_at_a_time(case):
    """
    While a thread waits for the next dead letter, the call of another one is refused.
    """
    letters = case.letters(idle=5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, letters, None)
        blocked(pool)
        with pytest.raises(jetsync.ConflictingUseError):
            next(letters)
        assert waiting.result(30) is None
