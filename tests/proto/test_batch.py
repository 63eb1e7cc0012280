from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.examples import RUNS, examples
from jetsync import errors
from jetsync._proto.batch import AtomicBatchEngine, BatchPhase, HeaderRules, Part
from jetsync._proto.outcome import Cause, Ending
from jetsync.values.pub_acks import BatchAck

ID = "b1"
NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n"
INCOMPLETE = (400, 10176, "atomic publish batch is incomplete")


def frame(data, header=None):
    """Return a frame that answers a message."""
    return (b"_INBOX.r", b"", header, data)


def puback(sequence, **more):
    """Return an ack as servers write it."""
    return json.dumps({"stream": "S", "seq": sequence, **more}).encode()


def failure(code, err_code, description):
    """Return an error as servers write it."""
    error = {"code": code, "err_code": err_code, "description": description}
    return json.dumps({"error": error, "stream": "S", "seq": 0}).encode()


def make(**options):
    """Return an engine for a server that supports the marker, by default."""
    engine = AtomicBatchEngine(ID)
    engine.start(**{"ack_first": True, **options})
    return engine


class Entry:
    """
    One message to write. The item of a marker is None.
    """

    def __init__(self, part, number, item, *, last):
        self.part = part
        self.sequence = number
        self.item = item
        self.commit = part.commit if last else b""
        self.asks = part.asks and last


def entries(parts):
    """The messages of parts, one by one."""
    found = []
    for part in parts:
        items = part.items or [None]
        for number, item in enumerate(items, part.first):
            last = number == part.first + len(items) - 1
            found.append(Entry(part, number, item, last=last))
    return found


def add(engine, item):
    """Add a message, and return the message to write, or None."""
    part = engine.add(item)
    if part is None:
        return None
    engine.keep(b"", [part])
    (entry,) = entries([part])
    return entry


def commit(engine, *items):
    """Commit, and return the messages to write."""
    parts = engine.commit(*items)
    engine.keep(b"", parts)
    return entries(parts)


def in_phase(phase):
    """Return an engine in this phase."""
    engine = make()
    engine.add("a")
    if phase is BatchPhase.BROKEN:
        engine.lost(errors.DisconnectedError())
    elif phase is BatchPhase.DISCARDED:
        engine.discarded()
    elif phase is not BatchPhase.OPEN:
        (part,) = engine.commit()
        engine.begin_commit()
        engine.asked(part)
        if phase is BatchPhase.FAILED:
            engine.failed(Cause.SILENT, sent=True)
            engine.commit_failed(errors.RequestTimeoutError("x", 1.0))
        elif phase is BatchPhase.COMMITTED:
            engine.answered(part, frame(puback(7, batch=ID, count=1)))
    assert engine.phase is phase
    return engine


