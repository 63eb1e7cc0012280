from __future__ import annotations

import itertools
from array import array
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetsync._proto import frames
from jetsync._proto.frames import MAX_CONTROL_LINE, MAX_LINE, SERVER_BUFFER, Splitter
from jetsync.errors import MaxControlLineError
from jetsync.values.frame import FrameRun

# The tests run over both variants of the functions that have compiled twins.
pytestmark = pytest.mark.usefixtures("variant")

OURS = (b"1000000", b"1000001", b"1000017")
UNKNOWN = b"1000099"
OTHER = b"7"
BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"
STATUS = b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n"


class Box:
    """Keeps what is pushed."""

    def __init__(self):
        self.frames = deque()
        self.push = self.frames.append
        self.express = None


def cut(*pieces, boxes=None):
    """Feed pieces; return the splitter, its mailboxes, those touched, and the foreign bytes."""
    boxes = {sid: Box() for sid in OURS} if boxes is None else boxes
    splitter = Splitter(boxes)
    touched, foreign = [], []
    for piece in pieces:
        splitter.feed(piece, touched, foreign)
    return splitter, boxes, touched, foreign


def wire(sid, subject, reply, header, payload):
    """A frame as a server writes it."""
    words = [b"MSG" if header is None else b"HMSG", subject, sid, *([reply] if reply else [])]
    if header is not None:
        words.append(b"%d" % len(header))
    body = (header or b"") + payload
    return b" ".join([*words, b"%d" % len(body)]) + b"\r\n" + body + b"\r\n"


