"""
Whatever JSON, headers and subjects a server sends, each parser returns or raises an error of
jetsync.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers.examples import examples
from jetsync import errors
from jetsync._base.integers import read_count, read_digits
from jetsync._proto.consumer_probe import read_gone
from jetsync._proto.ordered import OrderedCursor
from jetsync._proto.pipeline import Pipeline
from jetsync._proto.puback import parse_ack
from jetsync._proto.status import read_status
from jetsync.errors.answers import from_api_error
from jetsync.kv.entry import delivered_entry
from jetsync.values.account import AccountInfo
from jetsync.values.ack_subject import parse_ack_reply
from jetsync.values.codec import from_wire
from jetsync.values.consumer_config import ConsumerConfig
from jetsync.values.consumer_info import ConsumerInfo, PauseState
from jetsync.values.headers import Headers
from jetsync.values.message import Message
from jetsync.values.server_info import ServerInfo, clean_info, decode_json, parse_info
from jetsync.values.stored import StoredMessage, StoredPage
from jetsync.values.stream_config import StreamConfig
from jetsync.values.stream_info import StreamInfo
from jetsync.values.system_info import Connz, Healthz, Jsz, Statsz, Subsz, Varz

MODELS = [AccountInfo, ConsumerConfig, ConsumerInfo, PauseState, StreamConfig, StreamInfo]
MODELS += [Connz, Healthz, Jsz, Statsz, Subsz, Varz]
FEW = settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

NUMBERS = st.sampled_from(
    [-1, 0, 1, 1 << 63, 1 << 64, 10**400, 1.5, 1e300, True, "1", "9" * 5000, None]
)
TEXTS = st.sampled_from(["", "S", "limits", "none", "2024-01-01T00:00:00Z", "\ud800", "1h"])
VALUES = st.recursive(
    NUMBERS | TEXTS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
RAW = st.sampled_from(
    [
        b"",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seq":NaN}',
        b'{"seq":-Infinity}',
        b'{"seq":1e400}',
        b'{"seq":' + b"1" * 5000 + b"}",
        b'{"stream":"S","seq":1,"seq":2}',
    ]
)
DIGITS = st.sampled_from([b"", b"1", b"-1", b"+1", b"1_0", b" 1", b"x", b"\xd9\xa1", b"9" * 5000])


def objects(*keys):
    """Objects with arbitrary values for these keys."""
    return st.dictionaries(st.sampled_from(keys) | st.text(max_size=3), VALUES, max_size=8)


def dumped(*keys):
    """The same as bytes, and bytes that are not JSON."""
    return objects(*keys).map(lambda value: json.dumps(value).encode()) | RAW | st.binary()


def fields_of(model):
    """The names of a model's fields."""
    return [name for name in model.__attrs_attrs__ for name in [name.name] if name[0] != "_"]


def survives(parse, *arguments):
    """Call a function, and accept jetsync's errors."""
    try:
        return parse(*arguments)
    except errors.JetSyncError:
        return None