class TestPhases:
    @pytest.mark.parametrize("phase", BatchPhase)
    def test_only_an_open_batch_takes_messages(self, phase):
        """A batch that was committed, lost or discarded never takes messages again."""
        engine = in_phase(phase)
        if phase is BatchPhase.OPEN:
            engine.check_open(discarding=False, interrupted=False)
            for reason in ("discarded", "interrupted"):
                with pytest.raises(errors.BatchClosedError, match=reason):
                    engine.check_open(discarding=True, interrupted=reason != "discarded")
            return
        with pytest.raises(errors.BatchClosedError) as caught:
            engine.check_open(discarding=False, interrupted=True)
        assert "while it added" not in str(caught.value)

    @pytest.mark.parametrize("phase", BatchPhase)
    @pytest.mark.parametrize("safe", [False, True])
    def test_only_a_failed_commit_is_repeated(self, phase, safe):
        """A batch is sent again after a commit that failed. If it is unknown, it needs ids."""
        engine = in_phase(phase)
        if phase is not BatchPhase.FAILED:
            with pytest.raises(errors.ConflictingUseError):
                engine.begin_resend("b2", safe=safe)
            assert (engine.phase, engine.batch_id) == (phase, ID)
        elif not safe:
            with pytest.raises(errors.InvalidArgumentError, match="unknown"):
                engine.begin_resend("b2", safe=safe)
            assert (engine.phase, engine.batch_id) == (phase, ID)
        else:
            engine.begin_resend("b2", safe=safe)
            assert (engine.phase, engine.earlier) == (BatchPhase.COMMITTING, True)
            (part,) = engine.commit_all(["a"], None)
            engine.answered(part, frame(puback(7, batch="b2", count=1)))
            assert (engine.phase, engine.ids) == (BatchPhase.COMMITTED, {ID, "b2"})

    @pytest.mark.parametrize("phase", BatchPhase)
    def test_events_that_come_late(self, phase):
        """A discard, a loss or an error of a plugin changes no commit that has begun or ended."""
        engine = in_phase(phase)
        engine.discarded()
        engine.lost(errors.DisconnectedError())
        is_open = phase in {BatchPhase.OPEN, BatchPhase.BROKEN}
        assert engine.phase is (BatchPhase.DISCARDED if is_open else phase)
        if phase is BatchPhase.COMMITTED:
            engine.commit_failed(ValueError("plugin"))
            assert engine.phase is phase

    @pytest.mark.parametrize("unknown", [False, True])
    def test_an_interrupted_commit(self, unknown):
        """The reason says whether the interrupted commit may be stored."""
        engine = in_phase(BatchPhase.COMMITTING)
        engine.failed(Cause.INTERRUPTED, sent=unknown)
        engine.commit_failed(KeyboardInterrupt())
        reason = "may be stored" if unknown else "nothing is stored"
        with pytest.raises(errors.BatchClosedError, match=f"KeyboardInterrupt.*{reason}"):
            engine.check_open(discarding=False, interrupted=False)

    def test_too_many_messages_for_another_attempt(self):
        """An attempt that the limit forbids leaves the one before as it is."""
        engine = in_phase(BatchPhase.FAILED)
        with pytest.raises(errors.BatchTooLargeError):
            engine.commit_all(["a", "b"], 1)
        assert (engine.ending, engine.kept, engine.size) == (Ending.UNKNOWN, [], 1)


class TestEntries:
    def test_only_the_first_message_asks_for_an_answer(self):
        """The first message asks for an answer, the later ones do not."""
        engine = make()
        assert engine.sent == 0
        sent = [add(engine, item) for item in "abc"]
        assert [(e.sequence, e.item, e.commit, e.asks) for e in sent] == [
            (1, "a", b"", True),
            (2, "b", b"", False),
            (3, "c", b"", False),
        ]
        assert engine.sent == 3
        assert repr(engine) == "<AtomicBatchEngine open 3 of 3 sent>"

    @pytest.mark.parametrize(
        ("first", "every", "expected"),
        [
            (True, 0, [1]),
            (False, 0, []),
            (True, 3, [1, 3, 6, 9]),
            (False, 3, [3, 6, 9]),
            (False, 1, list(range(1, 11))),
        ],
    )
    def test_the_options_decide_which_messages_ask_for_an_answer(self, first, every, expected):
        """The options decide which messages ask for an answer."""
        engine = make(ack_first=first, ack_every=every)
        assert [e.sequence for e in (add(engine, n) for n in range(10)) if e.asks] == expected
        sent = commit(make(ack_first=first, ack_every=every), *range(11))
        assert [e.sequence for e in sent if e.asks] == [*expected, 11]

    def test_a_commit_without_a_message_sends_a_marker(self):
        """A commit without a message ends the batch with a marker after the last one."""
        engine = make()
        add(engine, "a")
        (entry,) = commit(engine)
        assert (entry.sequence, entry.item, entry.commit, entry.asks) == (2, None, b"eob", True)

    def test_last_message(self):
        """A commit with a message commits with that one, and needs no marker."""
        engine = make()
        add(engine, "a")
        (entry,) = commit(engine, "b")
        assert (entry.sequence, entry.item, entry.commit, entry.asks) == (2, "b", b"1", True)

    def test_hold_back(self):
        """If the server does not support the marker, each message waits for the next one."""
        engine = make(hold_back=True)
        assert add(engine, "a") is None
        assert engine.sent == 0
        second = add(engine, "b")
        assert (second.sequence, second.item, second.asks) == (1, "a", True)
        (last,) = commit(engine)
        assert (last.sequence, last.item, last.commit) == (2, "b", b"1")

    def test_hold_back_and_a_last_message(self):
        """The message that was held back is sent before the one that commits."""
        engine = make(hold_back=True, ack_first=False)
        assert (engine.add("a"), engine.size, engine.places) == (None, 1, 0)
        assert [(e.sequence, e.item, e.commit) for e in commit(engine, "b", "c")] == [
            (1, "a", b""),
            (2, "b", b""),
            (3, "c", b"1"),
        ]

    def test_an_empty_batch_cannot_be_committed(self):
        """An empty batch cannot be committed, and it stays open."""
        engine = make()
        with pytest.raises(errors.BatchClosedError, match="no messages"):
            engine.commit()
        assert add(engine, "a").sequence == 1

    def test_a_message_over_the_limit_leaves_the_batch_open(self):
        """A message over the limit is refused, and the earlier ones can be committed."""
        engine = make(limit=2)
        engine.add("a")
        engine.add("b")
        with pytest.raises(errors.BatchTooLargeError) as caught:
            engine.add("c")
        assert (caught.value.err_code, caught.value.limit) == (10199, 2)
        assert "the batch has 3 messages; the limit is 2" in str(caught.value)
        with pytest.raises(errors.BatchTooLargeError, match="has 4 messages"):
            engine.commit("c", "d")
        assert engine.size == 2
        sent = commit(engine)
        assert [(e.sequence, e.item, e.commit) for e in sent] == [(3, None, b"eob")]

    def test_usual_limit(self):
        """If the limit is not known, message 1,001 asks for an answer."""
        engine = make(ack_first=False)
        assert [e.sequence for e in (add(engine, n) for n in range(1003)) if e.asks] == [1001]
        sent = commit(make(ack_first=False), *range(1003))
        assert [e.sequence for e in sent if e.asks] == [1001, 1003]
        raised = make(ack_first=False, limit=3000)
        assert not any(add(raised, n).asks for n in range(1003))

    def test_after_the_commit(self):
        """Nothing is sent after the commit."""
        engine = make()
        engine.add("a")
        engine.commit()
        for call in (engine.check_room, lambda: engine.add("b"), engine.commit):
            with pytest.raises(errors.BatchClosedError):
                call()


