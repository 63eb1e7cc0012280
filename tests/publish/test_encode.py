from __future__ import annotations

import array
import pickle
import types

import attrs
import pytest

from jetsync.errors import (
    InvalidArgumentError,
    InvalidHeaderError,
    InvalidSubjectError,
    InvalidTtlError,
    InvalidTypeError,
    JetSyncError,
    MaxPayloadError,
)
from jetsync.publish import encode as _encode
from jetsync.publish import stage as _stage
from jetsync.publish.encode import Encoder, outbound_header_pairs
from jetsync.values.headers import Headers, SharedHeaders, encode_headers
from jetsync.values.outbound import Expect, OutboundMessage, with_shared

# The tests run over both variants of the functions that have compiled twins.
pytestmark = pytest.mark.usefixtures("variant")

PREFIX = b"_INBOX.r."


class StubConnection:
    """A connection whose server has this limit."""

    inbox = "_INBOX"

    def __init__(self, limit=64):
        self.limit = limit
        self.asked = []

    @property
    def server(self):
        return types.SimpleNamespace(max_payload=self.limit, version="2.15.1")

    def check_size(self, size):
        self.asked.append(size)
        if size > self.limit:
            raise MaxPayloadError(size, self.limit)


@pytest.fixture
def connection():
    """A connection whose server accepts 64 bytes."""
    return StubConnection()


def test_a_time_to_live_is_noticed(connection):
    """An encoder notes whether a message with a time-to-live was encoded."""
    encoder = Encoder(connection)
    encoder.frame(("a", b""), PREFIX, 1)
    encoder.frame(OutboundMessage("a", headers={"A": "b"}), PREFIX, 2)
    assert encoder.has_ttl is False
    encoder.frame(OutboundMessage("a", ttl=5), PREFIX, 3)
    assert encoder.has_ttl is True


@pytest.fixture
def encode(connection):
    """The encoder's method for one frame."""
    return Encoder(connection).frame


class TestBlocks:
    @pytest.mark.parametrize(
        ("data", "payload"),
        [
            (b"xyz", b"xyz"),
            (b"", b""),
            (bytearray(b"xyz"), b"xyz"),
            (memoryview(b"xyz"), b"xyz"),
            (memoryview(b"abcdef")[::2], b"ace"),
            (memoryview(array.array("H", [1, 2])), array.array("H", [1, 2]).tobytes()),
            ("é", b"\xc3\xa9"),
            (b"\r\nPUB x 0\r\n", b"\r\nPUB x 0\r\n"),
        ],
    )
    @pytest.mark.parametrize("form", ["pair", "message"])
    def test_the_bytes_of_any_payload_are_sent_with_their_number(self, encode, data, payload, form):
        """The bytes of any payload are sent, with their number."""
        item = ("a.b", data) if form == "pair" else OutboundMessage("a.b", data)
        expected = b"PUB a.b _INBOX.r.7 %d\r\n%b\r\n" % (len(payload), payload)
        assert encode(item, PREFIX, 7) == expected

    def test_a_message_with_headers_becomes_hpub(self, encode):
        """A message with headers becomes HPUB with a complete header block."""
        block = b"NATS/1.0\r\nA: 1\r\n\r\n"
        expected = b"HPUB a _INBOX.r.0 %d %d\r\n%bx\r\n" % (len(block), len(block) + 1, block)
        assert encode(("a", b"x", {"A": "1"}), PREFIX, 0) == expected
        assert encode(OutboundMessage("a", "x", {"A": "1"}), PREFIX, 0) == expected

    def test_further_fields_of_a_message_become_headers(self, encode, connection):
        """Further fields of a message become headers."""
        connection.limit = 4096
        message = OutboundMessage("a", b"", msg_id="m", ttl=5, expect=Expect(last_sequence=0))
        block = Encoder(connection).frame(message, PREFIX, 1)
        assert b"\r\nNats-Msg-Id: m\r\nNats-TTL: 5\r\nNats-Expected-Last-Sequence: 0\r\n" in block

    def test_no_headers_after_all(self, encode):
        """Empty headers count as none."""
        assert encode(("a", b"", {}), PREFIX, 3) == b"PUB a _INBOX.r.3 0\r\n\r\n"

    def test_a_subject_may_have_any_letters(self, encode):
        """A subject may have any letters."""
        expected = "PUB größe.\u4e2d _INBOX.r.1 0\r\n\r\n".encode()
        assert encode(("größe.\u4e2d", b""), PREFIX, 1) == expected


