from __future__ import annotations

import array
import pickle
import types

import pytest

from jetsync.errors import (
    InvalidHeaderError,
    InvalidSubjectError,
    InvalidTtlError,
    InvalidTypeError,
    JetSyncError,
    MaxPayloadError,
)
from jetsync.publish import encode as _encode
from jetsync.publish.encode import Encoder
from jetsync.values.headers import SharedHeaders
from jetsync.values.outbound import Expect, OutboundMessage, with_shared

PREFIX = b"_INBOX.r."


class StubConnection:
    """A connection whose server takes so many bytes."""

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
    """A connection whose server takes 64 bytes."""
    return StubConnection()


@pytest.fixture
def encode(connection):
    """The encoder's method."""
    return Encoder(connection).encode


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
    def test_plain(self, encode, data, payload, form):
        """Whatever the payload is given as, its bytes are sent, with their number."""
        item = ("a.b", data) if form == "pair" else OutboundMessage("a.b", data)
        expected = b"PUB a.b _INBOX.r.7 %d\r\n%b\r\n" % (len(payload), payload)
        assert encode(item, PREFIX, 7) == expected

    def test_headers(self, encode):
        """A message with headers is HPUB with a whole header block."""
        block = b"NATS/1.0\r\nA: 1\r\n\r\n"
        expected = b"HPUB a _INBOX.r.0 %d %d\r\n%bx\r\n" % (len(block), len(block) + 1, block)
        assert encode(("a", b"x", {"A": "1"}), PREFIX, 0) == expected
        assert encode(OutboundMessage("a", "x", {"A": "1"}), PREFIX, 0) == expected

    def test_everything(self, encode, connection):
        """What a message asks for besides is in its headers."""
        connection.limit = 4096
        message = OutboundMessage("a", b"", msg_id="m", ttl=5, expect=Expect(last_sequence=0))
        block = Encoder(connection).encode(message, PREFIX, 1)
        assert b"\r\nNats-Msg-Id: m\r\nNats-TTL: 5\r\nNats-Expected-Last-Sequence: 0\r\n" in block

    def test_no_headers_after_all(self, encode):
        """Empty headers are none."""
        assert encode(("a", b"", {}), PREFIX, 3) == b"PUB a _INBOX.r.3 0\r\n\r\n"

    def test_subject(self, encode):
        """A subject may have any letters."""
        expected = "PUB größe.\u4e2d _INBOX.r.1 0\r\n\r\n".encode()
        assert encode(("größe.\u4e2d", b""), PREFIX, 1) == expected