class TestAnswers:
    @pytest.fixture
    def committed(self):
        """An engine that waits for the answer to its commit, and the part with the commit."""
        engine = make()
        add(engine, "a")
        (part,) = engine.commit("b")
        return engine, part

    def test_zero_bytes(self):
        """An empty answer to a message that does not commit confirms it."""
        engine = make()
        engine.answered(add(engine, "a").part, frame(b""))
        engine.answered(add(engine, "b").part, frame(b"", b"NATS/1.0\r\n\r\n"))
        assert engine.ending is None

    def test_the_answer_to_the_commit_has_the_last_sequence(self, committed):
        """The answer to the commit contains the sequence of the last message."""
        engine, part = committed
        engine.answered(part, frame(puback(7, batch=ID, count=2)))
        assert engine.ending is Ending.STORED
        assert engine.ack == BatchAck("S", 7, ID, 2, first_sequence=6)

    @pytest.mark.parametrize(
        "data",
        [
            puback(7),
            puback(7, batch=ID),
            puback(7, batch="other", count=2),
            puback(7, batch=ID, count=3),
            puback(7, batch=ID, count=1),
        ],
    )
    def test_not_as_a_batch(self, committed, data):
        """An ack that is not about the whole batch is an error."""
        engine, part = committed
        with pytest.raises(errors.AtomicityError) as caught:
            engine.answered(part, frame(data))
        error = caught.value
        assert (error.batch_id, error.stream, error.sequence) == (ID, "S", 7)
        assert (engine.ending, engine.ack) == (Ending.SPLIT, None)

    def test_stored_at_once(self):
        """An ack of the first message means that the server stored it at once."""
        engine = make()
        with pytest.raises(errors.AtomicityError):
            engine.answered(add(engine, "a").part, frame(b'{"stream":"S", "seq":1}'))
        assert engine.ending is Ending.SPLIT

    @pytest.mark.parametrize(
        ("code", "err_code", "description", "kind"),
        [
            (400, 10071, "wrong last sequence: 3", errors.WrongLastSequenceError),
            (400, 10174, "atomic publish is disabled", errors.AtomicPublishDisabledError),
            (400, 10176, "atomic publish batch is incomplete", errors.BatchIncompleteError),
            (400, 10199, "atomic publish batch is too large: 20", errors.BatchTooLargeError),
            (400, 10201, "duplicate message id", errors.DuplicateMessageIdError),
            (429, 10210, "atomic publish too many inflight", errors.TooManyInflightError),
            (503, 10077, "maximum messages exceeded", errors.StreamFullError),
        ],
    )
    def test_an_error_of_the_server_ends_the_batch(
        self, committed, code, err_code, description, kind
    ):
        """An error of the server ends the batch."""
        data = failure(code, err_code, description)
        for engine, part in (committed, (fresh := make(), add(fresh, "a").part)):
            with pytest.raises(kind) as caught:
                engine.answered(part, frame(data))
            assert (caught.value.err_code, caught.value.stream) == (err_code, "S")
            assert engine.ending is Ending.NOT_STORED
            with pytest.raises(errors.BatchClosedError):
                engine.add("more")

    @pytest.mark.parametrize("data", [b"", b"+OK", b"{}", b"[]"])
    def test_an_unreadable_answer_to_the_commit(self, committed, data):
        """An unreadable answer to the commit does not tell whether the batch is stored."""
        engine, part = committed
        with pytest.raises(errors.ProtocolError):
            engine.answered(part, frame(data))
        assert (engine.ending, engine.ack) == (None, None)

    def test_a_commit_without_an_answer_is_unknown(self, committed):
        """A commit whose outcome is unknown may be repeated."""
        engine, part = committed
        engine.asked(part)
        engine.failed(Cause.SILENT, sent=True)
        engine.commit_failed(errors.RequestTimeoutError("x", 1.0))
        assert engine.ending is Ending.UNKNOWN
        engine.begin_resend("b2", safe=True)

    def test_certain_failures(self, committed):
        """A batch that cannot be stored takes no more messages, and may be sent again."""
        engine, _ = committed
        engine.failed(Cause.NO_STREAM, sent=True)
        engine.commit_failed(errors.NoStreamResponseError("x"))
        assert engine.ending is Ending.NOT_STORED
        engine.begin_resend("b2", safe=False)
        incomplete = make()
        incomplete.add("a")
        incomplete.failed(Cause.LOST, sent=True)
        assert incomplete.ending is Ending.NOT_STORED
        with pytest.raises(errors.BatchClosedError):
            incomplete.add("b")

    def test_an_unknown_outcome_lasts(self, committed):
        """A later attempt that is not stored does not decide the earlier one."""
        engine, part = committed
        engine.asked(part)
        engine.failed(Cause.SILENT, sent=True)
        engine.commit_failed(errors.RequestTimeoutError("x", 1.0))
        engine.begin_resend("b2", safe=True)
        engine.failed(Cause.NO_STREAM, sent=True)
        engine.commit_failed(errors.NoStreamResponseError("x"))
        assert (engine.ending, engine.is_unknown) == (Ending.NOT_STORED, True)
        with pytest.raises(errors.InvalidArgumentError, match="unknown"):
            engine.begin_resend("b3", safe=False)
        engine.in_doubt()
        assert engine.ending is Ending.UNKNOWN

    def test_messages_that_were_stored_one_by_one_are_not_sent_again(self, committed):
        """A batch whose messages were stored one by one is not sent again, not even with ids."""
        engine, part = committed
        engine.asked(part)
        with pytest.raises(errors.AtomicityError) as caught:
            engine.answered(part, frame(b'{"stream":"S","seq":1}'))
        engine.commit_failed(caught.value)
        assert engine.ending is Ending.SPLIT
        with pytest.raises(errors.ConflictingUseError):
            engine.begin_resend("b2", safe=True)

    def test_an_earlier_attempt_was_stored(self, committed):
        """The ack of an earlier attempt is the ack of the batch."""
        engine, _ = committed
        engine.failed(Cause.NO_STREAM, sent=True)
        engine.in_doubt()
        assert engine.ending is Ending.UNKNOWN
        ack = BatchAck("S", 2, "b0", 2, 1, duplicate=True)
        engine.found_stored(ack)
        assert (engine.ending, engine.ack) == (Ending.STORED, ack)