class TestSplitter:
    def test_a_frame_has_subject_reply_and_payload_unchanged(self):
        """A frame has subject, reply, no header block and payload, all unchanged."""
        _, boxes, touched, foreign = cut(b"MSG a.b 1000000 r.1 5\r\nhello\r\n")
        assert list(boxes[b"1000000"].frames) == [(b"a.b", b"r.1", None, b"hello")]
        assert touched == [boxes[b"1000000"]]
        assert foreign == []

    def test_without_reply(self):
        """A frame without a reply subject has an empty one."""
        _, boxes, _, _ = cut(b"MSG a 1000000 0\r\n\r\n" + wire(OURS[0], b"a", b"", BLOCK, b"x"))
        assert list(boxes[b"1000000"].frames) == [(b"a", b"", None, b""), (b"a", b"", BLOCK, b"x")]

    def test_the_header_block_is_separated_from_the_payload(self):
        """The header block is separated from the payload."""
        _, boxes, _, _ = cut(wire(OURS[0], b"a", b"r", BLOCK, b"x\r\ny"))
        assert list(boxes[b"1000000"].frames) == [(b"a", b"r", BLOCK, b"x\r\ny")]

    def test_a_status_is_a_header_block_without_a_payload(self):
        """A status is a header block without a payload."""
        _, boxes, _, _ = cut(wire(OURS[0], b"a", b"", STATUS, b""))
        assert list(boxes[b"1000000"].frames) == [(b"a", b"", STATUS, b"")]

    def test_payload_of_protocol(self):
        """Bytes in a payload that look like a frame are payload."""
        payload = b"\r\nMSG a 1000001 1\r\nx\r\nPING\r\n"
        _, boxes, _, foreign = cut(wire(OURS[0], b"a", b"", None, payload))
        assert boxes[b"1000000"].frames[0][3] == payload
        assert not boxes[b"1000001"].frames
        assert foreign == []

    def test_other_lines_come_back_whole_and_in_order(self):
        """Other lines come back unchanged, whole and in order."""
        data = b"INFO {\"a\":1}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'x'\r\n"
        splitter, boxes, touched, foreign = cut(data)
        assert foreign == [
            b'INFO {"a":1}\r\n',
            b"PING\r\n",
            b"PONG\r\n",
            b"+OK\r\n",
            b"-ERR 'x'\r\n",
        ]
        assert touched == []
        assert splitter.strays == 0
        assert not any(box.frames for box in boxes.values())

    @pytest.mark.parametrize("sid", [UNKNOWN, OTHER, b"x"])
    def test_frames_for_unknown_ids_are_counted_and_dropped(self, sid):
        """Frames for unknown ids are counted and dropped."""
        splitter, _, touched, foreign = cut(wire(sid, b"a", b"", None, b"x") * 3)
        assert splitter.strays == 3
        assert touched == foreign == []

    def test_touched_once_a_run(self):
        """A mailbox is listed once per run of its frames, not once per frame."""
        first, second = OURS[:2]
        runs = [first] * 50 + [second] * 50 + [first]
        data = b"".join(wire(sid, b"a", b"", None, b"") for sid in runs)
        _, boxes, touched, _ = cut(data)
        assert touched == [boxes[first], boxes[second], boxes[first]]

    def test_left_between_blocks(self):
        """A mailbox that is removed gets no more frames, also in the middle of a run."""
        boxes = {OURS[0]: Box()}
        splitter = Splitter(boxes)
        data = wire(OURS[0], b"a", b"", None, b"x")
        splitter.feed(data, [], [])
        box = boxes.pop(OURS[0])
        splitter.feed(data, [], [])
        assert (len(box.frames), splitter.strays) == (1, 1)

    def test_large_payload_is_joined_once(self):
        """A frame in many pieces is joined when the last one arrives."""
        payload = b"x" * 1_000_000
        data = wire(OURS[0], b"a", b"", None, payload)
        boxes = {OURS[0]: Box()}
        splitter = Splitter(boxes)
        for start in range(0, len(data) - 1000, 1000):
            splitter.feed(data[start : start + 1000], [], [])
            assert not boxes[OURS[0]].frames
        touched = []
        splitter.feed(data[start + 1000 :], touched, [])
        assert touched == [boxes[OURS[0]]]
        assert boxes[OURS[0]].frames[0][3] == payload

    def test_a_mailbox_may_take_a_run_of_frames_at_once(self):
        """A mailbox may take a run at once; the remaining frames are pushed one by one."""
        data = wire(OURS[0], b"a", b"", None, b"1") + wire(OURS[0], b"a", b"", None, b"2")
        half = len(data) // 2
        for taken, left in ((half, [b"2"]), (0, [b"1", b"2"]), (2 * half, [])):
            boxes = {OURS[0]: Box()}
            asked = []

            def express(given, position, taken=taken, asked=asked):
                asked.append((given, position))
                return position + taken

            boxes[OURS[0]].express = express
            _, _, touched, foreign = cut(b"PING\r\n" + data + b"PONG\r\n", boxes=boxes)
            assert asked == [(b"PING\r\n" + data + b"PONG\r\n", 6)]
            assert [frame[3] for frame in boxes[OURS[0]].frames] == left
            assert touched == [boxes[OURS[0]]]
            assert foreign == [b"PING\r\n", b"PONG\r\n"]

    def test_express_is_asked_once(self):
        """If runs are short, a mailbox that declined one is not asked again for the same bytes."""
        boxes = {sid: Box() for sid in OURS[:2]}
        asked = []
        boxes[OURS[0]].express = lambda _, position: asked.append(position) or position
        data = b"".join(wire(sid, b"a", b"", None, b"") for sid in OURS[:2] * 20)
        cut(data, boxes=boxes)
        assert asked == [0]
        assert [len(box.frames) for box in boxes.values()] == [20, 20]

    @pytest.mark.parametrize(
        "line",
        [
            b"M",
            b"MSG",
            b"MSG ",
            b"MSG 5",
            b"MSG a 5",
            b"MSG a 1000000 five",
            b"MSG a 1000000 ",
            b"MSG a 1000000 -1",
            b"MSG a 1000000 -30",
            b"H",
            b"HMSG 5",
            b"HMSG a 1000000 5",
            b"HMSG a 1000000 x 5",
            b"HMSG a 1000000 6 5",
            b"HMSG a 1000000 -1 5",
            b"HMSG a 1000000 0 -40",
            b"MSG a 1000000 +5",
            b"MSG a 1000000 1_0",
            b"MSG a 1000000 5\t",
            b"MSG a b 1000000 r 5",
            b"MSG a 1000000 \xd9\xa5",
            b"HMSG a 1000000 +1 5",
            b"HMSG a 1000000 1 +5",
            b"HMSG a b 1000000 r 1 5",
            b"MSG a 1000000 " + b"9" * 4300,
            b"HMSG a 1000000 1 " + b"9" * 4300,
            b"HMSG a 1000000 %b %b" % (b"9" * 4300, b"9" * 4300),
            b"MSG a 1000000 99000000000",
            b"MSG a 1000000 1\n",
            b"MSG a 1000000 1\nx",
            b"MSG a\n 1000000 1",
            b"MSG\n",
            b"MSGS a 1000000 0",
            b"HMSG a 1000000 0 0\n",
        ],
    )
    def test_an_invalid_message_line_is_a_value_error(self, line):
        """An invalid message line is a ValueError, and never an endless loop."""
        with pytest.raises(ValueError, match=r".+"):
            cut(b"PING\r\n" + line + b"\r\n\r\n\r\n")

    @pytest.mark.parametrize("header", [None, BLOCK])
    @pytest.mark.parametrize("size", [0, 5, 2047, 2048, 5000])
    def test_the_end_of_a_frame(self, header, size):
        """A frame has to end where its line says."""
        data = wire(OURS[0], b"a", b"r", header, b"x" * size)
        for end in (b"x\r\n", b"\n\n", b"\r\r", b"MSG "):
            with pytest.raises(ValueError, match="line end"):
                cut(data[:-2] + end)
        cut(data[:-2] + b"\r")

    def test_a_body_beyond_the_limit(self):
        """A frame above the server's limit is refused before its body arrives."""
        line = b"MSG a 1000000 %d\r\n"
        with pytest.raises(ValueError, match="frame"):
            cut(line % (SERVER_BUFFER + 1))
        cut(line % SERVER_BUFFER)
        with pytest.raises(ValueError, match="frame"):
            cut(b"HMSG a 1000000 1 %d\r\n" % (SERVER_BUFFER + 1))

    def test_the_limit_follows_max_payload(self):
        """A server may send frames of twice its max_payload, with headers and in base64."""
        Splitter({}, SERVER_BUFFER).feed(b"MSG a 1000000 %d\r\n" % (2 * SERVER_BUFFER), [], [])
        with pytest.raises(ValueError, match="frame"):
            Splitter({}, SERVER_BUFFER).feed(
                b"MSG a 1000000 %d\r\n" % (2 * SERVER_BUFFER + 1), [], []
            )
        Splitter({}, 1024).feed(b"MSG a 1000000 %d\r\n" % SERVER_BUFFER, [], [])

    @pytest.mark.parametrize("start", [b"INFO {", b"MSG a", b"PING", b"\r", b""])
    @pytest.mark.parametrize("piece", [1 << 17, 3 * MAX_LINE])
    def test_an_endless_line(self, start, piece):
        """A line that does not end is refused at the limit, in one piece or in many."""
        pieces = [start, *[b"x" * piece] * (MAX_LINE // piece + 1)]
        with pytest.raises(ValueError, match="line"):
            cut(*pieces)

    def test_a_long_line_is_joined_once(self, monkeypatch):
        """
        The pieces of a line are joined when it ends, so the cost grows linearly with its size.
        """
        looked_at, cut = [], frames.cut

        def counting(data, *arguments):
            looked_at.append(len(data))
            return cut(data, *arguments)

        monkeypatch.setattr(frames, "cut", counting)
        line = b"INFO " + b"x" * 20_000 + b"\r\n"
        splitter, foreign = Splitter({}), []
        for start in range(len(line)):
            splitter.feed(line[start : start + 1], [], foreign)
        assert foreign == [line]
        assert looked_at == [1, len(line)]

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.binary(max_size=30) | st.sampled_from([b"\r\n", b"MSG ", b"HMSG ", b" 1 "])))
    def test_the_splitter_takes_any_bytes_or_raises_value_error(self, pieces):
        """Any bytes are taken, kept for later, returned or refused with a ValueError."""
        try:
            _, _, touched, foreign = cut(*pieces, boxes={})
        except ValueError:
            return
        assert touched == []
        assert b"".join(pieces).startswith(b"".join(foreign)) or b"MSG" in b"".join(pieces)


