from __future__ import annotations

import copy
import datetime as dt
import pickle
import threading

import pytest

from jetsync.consume.ack_many import ack_many
from jetsync.errors import (
    CopiedMessageError,
    DisconnectedError,
    InvalidArgumentError,
    InvalidHeaderError,
    InvalidSubjectError,
    InvalidTypeError,
    MessageAlreadyAckedError,
    NotJetStreamMessageError,
    RequestTimeoutError,
)
from jetsync.values.headers import Headers
from jetsync.values.message import Message, Metadata
from jetsync.values.stored import StoredMessage
from jetsync.values.ttl import MarkerReason

# The tests run over both variants of the functions that have compiled twins.
pytestmark = pytest.mark.usefixtures("variant")

REPLY = b"$JS.ACK.ORDERS.worker.2.35.7.1700000000123456789.4"


class RecordingAcker:
    """Record the calls, or raise ``error`` if it is set."""

    def __init__(self, error=None):
        self.bodies = []
        self.timeouts = []
        self.error = error

    def acknowledge(self, message, body):
        if self.error is not None:
            raise self.error
        self.bodies.append(body)

    def acknowledge_sync(self, message, body, timeout):
        self.timeouts.append(timeout)
        self.acknowledge(message, body)


@pytest.fixture
def acker():
    """An acker that works."""
    return RecordingAcker()


@pytest.fixture
def message(acker):
    """A message from a consumer."""
    return Message(b"orders.1", REPLY, None, b"data", acker)


TERMINAL = {
    "ack": lambda m: m.ack(),
    "ack_sync": lambda m: m.ack_sync(),
    "nak": lambda m: m.nak(),
    "nak_delay": lambda m: m.nak(1),
    "term": lambda m: m.term(),
    "term_reason": lambda m: m.term("why"),
}