class TestJson:
    @FEW
    @given(dumped("a"))
    def test_bytes_are_a_json_object_or_a_protocol_error(self, data):
        """Bytes are a JSON object or a protocol error."""
        found = survives(decode_json, data)
        assert found is None or isinstance(found, dict)

    @FEW
    @given(dumped("stream", "seq", "error", "val", "domain", "batch", "count", "duplicate"))
    @example(b'{"stream":"S","seq":true}')
    @example(b'{"error":"text"}')
    def test_an_ack_has_a_stream_and_a_sequence_of_the_right_types(self, data):
        """An ack has a stream and a sequence of the right types."""
        ack = survives(parse_ack, data)
        if ack is not None and not isinstance(ack, errors.ApiError):
            assert type(ack.sequence) is int
            assert 0 <= ack.sequence < 1 << 64

    @FEW
    @given(dumped("stream", "seq", "error"), DIGITS)
    def test_a_window_of_publishes(self, data, digits):
        """Each message ends, whatever its answer is."""
        pipeline = Pipeline(b"i.")
        pipeline.in_flight[1] = "m"
        pipeline.receive([(b"i." + digits, b"", None, data), (b"i.1", b"", None, data)])
        assert not pipeline.in_flight

    @FEW
    @given(dumped("error", "config", "num_pending"))
    def test_an_info_answer_says_whether_the_consumer_is_gone(self, data):
        """An info answer means that the consumer is gone, or that it is not."""
        assert isinstance(read_gone(data), (errors.JetSyncError, type(None)))

    @FEW
    @given(objects("code", "err_code", "description") | VALUES)
    def test_an_error_object_becomes_an_error_of_jetsync(self, error):
        """An error object becomes an error of jetsync."""
        found = survives(from_api_error, error)
        assert found is None or isinstance(found, errors.ApiError)

    @FEW
    @given(dumped("max_payload", "headers", "version", "api_lvl", "client_id", "ldm", "domain"))
    def test_info_lines(self, data):
        """The fields that are read from an INFO line have the right types."""
        info = survives(parse_info, b"INFO " + data, None)
        if info is not None:
            assert type(info.max_payload) is int
            assert all(type(number) is int for number in info.version_tuple)

    def test_announced_servers(self):
        """Only addresses of the form ``host:port`` are passed on."""
        good = ["10.0.0.1:4222", "[::1]:4222", "a.example:1"]
        bad = [
            None,
            4222,
            "",
            "a",
            "a:",
            ":4222",
            "a:x",
            "a:70000",
            "u@a:1",
            "a:1/x",
            "a:1?x",
            "a :1",
        ]
        line = b"INFO " + json.dumps({"connect_urls": [*bad, *good, "a:1#x"]}).encode()
        info, _ = clean_info(line, None)
        assert info["connect_urls"] == good

    def test_absent_fields(self):
        """A server that does not mention headers has none, unlike a server that is not known."""
        assert parse_info(b"INFO {}", None).headers is False
        assert parse_info(b'INFO {"headers":true}', None).headers is True
        assert ServerInfo().headers is True

    @pytest.mark.thorough
    @pytest.mark.parametrize("model", MODELS)
    def test_a_model_has_values_of_the_right_types_only(self, model):
        """A model has values of the right types only."""

        @FEW
        @given(objects(*fields_of(model)))
        def check(data):
            survives(from_wire, model, data)

        check()

    @pytest.mark.parametrize("value", [-1, True, 1.0, "1", None, 1 << 64, [], {}])
    def test_a_count_is_an_unsigned_integer_of_64_bits(self, value):
        """A count is an unsigned integer of 64 bits."""
        with pytest.raises(errors.ProtocolError):
            read_count(value, "it")


class TestHeaders:
    BLOCKS = st.lists(
        st.sampled_from([b"NATS/1.0", b" ", b"\r\n", b"408", b"9" * 5000, b"Nats-Sequence: "])
        | st.sampled_from([b"Nats-Pending-Messages: ", b"Nats-Time-Stamp: ", b"Nats-Subject: "])
        | DIGITS
        | st.binary(max_size=5),
        max_size=12,
    ).map(b"".join)

    @FEW
    @given(BLOCKS)
    def test_a_hostile_header_block_is_parsed_or_refused(self, block):
        """A header block is parsed or refused."""
        for start in (b"", b"NATS/1.0\r\n", b"NATS/1.0 "):
            survives(Headers.parse, start + block)
            survives(read_status, start + block)
            message = StoredMessage.from_direct(start + block, b"")
            for part in ("sequence", "timestamp", "stream", "subject", "headers", "ttl", "marker"):
                survives(getattr, message, part)
            survives(lambda page: page.sequences, StoredPage([message]))

    @FEW
    @given(st.lists(DIGITS, min_size=7, max_size=7))
    def test_ack_subjects(self, numbers):
        """A reply subject is that of a consumer's message, or it is not."""
        reply = b".".join([b"$JS", b"ACK", b"S", b"C", *numbers[:5]])
        assert parse_ack_reply(reply) is None or set(numbers[:5]) == {b"1"}
        message = Message(b"$KV.b.k", reply, None, b"")
        survives(delivered_entry, "b", "k", message)
        survives(lambda: message.metadata.timestamp)
        cursor = OrderedCursor({}, "C")
        cursor.next_config(None)
        survives(cursor.admit, [(b"$KV.b.k", reply.replace(b".C.", b".C_1."), None, b"")])

    def test_a_time_out_of_range(self):
        """A time outside the range of datetime is a protocol error."""
        message = Message(b"s", b"$JS.ACK.S.C.1.1.1.%b.0" % (b"9" * 25), None, b"")
        with pytest.raises(errors.ProtocolError):
            _ = message.metadata.timestamp

    @pytest.mark.parametrize("text", ["", "-1", "+1", "1_0", " 1", "\u0661", "9" * 5000, "1.0"])
    def test_a_number_in_a_header_has_at_most_64_bits(self, text):
        """A number in a header has only digits, and at most 64 bits."""
        with pytest.raises(errors.ProtocolError):
            read_digits(text)
        assert read_digits(str((1 << 64) - 1)) == (1 << 64) - 1