TOKENS = st.text("abc.$", min_size=1, max_size=8).map(str.encode)
PAYLOADS = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"", b"\r\nMSG a 1000000 1\r\n", b"\r\n", b"\r", b"x" * 5000, b"HMSG", b"M"]),
)
HEADERS = st.sampled_from([None, BLOCK, STATUS, b"NATS/1.0\r\nX: MSG a 1 1\r\n\r\n"])
SIDS = st.sampled_from([*OURS, *OURS, UNKNOWN, OTHER])
LINES = st.sampled_from(
    [b"PING\r\n", b"PONG\r\n", b"-ERR 'Permissions'\r\n", b'INFO {"a":"MSG b 1000000 0"}\r\n']
)


@st.composite
def streams(draw):
    """Bytes as a server sends them, and the expected frames and foreign bytes."""
    pieces, inboxes, foreign, strays = [], {sid: [] for sid in OURS}, [], 0
    for line in draw(st.lists(LINES | st.none(), max_size=25)):
        if line is not None:
            pieces.append(line)
            foreign.append(line)
            continue
        sid, reply = draw(SIDS), draw(st.just(b"") | TOKENS)
        frame = (draw(TOKENS), reply, draw(HEADERS), draw(PAYLOADS))
        pieces.append(wire(sid, *frame))
        if sid in inboxes:
            inboxes[sid].append(frame)
        else:
            strays += 1
    data = b"".join(pieces)
    places = st.lists(st.integers(0, len(data)), max_size=12)
    cuts = [0, *sorted(draw(places)), len(data)]
    return [data[i:j] for i, j in itertools.pairwise(cuts)], inboxes, foreign, strays


