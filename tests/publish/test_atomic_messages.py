"""
The frames of an atomic batch, and the messages that are refused.
"""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.examples import examples
from jetsync import Expect, OutboundMessage, errors
from jetsync._api.known_streams import KnownStream
from jetsync._base.deadline import Deadline
from jetsync._proto.batch import Part
from jetsync._proto.frames import hpub
from jetsync.publish import stage as _stage
from jetsync.publish.atomic_messages import AtomicOptions, BatchMessages, Wire
from jetsync.publish.stage import MOST_STAGED_BYTES
from jetsync.values.headers import Headers
from jetsync.values.stream_config import StreamConfig

MAX_PAYLOAD = 1000


def parsed(block):
    """
    Return subject, reply, headers and payload of a frame whose sizes are right.
    """
    line, rest = block.split(b"\r\n", 1)
    verb, subject, *reply, header_size, size = line.split()
    assert verb == b"HPUB"
    assert len(rest) == int(size) + 2
    header, payload, end = rest[: int(header_size)], rest[int(header_size) : -2], rest[-2:]
    assert end == b"\r\n"
    status, pairs = header[:10], Headers.parse(header)[2].items()
    assert status == b"NATS/1.0\r\n"
    assert header.endswith(b"\r\n\r\n")
    return subject, reply, list(pairs), payload


def request(wire, part):
    """
    Return the frame of the last message of a part that asks for an answer.
    """
    target, header, payload = wire.last(part, {"S.A": b"S.A"})
    return hpub(target, b"_R.1", header, payload)


def frames(wire, items, first):
    """
    Return the frames of messages, which are less than a block.
    """
    (block,) = wire.blocks(items, first)
    return block


