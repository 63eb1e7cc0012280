from __future__ import annotations

import array
import pickle

import pytest

from jetsync.errors import (
    InvalidArgumentError,
    InvalidNameError,
    InvalidSubjectError,
    InvalidTypeError,
)
from jetsync.values.headers import Headers
from jetsync.values.outbound import (
    Expect,
    OutboundMessage,
    coerce_outbound,
    final_message,
    payload_bytes,
)


class TestExpect:
    def test_zero_is_sent(self):
        """0 is sent like any other expectation."""
        assert Expect(last_sequence=0, last_subject_sequence=0).pairs() == [
            ("Nats-Expected-Last-Sequence", "0"),
            ("Nats-Expected-Last-Subject-Sequence", "0"),
        ]

    def test_every_expectation_has_its_header(self):
        """Every expectation has its header."""
        expect = Expect("S", 5, 3, "a.*", "id-1")
        assert expect.pairs() == [
            ("Nats-Expected-Stream", "S"),
            ("Nats-Expected-Last-Sequence", "5"),
            ("Nats-Expected-Last-Subject-Sequence", "3"),
            ("Nats-Expected-Last-Subject-Sequence-Subject", "a.*"),
            ("Nats-Expected-Last-Msg-Id", "id-1"),
        ]

    def test_no_expectations_mean_no_headers(self):
        """No expectations mean no headers."""
        assert Expect().pairs() == []

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"last_sequence": -1}, InvalidArgumentError),
            ({"last_subject_sequence": -1}, InvalidArgumentError),
            ({"last_sequence": "5"}, InvalidTypeError),
            ({"last_sequence": True}, InvalidTypeError),
            ({"last_sequence": 5.0}, InvalidTypeError),
            ({"stream": 5}, InvalidTypeError),
            ({"stream": "a.b"}, InvalidNameError),
            ({"last_msg_id": 5}, InvalidTypeError),
            ({"last_subject_sequence_subject": "a"}, InvalidArgumentError),
            (
                {"last_subject_sequence_subject": "a..b", "last_subject_sequence": 1},
                InvalidSubjectError,
            ),
        ],
    )
    def test_expectations_that_a_server_would_misread_are_refused(self, fields, error):
        """Values that a server would refuse or misread are refused before sending."""
        with pytest.raises(error):
            Expect(**fields)


class TestPayload:
    @pytest.mark.parametrize("data", [b"x", b"", bytearray(b"xy"), memoryview(b"xyz")])
    def test_bytes_like_is_not_copied(self, data):
        """Bytes-like payloads are passed on without a copy."""
        assert payload_bytes(data) is data

    def test_text_is_sent_as_utf_8(self):
        """Text is sent as UTF-8."""
        assert payload_bytes("é") == b"\xc3\xa9"
        with pytest.raises(InvalidArgumentError):
            payload_bytes("\ud800")

    @pytest.mark.parametrize(
        "data",
        [
            memoryview(array.array("i", [1, 2])),
            memoryview(b"abcdef")[::2],
            memoryview(b"abcdef").cast("B", (2, 3)),
            memoryview(array.array("i", [])),
        ],
    )
    def test_views_count_bytes(self, data):
        """The length of a memoryview is its number of bytes, whatever its items are."""
        found = payload_bytes(data)
        assert bytes(found) == data.tobytes()
        assert len(found) == data.nbytes

    @pytest.mark.parametrize("data", [None, 5, ["x"], {"a": 1}])
    def test_a_payload_of_another_type_is_refused(self, data):
        """Other types raise a TypeError."""
        with pytest.raises(InvalidTypeError):
            payload_bytes(data)


class TestCoerce:
    def test_messages_and_tuples_are_accepted(self):
        """A message, and tuples of two or three, are accepted."""
        message = OutboundMessage("a", b"x")
        assert coerce_outbound(message) is message
        assert coerce_outbound(("a", b"x")) == message
        assert coerce_outbound(("a", b"x", {"A": "1"})) == OutboundMessage("a", b"x", {"A": "1"})

    @pytest.mark.parametrize("item", ["a", ("a",), ("a", b"", None, "id"), ["a", b"x"], None, b"x"])
    def test_other_types_than_messages_are_refused(self, item):
        """Other types raise a TypeError."""
        with pytest.raises(InvalidTypeError):
            coerce_outbound(item)


class TestFinalMessage:
    def test_without_arguments(self):
        """A commit without arguments has no final message."""
        assert final_message(None, None, None, None, None, None) is None

    @pytest.mark.parametrize("place", range(1, 6))
    def test_a_final_message_with_other_arguments_needs_a_subject(self, place):
        """Any other argument needs a subject."""
        arguments = [None] * 6
        arguments[place] = ""
        with pytest.raises(InvalidArgumentError, match="subject"):
            final_message(*arguments)

    def test_with_a_subject(self):
        """The payload is empty by default."""
        expect = Expect(last_sequence=1)
        found = final_message("a", None, {"A": "b"}, "id", 5, expect)
        assert found == OutboundMessage("a", b"", {"A": "b"}, "id", 5, expect)


class TestOutboundMessage:
    def test_a_pickled_outbound_message_has_bytes_for_a_view(self):
        """A message can be pickled, and a view becomes its bytes."""
        message = OutboundMessage(
            "a", memoryview(b"x"), Headers({"A": "1"}), "m", "never", Expect("S")
        )
        assert pickle.loads(pickle.dumps(message)) == message

    def test_repr_hides_the_payload(self):
        """The repr shows the size of the payload, not its contents."""
        assert "secret" not in repr(OutboundMessage("a", b"secret"))
        assert "<6 bytes>" in repr(OutboundMessage("a", b"secret"))
        assert "<6 characters>" in repr(OutboundMessage("a", "secret"))

    @pytest.mark.parametrize("data", [None, 5, {"a": 1}])
    def test_repr_of_an_invalid_payload(self, data):
        """A message with an invalid payload has a repr, too, which names the type."""
        assert f"<{type(data).__name__}>" in repr(OutboundMessage("a", data))


@pytest.mark.parametrize("name", ["last_sequence", "last_subject_sequence"])
def test_largest_expected_sequence(name):
    """Sequences have 64 bits without a sign; larger numbers are refused by name."""
    assert getattr(Expect(**{name: 2**64 - 1}), name) == 2**64 - 1
    with pytest.raises(InvalidArgumentError, match=name):
        Expect(**{name: 2**64})
