"""
What each path that publishes makes of each cause: the outcome, and whether plugins are asked.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from types import SimpleNamespace

import pytest

import jetsync
from helpers.scripted_lane import ScriptedContext, ScriptedLane
from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch
from jetsync._io.outbox import LaneState
from jetsync._proto.batch import AtomicBatchEngine, Part
from jetsync._proto.fastingest import FastIngest
from jetsync._proto.outcome import Again, Cause, Ending, outcome_of
from jetsync._proto.pipeline import Pipeline
from jetsync._proto.puback import parse_ack
from jetsync.objects.bucket import Bucket
from jetsync.objects.info import complete
from jetsync.objects.upload import Chunk, Upload
from jetsync.publish.atomic import AtomicBatch
from jetsync.publish.atomic_attempt import BatchAttempt, retryable_failure
from jetsync.publish.flight import Flight, FlightOptions
from jetsync.publish.future import PublishFuture
from jetsync.publish.one import publish_one
from jetsync.publish.retry import is_safe_to_retry
from jetsync.values.outbound import Expect, OutboundMessage

UNREADABLE = b"no JSON"
NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"

# The errors of streams: code and err_code.
REFUSALS = {
    Cause.OWN_CONDITION: (400, 10071),
    Cause.BUSY: (503, 10023),
    Cause.IN_PROCESS: (409, 10158),
    Cause.REFUSED: (400, 10077),
}
JSON = b'{"error":{"code":%d,"err_code":%d,"description":"no"},"stream":"S"}'
ANSWERS = {
    **{cause: JSON % numbers for cause, numbers in REFUSALS.items()},
    Cause.UNREADABLE: UNREADABLE,
}

# The failures of a single request, and whether it was sent.
RAISED = {
    (Cause.NO_STREAM, True): errors.NoRespondersError("a"),
    (Cause.SILENT, True): errors.RequestTimeoutError("a", 1.0),
    (Cause.LOST, True): errors.ConnectionLostError(),
    (Cause.LOST, False): errors.ConnectionLostError(sent=False),
    (Cause.DOWN, False): errors.DisconnectedError(),
    (Cause.CLOSED, True): errors.ConnectionClosedError(sent=True),
    (Cause.CLOSED, False): errors.ConnectionClosedError(),
    (Cause.DENIED, True): errors.PermissionDeniedError("a", "publish", sent=True),
    (Cause.DENIED, False): errors.PermissionDeniedError("a", "publish"),
    (Cause.INVALID, False): errors.MaxPayloadError(9, 1),
}


# Longer than any test takes.
ACK_TIMEOUT = 1000.0


class Asked:
    """
    A plugin that wants one more attempt, but only after the first *again* failures.
    """

    def __init__(self, again):
        self.again = again
        self.errors = []
        self.attempts = []
        self.elapsed = []

    @jetsync.hookimpl
    def jetsync_retry(self, operation, error, attempt):
        self.errors.append(error)
        self.attempts.append(attempt)
        self.elapsed.append(operation.elapsed)
        return 0.0 if len(self.errors) <= self.again else None


def message(*, safe):
    """
    Return a message, with an id if it is safe to repeat it.
    """
    return OutboundMessage("a", b"x", msg_id="1" if safe else None)


def ending_of(error):
    """
    Return what the caller learns from an error.
    """
    unknown = isinstance(error, errors.PublishOutcomeUnknownError)
    return Ending.UNKNOWN if unknown else Ending.NOT_STORED


def context_of(exchange, retry):
    """
    Return a context whose requests are calls of *exchange*.
    """
    plugins = SimpleNamespace(
        status=None, enter_publish=None, prepare=None, shared_headers=None, retry=retry
    )
    connection = ScriptedContext(ScriptedLane())
    connection.exchange, connection.closing = exchange, Latch()
    return SimpleNamespace(connection=connection, plugins=plugins)


def ends(outcomes):
    """
    Return a function that exchanges requests, which have *outcomes*.
    """

    def exchange(*_, **options):
        outcome = outcomes.pop(0)
        if isinstance(outcome, errors.JetSyncError):
            raise outcome
        return outcome

    return exchange


def run_single(exchange, retry, *, safe, retries=0):
    """
    Publish one message by *exchange*.
    """
    deadline, context = Deadline.after(10), context_of(exchange, retry)
    return publish_one(context, message(safe=safe), deadline, retries=retries, retry_wait=0.0)


def publish(outcomes, retry, *, safe, retries=0):
    """
    Publish one message whose attempts have *outcomes*.
    """
    return run_single(ends(outcomes), retry, safe=safe, retries=retries)


def failure(cause, *, sent):
    """
    Return how a request fails.
    """
    return RAISED.get((cause, sent)) or (b"", b"", None, ANSWERS[cause])


def single(cause, *, sent, earlier, safe):
    """
    Publish one message. Return the outcome, and whether the plugin was asked about the failure.
    """
    outcomes = [RAISED[Cause.LOST, True]] if earlier else []
    outcomes.append(failure(cause, sent=sent))
    asked = Asked(int(earlier))
    with pytest.raises(errors.JetSyncError) as caught:
        publish(outcomes, asked.jetsync_retry, safe=safe)
    return ending_of(caught.value), len(asked.errors) > earlier


class WindowRun:
    """
    A window with one message, which is staged or in flight, and whose attempt the test ends.
    """

    def __init__(self, *, safe, earlier, plugin=True, retries=0):
        self.lane = ScriptedLane()
        self.asked = Asked(int(earlier))
        context = ScriptedContext(self.lane, [self.asked] if plugin else ())
        self.server = context.server
        context.probe = lambda: None
        options = FlightOptions(ack_timeout=ACK_TIMEOUT, retries=retries, retry_wait=0.0)
        self.window = Flight(context, options, keep_acks=True)
        self.future = PublishFuture(None, message(safe=safe))
        assert self.window.add(self.future)
        if earlier:
            self.window.flush()
            self.answer(UNREADABLE)
            self.window.settle()
            assert len(self.asked.errors) == 1

    def send(self):
        """
        Write the message.
        """
        before = len(self.lane.payloads)
        self.window.flush()
        self.settle_until(lambda: len(self.lane.payloads) > before)

    def settle_until(self, happened):
        """
        Take the window's steps, none of which waits, until something has happened.
        """
        for _ in range(10):
            if happened():
                return
            self.window.settle()
        assert happened()

    def answer(self, data, header=None):
        """
        Answer the attempt in flight.
        """
        self.lane.answer(self.lane.transport.published()[-1], data, header)

    def lose(self):
        """
        Lose the connection, and make another one.
        """
        self.lane.lose()
        self.lane.reconnect()

    def end(self, cause):
        """
        Have the attempt in flight fail.
        """
        if cause is Cause.SILENT:
            self.window.pipeline.expire(math.inf)
        elif cause is Cause.NO_STREAM:
            self.answer(b"", NO_RESPONDERS)
        elif cause is Cause.LOST:
            self.lose()
        elif cause is Cause.CLOSED:
            self.lane.close()
        else:
            self.answer(ANSWERS[cause])

    def end_unsent(self, cause):
        """
        Have the staged message fail.
        """
        if cause is Cause.CLOSED:
            self.lane.close()
            return
        if cause is Cause.INVALID:
            self.server.max_payload = 0
            # No message is in flight. The next connection has another limit.
            self.lane.epoch += 1
            return
        self.lane.state = LaneState.DOWN
        self.window.settle()
        # The wait for a connection has ended.
        self.window.stalled = -math.inf

    def deny(self, *, sent):
        """
        Refuse the subject of the message in flight.
        """
        denial = errors.PermissionDeniedError("a", "publish", sent=sent)
        self.window.box.refuse(list(self.window.pipeline.in_flight), denial)

    def result(self):
        """
        Return the outcome, and whether the plugin was asked about the last failure.
        """
        self.settle_until(lambda: self.window.failures)
        ((_, future, error),) = self.window.failures
        assert future is self.future
        return ending_of(error), len(self.asked.errors) > self.asked.again


def many(cause, *, sent, earlier, safe):
    """
    As `single`, for a message of a window.
    """
    run = WindowRun(safe=safe, earlier=earlier)
    if cause is Cause.DENIED:
        run.send()
        run.deny(sent=sent)
    elif sent:
        run.send()
        run.end(cause)
    else:
        run.end_unsent(cause)
    return run.result()


SENT = [Cause.NO_STREAM, Cause.SILENT, Cause.LOST, Cause.CLOSED, Cause.DENIED, *ANSWERS]
UNSENT = [Cause.DOWN, Cause.CLOSED, Cause.DENIED, Cause.INVALID]
CASES = [*((cause, True) for cause in SENT), *((cause, False) for cause in UNSENT)]

# A path without time for another attempt does not ask.
OUT_OF_TIME = {many: {(Cause.DOWN, False), (Cause.CLOSED, True)}}


def check(path, cause, *, sent, earlier, safe):
    """
    Compare what a path makes of a cause with the table.
    """
    rule = outcome_of(cause, sent=sent, earlier=earlier, safe=safe)
    asks = rule.may_repeat_message and (cause, sent) not in OUT_OF_TIME.get(path, ())
    assert path(cause, sent=sent, earlier=earlier, safe=safe) == (rule.ending, asks)


@pytest.mark.parametrize("path", [single, many], ids=lambda path: path.__name__)
class TestMessages:
    @pytest.mark.parametrize(("cause", "sent"), CASES)
    @pytest.mark.parametrize("safe", [False, True])
    def test_a_first_attempt(self, path, cause, sent, safe):
        """The first attempt ends as the table says, and a plugin is asked when it says so."""
        check(path, cause, sent=sent, earlier=False, safe=safe)

    @pytest.mark.parametrize(("cause", "sent"), CASES)
    def test_after_an_unknown_outcome(self, path, cause, sent):
        """So does an attempt after one whose outcome is unknown, which only a safe message has."""
        check(path, cause, sent=sent, earlier=True, safe=True)


def after_no_stream(path, cause, *, sent):
    """
    Publish one message that no stream takes. Return its outcome after another attempt failed.
    """
    if path is single:
        with pytest.raises(errors.JetSyncError) as caught:
            publish(
                [RAISED[Cause.NO_STREAM, True], failure(cause, sent=sent)],
                Asked(1).jetsync_retry,
                safe=True,
            )
        return ending_of(caught.value)
    run = WindowRun(safe=True, earlier=False)
    run.asked.again = 1
    run.send()
    run.end(Cause.NO_STREAM)
    run.window.settle()
    run.send()
    run.end(cause)
    ending, _ = run.result()
    return ending


@pytest.mark.parametrize("path", [single, many], ids=lambda path: path.__name__)
@pytest.mark.parametrize("cause", [Cause.NO_STREAM, Cause.REFUSED, Cause.SILENT])
def test_an_attempt_after_a_certain_failure(path, cause):
    """An earlier attempt whose outcome is known does not make that of the last one unknown."""
    rule = outcome_of(cause, sent=True, safe=True)
    assert after_no_stream(path, cause, sent=True) is rule.ending


@pytest.mark.parametrize("cause", [Cause.NO_STREAM, Cause.DENIED, Cause.UNREADABLE])
def test_a_closed_client_asks_no_plugin(cause):
    """A window whose client was closed asks no plugin, however the attempt ended."""
    run = WindowRun(safe=True, earlier=False)
    run.send()
    if cause is Cause.DENIED:
        run.deny(sent=True)
    else:
        run.end(cause)
    run.lane.close()
    _, asked = run.result()
    assert not asked


@pytest.mark.parametrize(("cause", "sent"), [*CASES, (Cause.LOST, False)])
def test_without_a_plugin(cause, sent):
    """The options have only those messages sent again that no stream took."""
    outcomes = [failure(cause, sent=sent), (b"", b"", None, b'{"stream":"S","seq":1}')]
    if outcome_of(cause, sent=sent, safe=True).again is Again.COUNTED:
        assert publish(outcomes, None, safe=True, retries=1).sequence == 1
    else:
        with pytest.raises(errors.JetSyncError):
            publish(outcomes, None, safe=True, retries=1)
        assert len(outcomes) == 1


@pytest.mark.parametrize("cause", SENT)
@pytest.mark.parametrize("retries", [0, 2])
def test_a_window_without_a_plugin(cause, retries):
    """The options say how often a window sends a message that no stream took, and no other."""
    run = WindowRun(safe=True, earlier=False, plugin=False, retries=retries)
    is_counted = outcome_of(cause, sent=True, safe=True).again is Again.COUNTED
    for _ in range(1 + retries * is_counted):
        run.send()
        run.end(cause) if cause is not Cause.DENIED else run.deny(sent=True)
    run.result()
    assert len(run.lane.payloads) == 1 + retries * is_counted
    ((_, _, error),) = run.window.failures
    if is_counted:
        assert error.attempts == 1 + retries


@pytest.mark.parametrize("cause", [Cause.SILENT, Cause.LOST])
def test_the_reason_of_an_unknown_outcome(cause):
    """The error gives the timeout after a silence, and otherwise the reason."""
    with pytest.raises(errors.PublishOutcomeUnknownError) as caught:
        publish([failure(cause, sent=True)], None, safe=False)
    assert caught.value.__cause__ is failure(cause, sent=True)
    run = WindowRun(safe=False, earlier=False)
    run.send()
    run.end(cause)
    run.result()
    ((_, _, of_window),) = run.window.failures
    for error in (caught.value, of_window):
        assert (error.timeout is None) is (cause is not Cause.SILENT)
        assert (error.reason is None) is (cause is Cause.SILENT)


@pytest.mark.parametrize("cause", [Cause.NO_STREAM, Cause.REFUSED])
def test_the_reason_after_an_unknown_outcome(cause):
    """The error says that an earlier attempt may be stored, although the last one is not."""
    outcomes = [RAISED[Cause.LOST, True], failure(cause, sent=True)]
    with pytest.raises(errors.PublishOutcomeUnknownError, match="an earlier attempt got no answer"):
        publish(outcomes, Asked(1).jetsync_retry, safe=True)


@pytest.mark.parametrize(
    ("item", "is_safe"),
    [
        (("a", b"x"), False),
        (OutboundMessage("a", b"x"), False),
        (OutboundMessage("a", b"x", msg_id="1"), True),
        (OutboundMessage("a", b"x", expect=Expect(last_sequence=1)), True),
        (OutboundMessage("a", b"x", expect=Expect(last_subject_sequence=1)), False),
        (OutboundMessage("a", b"x", expect=Expect(last_msg_id="1")), False),
    ],
)
def test_which_messages_are_safe(item, is_safe):
    """The stream drops or refuses the copy of a message with an id or an expected sequence."""
    assert is_safe_to_retry(item) is is_safe


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("cause", [Cause.SILENT, Cause.LOST])
def test_the_time_of_a_message(cause, earlier):
    """It counts from the first failure or, if the first attempt got no answer, from its start."""
    run = WindowRun(safe=True, earlier=earlier)
    run.send()
    run.end(cause)
    run.result()
    was_silent = cause is Cause.SILENT and not earlier
    assert (run.asked.elapsed[-1] >= ACK_TIMEOUT) is was_silent


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("cause", [Cause.SILENT, Cause.LOST, Cause.REFUSED])
def test_an_answer_that_is_late(wanted, cause):
    """
    A plugin is asked about a late answer. If it wants no other attempt, silence changes nothing.
    """
    asked = Asked(int(wanted))

    def exchange(*_, late, ask, **options):
        assert (ask() is not None) is wanted
        return ends([failure(cause, sent=True)])()

    with pytest.raises(errors.JetSyncError) as caught:
        run_single(exchange, asked.jetsync_retry, safe=True)
    rule = outcome_of(cause, sent=True, earlier=wanted, safe=True)
    assert ending_of(caught.value) is rule.ending
    asks = rule.may_repeat_message and (wanted or cause is not Cause.SILENT)
    assert len(asked.errors) == 1 + asks
    assert asked.attempts == [1, 1 + wanted][: 1 + asks]
    assert {ending_of(error) for error in asked.errors} == {Ending.UNKNOWN}


def test_a_single_message_before_it_was_sent():
    """A connection that is lost before a single message was sent leaves it not stored."""
    for earlier, safe in ((False, False), (False, True), (True, True)):
        check(single, Cause.LOST, sent=False, earlier=earlier, safe=safe)


class Documents(Bucket):
    """
    An object store whose requests have *outcomes*, and that finds *found* after each of them.
    """

    __slots__ = ("checks", "found", "looks")

    def __init__(self, outcomes, found=None):
        info = SimpleNamespace(config=SimpleNamespace(name="OBJ_b"))
        super().__init__(context_of(ends(outcomes), None), "b", info)
        self.looks = self.checks = 0
        self.found = found

    def last(self, name, deadline, **options):
        self.looks += 1
        return self.found

    def check_exists(self, deadline):
        self.checks += 1


class TestDocuments:
    @pytest.mark.parametrize(("cause", "sent"), [*CASES, (Cause.LOST, False)])
    @pytest.mark.parametrize("earlier", [False, True])
    def test_an_attempt(self, cause, sent, earlier):
        """The store looks whether it has a document if the table asks for another attempt."""
        bucket = Documents([failure(cause, sent=sent)])
        rule = outcome_of(cause, sent=sent, earlier=earlier, safe=True)
        with pytest.raises(errors.JetSyncError) as caught:
            bucket.store("a", {}, None, Deadline.after(0), earlier=earlier)
        assert ending_of(caught.value) is rule.ending
        assert not isinstance(caught.value.__cause__, errors.PublishOutcomeUnknownError)
        looks = rule.again in {Again.ASK, Again.LOOK} or cause is Cause.OWN_CONDITION
        assert bucket.looks == looks
        assert bucket.checks == (cause is Cause.NO_STREAM)

    @pytest.mark.parametrize("cause", [Cause.SILENT, Cause.OWN_CONDITION])
    def test_a_document_that_is_stored(self, cause):
        """The put succeeds if the store has the document."""
        document = {"name": "a", "size": 0, "chunks": 0}
        found = SimpleNamespace(revision=7, document=complete(document, name="a"))
        bucket = Documents([failure(cause, sent=True)], found)
        assert bucket.store("a", document, None, Deadline.after(10)) is found

    @pytest.mark.parametrize("cause", [Cause.NO_STREAM, Cause.BUSY, Cause.INVALID])
    def test_a_document_that_is_stored_by_an_earlier_attempt(self, monkeypatch, cause):
        """The put succeeds if the store has the document, whatever ended the last attempt."""

        def publish_one(*_, **__):
            found = failure(cause, sent=cause is not Cause.INVALID)
            last = found if isinstance(found, errors.JetSyncError) else errors.ProtocolError("x")
            raise errors.PublishOutcomeUnknownError("a") from last

        monkeypatch.setattr("jetsync.objects.bucket.publish_one", publish_one)
        document = {"name": "a", "size": 0, "chunks": 0}
        found = SimpleNamespace(revision=7, document=complete(document, name="a"))
        bucket = Documents([], found)
        assert bucket.store("a", document, None, Deadline.after(10)) is found

    @pytest.mark.parametrize("cause", [Cause.SILENT, Cause.OWN_CONDITION])
    @pytest.mark.parametrize("earlier", [False, True])
    def test_another_document(self, cause, earlier):
        """If the object has changed, the outcome of an attempt that may be stored is unknown."""
        found = SimpleNamespace(revision=7, document={})
        bucket = Documents([failure(cause, sent=True)], found)
        with pytest.raises(errors.JetSyncError) as caught:
            bucket.store("a", {}, None, Deadline.after(10), earlier=earlier)
        rule = outcome_of(cause, sent=True, earlier=earlier, safe=True)
        assert ending_of(caught.value) is rule.ending

    @pytest.mark.parametrize(
        ("cause", "sent"), [(Cause.LOST, False), (Cause.LOST, True), (Cause.SILENT, True)]
    )
    def test_another_attempt(self, cause, sent):
        """The store sends a document again that it does not have."""
        ack = b"", b"", None, b'{"stream":"OBJ_b","seq":1}'
        bucket = Documents([failure(cause, sent=sent), ack])
        assert bucket.store("a", {}, None, Deadline.after(10)).revision == 1

    def test_a_document_that_was_there_before(self):
        """A document that is equal to the old one is not taken for the one that was sent."""
        document = {"name": "a", "size": 0, "chunks": 0}
        old = SimpleNamespace(revision=7, is_padded=True, document=complete(document, name="a"))
        ack = b"", b"", None, b'{"stream":"OBJ_b","seq":8}'
        bucket = Documents([failure(Cause.SILENT, sent=True), ack], old)
        assert bucket.store("a", document, old, Deadline.after(10)).revision == 8


@pytest.mark.parametrize(("cause", "sent"), [*CASES, (Cause.LOST, False)])
def test_a_chunk(cause, sent):
    """A chunk is sent again when the table says so. Otherwise the put fails with its error."""
    put, again = upload(), []
    found = fail_chunk(put, cause, sent=sent)
    error, rule = put._failure
    assert rule is outcome_of(cause, sent=sent, safe=True)
    assert ending_of(error) is rule.ending if rule.may_repeat_batch else error is found
    assert not isinstance(error, errors.NoRespondersError)
    put._in_flight, put._send_again = deque(), lambda: again.append(cause)
    if rule.may_repeat_batch:
        put._proceed()
        assert again
    else:
        with pytest.raises(type(found)):
            put._proceed()
        assert not again


@pytest.mark.parametrize("causes", [*itertools.permutations([Cause.LOST, Cause.REFUSED])])
def test_two_chunks(causes):
    """If one of two chunks that failed may not be sent again, the put fails with its error."""
    put = upload()
    found = {cause: fail_chunk(put, cause, sent=True) for cause in causes}
    assert put._failure[0] is found[Cause.REFUSED]


def upload():
    """
    Return the part of a put that keeps the failures of its chunks.
    """
    put = object.__new__(Upload)
    put._subject, put._hooks, put._failure = "s", SimpleNamespace(reports=None), None
    return put


def fail_chunk(put, cause, *, sent):
    """
    Have a chunk fail, and return the error.
    """
    found = failure(cause, sent=sent)
    if not isinstance(found, errors.JetSyncError):
        found = errors.ProtocolError("x") if cause is Cause.UNREADABLE else parse_ack(found[3])
    put._fail(Chunk(None, 1, "n-0"), found)
    return found


class BatchRun:
    """
    An atomic batch of one message, whose commit ends as the test decides.
    """

    def __init__(self, outcome, *, safe):
        self.batch = SimpleNamespace(batch=None)
        self.outcome = outcome
        known = SimpleNamespace(name="S", epoch=1, level=4, config=jetsync.StreamConfig(name="S"))
        wire = SimpleNamespace(last=lambda part, item: (b"a", b"", b""), blocks=lambda *_: ())
        wire.head = b""
        messages = SimpleNamespace(
            known=known, wire=wire, targets={"a": b"a"}, all_have_ids=lambda count: safe
        )
        context = ScriptedContext(ScriptedLane())
        context.streams = SimpleNamespace(batch_limits={})
        context.exchange = self.exchange
        context.router = None
        self.flushes = []
        context.flush_refusals = self.flushes.append
        context.lane.later = lambda *_: None
        context.lane.post_nowait = lambda *_: None
        engine = AtomicBatchEngine("b")
        engine.start()
        self.attempt = BatchAttempt(context, engine, messages)
        self.attempt.messages = messages

    def exchange(self, *_, **options):
        """
        End the request that commits.
        """
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def commit(self):
        """
        Commit, and return the error.
        """
        return self.send(self.attempt.engine.commit_all([(b"a", b"", b"x")], None))

    def add(self):
        """
        Send a message before the commit, and return the error.
        """
        part = self.attempt.engine.add((b"a", b"", b"x"))
        return self.send([Part(part.first, part.items, asks=True)])

    def send(self, parts):
        """
        Send *parts*, and return the error.
        """
        with pytest.raises((errors.JetSyncError, KeyboardInterrupt)) as caught:
            self.attempt.send(parts, Deadline.after(10))
        return caught.value


class Resent(AtomicBatch):
    """
    An atomic batch whose commit fails with *failures*, one for each attempt, and then succeeds.
    """

    def __init__(self, failures, *, whole, retries):
        self.failures = list(failures)
        self._context = context_of(None, None)
        self._engine = SimpleNamespace(earlier=False, ack="the ack")
        self._attempt = SimpleNamespace(whole=whole)
        self._options = SimpleNamespace(retries=retries, retry_wait=0.0)

    def _resend(self, deadline):
        if self.failures:
            raise self.failures.pop(0)

    def send(self, seconds):
        """
        Commit, and return the ack.
        """
        deadline = Deadline.after(seconds)
        return self._send_until_stored(lambda: self._resend(deadline), deadline)


def batch(cause, *, sent, earlier, safe):
    """
    As `single`, for an atomic batch: whether it may be sent again.
    """
    run = BatchRun(failure(cause, sent=sent), safe=safe)
    error = run.commit()
    state = run.attempt.engine.ending
    assert (state is Ending.UNKNOWN) is (ending_of(error) is Ending.UNKNOWN)
    try:
        found, _ = retryable_failure(error, run.batch, run.attempt, 1, earlier=earlier)
    except errors.JetSyncError as final:
        last, again = final, False
    else:
        last, again = found, True
    if state is Ending.UNKNOWN and not earlier:
        assert last is error
    return ending_of(last), again


class TestBatches:
    @pytest.mark.parametrize(("cause", "sent"), [*CASES, (Cause.LOST, False)])
    @pytest.mark.parametrize(("earlier", "safe"), [(False, False), (False, True), (True, True)])
    def test_a_commit(self, cause, sent, earlier, safe):
        """A commit ends as the table says, and the batch may be sent again when it says so."""
        rule = outcome_of(cause, sent=sent, earlier=earlier, safe=safe)
        found = batch(cause, sent=sent, earlier=earlier, safe=safe)
        assert found == (rule.ending, rule.may_repeat_batch)

    @pytest.mark.parametrize(("cause", "sent"), CASES)
    def test_a_message_before_the_commit(self, cause, sent):
        """Without its commit, a batch is not stored, even if the server may have a message."""
        run = BatchRun(failure(cause, sent=sent), safe=True)
        assert ending_of(run.add()) is Ending.NOT_STORED
        assert run.attempt.engine.ending is not Ending.UNKNOWN

    @pytest.mark.parametrize(("cause", "sent"), CASES)
    def test_other_refusals(self, cause, sent):
        """If the server refused a message, the batch waits for the refusals of others."""
        run = BatchRun(failure(cause, sent=sent), safe=True)
        run.add()
        assert bool(run.flushes) is (cause is Cause.DENIED and not sent)

    @pytest.mark.parametrize(
        ("error", "at_once", "is_counted"),
        [
            (errors.ConnectionLostError(sent=False), True, False),
            # Of a lookup.
            (errors.ConnectionLostError(), True, False),
            (errors.DisconnectedError(), False, False),
            (errors.NoStreamResponseError("a"), False, True),
            (errors.TemporarilyUnavailableError(), False, True),
            (errors.TooManyInflightError(), False, False),
        ],
    )
    def test_how_a_batch_is_sent_again(self, error, at_once, is_counted):
        """A batch goes at once after a loss before it was sent, and some others as often as set."""
        _, rule = retryable_failure(error, None, None, 1, earlier=False)
        assert (rule.repeats_whole_batch, rule.counts_batch) == (at_once, is_counted)

    @pytest.mark.parametrize(
        ("failures", "retries"),
        [
            ([errors.ConnectionLostError(sent=False)] * 3, 0),
            ([errors.NoStreamResponseError("a")] * 2, 2),
            ([errors.ConnectionLostError(sent=False), errors.TemporarilyUnavailableError()], 1),
        ],
    )
    def test_a_batch_that_is_sent_again(self, failures, retries):
        """An attempt at once does not count, and the options limit the others."""
        assert Resent(failures, whole=True, retries=retries).send(10) == "the ack"

    @pytest.mark.parametrize(
        ("error", "whole", "seconds", "retries"),
        [
            # The program made the batch message by message.
            (errors.ConnectionLostError(sent=False), False, 10, 2),
            (errors.ConnectionLostError(sent=False), True, 0, 2),
            (errors.DisconnectedError(), True, 10, 2),
            (errors.TooManyInflightError(), True, 10, 2),
            (errors.NoStreamResponseError("a"), True, 10, 0),
        ],
    )
    def test_a_batch_that_is_not_sent_again(self, error, whole, seconds, retries):
        """Without a plugin, no other attempt follows."""
        with pytest.raises(type(error)):
            Resent([error], whole=whole, retries=retries).send(seconds)

    def test_messages_that_were_stored_one_by_one(self):
        """Such a batch is never sent again, and an unknown earlier attempt does not hide that."""
        run = BatchRun((b"", b"", None, b'{"stream":"S","seq":1}'), safe=True)
        error = run.commit()
        with pytest.raises(errors.AtomicityError):
            retryable_failure(error, run.batch, run.attempt, 1, earlier=True)
        assert run.attempt.engine.ending is Ending.SPLIT


def fast(messages=0):
    """
    Return the engine of a fast publisher that has sent *messages*.
    """
    engine = FastIngest(b"_INBOX", "t", flow=10, max_outstanding_acks=2, gap_ok=False)
    engine.open("S")
    if messages:
        engine.start(0.0, "a")
    return engine


def commit(engine, *, answered):
    """
    Commit. If it was *answered*, no stream took the commit.
    """
    engine.receive((engine.prefix + b"1.0.$FI", b"", None, b'{"type":"ack"}'), 0.0)
    seq = engine.commit(0.0)
    if answered:
        frame = (engine.prefix + b"%d.3.$FI" % seq, b"", NO_RESPONDERS, b"")
        engine.receive(frame, 0.0)
    engine.unanswered(timeout=1.0)


# How the engine of a fast publisher ends, by the cause and whether it was sent.
FAST = [
    (Cause.LOST, True, lambda engine: engine.lost_connection()),
    (Cause.CLOSED, True, lambda engine: engine.closed(errors.ConnectionClosedError())),
    (Cause.CLOSED, True, lambda engine: engine.unanswered()),
    (Cause.SILENT, True, lambda engine: engine.unanswered(timeout=1.0)),
    (Cause.UNREADABLE, True, lambda engine: engine.closed(errors.ProtocolError("x"))),
    (Cause.DENIED, True, lambda engine: engine.denied(RAISED[Cause.DENIED, True])),
    (Cause.DENIED, False, lambda engine: engine.denied(RAISED[Cause.DENIED, False])),
    (Cause.INTERRUPTED, True, lambda engine: engine.interrupted()),
    (Cause.SILENT, True, lambda engine: commit(engine, answered=False)),
    (Cause.SILENT, False, lambda engine: commit(engine, answered=True)),
]


class TestFast:
    @pytest.mark.parametrize(("cause", "sent", "end"), FAST)
    def test_a_batch_that_fails(self, cause, sent, end):
        """A batch that fails has the outcome of the table, and is not sent again."""
        engine = fast(1)
        end(engine)
        assert ending_of(engine.failure) is outcome_of(cause, sent=sent).ending

    def test_an_interrupt_before_the_first_message(self):
        """If nothing was sent, an interrupted batch is not stored."""
        engine = fast()
        engine.interrupted()
        assert ending_of(engine.failure) is outcome_of(Cause.INTERRUPTED, sent=False).ending


class TestInterrupts:
    @pytest.mark.parametrize("commits", [False, True])
    def test_a_batch(self, commits):
        """An interrupted batch is unknown if its commit may have been sent, and else not stored."""
        run = BatchRun(KeyboardInterrupt(), safe=True)
        if commits:
            run.commit()
        run.attempt.end()
        rule = outcome_of(Cause.INTERRUPTED, sent=commits)
        unknown = run.attempt.engine.ending is Ending.UNKNOWN
        assert unknown is (rule.ending is Ending.UNKNOWN)

    @pytest.mark.parametrize("earlier", [False, True])
    @pytest.mark.parametrize("sent", [False, True])
    def test_a_window_that_ends_early(self, earlier, sent):
        """After a bug, messages that were not sent are not stored, unless an attempt may be."""
        run = WindowRun(safe=True, earlier=earlier)
        if sent:
            run.send()
        run.window.abandon(errors.HandleClosedError("publisher"))
        rule = outcome_of(Cause.INTERRUPTED, sent=sent, earlier=earlier, safe=True)
        assert run.result() == (rule.ending, False)

    def test_a_window_that_ends_before_a_retry(self):
        """After a bug, a message that no stream took is not stored, though a retry was due."""
        run = WindowRun(safe=True, earlier=False)
        run.asked.again = 1
        run.send()
        run.end(Cause.NO_STREAM)
        run.window.settle()
        assert run.window.waiting
        run.window.abandon(errors.HandleClosedError("publisher"))
        ending, _ = run.result()
        assert ending is Ending.NOT_STORED

    def test_a_write_that_is_interrupted(self, monkeypatch):
        """Messages that were written may be stored, even if they were not recorded."""
        run = WindowRun(safe=True, earlier=False)

        def interrupt(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(Pipeline, "sent", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.window.flush()
        run.window.abandon(errors.HandleClosedError("publisher"))
        assert run.result() == (outcome_of(Cause.INTERRUPTED, sent=True).ending, False)

    def test_a_call_that_is_interrupted(self):
        """The outcome of messages in flight is unknown after Ctrl-C."""
        run = WindowRun(safe=True, earlier=False)
        run.send()
        ((_, _, error),) = run.window.interrupted()
        assert ending_of(error) is outcome_of(Cause.INTERRUPTED, sent=True).ending
        assert "interrupted" in str(error)


@pytest.mark.parametrize("earlier", [False, True])
def test_an_unprocessed_message_goes_once_more(earlier):
    """A window sends it again without asking, but only if this was the first attempt."""
    run = WindowRun(safe=True, earlier=earlier)
    for _ in range(1 if earlier else 2):
        run.send()
        run.lane.unprocessed = run.lane.transport.published()[-1].reply.encode()
        run.lose()
    rule = outcome_of(Cause.UNPROCESSED, sent=False, earlier=earlier, safe=True)
    assert run.result() == (rule.ending, False)
    assert len(run.lane.payloads) == 2