class TestRefused:
    @pytest.mark.parametrize("form", [lambda subject: (subject, b""), OutboundMessage])
    @pytest.mark.parametrize(
        "subject", ["", " ", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a\r\nPUB b 0", "a\tb"]
    )
    def test_subjects(self, encode, subject, form):
        """A subject that no server takes as one is refused, the first time and every time."""
        for _ in range(2):
            with pytest.raises(InvalidSubjectError):
                encode(form(subject), PREFIX, 1)

    @pytest.mark.parametrize("subject", [None, 5, b"a", ["a"], {}])
    def test_subject_types(self, encode, subject):
        """A subject that is no text is refused with an error of ours."""
        for item in ((subject, b""), (subject, b"", {"A": "1"})):
            with pytest.raises(JetSyncError):
                encode(item, PREFIX, 1)

    @pytest.mark.parametrize("data", [None, 5, ["x"], {"a": 1}, object()])
    def test_payloads(self, encode, data):
        """A payload that is neither bytes nor text is refused."""
        for item in (("a", data), ("a", data, {"A": "1"}), OutboundMessage("a", data)):
            with pytest.raises(InvalidTypeError):
                encode(item, PREFIX, 1)

    @pytest.mark.parametrize("item", ["a", ("a",), ("a", b"", {}, 1), None, 5, ["a", b""]])
    def test_items(self, encode, item):
        """What stands for no message is refused."""
        with pytest.raises(InvalidTypeError):
            encode(item, PREFIX, 1)

    def test_headers_and_ttl(self, encode):
        """Headers and time-to-live are checked before anything is sent."""
        with pytest.raises(InvalidHeaderError):
            encode(("a", b"", {"A": "x\r\ny"}), PREFIX, 1)
        with pytest.raises(InvalidTtlError):
            encode(OutboundMessage("a", ttl=0), PREFIX, 1)


class TestSize:
    def test_payload(self, encode, connection):
        """A payload of just the server's limit passes unasked, one byte more does not."""
        encode(("a", b"x" * 64), PREFIX, 1)
        assert connection.asked == []
        with pytest.raises(MaxPayloadError) as caught:
            encode(("a", b"x" * 65), PREFIX, 1)
        assert (caught.value.size, caught.value.limit) == (65, 64)

    def test_headers_count(self, encode):
        """Headers and payload together are what counts."""
        block = len(b"NATS/1.0\r\nA: 1\r\n\r\n")
        encode(("a", b"x" * (64 - block), {"A": "1"}), PREFIX, 1)
        with pytest.raises(MaxPayloadError) as caught:
            encode(("a", b"x" * (65 - block), {"A": "1"}), PREFIX, 1)
        assert caught.value.size == 65

    def test_bytes_count(self, encode):
        """Text counts as the bytes that are sent."""
        with pytest.raises(MaxPayloadError):
            encode(("a", "é" * 33), PREFIX, 1)

    def test_another_server(self, encode, connection):
        """After a reconnect to a server that takes more, the connection is asked and knows."""
        connection.limit = 100
        encode(("a", b"x" * 100), PREFIX, 1)
        assert connection.asked == [100]


class TestKnownSubjects:
    def test_bounded(self, connection, monkeypatch):
        """An encoder remembers so many subjects and no more."""
        monkeypatch.setattr(_encode, "KNOWN_SUBJECTS", 10)
        encoder = Encoder(connection)
        for number in range(35):
            subject = f"a.{number}"
            assert encoder.encode((subject, b""), b"r", 0).startswith(b"PUB %b " % subject.encode())
            assert len(encoder._subjects) <= 10


class TestSharedHeaders:
    """Headers that plugins give to many messages are encoded once."""

    SHARED = SharedHeaders({"A": "100%", "B": ["1", "2"]})
    BLOCK = b"NATS/1.0\r\nA: 100%\r\nB: 1\r\nB: 2\r\n\r\n"

    def test_pairs(self, connection):
        """A pair with such headers is what a message with the same headers is."""
        encoder = Encoder(connection)
        other = SharedHeaders({"C": "3"})
        for shared in (self.SHARED, other, self.SHARED):
            expected = encoder.encode(OutboundMessage("a.b", b"x", shared.to_dict()), PREFIX, 7)
            assert encoder.encode(("a.b", b"x", shared), PREFIX, 7) == expected
            assert encoder.encode(OutboundMessage("a.b", b"x", shared), PREFIX, 7) == expected
            head, tail = encoder.halves(("a.b", "x", shared), PREFIX)
            assert head + b"7" + tail == expected
        assert encoder.encode(("a.b", b"x", self.SHARED), PREFIX, 7) == (
            b"HPUB a.b _INBOX.r.7 %d %d\r\n%bx\r\n"
            % (len(self.BLOCK), len(self.BLOCK) + 1, self.BLOCK)
        )

    def test_in_a_loop(self, connection):
        """What is formatted outside has the same parts."""
        encoder = Encoder(connection)
        expected = encoder.encode(("a.b", b"x", self.SHARED), PREFIX, 7)
        pub, subjects, size, limit = encoder.shared(self.SHARED)
        assert (size, limit) == (len(self.BLOCK), connection.limit - len(self.BLOCK))
        assert pub % (subjects["a.b"], PREFIX, 7, size + 1, b"x") == expected

    def test_too_large(self, connection):
        """They count for the size, also where they alone would fit."""
        encoder = Encoder(connection)
        item = ("a.b", b"x" * (connection.limit - len(self.BLOCK) + 1), self.SHARED)
        for call in (encoder.encode, lambda *given: encoder.halves(*given[:2])):
            with pytest.raises(MaxPayloadError):
                call(item, PREFIX, 7)

    def test_with_those_of_a_message(self):
        """What a message has itself stays, and it is not changed; a pair needs no copy."""
        own = {"X": "1"}
        message = OutboundMessage("a", b"", own, msg_id="i")
        merged = with_shared(message, self.SHARED)
        assert merged.headers.to_dict() == {"X": ["1"], "A": ["100%"], "B": ["1", "2"]}
        assert (message.headers, merged.msg_id) == (own, "i")
        assert with_shared(("a", b""), self.SHARED) == ("a", b"", self.SHARED)
        assert with_shared(OutboundMessage("a"), self.SHARED).headers is self.SHARED

    @pytest.mark.parametrize("name", ["A", "a"])
    def test_those_of_one_plugin_come_together(self, name):
        """A message that has one of them itself, in whatever case, gets none of that plugin's."""
        shared = SharedHeaders({"A": "1", "B": "2"}, {"C": "3", "D": "4"})
        merged = with_shared(("a", b"", {name: "mine"}), shared)
        assert merged.headers.to_dict() == {name: ["mine"], "C": ["3"], "D": ["4"]}

    def test_can_not_be_changed(self):
        """They belong to other messages; a copy is one's own."""
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
