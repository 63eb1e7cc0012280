from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetsync import errors
from jetsync._proto.puback import is_no_responders, parse_ack, plain_prefix
from jetsync.values.pub_acks import PubAck


def frame(data=b"", header=None):
    """An answer on a reply subject."""
    return (b"_INBOX.x.1", b"", header, data)


class TestNoResponders:
    @pytest.mark.parametrize(
        "header", [b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n"]
    )
    def test_both_forms(self, header):
        """Old servers send a bare 503, newer ones name the subject."""
        assert is_no_responders(frame(header=header))

    @pytest.mark.parametrize(
        ("data", "header"),
        [
            (b"", None),
            (b"", b"NATS/1.0\r\n\r\n"),
            (b"", b"NATS/1.0 404 No Messages\r\n\r\n"),
            (b"x", b"NATS/1.0 503\r\n\r\n"),
            (b"", b"NATS/1.0 what\r\n\r\n"),
            (b"", b"noise"),
            (b"", b"NATS/1.0 503\r\nNats-Stream: S\r\nNats-Subject: x\r\n\r\n"),
            (b'{"stream":"S","seq":1}', None),
        ],
    )
    def test_a_503_with_a_payload_is_not_no_responders(self, data, header):
        """A payload, a stored message, another status or no status is not "no responders"."""
        assert not is_no_responders(frame(data, header))


class TestParseAck:
    @pytest.mark.parametrize(
        ("data", "ack"),
        [
            (b'{"stream":"S", "seq":1}', PubAck("S", 1)),
            (b'{"stream":"S","seq":18446744073709551615}', PubAck("S", (1 << 64) - 1)),
            (b'{"stream":"S","seq":1,"duplicate": true}', PubAck("S", 1, duplicate=True)),
            (b'{"stream":"S","domain":"hub","seq":1}', PubAck("S", 1, domain="hub")),
            (b'{"stream":"S","seq":7,"val":"-5"}', PubAck("S", 7, value=-5)),
            (
                b'{"stream":"S","seq":4,"batch":"b1","count":4}',
                PubAck("S", 4, batch_id="b1", batch_size=4),
            ),
            (b'{"stream":"S","seq":1,"error":null,"new":[1]}', PubAck("S", 1)),
            ('{"stream":"Übung","seq":1}'.encode(), PubAck("Übung", 1)),
        ],
    )
    def test_every_form_of_an_ack_is_understood(self, data, ack):
        """Every form of an acknowledgement that servers send is understood."""
        assert parse_ack(data) == ack

    def test_an_error_object_is_an_error_even_with_a_stream(self):
        """An error object is returned as the error of its code, even if it names a stream."""
        data = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 5"}
        found = parse_ack(json.dumps({"error": data, "stream": "S", "seq": 0}).encode())
        assert type(found) is errors.WrongLastSequenceError
        assert (found.code, found.err_code, found.stream) == (400, 10071, "S")
        assert found.last_sequence == 5

    @pytest.mark.parametrize("stream", [{}, {"stream": ""}, {"stream": None}])
    def test_error_without_stream(self, stream):
        """An error needs neither a stream nor a known code."""
        found = parse_ack(json.dumps({"error": {"err_code": 99999}, **stream}).encode())
        assert type(found) is errors.ApiError
        assert (found.err_code, found.stream) == (99999, None)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"+OK",
            b"5",
            b"null",
            b"[]",
            b"{}",
            b'"S"',
            b"\xff\xfe",
            b'{"stream":"S"}',
            b'{"seq":1}',
            b'{"stream":"S","seq":null}',
            b'{"stream":"S","seq":"one"}',
            b'{"stream":"S","seq":[1]}',
            b'{"stream":"S","seq":1,"val":"x"}',
            b'{"stream":"S","seq":1,"val":{}}',
            b'{"error":"boom"}',
            b'{"error":"boom","stream":"S","seq":1}',
            b'{"stream":5,"seq":1}',
            b'{"stream":"S","seq":Infinity}',
            b'{"stream":"S","seq":1,"val":Infinity}',
        ],
    )
    def test_any_other_text_is_a_protocol_error_that_shows_it(self, data):
        """Any other text is a protocol error that shows the beginning of the text."""
        with pytest.raises(errors.ProtocolError) as caught:
            parse_ack(data + b" " * 100)
        assert repr(data)[2:-1][:20] in str(caught.value)
        assert len(str(caught.value)) < 500

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
        | st.dictionaries(
            st.sampled_from(["stream", "seq", "error", "duplicate", "val", "code"]),
            st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.integers()),
        )
    )
    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_any_json(self, value):
        """Any JSON is an ack, an error or a protocol error."""
        try:
            found = parse_ack(json.dumps(value).encode())
        except errors.ProtocolError:
            return
        assert isinstance(found, (PubAck, errors.ApiError))


class TestPlainPrefix:
    def test_a_plain_ack_ends_with_its_sequence(self):
        """An ack that ends with its sequence is plain, and similar ones share its prefix."""
        assert plain_prefix(b'{"stream":"S","seq":12}') == b'{"stream":"S","seq":'
        assert plain_prefix(b'{"stream":"S", "seq":1}') == b'{"stream":"S", "seq":'
        found = plain_prefix(b'{"stream":"S","domain":"hub","seq":12}')
        assert found == b'{"stream":"S","domain":"hub","seq":'

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{}",
            b'{"stream":"S","seq":1,"duplicate": true}',
            b'{"stream":"S","seq":7,"val":"5"}',
            b'{"stream":"S","seq":}',
            b'{"stream":"S","seq":-1}',
            b'{"stream":"S","seq":1',
            b'{"seq":1,"stream":"S"}',
        ],
    )
    def test_more_than_plain(self, data):
        """An ack with further fields is not plain."""
        assert plain_prefix(data) is None

    @pytest.mark.parametrize("field", ["error", "duplicate"])
    def test_never_an_error(self, field):
        """An error or a duplicate never starts with the prefix of a plain ack."""
        prefix = plain_prefix(b'{"stream":"S","seq":12}')
        answer = {"stream": "S", "seq": 0, field: {"code": 400}}
        for data in (answer, dict(reversed(answer.items()))):
            text = json.dumps(data, separators=(",", ":")).encode()
            assert not (text.startswith(prefix) and text[len(prefix) : -1].isdigit())