class TestRefused:
    @pytest.mark.parametrize("form", [lambda subject: (subject, b""), OutboundMessage])
    @pytest.mark.parametrize(
        "subject", ["", " ", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a\r\nPUB b 0", "a\tb"]
    )
    def test_an_invalid_subject_is_refused_every_time(self, encode, subject, form):
        """An invalid subject is refused, the first time and every time."""
        for _ in range(2):
            with pytest.raises(InvalidSubjectError):
                encode(form(subject), PREFIX, 1)

    @pytest.mark.parametrize("subject", [None, 5, b"a", ["a"], {}])
    def test_subject_types(self, encode, subject):
        """A subject that is not text raises InvalidTypeError."""
        for item in ((subject, b""), (subject, b"", {"A": "1"})):
            with pytest.raises(JetSyncError):
                encode(item, PREFIX, 1)

    @pytest.mark.parametrize("data", [None, 5, ["x"], {"a": 1}, object()])
    def test_a_payload_that_is_neither_bytes_nor_text_is_refused(self, encode, data):
        """A payload that is neither bytes nor text is refused."""
        for item in (("a", data), ("a", data, {"A": "1"}), OutboundMessage("a", data)):
            with pytest.raises(InvalidTypeError):
                encode(item, PREFIX, 1)

    @pytest.mark.parametrize("item", ["a", ("a",), ("a", b"", {}, 1), None, 5, ["a", b""]])
    def test_a_value_that_is_no_message_cannot_be_encoded(self, encode, item):
        """A value that is not a message is refused."""
        with pytest.raises(InvalidTypeError):
            encode(item, PREFIX, 1)

    def test_headers_and_ttl(self, encode):
        """Headers and time-to-live are checked before anything is sent."""
        with pytest.raises(InvalidHeaderError):
            encode(("a", b"", {"A": "x\r\ny"}), PREFIX, 1)
        with pytest.raises(InvalidTtlError):
            encode(OutboundMessage("a", ttl=0), PREFIX, 1)


class TestSize:
    def test_a_payload_of_exactly_the_limit_is_accepted(self, encode, connection):
        """A payload of exactly the server's limit is accepted, one byte more is not."""
        encode(("a", b"x" * 64), PREFIX, 1)
        assert connection.asked == []
        with pytest.raises(MaxPayloadError) as caught:
            encode(("a", b"x" * 65), PREFIX, 1)
        assert (caught.value.size, caught.value.limit) == (65, 64)

    def test_the_size_counts_headers_and_payload_together(self, encode):
        """The size counts headers and payload together."""
        block = len(b"NATS/1.0\r\nA: 1\r\n\r\n")
        encode(("a", b"x" * (64 - block), {"A": "1"}), PREFIX, 1)
        with pytest.raises(MaxPayloadError) as caught:
            encode(("a", b"x" * (65 - block), {"A": "1"}), PREFIX, 1)
        assert caught.value.size == 65

    def test_bytes_count(self, encode):
        """Text counts as its encoded bytes."""
        with pytest.raises(MaxPayloadError):
            encode(("a", "é" * 33), PREFIX, 1)

    def test_another_server(self, encode, connection):
        """After a reconnect to a server with a larger limit, the encoder uses the new limit."""
        connection.limit = 100
        encode(("a", b"x" * 100), PREFIX, 1)
        assert connection.asked == [100]


class TestKnownSubjects:
    def test_an_encoder_remembers_a_limited_number_of_subjects(self, connection, monkeypatch):
        """An encoder remembers a limited number of subjects."""
        monkeypatch.setattr(_encode, "KNOWN_SUBJECTS", 10)
        encoder = Encoder(connection)
        for number in range(35):
            subject = f"a.{number}"
            assert encoder.frame((subject, b""), b"r", 0).startswith(b"PUB %b " % subject.encode())
            assert len(encoder.targets) <= 10


class TestParts:
    def test_the_parts_together_make_the_frame(self, connection):
        """The parts together make the frame."""
        encoder = Encoder(connection)
        assert encoder.encode(("a.b", "x")) == (b"a.b", b"", b"x", ())
        header = b"NATS/1.0\r\nA: 1\r\n\r\n"
        assert encoder.encode(("a.b", b"x", {"A": "1"})) == (b"a.b", header, b"x", [("A", "1")])

    def test_an_encoder_copies_the_payload(self, connection):
        """The payload is a copy: the caller may reuse its buffer."""
        data = bytearray(b"one")
        parts = Encoder(connection).encode(("a.b", data))
        data[:] = b"two"
        assert parts[2] == b"one"

    def test_a_subject_that_the_caller_refuses(self, connection):
        """The encoder checks each new subject once, and forgets a refused one."""
        asked = []

        def check(subject):
            asked.append(subject)
            if subject == "b":
                raise InvalidSubjectError(subject, "it belongs elsewhere")

        encoder = Encoder(connection, check=check)
        for _ in range(2):
            encoder.encode(("a", b""))
            with pytest.raises(InvalidSubjectError):
                encoder.encode(("b", b""))
        assert asked == ["a", "b", "b"]


def opened(encoder, last=0, suffix=b""):
    """Return a closed stage with the subjects of an encoder."""
    stage = _stage.Stage(encoder.targets, suffix)
    stage.begin(PREFIX)
    stage.allow(last, 0, 0, 1000)
    return stage


class TestBlock:
    def test_a_block_ends_with_enough_messages_or_bytes(self, connection):
        """A block ends with enough messages, with enough bytes, or when no message is left."""
        connection.limit = 1 << 20
        encoder = Encoder(connection)
        for items, most, count, over in (
            ([("a", b"")] * 5, 3, 3, False),
            ([("a", b"")] * 5, 9, 5, True),
            ([("a", b"x" * (100 << 10))] * 5, 9, 2, False),
        ):
            stage = opened(encoder)
            assert encoder.fill(stage, iter(items), PREFIX, most, failures=[]) is over
            assert stage.last == count

    def test_an_invalid_message_is_a_failure_with_an_empty_frame(self, connection):
        """An invalid message has an empty frame and a failure."""
        encoder = Encoder(connection, b".s")
        items = [("a", b""), ("a b", b""), ("a", b"1")]
        failures, in_flight = [], {}
        stage = opened(encoder, 3, b".s")
        assert encoder.fill(stage, iter(items), PREFIX, 9, failures=failures)
        frames = b"PUB a _INBOX.r.4.s 0\r\n\r\nPUB a _INBOX.r.6.s 1\r\n1\r\n"
        assert stage.take(in_flight) == frames
        ((place, item, error),) = failures
        assert (place, item, type(error)) == (4, ("a b", b""), InvalidSubjectError)
        assert in_flight == {4: ("a", b""), 6: ("a", b"1")}

    def test_a_stage_that_is_stopped(self, connection):
        """A loss of the connection, which stops the stage, leaves out no message of the block."""
        encoder, in_flight = Encoder(connection), {}
        stage, items = opened(encoder), [("a", b"1"), ("a", b"2"), ("a", b"3", {"A": "1"})]
        stage.stop()
        assert encoder.fill(stage, iter(items), PREFIX, 9, failures=[])
        assert stage.take(in_flight).count(b"PUB a _INBOX.r.") == 3
        assert list(in_flight) == [1, 2, 3]

    def test_the_message_that_a_plugin_returns_is_encoded(self, connection):
        """A plugin's hook sees each message, and the returned message is sent."""
        encoder = Encoder(connection)
        stage, in_flight = opened(encoder), {}
        items = [("a", b"1"), ("a", b"2")]
        changed = OutboundMessage("b", b"3")
        encoder.fill(stage, iter(items), PREFIX, 9, failures=[], prepare=lambda message: changed)
        assert stage.take(in_flight).endswith(b"PUB b _INBOX.r.2 1\r\n3\r\n")
        assert in_flight == {1: changed, 2: changed}


class TestSharedHeaders:
    """Headers that plugins share among many messages are encoded once."""

    SHARED = SharedHeaders({"A": "100%", "B": ["1", "2"]})
    BLOCK = b"NATS/1.0\r\nA: 100%\r\nB: 1\r\nB: 2\r\n\r\n"

    def test_a_pair_with_shared_headers_equals_a_message_with_them(self, connection):
        """A pair with shared headers is equal to a message with the same headers."""
        encoder = Encoder(connection)
        other = SharedHeaders({"C": "3"})
        for shared in (self.SHARED, other, self.SHARED):
            expected = encoder.frame(OutboundMessage("a.b", b"x", shared.to_dict()), PREFIX, 7)
            assert encoder.frame(("a.b", b"x", shared), PREFIX, 7) == expected
            assert encoder.frame(OutboundMessage("a.b", b"x", shared), PREFIX, 7) == expected
        assert encoder.frame(("a.b", b"x", self.SHARED), PREFIX, 7) == (
            b"HPUB a.b _INBOX.r.7 %d %d\r\n%bx\r\n"
            % (len(self.BLOCK), len(self.BLOCK) + 1, self.BLOCK)
        )

    def test_in_a_block(self, connection):
        """Pairs in a block get the shared headers, whether their subject is known or not."""
        encoder = Encoder(connection)
        expected = [encoder.frame(("a.b", b"x", self.SHARED), PREFIX, n) for n in (7, 8)]
        stage, in_flight = opened(encoder, 6), {}
        items = [("a.b", b"x")] * 2
        encoder.targets.clear()
        assert encoder.fill(stage, iter(items), PREFIX, 9, failures=[], shared_headers=self.SHARED)
        assert stage.take(in_flight) == b"".join(expected)
        assert in_flight == dict.fromkeys((7, 8), ("a.b", b"x", self.SHARED))

    def test_shared_headers_count_towards_the_size(self, connection):
        """Shared headers count towards the size, even if the message alone would fit."""
        encoder = Encoder(connection)
        item = ("a.b", b"x" * (connection.limit - len(self.BLOCK) + 1), self.SHARED)
        with pytest.raises(MaxPayloadError):
            encoder.frame(item, PREFIX, 7)
        encoder.frame(("a.b", b""), PREFIX, 7)
        with pytest.raises(MaxPayloadError):
            encoder.frame(with_shared(item[:2], self.SHARED), PREFIX, 7)
        failures = []
        assert encoder.fill(
            opened(encoder), iter([item[:2]]), PREFIX, 9,
            failures=failures, shared_headers=self.SHARED,
        )  # fmt: skip
        assert [type(error) for *_, error in failures] == [MaxPayloadError]

    def test_with_those_of_a_message(self):
        """A message keeps its own headers and is not changed; a pair needs no copy."""
        own = {"X": "1"}
        message = OutboundMessage("a", b"", own, msg_id="i")
        merged = with_shared(message, self.SHARED)
        assert merged.headers.to_dict() == {"X": ["1"], "A": ["100%"], "B": ["1", "2"]}
        assert (message.headers, merged.msg_id) == (own, "i")
        assert with_shared(("a", b""), self.SHARED) == ("a", b"", self.SHARED)
        assert with_shared(OutboundMessage("a"), self.SHARED).headers is self.SHARED

    @pytest.mark.parametrize("name", ["A", "a"])
    def test_those_of_one_plugin_come_together(self, name):
        """A message that sets one of a plugin's shared headers, in any case, gets none of them."""
        shared = SharedHeaders({"A": "1", "B": "2"}, {"C": "3", "D": "4"})
        merged = with_shared(("a", b"", {name: "mine"}), shared)
        assert merged.headers.to_dict() == {name: ["mine"], "C": ["3"], "D": ["4"]}

    def test_can_not_be_changed(self):
        """Shared headers belong to other messages too and cannot be changed, but copied."""
        for change in (
            lambda: self.SHARED.add("C", "3"),
            lambda: self.SHARED.set("A", "3"),
            lambda: self.SHARED.discard("A"),
            lambda: self.SHARED.__setitem__("A", "3"),
            lambda: self.SHARED.__delitem__("A"),
        ):
            with pytest.raises(InvalidTypeError, match="change a copy"):
                change()
        copy = self.SHARED.copy()
        copy.add("C", "3")
        assert "C" not in self.SHARED
        assert pickle.loads(pickle.dumps(self.SHARED)).block == self.BLOCK


@pytest.mark.parametrize("known", [False, True])
def test_plugins_prepare_each_message(connection, known):
    """Plugins also get the pairs whose subject is known."""
    encoder = Encoder(connection)
    if known:
        encoder.frame(("a", b""), PREFIX, 1)
    stage, items = opened(encoder), iter([("a", b"1"), ("a", b"2")])
    assert encoder.fill(
        stage,
        items,
        PREFIX,
        9,
        failures=[],
        prepare=lambda message: attrs.evolve(message, data=message.data * 2),
    )
    assert stage.take().split(b"\r\n")[1::2] == [b"11", b"22"]


def sent(**fields):
    """Return the headers that are sent for a message with these fields."""
    pairs = outbound_header_pairs(OutboundMessage("a", **fields))
    return Headers.parse(encode_headers(pairs))[2].items() if pairs else None


class TestHeaderBlock:
    def test_a_message_without_such_fields_has_no_header_block(self):
        """A message without fields for headers has no header block."""
        assert sent() is None
        assert sent(headers={}) is None
        assert sent(headers=Headers()) is None
        assert sent(headers={"A": []}) is None
        assert sent(expect=Expect()) is None

    def test_user_headers_come_first_in_the_block(self):
        """User headers come first, followed by those of the other arguments."""
        fields = {"headers": {"A": ["1", "2"]}, "msg_id": "m", "ttl": 60}
        assert sent(**fields, expect=Expect(last_sequence=0)) == [
            ("A", "1"),
            ("A", "2"),
            ("Nats-Msg-Id", "m"),
            ("Nats-TTL", "60"),
            ("Nats-Expected-Last-Sequence", "0"),
        ]

    def test_arguments_replace_headers(self):
        """An argument replaces a header of the same name."""
        headers = {"Nats-Msg-Id": "old", "Nats-TTL": "5", "B": "x"}
        assert sent(headers=headers, msg_id="new") == [
            ("Nats-TTL", "5"),
            ("B", "x"),
            ("Nats-Msg-Id", "new"),
        ]

    def test_nothing_is_changed(self):
        """The caller's headers stay unchanged."""
        mapping, headers = {"A": ["1"]}, Headers({"A": "1"})
        sent(headers=mapping, msg_id="m", ttl="never")
        sent(headers=headers, msg_id="m", ttl="never")
        assert mapping == {"A": ["1"]}
        assert headers.items() == [("A", "1")]

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"headers": {"A": "x\r\ny"}}, InvalidHeaderError),
            ({"headers": {"A:": "x"}, "msg_id": "m"}, InvalidHeaderError),
            ({"headers": "A: x"}, InvalidTypeError),
            ({"msg_id": "a\nb"}, InvalidHeaderError),
            ({"msg_id": ""}, InvalidArgumentError),
            ({"msg_id": "  "}, InvalidArgumentError),
            ({"msg_id": 5}, InvalidTypeError),
            ({"ttl": 0}, InvalidTtlError),
            ({"ttl": "x"}, InvalidTtlError),
            ({"expect": {"last_sequence": 1}}, InvalidTypeError),
        ],
    )
    def test_invalid_headers_are_refused_before_a_byte_is_sent(self, fields, error):
        """Invalid headers are refused before a byte is sent."""
        with pytest.raises(error):
            sent(**fields)
