from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync.errors import (
    InvalidArgumentError,
    InvalidNameError,
    InvalidSubjectError,
    InvalidTypeError,
)
from jetsync.values.subjects import (
    LONGEST_NAME,
    LONGEST_SUBJECT,
    AckReply,
    api_prefix,
    parse_ack_reply,
    validate_filter,
    validate_name,
    validate_subject,
)

BAD = ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nb", "a\x00", "a\x7f", "a.\ud800"]
PLAIN = ["a", "a.b.c", "$JS.API.INFO", "größe.été", "a*b", "x>y", "a-b_c/d"]


class TestSubjects:
    @pytest.mark.parametrize("subject", PLAIN)
    def test_plain(self, subject):
        """A subject without wildcard tokens can be published to and subscribed to."""
        assert validate_subject(subject) == subject
        assert validate_filter(subject) == subject

    @pytest.mark.parametrize("subject", BAD)
    def test_bad(self, subject):
        """Empty tokens, blanks and control characters are refused before a byte is sent."""
        for validate in (validate_subject, validate_filter):
            with pytest.raises(InvalidSubjectError) as caught:
                validate(subject)
            assert caught.value.subject == subject

    @pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.b.*", "a.*.>"])
    def test_wildcards(self, subject):
        """Wildcards can be subscribed to and not published to."""
        assert validate_filter(subject) == subject
        with pytest.raises(InvalidSubjectError, match="wildcard"):
            validate_subject(subject)

    @pytest.mark.parametrize("letter", ["x", "ü"])
    def test_length(self, letter):
        """What would not fit into a line of the protocol is refused, as it ends the connection."""
        longest = letter * (LONGEST_SUBJECT // len(letter.encode()))
        for validate in (validate_subject, validate_filter):
            assert validate(longest) == longest
            with pytest.raises(InvalidSubjectError, match="4000 bytes") as caught:
                validate(longest + "x")
            assert len(str(caught.value)) < 200

    def test_full_wildcard_ends_a_filter(self):
        """The wildcard > is refused before the end."""
        with pytest.raises(InvalidSubjectError, match="last"):
            validate_filter("a.>.b")

    @pytest.mark.parametrize("subject", [None, b"a", 1])
    def test_wrong_type(self, subject):
        """A subject that is no text is a type error."""
        for validate in (validate_subject, validate_filter):
            with pytest.raises(InvalidTypeError):
                validate(subject)

    @given(st.text())
    def test_what_passes_is_one_word(self, subject):
        """Any text is either refused or can stand in a protocol line as it is."""
        try:
            validate_filter(subject)
        except InvalidSubjectError:
            return
        assert subject.encode().split(None) == [subject.encode()]


class TestNames:
    @pytest.mark.parametrize("name", ["ORDERS", "a-b_c", "größe", "a$b"])
    def test_good(self, name):
        """Names without separators are taken."""
        assert validate_name("stream", name) == name

    @pytest.mark.parametrize("letter", list(" .*>/\\\t\r\n\x00"))
    def test_forbidden(self, letter):
        """Blanks, dots, wildcards, slashes and control characters are refused."""
        with pytest.raises(InvalidNameError, match="consumer") as caught:
            validate_name("consumer", f"a{letter}b")
        assert caught.value.kind == "consumer"

    def test_empty(self):
        """An empty name is refused."""
        with pytest.raises(InvalidNameError, match="empty"):
            validate_name("stream", "")

    def test_length(self):
        """A name that no server takes is refused."""
        longest = "x" * LONGEST_NAME
        assert validate_name("stream", longest) == longest
        with pytest.raises(InvalidNameError, match="255 bytes"):
            validate_name("stream", longest + "x")

    def test_wrong_type(self):
        """A name that is no text is a type error."""
        with pytest.raises(InvalidTypeError):
            validate_name("stream", None)


class TestApiPrefix:
    def test_prefixes(self):
        """The prefix is the plain one, that of the domain, or the one given."""
        assert api_prefix() == "$JS.API"
        assert api_prefix(domain="hub") == "$JS.hub.API"
        assert api_prefix(prefix="from.acme") == "from.acme"

    @pytest.mark.parametrize(
        "arguments",
        [
            {"domain": "a", "prefix": "b"},
            {"domain": "a.b"},
            {"domain": ""},
            {"prefix": "a.>"},
            {"prefix": "a."},
            {"prefix": ""},
        ],
    )
    def test_refused(self, arguments):
        """Both at once, and what can not be part of a subject, are refused."""
        with pytest.raises(InvalidArgumentError):
            api_prefix(**arguments)


NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)
TOKENS = st.text(
    st.characters(blacklist_characters=".*> \r\n\t", blacklist_categories=["Cs", "Cc"]), min_size=1
)


class TestAckReply:
    @given(TOKENS, TOKENS, st.tuples(*[NUMBERS] * 5), st.sampled_from([9, 11, 12]), TOKENS)
    def test_round_trip(self, stream, consumer, numbers, tokens, domain):
        """All three forms of the ack subject are read, whatever names and numbers are in them."""
        ends = ".".join(map(str, numbers))
        text = f"{stream}.{consumer}.{ends}"
        if tokens > 9:
            text = f"{domain}.hash.{text}"
        if tokens == 12:
            text += ".random"
        found = parse_ack_reply(f"$JS.ACK.{text}".encode())
        expected = None if tokens == 9 or domain == "_" else domain
        assert found == AckReply(stream, consumer, *numbers, expected)

    def test_no_domain(self):
        """An underscore in the place of the domain is no domain."""
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
            b"$JS.ACK.S.C.1.2.3.4.5.6.7.8.9",
            b"$JS.ACK.S.C.1.2.3.4.x",
            b"$JS.ACK.S.C.1.2.3.4.-5",
            b"$JS.ACK.S.C.1.2..4.5",
            b"$JS.NAK.S.C.1.2.3.4.5",
        ],
    )
    def test_something_else(self, reply):
        """Any other reply subject is none of a consumer's message."""
        assert parse_ack_reply(reply) is None

    @given(st.binary())
    def test_never_raises(self, noise):
        """Any bytes are read or are not an ack subject."""
        parse_ack_reply(noise)
        parse_ack_reply(b"$JS.ACK." + noise)