class Server:
    """
    A simplified server with one batch. Old servers store every message at once.
    """

    def __init__(self, *, old, limit):
        self.old = old
        self.limit = limit
        self.stored = []
        self.staged = []
        self.gone = False

    def take(self, entry):
        """Process a message and return the payload of the answer."""
        if self.old:
            self.stored.append(entry.item)
            return puback(len(self.stored))
        if self.gone or entry.sequence != len(self.staged) + 1:
            self.gone = True
            return failure(*INCOMPLETE)
        if entry.commit != b"eob" and len(self.staged) == self.limit:
            self.gone = True
            return failure(400, 10199, f"atomic publish batch is too large: {self.limit}")
        if entry.item is not None:
            self.staged.append(entry.item)
        if not entry.commit:
            return b""
        self.gone = True
        self.stored += self.staged
        return puback(9 + len(self.stored), batch=ID, count=len(self.stored))


FAULTS = {
    "error": failure(400, 10071, "wrong last sequence: 3"),
    "incomplete": failure(*INCOMPLETE),
    "junk": b"nonsense",
}
"""Answers instead of the truth. "lost" and "late" lose the message or the answer; "503" refuses."""

OUTCOMES = st.lists(st.sampled_from([*["true"] * 5, "lost", "late", "503", *FAULTS]), max_size=12)