class TestWire:
    def test_a_message(self):
        """
        The batch's headers come first, then those of the message.
        """
        frame = frames(Wire("b1"), [(b"S.A", b"A: 1\r\n\r\n", b"data")], 3)
        assert frame == (
            b"HPUB S.A 61 65\r\n"
            b"NATS/1.0\r\nNats-Batch-Id: b1\r\nNats-Batch-Sequence: 3\r\nA: 1\r\n\r\ndata\r\n"
        )

    def test_longer_numbers(self):
        """
        The sizes in a frame count the digits of its sequence.
        """
        wire, item = Wire("b1"), (b"S.A", b"\r\n", b"data")
        single = [frames(wire, [item], number) for number in range(8, 102)]
        assert frames(wire, [item] * 94, 8) == b"".join(single)
        for number, frame in enumerate(single, 8):
            _, _, pairs, data = parsed(frame)
            assert (pairs[1], data) == (("Nats-Batch-Sequence", str(number)), b"data")

    def test_blocks_of_enough_bytes(self):
        """
        A block ends when its messages have enough bytes, and the last one has the rest.
        """
        items = [(b"S.A", b"\r\n", bytes(MOST_STAGED_BYTES // 2))]
        counts = [block.count(b"HPUB") for block in Wire("b1").blocks(items * 5, 1)]
        assert counts == [2, 2, 1]
        assert not list(Wire("b1").blocks([], 1))

    def test_the_last_message(self):
        """
        The message that commits has the commit header and asks for an answer.
        """
        part = Part(12, [(b"S.A", b"\r\n", b"data")], asks=True, commit=b"1")
        assert parsed(request(Wire("b1"), part)) == (
            b"S.A",
            [b"_R.1"],
            [("Nats-Batch-Id", "b1"), ("Nats-Batch-Sequence", "12"), ("Nats-Batch-Commit", "1")],
            b"data",
        )

    def test_the_marker(self):
        """
        The marker has a subject of the batch, and neither headers nor a payload.
        """
        part = Part(2, [], asks=True, commit=b"eob")
        assert parsed(request(Wire("b1"), part)) == (
            b"S.A",
            [b"_R.1"],
            [("Nats-Batch-Id", "b1"), ("Nats-Batch-Sequence", "2"), ("Nats-Batch-Commit", "eob")],
            b"",
        )

    @given(
        batch_id=st.text(
            st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="\x7f"),
            min_size=1,
            max_size=30,
        ).filter(lambda text: text.isprintable() and text == text.strip()),
        sequence=st.integers(1, 9999),
        payload=st.binary(max_size=50),
        header=st.sampled_from([b"\r\n", b"A: 100%\r\nB: %d %b\r\n\r\n"]),
        asks=st.booleans(),
        commit=st.sampled_from([b"", b"1", b"eob"]),
    )
    @settings(max_examples=examples(300), deadline=None)
    def test_any_id_headers_and_payload_can_be_read_back(
        self, batch_id, sequence, payload, header, asks, commit
    ):
        """
        Any id, headers and payload can be read back from the frame.
        """
        item = (b"S.A", header, payload)
        marker = commit == b"eob"
        wire = Wire(batch_id)
        if asks or commit:
            block = request(wire, Part(sequence, [] if marker else [item], True, commit))
        else:
            block = frames(wire, [item], sequence)
        subject, replies, pairs, data = parsed(block)
        own = [] if marker or header == b"\r\n" else [("A", "100%"), ("B", "%d %b")]
        batch = [("Nats-Batch-Id", batch_id), ("Nats-Batch-Sequence", str(sequence))]
        if commit:
            batch.append(("Nats-Batch-Commit", commit.decode()))
        assert (subject, pairs) == (b"S.A", batch + own)
        assert replies == ([b"_R.1"] if asks or commit else [])
        assert data == (b"" if marker else payload)
        if not marker:
            size = int(block.split(b"\r\n", 1)[0].split()[-1])
            assert size <= wire.added + len(header) + len(payload)


ITEMS = [
    (b"S.A", b"\r\n", b"one"),
    (b"S.B", b"A: 1\r\nB: 2\r\n\r\n", b""),
    (b"S.A", b"\r\n", b"\r\n\r\n"),
    (b"S.A", b"\r\n", b"HPUB S.A 9 9\r\nNats-Batch-Sequence: 7\r\n\r\n"),
    (b"\xc3\xbc", b"\r\n", bytes(range(256))),
]


@pytest.mark.parametrize("first", [1, 8, 98])
def test_messages_are_read_back_from_their_frames(first):
    """
    The frames of a batch keep its messages, so that they can be sent again under another id.
    """
    wire = Wire("b%d 1")
    block = frames(wire, ITEMS, first)
    assert list(wire.items(block)) == ITEMS
    assert list(wire.items(b"")) == []


@pytest.mark.usefixtures("variant")
def test_staged_messages_have_the_same_frames():
    """
    A stage makes the frames that the batch makes itself.
    """
    wire = Wire("b%d 1")
    staged = _stage.Stage({target.decode(): target for target, _, _ in ITEMS}, b"\r\n")
    staged.begin_in_headers(wire.head)
    staged.allow(7, len(ITEMS), 1000, 1 << 20)
    for target, tail, payload in ITEMS:
        assert staged.stage(target.decode(), payload, *([] if tail == b"\r\n" else [tail]))
    assert staged.take() == frames(wire, ITEMS, 8)


class Streams:
    """
    The cache of streams, by the first token of their subjects.
    """

    def __init__(self, **configs):
        self.configs = configs
        self.level = 5
        self.asked = []

    def known(self, name):
        return KnownStream(
            name=name, config=self.configs[name], level=self.level, version="2.15.1", epoch=1
        )

    def find(self, subject, deadline, *, fresh=False):
        self.asked.append((subject, fresh))
        for name, config in self.configs.items():
            if any(subject.startswith(each.rstrip(">")) for each in config.subjects):
                return self.known(name)
        raise errors.NoStreamResponseError(subject)


@pytest.fixture
def streams():
    """
    Stream S over ``S.>`` and stream T over ``T.>``.
    """
    return Streams(
        S=StreamConfig(name="S", subjects=["S.>"]), T=StreamConfig(name="T", subjects=["T.>"])
    )


class Stage:
    """
    A checker of messages, which keeps the admitted ones.
    """

    def __init__(self, messages):
        self.messages = messages
        self.items = []

    def admit(self, item):
        admitted = self.messages.admit(item, Deadline.after(1))
        self.items.append(admitted)
        return admitted

    def prepare_resend(self, batch_id="b1"):
        self.messages.prepare_resend(batch_id, self.items, Deadline.after(1))

    def all_have_ids(self):
        return self.messages.all_have_ids(len(self.items))


@pytest.fixture
def stage(streams):
    """
    A factory of checkers for a batch on stream S.
    """

    def check_size(size):
        if size > MAX_PAYLOAD:
            raise errors.MaxPayloadError(size, MAX_PAYLOAD)

    def stage(ttl=None):
        server = SimpleNamespace(max_payload=MAX_PAYLOAD, version="2.15.1")
        context = SimpleNamespace(
            server=server,
            connection=SimpleNamespace(check_size=check_size, inbox="_INBOX", server=server),
            streams=streams,
        )
        options = AtomicOptions(timeout=1.0, ttl=ttl, find_stream=lambda *_: streams.known("S"))
        messages = BatchMessages(context, options, "b1")
        # A message that is refused late makes the stream known.
        with pytest.raises(errors.BatchRuleError):
            messages.admit(("S.A", b"", {"Nats-Batch-Id": "x"}), Deadline.after(1))
        return Stage(messages)

    return stage


class TestAdmit:
    @pytest.mark.parametrize(
        ("item", "tail", "payload"),
        [
            (("S.A", b"x"), b"\r\n", b"x"),
            (("S.A", bytearray(b"x")), b"\r\n", b"x"),
            (("S.A", memoryview(b"x")), b"\r\n", b"x"),
            (("S.A", "é"), b"\r\n", "é".encode()),
            (("S.A", b"", None), b"\r\n", b""),
            (("S.A", b"", {"A": "1"}), b"A: 1\r\n\r\n", b""),
            (OutboundMessage("S.A"), b"\r\n", b""),
            (OutboundMessage("S.A", headers={}), b"\r\n", b""),
            (OutboundMessage("S.A", msg_id="m"), b"Nats-Msg-Id: m\r\n\r\n", b""),
        ],
    )
    def test_messages_of_all_forms_are_admitted_to_a_batch(self, stage, item, tail, payload):
        """
        Messages of all forms become a subject, headers and a payload in bytes.
        """
        staged = stage().admit(item)
        assert staged == (b"S.A", tail, payload)
        assert [type(part) for part in staged] == [bytes] * 3

    def test_a_batch_copies_the_payload(self, stage):
        """
        The payload is copied, so the caller may reuse its buffer.
        """
        data = bytearray(b"one")
        part = stage()
        staged = [part.admit(("S.A", data)), part.admit(OutboundMessage("S.A", data))]
        data[:] = b"two"
        assert [payload for _, _, payload in staged] == [b"one", b"one"]

    @pytest.mark.parametrize(
        ("item", "error"),
        [
            (5, errors.InvalidTypeError),
            ((), errors.InvalidTypeError),
            (("S.A",), errors.InvalidTypeError),
            (["S.A", b""], errors.InvalidTypeError),
            (("S.A", 5), errors.InvalidTypeError),
            (("S.A", None), errors.InvalidTypeError),
            ((5, b""), errors.InvalidTypeError),
            (([], b""), errors.InvalidTypeError),
            (("", b""), errors.InvalidSubjectError),
            (("S.A B", b""), errors.InvalidSubjectError),
            (("S.*", b""), errors.InvalidSubjectError),
            (("S.>", b""), errors.InvalidSubjectError),
            (("S.A", b"", {"A\r\n": "1"}), errors.InvalidHeaderError),
            (("S.A", b"", {"A": "1\r\nB: 2"}), errors.InvalidHeaderError),
            (OutboundMessage("S.A", msg_id=""), errors.InvalidArgumentError),
            (OutboundMessage("S.A", ttl=0.5), errors.InvalidTtlError),
            (OutboundMessage("S.A", expect=5), errors.InvalidTypeError),
            (OutboundMessage("S.A", expect=Expect(last_msg_id="m")), errors.BatchRuleError),
            (("T.A", b""), errors.InvalidSubjectError),
            (("S.A", bytes(MAX_PAYLOAD)), errors.MaxPayloadError),
            (("S.A", b"", {"A": "x" * MAX_PAYLOAD}), errors.MaxPayloadError),
        ],
    )
    def test_an_invalid_message_leaves_no_trace_in_a_batch(self, stage, item, error):
        """
        An invalid message raises its own error and leaves no trace.
        """
        part = stage()
        with pytest.raises(error):
            part.admit(item)
        assert part.messages.all_have_ids(0) is False
        assert part.admit(OutboundMessage("S.A", expect=Expect(last_sequence=0), msg_id="m"))

    def test_a_subject_of_another_stream(self, stage):
        """
        The error names the stream that stores the subject.
        """
        part = stage()
        with pytest.raises(errors.InvalidSubjectError, match=r"'T'.*'S'"):
            part.admit(("T.A", b""))

    def test_a_subject_that_the_stream_has_got_since(self, stage, streams):
        """
        A subject that the stream accepts by now is accepted. It is looked up once.
        """
        part = stage()
        streams.configs["S"] = StreamConfig(name="S", subjects=["S.>", "NEW.>"])
        for _ in range(3):
            assert part.admit(("NEW.A", b""))[0] == b"NEW.A"
        assert streams.asked == [("NEW.A", True)]

    def test_a_subject_without_a_stream_leaves_the_batch_usable(self, stage):
        """
        A subject without a stream is refused, and the batch stays usable.
        """
        part = stage()
        with pytest.raises(errors.NoStreamResponseError):
            part.admit(("X.A", b""))
        assert part.admit(("S.A", b""))

    def test_the_largest(self, stage):
        """
        The headers of the batch count towards the limit, to the byte.
        """
        room = MAX_PAYLOAD - Wire("b1").added - len(b"\r\n")
        part = stage()
        assert part.admit(("S.A", bytes(room)))
        with pytest.raises(errors.MaxPayloadError) as caught:
            part.admit(("S.A", bytes(room + 1)))
        assert (caught.value.size, caught.value.limit) == (MAX_PAYLOAD + 1, MAX_PAYLOAD)

    def test_the_largest_of_the_stream(self, stage, streams):
        """
        The stream's max_msg_size is a limit, too, as the stream is now.
        """
        streams.configs["S"] = StreamConfig(name="S", subjects=["S.>"], max_msg_size=300)
        part = stage()
        with pytest.raises(errors.InvalidArgumentError, match=r"max_msg_size.*'S' is 300"):
            part.admit(("S.A", bytes(300)))
        assert streams.asked == [("S.A", True)]
        streams.configs["S"] = attrs.evolve(streams.configs["S"], max_msg_size=800)
        assert part.admit(("S.A", bytes(300)))
        streams.configs["S"] = attrs.evolve(streams.configs["S"], max_msg_size=-1)
        assert part.admit(("S.A", bytes(850)))
        with pytest.raises(errors.MaxPayloadError):
            part.admit(("S.A", bytes(MAX_PAYLOAD)))

    def test_headers_stay_the_callers(self, stage):
        """
        The caller's mapping and message are not changed.
        """
        headers = {"A": ["1", "2"]}
        message = OutboundMessage("S.A", headers=headers, msg_id="m")
        stage(ttl=5).admit(message)
        assert headers == {"A": ["1", "2"]}
        assert message == OutboundMessage("S.A", headers={"A": ["1", "2"]}, msg_id="m")

    def test_an_older_server_later(self, stage, streams):
        """
        A batch that changes a counter is not sent again to a server that would destroy it.
        """
        part = stage()
        part.admit(("S.A", b"", {"A": "1"}))
        streams.level = 3
        part.prepare_resend()
        streams.level = 5
        part.admit(("S.A", b"", {"Nats-Incr": "+1"}))
        part.prepare_resend()
        streams.level = 3
        with pytest.raises(errors.BatchRuleError, match="counters"):
            part.prepare_resend()

    def test_a_batch_that_is_sent_again_is_measured(self, stage):
        """
        The size of the largest message includes the headers that the batch adds under its next id.
        """
        part = stage()
        part.admit(("S.A", bytes(500), {"A": "1"}))
        part.admit(("S.A", b""))
        room = MAX_PAYLOAD - 500 - len("A: 1\r\n\r\n") - Wire("").added
        part.prepare_resend("x" * room)
        with pytest.raises(errors.MaxPayloadError) as caught:
            part.prepare_resend("x" * (room + 1))
        assert (caught.value.size, caught.value.limit) == (MAX_PAYLOAD + 1, MAX_PAYLOAD)


class TestTtl:
    @pytest.mark.parametrize(
        ("ttl", "expected"), [(5, "5"), (dt.timedelta(minutes=1), "60"), ("never", "never")]
    )
    def test_of_the_batch(self, stage, ttl, expected):
        """
        The ttl of the batch applies to all messages without one.
        """
        tail = f"Nats-TTL: {expected}\r\n\r\n".encode()
        part = stage(ttl)
        for item in (("S.A", b""), ("S.A", b"", {}), OutboundMessage("S.A")):
            assert part.admit(item)[1] == tail

    @pytest.mark.parametrize(
        "item",
        [OutboundMessage("S.A", ttl=9), OutboundMessage("S.A", headers={"Nats-TTL": "9"})],
    )
    def test_of_a_message(self, stage, item):
        """
        A message's own ttl stays, as an argument or as a header.
        """
        assert stage(5).admit(item)[1] == b"Nats-TTL: 9\r\n\r\n"


class TestIds:
    def test_all_have_one(self, stage):
        """
        A batch cannot be stored twice if every message has an id.
        """
        part = stage()
        assert part.all_have_ids() is False
        part.admit(OutboundMessage("S.A", msg_id="1"))
        part.admit(OutboundMessage("S.A", headers={"Nats-Msg-Id": "2"}))
        assert part.all_have_ids() is True
        with pytest.raises(errors.DuplicateMessageIdError):
            part.admit(OutboundMessage("S.B", msg_id="2"))
        assert part.all_have_ids() is True
        part.admit(("S.A", b""))
        assert part.all_have_ids() is False


@pytest.mark.parametrize("batch_id", ["x", "x" * 64, "a b.*>", "é" * 32, "%d"])
def test_good_ids(batch_id):
    """
    An id may have any 64 printable bytes.
    """
    assert AtomicOptions(batch_id=batch_id, timeout=1.0)


@pytest.mark.parametrize(
    ("batch_id", "error"),
    [
        ("", ValueError),
        ("x" * 65, ValueError),
        ("é" * 33, ValueError),
        (" x", ValueError),
        ("x ", ValueError),
        ("x\r\nA: b", ValueError),
        ("\ud800", ValueError),
        (b"x", TypeError),
        (5, TypeError),
    ],
)
def test_bad_ids(batch_id, error):
    """
    An id that the server would refuse or ignore is invalid.
    """
    with pytest.raises(error):
        AtomicOptions(batch_id=batch_id, timeout=1.0)
