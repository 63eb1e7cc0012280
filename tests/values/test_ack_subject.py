from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync.values.ack_subject import Metadata, parse_ack_reply

NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)
TOKENS = st.text(
    st.characters(blacklist_characters=".*> \r\n\t", blacklist_categories=["Cs", "Cc"]), min_size=1
)


class TestParseAckReply:
    @given(TOKENS, TOKENS, st.tuples(*[NUMBERS] * 5), st.sampled_from([9, 11, 12, 14]), TOKENS)
    def test_both_forms_of_an_ack_subject_are_parsed(
        self, stream, consumer, numbers, tokens, domain
    ):
        """Both forms are parsed. Tokens after the longer form are ignored."""
        ends = ".".join(map(str, numbers))
        text = f"{stream}.{consumer}.{ends}"
        if tokens > 9:
            text = f"{domain}.hash.{text}"
        text += ".added" * max(0, tokens - 11)
        found = parse_ack_reply(f"$JS.ACK.{text}".encode())
        expected = None if tokens == 9 or domain == "_" else domain
        delivered, sequence, consumer_sequence, timestamp_ns, pending = numbers
        assert found == Metadata(
            stream=stream,
            consumer=consumer,
            stream_sequence=sequence,
            consumer_sequence=consumer_sequence,
            delivered=delivered,
            pending=pending,
            timestamp_ns=timestamp_ns,
            domain=expected,
        )

    def test_no_domain(self):
        """An underscore in place of the domain means no domain."""
        found = parse_ack_reply(b"$JS.ACK._.acc.S.C.1.2.3.4.5")
        assert found is not None
        assert found.domain is None
        assert (found.delivered, found.stream_sequence, found.consumer_sequence) == (1, 2, 3)
        assert (found.timestamp_ns, found.pending) == (4, 5)

    @pytest.mark.parametrize(
        "reply",
        [
            b"",
            b"_INBOX.abc",
            b"$JS.ACK.S.C.1.2.3.4",
            b"$JS.ACK.S.C.1.2.3.4.5.6",
            b"$JS.ACK.S.C.1.2.3.4.5.x.7",
            b"$JS.ACK.S.C.1.2.3.4.x",
            b"$JS.ACK.S.C.1.2.3.4.-5",
            b"$JS.ACK.S.C.1.2..4.5",
            b"$JS.NAK.S.C.1.2.3.4.5",
        ],
    )
    def test_something_else(self, reply):
        """Other reply subjects return None."""
        assert parse_ack_reply(reply) is None

    @given(st.binary())
    def test_never_raises(self, noise):
        """Arbitrary bytes never raise an error."""
        parse_ack_reply(noise)
        parse_ack_reply(b"$JS.ACK." + noise)