class Driver:
    """
    Use an engine with a server that may be old, over an unreliable connection.
    """

    def __init__(self, engine, server, outcomes, every=1):
        self.every = every
        self.engine = engine
        self.server = server
        self.outcomes = itertools.chain(outcomes, itertools.repeat("true"))
        self.written = []
        self.error = None

    def write(self, entries):
        """Write entries until an answer ends the batch; return whether none did."""
        for entry in entries:
            assert self.engine.ending is None
            self.written.append(entry)
            if not entry.asks:
                self.server.take(entry)
                continue
            self.engine.asked(entry.part)
            outcome = next(self.outcomes)
            if outcome == "503":
                self.engine.failed(Cause.NO_STREAM, sent=True)
                return False
            if outcome in FAULTS:
                # The server's answer says that it has dropped the batch.
                data = FAULTS[outcome]
                self.server.gone = True
            else:
                data = b"" if outcome == "lost" else self.server.take(entry)
            try:
                if outcome in {"lost", "late"}:
                    raise errors.RequestTimeoutError("x", 1.0)
                self.engine.answered(entry.part, frame(data))
            except errors.JetSyncError as error:
                if self.engine.ending is None:
                    self.engine.failed(Cause.SILENT, sent=True)
                self.error = error
                return False
        return True

    def run(self, adds, last):
        """Add messages one by one, commit with some more, and return whether all were taken."""
        taken, waiting = True, []
        for item in range(adds):
            try:
                part = self.engine.add(item)
            except errors.BatchTooLargeError:
                taken = False
                break
            if part is not None:
                waiting += entries([part])
                # Messages that need no answer may wait for more.
                if part.asks or item % self.every == 0:
                    self.engine.keep(b"", [Part(0, [entry.item for entry in waiting])])
                    if not self.write(waiting):
                        return taken
                    waiting = []
        try:
            self.engine.check_room(last)
            self.engine.keep(b"", [Part(0, [entry.item for entry in waiting])])
            sent = waiting + commit(self.engine, *range(adds, adds + last))
        except errors.BatchTooLargeError:
            return False
        except errors.BatchClosedError:
            assert adds + last == 0
            return False
        self.write(sent)
        return taken


@given(
    hold_back=st.booleans(),
    old=st.sampled_from([False, False, False, True]),
    ack_first=st.booleans(),
    ack_every=st.integers(0, 4),
    limit=st.integers(1, 12),
    known=st.booleans(),
    adds=st.integers(0, 12),
    last=st.integers(0, 3),
    every=st.integers(1, 5),
    outcomes=OUTCOMES,
)
@settings(max_examples=RUNS, deadline=None)
def test_no_message_of_a_batch_is_sent_twice_whatever_happens(
    hold_back, old, ack_first, ack_every, limit, known, adds, last, every, outcomes
):
    """
    Whatever the server and the connection do, no message is sent twice or left out, the only commit
    is the last one, and the limit is kept. The batch always ends, and its outcome is true.
    """
    engine = make(
        hold_back=hold_back,
        ack_first=ack_first,
        ack_every=ack_every,
        limit=limit if known else None,
    )
    server = Server(old=old, limit=limit)
    driver = Driver(engine, server, outcomes, every)
    taken = driver.run(adds, last)
    written = driver.written

    # The messages that were sent.
    assert [entry.sequence for entry in written] == list(range(1, len(written) + 1))
    items = [entry.item for entry in written if entry.item is not None]
    assert items == list(range(len(items))) == engine.kept[: len(items)]
    assert all(entry.item is not None for entry in written[:-1])
    assert not any(entry.commit for entry in written[:-1])
    if known:
        assert engine.size <= limit
    if hold_back:
        assert all(entry.item is not None for entry in written)

    # The end of the batch.
    if engine.ending is None:
        # A refused call leaves the batch unchanged.
        assert not taken
        assert not written or not written[-1].commit
        if engine.size:
            driver.outcomes = itertools.repeat("true")
            driver.write(commit(engine))
            assert engine.ending is not None
    assert engine.ending is not None or not engine.size
    if engine.size:
        for call in (lambda: engine.add("more"), engine.commit):
            with pytest.raises(errors.BatchClosedError):
                call()

    # The outcome that the engine reports.
    if engine.ending is Ending.STORED:
        assert driver.written[-1].commit
        assert server.stored == engine.kept
        assert engine.ack.size == len(server.stored)
        assert engine.ack.sequence - engine.ack.first_sequence + 1 == len(server.stored)
    elif engine.ending is Ending.UNKNOWN:
        assert driver.written[-1].commit
        assert old or server.stored in ([], engine.kept)
    else:
        assert engine.ack is None
        assert old or not server.stored
    if engine.ending is Ending.SPLIT:
        assert old
        assert server.stored
        assert isinstance(driver.error, errors.AtomicityError)