class TestCutAnywhere:
    @given(streams())
    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_frames_are_the_same_wherever_the_stream_is_cut(self, stream):
        """The same frames and foreign bytes result in the same order, however the stream is cut."""
        pieces, inboxes, foreign, strays = stream
        splitter, boxes, _, found = cut(*pieces)
        assert {sid: list(box.frames) for sid, box in boxes.items()} == inboxes
        assert b"".join(found) == b"".join(foreign)
        assert found == foreign
        assert splitter.strays == strays

    @given(streams())
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_byte_by_byte(self, stream):
        """Single bytes give the same result as any other cut."""
        pieces, inboxes, foreign, _ = stream
        data = b"".join(pieces)[:4000]
        whole = cut(data)
        split = cut(*(data[i : i + 1] for i in range(len(data))))
        assert [list(box.frames) for box in split[1].values()] == [
            list(box.frames) for box in whole[1].values()
        ]
        assert split[3] == whole[3]
        if len(data) < 4000:
            assert split[3] == foreign
            assert {sid: list(box.frames) for sid, box in split[1].items()} == inboxes


class TestBuilders:
    def test_pub_takes_bytes_with_or_without_a_reply_subject(self):
        """PUB takes any payload that is bytes, with or without a reply subject."""
        assert frames.pub(b"a", b"r", b"xy") == b"PUB a r 2\r\nxy\r\n"
        assert frames.pub(b"a", b"", bytearray(b"")) == b"PUB a  0\r\n\r\n"
        assert frames.pub(b"a", b"", memoryview(b"abc")) == b"PUB a  3\r\nabc\r\n"

    def test_hpub_counts_headers_and_the_whole(self):
        """HPUB counts the header block, and block and payload together."""
        expected = b"HPUB a r 18 20\r\n" + BLOCK + b"xy\r\n"
        assert frames.hpub(b"a", b"r", BLOCK, b"xy") == expected
        assert frames.hpub(b"a", b"r", BLOCK, memoryview(b"xy")) == expected

    def test_a_head_and_a_payload_are_a_whole_frame(self):
        """The head of a frame is all of it before the payload."""
        head = frames.hpub_head(b"a", b"r", BLOCK, 2)
        assert head + b"xy\r\n" == frames.hpub(b"a", b"r", BLOCK, b"xy")

    def test_pub_or_hpub_is_chosen_by_the_headers(self):
        """A message is PUB without headers and HPUB with."""
        assert frames.message(b"a", b"r", None, b"x") == frames.pub(b"a", b"r", b"x")
        assert frames.message(b"a", b"r", BLOCK, b"x") == frames.hpub(b"a", b"r", BLOCK, b"x")

    def test_sub_has_an_optional_queue_and_unsub_only_the_id(self):
        """SUB has an optional queue, UNSUB only the id."""
        assert frames.sub(b"a.*", b"5") == b"SUB a.*  5\r\n"
        assert frames.sub(b"a.*", b"5", b"q") == b"SUB a.* q 5\r\n"
        assert frames.unsub(b"5") == b"UNSUB 5\r\n"

    @pytest.mark.parametrize(
        "build",
        [
            lambda subject: frames.pub(subject, b"r", b"x" * 10_000),
            lambda subject: frames.hpub(b"a", subject, BLOCK, b"x" * 10_000),
            lambda subject: frames.message(subject, b"", None, b""),
            lambda subject: frames.sub(subject, b"5"),
            lambda subject: frames.sub(b"a", b"5", subject),
        ],
    )
    def test_a_line_beyond_the_limit(self, build):
        """A line may have as many bytes as a server accepts, and one more is an error."""
        room = MAX_CONTROL_LINE - len(build(b"").partition(b"\r\n")[0].partition(b" ")[2])
        line = build(b"a" * room).partition(b"\r\n")[0]
        assert len(line.partition(b" ")[2]) == MAX_CONTROL_LINE
        with pytest.raises(MaxControlLineError, match="4097 bytes") as caught:
            build(b"a" * (room + 1))
        assert (caught.value.size, caught.value.limit) == (4097, 4096)

    def test_a_subject_with_any_reply(self):
        """A valid subject leaves room for an inbox and the tokens that are added to it."""
        frames.check_subject(b"a" * 4000, "_INBOX.0123456789abcdef")
        with pytest.raises(MaxControlLineError):
            frames.check_subject(b"a" * 4000, "_INBOX.0123456789abcdef" + "x" * 10)

    @given(TOKENS, st.just(b"") | TOKENS, HEADERS, PAYLOADS)
    @settings(max_examples=50, deadline=None)
    def test_as_others_read_it(self, subject, reply, header, payload):
        """The test kit's parser reads back the frames that are built."""
        from jetsync.testing import ScriptedTransport

        transport = ScriptedTransport()
        transport.write(frames.message(subject, reply, header, payload))
        (command,) = transport.commands
        assert (command.verb, command.subject.encode()) == ("PUB", subject)
        assert (command.reply.encode(), command.header) == (reply, header)
        assert command.data == payload


def test_a_run_of_frames():
    """A run has its frames by index from either end and in order, and loses its last one."""
    run = FrameRun(b"s", b"..H1P1.H2P22..", array("i", [2, 4, 6, 7, 9, 12]))
    expected = [(b"s", b"", b"H1", b"P1"), (b"s", b"", b"H2", b"P22")]
    assert list(run) == expected
    assert [run[place] for place in (0, 1, -2, -1)] == expected * 2
    assert len(run) == 2
    run.pop()
    assert list(run) == expected[:1]