class TestContents:
    def test_a_message_without_headers_has_text_and_bytes(self, message):
        """Subject and reply are text, the payload is bytes, and there are no headers."""
        assert (message.subject, message.reply) == ("orders.1", REPLY.decode())
        assert message.data == b"data"
        assert message.raw_reply == REPLY
        assert message.raw_headers is None
        assert message.headers == {}
        assert message.marker is None
        assert message.ttl is None

    def test_headers_of_a_message_are_parsed_once(self):
        """Headers are parsed once and stay the same object."""
        message = Message(b"a", b"", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", b"")
        assert message.raw_headers == b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
        assert isinstance(message.headers, Headers)
        assert message.headers.get_all("A") == ["1", "2"]
        assert message.headers is message.headers

    def test_bytes_that_are_no_header_block_can_be_read(self):
        """Bytes that are not a header block do not raise, and can be read."""
        message = Message(b"a", b"", b"noise", b"x")
        assert (message.data, message.headers, message.raw_headers) == (b"x", {}, b"noise")

    @pytest.mark.parametrize("line", [b"Nats-TTL: 5s", b"Nats-TTL:5s"])
    def test_the_ttl_of_a_message_is_read_with_or_without_a_space(self, line):
        """The time-to-live is read from the header, with or without a space."""
        message = Message(b"a", b"", b"NATS/1.0\r\n" + line + b"\r\n\r\n", b"")
        assert message.ttl == 5.0

    def test_empty_payload(self):
        """An empty payload is empty bytes, not None."""
        assert Message(b"a", b"", None, b"").data == b""

    def test_foreign_subject(self):
        """A subject that is not UTF-8 can be read."""
        assert (
            Message(b"a.\xff", b"", None, b"").subject.encode(errors="surrogateescape") == b"a.\xff"
        )

    def test_marker_and_ttl(self):
        """A delete marker has its reason and its time-to-live."""
        block = (
            b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1m0s\r\nNats-Rollup: sub\r\n\r\n"
        )
        message = Message(b"a", REPLY, block, b"")
        assert message.marker is MarkerReason.MAX_AGE
        assert message.ttl == 60.0

    def test_marker_is_a_header_not_a_value(self):
        """A header value that looks like a marker header is not a marker."""
        block = b"NATS/1.0\r\nA: Nats-Marker-Reason: MaxAge\r\n\r\n"
        assert Message(b"a", REPLY, block, b"").marker is None

    def test_the_repr_says_whether_the_message_is_acknowledged(self, message):
        """The repr says where the message is from and whether it is acknowledged."""
        assert repr(message) == (
            "<Message 'orders.1' 4 bytes, stream 'ORDERS' sequence 35, "
            "consumer 'worker' delivery 2, open>"
        )
        message.ack()
        assert repr(message).endswith("acked>")
        assert repr(Message(b"a", b"", None, b"xy")) == "<Message 'a' 2 bytes>"


class TestMetadata:
    def test_nine_tokens(self, message):
        """The metadata has every field of the ack subject."""
        assert message.metadata == Metadata(
            stream="ORDERS",
            consumer="worker",
            stream_sequence=35,
            consumer_sequence=7,
            delivered=2,
            pending=4,
            timestamp_ns=1700000000123456789,
            domain=None,
        )
        assert message.metadata is message.metadata
        assert message.sequence == 35

    def test_the_time_of_a_message_is_aware_and_exact(self, message):
        """The time is an aware datetime, exact to the microsecond."""
        assert message.metadata.timestamp == dt.datetime(
            2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.timezone.utc
        )

    @pytest.mark.parametrize("end", [b"", b".xyz", b".xyz.added.later"])
    def test_with_domain(self, end):
        """The longer form of the ack subject also has the domain."""
        reply = b"$JS.ACK.hub.hash.ORDERS.worker.1.2.3.4.5" + end
        message = Message(b"a", reply, None, b"", RecordingAcker())
        assert message.metadata.domain == "hub"
        assert message.sequence == message.metadata.stream_sequence == 2

    @pytest.mark.parametrize("reply", [b"", b"_INBOX.x", b"$JS.ACK.S.C.1.2.3"])
    def test_not_from_a_consumer(self, reply):
        """A message without an ack subject has no metadata."""
        message = Message(b"a", reply, None, b"")
        with pytest.raises(NotJetStreamMessageError):
            _ = message.metadata
        with pytest.raises(NotJetStreamMessageError):
            _ = message.sequence


class TestBodies:
    @pytest.mark.parametrize(
        ("call", "body"),
        [
            (lambda m: m.ack(), b"+ACK"),
            (lambda m: m.ack_sync(), b"+ACK"),
            (lambda m: m.nak(), b"-NAK"),
            (lambda m: m.nak(0.123), b'-NAK {"delay": 123000000}'),
            (lambda m: m.nak(dt.timedelta(milliseconds=123)), b'-NAK {"delay": 123000000}'),
            (lambda m: m.nak(0), b'-NAK {"delay": 0}'),
            (lambda m: m.in_progress(), b"+WPI"),
            (lambda m: m.term(), b"+TERM"),
            (lambda m: m.term("why"), b"+TERM why"),
            (lambda m: m.term(""), b"+TERM"),
        ],
    )
    def test_on_the_wire(self, message, acker, call, body):
        """Each acknowledgement has the body that servers expect."""
        call(message)
        assert acker.bodies == [body]

    def test_timeout_is_handed_on(self, message, acker):
        """ack_sync passes its timeout to the acker."""
        message.ack_sync(timeout=1.5)
        assert acker.timeouts == [1.5]

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (lambda m: m.nak(-1), InvalidArgumentError),
            (lambda m: m.nak(1e10), InvalidArgumentError),
            (lambda m: m.nak(1e-10), InvalidArgumentError),
            (lambda m: m.nak(dt.timedelta(days=300 * 366)), InvalidArgumentError),
            (lambda m: m.nak("1"), InvalidTypeError),
            (lambda m: m.term("a\r\nb"), InvalidArgumentError),
            (lambda m: m.term(5), InvalidTypeError),
            (lambda m: m.ack_sync(timeout=-1), InvalidArgumentError),
        ],
    )
    def test_a_wrong_argument_of_an_ack_leaves_the_message_open(self, message, acker, call, error):
        """A wrong argument raises an error, sends nothing, and leaves the message open."""
        with pytest.raises(error):
            call(message)
        assert acker.bodies == []
        assert not message.is_acked
        message.ack()