@given(
    count=st.integers(1, 12),
    limit=st.one_of(st.none(), st.integers(1, 14)),
    hold_back=st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_one_by_one_or_in_one_go(count, limit, hold_back):
    """The same messages make the same batch, however they are added."""
    stored = []
    for adds in range(count + 1):
        engine = make(hold_back=hold_back, limit=limit)
        server = Server(old=False, limit=limit or 12)
        Driver(engine, server, ()).run(adds, count - adds)
        stored.append((engine.ending is Ending.STORED, server.stored))
    if limit is None or count <= limit:
        assert stored == [(True, list(range(count)))] * (count + 1)
    else:
        assert not any(committed for committed, _ in stored[:-1])


LAST = "Nats-Expected-Last-Sequence"
SUBJECT = "Nats-Expected-Last-Subject-Sequence"
ABOUT = "Nats-Expected-Last-Subject-Sequence-Subject"


class TestHeaderRules:
    @pytest.fixture
    def rules(self):
        """The rules for a server from 2.14 on, whose batch has written A."""
        rules = HeaderRules(counters=True)
        rules.take("A", [("Nats-Msg-Id", "1")])
        return rules

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("Nats-Batch-Id", "x"),
            ("Nats-Batch-Sequence", "1"),
            ("Nats-Batch-Commit", "1"),
            ("Nats-Expected-Last-Msg-Id", "x"),
            ("nats-batch-id", "x"),
            ("NATS-EXPECTED-LAST-MSG-ID", "x"),
            (ABOUT, "B"),
        ],
    )
    def test_headers_that_no_batch_can_have_are_refused(self, rules, name, value):
        """Headers that no message of a batch can have are refused by name."""
        for each in (rules, HeaderRules(counters=True)):
            with pytest.raises(errors.BatchRuleError, match=name) as caught:
                each.take("B", [("Other", "1"), (name, value)])
            assert isinstance(caught.value, ValueError)

    @pytest.mark.parametrize(
        ("name", "value"), [(LAST, "7"), (LAST.lower(), "7"), ("Nats-Rollup", "all")]
    )
    def test_first_message_only(self, rules, name, value):
        """Headers about the whole stream can only be on the first message."""
        HeaderRules(counters=True).take("B", [(name, value)])
        with pytest.raises(errors.BatchRuleError, match=f"{name}.*first message"):
            rules.take("B", [(name, value)])

    def test_rollup_of_a_subject(self, rules):
        """Only the first message of a subject can roll it up."""
        with pytest.raises(errors.BatchRuleError, match="first message of a subject"):
            rules.take("A", [("Nats-Rollup", "sub")])
        rules.take("B", [("Nats-Rollup", "sub")])
        rules.take("C", [("Nats-Rollup", "sub")])
        with pytest.raises(errors.BatchRuleError, match="first message of a subject"):
            rules.take("C", [("Nats-Rollup", "sub")])

    @pytest.mark.parametrize("pairs", [[(SUBJECT, "0")], [(SUBJECT, "0"), (ABOUT, "A")]])
    def test_written_subject(self, rules, pairs):
        """A message cannot have an expectation about a subject that the batch has written."""
        subject = "A" if len(pairs) == 1 else "B"
        with pytest.raises(errors.WrongLastSequenceError, match="'A'") as caught:
            rules.take(subject, pairs)
        assert (caught.value.code, caught.value.err_code) == (400, 10164)

    def test_expected_before_it_is_written(self, rules):
        """Several messages may have an expectation about a subject until the batch writes it."""
        rules.take("B", [(SUBJECT, "0"), (ABOUT, "C")])
        rules.take("D", [(SUBJECT, "0"), (ABOUT, "C")])
        rules.take("C", [(SUBJECT, "0")])
        with pytest.raises(errors.WrongLastSequenceError):
            rules.take("E", [(SUBJECT, "0"), (ABOUT, "C")])

    def test_expectations_of_wildcards_are_about_the_stream_before(self):
        """Expectations about wildcards refer to the stream before the batch."""
        rules = HeaderRules(counters=True)
        for subject in ("A.1", "A.2", "A.1"):
            rules.take(subject, [(SUBJECT, "3"), (ABOUT, "A.>")])

    def test_a_batch_can_have_each_id_once(self, rules):
        """A batch can have each id once."""
        with pytest.raises(errors.DuplicateMessageIdError, match="'1'") as caught:
            rules.take("B", [("Nats-Msg-Id", "1")])
        assert (caught.value.code, caught.value.err_code) == (400, 10201)
        rules.take("B", [("Nats-Msg-Id", "2")])
        rules.take("B", [])
        assert rules.ids == 2

    def test_spaces_before_ids(self, rules):
        """Spaces before an id are ignored."""
        for value in ("", " ", " "):
            rules.take("B", [("Nats-Msg-Id", value)])
        assert rules.ids == 1
        with pytest.raises(errors.DuplicateMessageIdError, match="'1'"):
            rules.take("B", [("Nats-Msg-Id", " 1")])

    def test_the_first_of_several(self, rules):
        """If a header is there twice, the first one counts."""
        rules.take("B", [("Nats-Msg-Id", "2"), ("Nats-Msg-Id", "1")])
        with pytest.raises(errors.DuplicateMessageIdError):
            rules.take("B", [("Nats-Msg-Id", "2")])

    def test_increments_that_would_destroy_a_counter_are_refused(self, rules):
        """Increments are refused for servers that would destroy the counter."""
        rules.take("B", [("Nats-Incr", "+1")])
        with pytest.raises(errors.BatchRuleError, match=r"Nats-Incr.*2\.14"):
            HeaderRules(counters=False).take("B", [("Nats-Incr", "+1")])

    def test_a_refused_message_leaves_no_trace(self, rules):
        """A refused message leaves no trace."""
        empty = HeaderRules(counters=True)
        for each in (rules, empty):
            before = each.ids
            with pytest.raises(errors.BatchRuleError):
                each.take("N", [("Nats-Msg-Id", "n"), ("Nats-Batch-Id", "x")])
            assert each.ids == before
        empty.take("N", [(LAST, "0"), ("Nats-Msg-Id", "n")])
        rules.take("N", [(SUBJECT, "0"), ("Nats-Msg-Id", "n")])

    def test_shared_headers_are_checked_once(self, rules, monkeypatch):
        """The same headers of a plugin on all messages are checked once if no rule applies."""
        checked = []
        check = rules._check
        monkeypatch.setattr(rules, "_check", lambda *given: (checked.append(given), check(*given)))
        shared, rollup = (("Trace", "1"), ("Other", "2")), (("Nats-Rollup", "sub"),)
        for _ in range(100):
            rules.take("B", shared)
        assert checked == [("B", shared)]
        rules.take("C", rollup)
        with pytest.raises(errors.BatchRuleError, match="first message of a subject"):
            rules.take("C", rollup)

    def test_everything_else(self, rules):
        """Other headers are accepted."""
        pairs = [("A", "1"), ("A", "2"), ("Nats-TTL", "5"), ("Nats-Expected-Stream", "S")]
        rules.take("A", pairs)
        assert pairs == [("A", "1"), ("A", "2"), ("Nats-TTL", "5"), ("Nats-Expected-Stream", "S")]


def test_parts_are_equal_only_to_themselves():
    """Two parts are the same only if they are one."""
    assert Part(1, ["a"]) != Part(1, ["a"])