class TestOnce:
    @pytest.mark.parametrize("second", TERMINAL.values(), ids=TERMINAL)
    @pytest.mark.parametrize("first", TERMINAL.values(), ids=TERMINAL)
    def test_second_is_refused(self, message, acker, first, second):
        """Only the first final acknowledgement is sent."""
        first(message)
        assert message.is_acked
        with pytest.raises(MessageAlreadyAckedError):
            second(message)
        assert len(acker.bodies) == 1

    def test_in_progress_repeats(self, message, acker):
        """in_progress can be repeated until the message is acknowledged."""
        message.in_progress()
        message.in_progress()
        message.ack()
        with pytest.raises(MessageAlreadyAckedError):
            message.in_progress()
        assert acker.bodies == [b"+WPI", b"+WPI", b"+ACK"]

    @pytest.mark.parametrize("call", TERMINAL.values(), ids=TERMINAL)
    @pytest.mark.parametrize(
        "error", [RequestTimeoutError("s", 1), DisconnectedError(), KeyboardInterrupt()]
    )
    def test_failure_leaves_it_open(self, message, acker, call, error):
        """After a failure, the acknowledgement can be repeated."""
        acker.error = error
        with pytest.raises(type(error)):
            call(message)
        assert not message.is_acked
        acker.error = None
        call(message)
        assert message.is_acked
        assert len(acker.bodies) == 1

    def test_while_a_sync_ack_is_under_way(self, message):
        """While one thread waits for a confirmation, other threads cannot acknowledge."""
        seen = []

        class Slow(RecordingAcker):
            def acknowledge_sync(self, message, body, timeout):
                with pytest.raises(MessageAlreadyAckedError):
                    message.ack()
                seen.append(body)

        message = Message(b"a", REPLY, None, b"", Slow())
        message.ack_sync()
        assert seen == [b"+ACK"]

    def test_exactly_one_of_many_threads_acknowledges(self):
        """If many threads acknowledge at the same time, exactly one succeeds."""
        threads, rounds = 8, 200
        for _ in range(rounds // 20):
            ackers = [RecordingAcker() for _ in range(20)]
            messages = [Message(b"a", REPLY, None, b"", acker) for acker in ackers]
            gate = threading.Barrier(threads)
            refused = []

            def work(messages=messages, gate=gate, refused=refused):
                gate.wait(10)
                for message in messages:
                    try:
                        message.ack()
                    except MessageAlreadyAckedError:
                        refused.append(message)

            workers = [threading.Thread(target=work) for _ in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(10)
            assert [len(acker.bodies) for acker in ackers] == [1] * 20
            assert len(refused) == 20 * (threads - 1)


class TestNotFromAConsumer:
    @pytest.mark.parametrize("call", [*TERMINAL.values(), lambda m: m.in_progress()])
    @pytest.mark.parametrize("reply", [b"", b"_INBOX.x"])
    @pytest.mark.parametrize("acker", [None, RecordingAcker()])
    def test_a_core_message_cannot_be_acknowledged(self, call, reply, acker):
        """A core message cannot be acknowledged, whether it has a reply subject or not."""
        message = Message(b"a", reply, None, b"", acker)
        for _ in range(2):
            with pytest.raises(NotJetStreamMessageError):
                call(message)
        assert not message.is_acked

    @pytest.mark.parametrize("call", [*TERMINAL.values(), lambda m: m.in_progress()])
    def test_without_acker(self, call):
        """Without an acker, a message cannot be acknowledged."""
        message = Message(b"a", REPLY, None, b"")
        for _ in range(2):
            with pytest.raises(NotJetStreamMessageError):
                call(message)


COPIES = {
    "pickle": lambda message: pickle.loads(pickle.dumps(message)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
class TestCopies:
    def test_a_copy_has_the_contents_of_the_message(self, acker, make):
        """A copy has the same contents as the message."""
        block = b"NATS/1.0\r\nA: 1\r\n\r\n"
        message = Message(b"orders.1", REPLY, block, b"data", acker)
        made = make(message)
        assert (made.subject, made.reply, made.data) == ("orders.1", REPLY.decode(), b"data")
        assert (made.headers, made.raw_headers) == (message.headers, block)
        assert made.metadata == message.metadata

    def test_changes_of_a_plugin(self, message, make):
        """A copy has the headers and data as replaced by plugins."""
        changed = message.replace(headers={"A": "changed"}, data=b"clear")
        assert (make(changed).headers, make(changed).data) == ({"A": "changed"}, b"clear")

    @pytest.mark.parametrize("call", [*TERMINAL.values(), lambda m: m.in_progress()])
    def test_a_copy_refuses_to_acknowledge(self, message, acker, make, call):
        """The error suggests what to do, and the original can still be acknowledged."""
        made = make(message)
        for _ in range(2):
            with pytest.raises(CopiedMessageError, match="acknowledge the original"):
                call(made)
        assert not made.is_acked
        assert repr(made).endswith(", copy>")
        assert acker.bodies == []
        message.ack()

    def test_a_copy_of_an_acknowledged_message(self, message, make):
        """The copy counts as acknowledged, too."""
        message.ack()
        made = make(message)
        assert made.is_acked
        with pytest.raises(MessageAlreadyAckedError):
            made.ack()

    def test_a_core_message(self, make):
        """The error of a copied core message still says that it is not from a consumer."""
        with pytest.raises(NotJetStreamMessageError):
            make(Message(b"a", b"_INBOX.x", None, b"")).ack()


@pytest.mark.parametrize(
    ("lines", "data", "size"),
    [
        (b"Nats-Msg-Size: 7\r\n", b"", 7),
        (b"Nats-Msg-Size: 1\r\nA: b\r\nNats-Msg-Size: 7\r\n", b"", 7),
        (b"Nats-Msg-Size: 0\r\n", b"", None),
        (b"Nats-Msg-Size: 7\r\n", b"x", None),
        (b"Nats-Msg-Size: many\r\n", b"", None),
        (b"Nats-Msg-Size: " + b"9" * 5000 + b"\r\n", b"", None),
        (b"X-Nats-Msg-Size: 7\r\n", b"", None),
    ],
)
def test_the_size_of_a_payload_that_was_left_out(lines, data, size):
    """The size is known if the server left out the payload, and only then."""
    block = b"NATS/1.0\r\n" + lines + b"\r\n"
    assert Message(b"a", REPLY, block, data).omitted_bytes == size
    stored = StoredMessage("S", "a", 1, 0, data=data, raw_headers=block)
    assert stored.omitted_bytes == size
    assert Message(b"a", REPLY, None, b"").omitted_bytes is None


class TestReplace:
    HEADERS = b"NATS/1.0\r\nA: 1\r\nNats-TTL: 5\r\n\r\n"

    @pytest.fixture
    def message(self, acker):
        """A message with headers."""
        return Message(b"orders.1", REPLY, self.HEADERS, b"sealed", acker)

    def test_another_payload(self, message):
        """A copy with another payload keeps everything else, and the original does not change."""
        message.headers  # noqa: B018 - it is parsed.
        copied = message.replace(data="open")
        assert (copied.data, message.data) == (b"open", b"sealed")
        assert copied.subject == message.subject
        assert copied.metadata == message.metadata
        assert copied.headers == message.headers
        assert copied.raw_headers == self.HEADERS

    def test_another_subject(self, message, acker):
        """A copy with another subject keeps everything else, and can be acknowledged."""
        copied = message.replace(subject="eu.orders")
        assert (copied.subject, message.subject) == ("eu.orders", "orders.1")
        assert (copied.data, copied.headers, copied.metadata) == (
            message.data,
            message.headers,
            message.metadata,
        )
        copied.ack()
        assert message.is_acked
        assert acker.bodies == [b"+ACK"]

    @pytest.mark.parametrize("subject", ["", "orders.*", "a b", "a..b"])
    def test_a_subject_that_is_not_valid_is_refused(self, message, subject):
        """A copy cannot have a subject that no message can be published to."""
        with pytest.raises(InvalidSubjectError):
            message.replace(subject=subject)
        assert not message.is_acked

    def test_other_headers(self, message):
        """A copy with other headers has them in every form."""
        copied = message.replace(headers={"B": ["x", "y"]})
        assert copied.headers.items() == [("B", "x"), ("B", "y")]
        assert copied.raw_headers == b"NATS/1.0\r\nB: x\r\nB: y\r\n\r\n"
        assert (copied.ttl, message.ttl) == (None, 5.0)
        assert copied.data == b"sealed"
        assert message.replace(headers={}).raw_headers is None

    def test_headers_of_any_publisher_can_be_kept(self):
        """Headers that could not be published can be put into a copy."""
        block = b"NATS/1.0\r\nA b: \xff\r\nC\x07: x\ny\r\n\r\n"
        message = Message(b"a", REPLY, block, b"")
        headers = message.headers.copy()
        headers.add("Mark", "1")
        copied = message.replace(headers=headers)
        assert Headers.parse(copied.raw_headers)[2].items() == headers.items()

    @pytest.mark.parametrize("action", TERMINAL)
    @pytest.mark.parametrize("depth", [1, 2])
    def test_the_copy_acknowledges_the_original(self, message, acker, action, depth):
        """If the copy or the copy of a copy is acknowledged, so is the original, and once only."""
        copies = [message]
        for _ in range(depth):
            copies.append(copies[-1].replace(data=b"open"))
        TERMINAL[action](copies[-1])
        assert len(acker.bodies) == 1
        for each in copies:
            assert each.is_acked
            with pytest.raises(MessageAlreadyAckedError):
                each.ack()

    def test_the_original_acknowledges_the_copy(self, message, acker):
        """If the original was acknowledged, the copy is, too, whenever it was made."""
        before = message.replace(data=b"1")
        before.in_progress()
        message.ack()
        for copied in (before, message.replace(data=b"2")):
            assert copied.is_acked
            with pytest.raises(MessageAlreadyAckedError):
                copied.nak()
        assert acker.bodies == [b"+WPI", b"+ACK"]

    @pytest.mark.parametrize("action", TERMINAL)
    def test_an_ack_that_failed_can_be_repeated(self, message, acker, action):
        """If the acknowledgement of a copy fails, both can still be acknowledged."""
        copied = message.replace(data=b"open")
        acker.error = DisconnectedError()
        with pytest.raises(DisconnectedError):
            TERMINAL[action](copied)
        assert not copied.is_acked
        assert not message.is_acked
        acker.error = None
        copied.ack()
        assert message.is_acked

    @pytest.mark.parametrize("of_copies", [True, False])
    def test_many_copies_are_acknowledged(self, acker, of_copies):
        """`ack_many` acknowledges copies, and refuses one whose original was acknowledged."""
        messages = [Message(b"a", REPLY, None, b"", acker) for _ in range(3)]
        copies = [each.replace(data=b"x") if of_copies else each for each in messages]
        assert ack_many(copies) == 3
        assert acker.bodies == [b"+ACK"] * 3
        assert all(each.is_acked for each in messages)
        again = Message(b"a", REPLY, None, b"", acker)
        copied = again.replace(data=b"x")
        again.ack()
        with pytest.raises(MessageAlreadyAckedError):
            ack_many([copied])

    def test_a_message_without_a_consumer(self):
        """The copy of a message that needs no acknowledgement needs none, either."""
        with pytest.raises(NotJetStreamMessageError):
            Message(b"a", b"", None, b"").replace(data=b"1").ack()

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"data": 5}, InvalidTypeError),
            ({"headers": {"A": "x\r\n"}}, InvalidHeaderError),
            ({"headers": 5}, InvalidTypeError),
        ],
    )
    def test_wrong_values(self, message, change, error):
        """A payload or headers of another kind are refused."""
        with pytest.raises(error):
            message.replace(**change)
