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
    api_prefix,
    validate_filter,
    validate_name,
    validate_queue,
    validate_subject,
)

BAD = ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nb", "a\x00", "a\x7f", "a.\ud800"]
PLAIN = ["a", "a.b.c", "$JS.API.INFO", "größe.été", "a*b", "x>y", "a-b_c/d"]


class TestSubjects:
    @pytest.mark.parametrize("subject", PLAIN)
    def test_a_subject_without_wildcards_is_valid_for_both_uses(self, subject):
        """A subject without wildcards is valid for publishing and subscribing."""
        assert validate_subject(subject) == subject
        assert validate_filter(subject) == subject

    @pytest.mark.parametrize("subject", BAD)
    def test_subjects_with_spaces_or_empty_tokens_are_refused(self, subject):
        """Empty tokens, spaces and control characters are refused."""
        for validate in (validate_subject, validate_filter):
            with pytest.raises(InvalidSubjectError) as caught:
                validate(subject)
            assert caught.value.subject == subject

    def test_the_error_names_a_lone_surrogate(self):
        """A lone surrogate, which cannot be encoded, is not called a space."""
        with pytest.raises(InvalidSubjectError, match="it contains a lone surrogate"):
            validate_subject("a.\ud800")

    @pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.b.*", "a.*.>"])
    def test_wildcards_are_valid_only_for_subscribing(self, subject):
        """Wildcards are valid for subscribing, but not for publishing."""
        assert validate_filter(subject) == subject
        with pytest.raises(InvalidSubjectError, match="wildcard"):
            validate_subject(subject)

    @pytest.mark.parametrize("letter", ["x", "ü"])
    def test_a_subject_over_the_line_limit_is_refused(self, letter):
        """A subject that exceeds the line limit is refused: servers would disconnect."""
        longest = letter * (LONGEST_SUBJECT // len(letter.encode()))
        for validate in (validate_subject, validate_filter):
            assert validate(longest) == longest
            with pytest.raises(InvalidSubjectError, match="4000 bytes") as caught:
                validate(longest + "x")
            assert caught.value.subject == 40 * letter + "..."
            assert len(str(caught.value)) < 200

    def test_full_wildcard_ends_a_filter(self):
        """The wildcard > is refused unless it is the last token."""
        with pytest.raises(InvalidSubjectError, match="last"):
            validate_filter("a.>.b")

    @pytest.mark.parametrize("subject", [None, b"a", 1])
    def test_a_subject_that_is_not_text_is_refused(self, subject):
        """A subject that is not text raises InvalidTypeError."""
        for validate in (validate_subject, validate_filter):
            with pytest.raises(InvalidTypeError):
                validate(subject)

    @given(st.text())
    def test_accepted_text_is_one_token(self, subject):
        """Any text is either refused or fits into a protocol line unchanged."""
        try:
            validate_filter(subject)
        except InvalidSubjectError:
            return
        assert subject.encode().split(None) == [subject.encode()]


class TestNames:
    @pytest.mark.parametrize("name", ["ORDERS", "a-b_c", "größe", "a$b"])
    def test_names_without_separators_are_valid(self, name):
        """Names without separators are valid."""
        assert validate_name("stream", name) == name

    @pytest.mark.parametrize("letter", list(" .*>/\\\t\r\n\x00"))
    def test_names_with_separators_are_refused(self, letter):
        """Spaces, dots, wildcards, slashes and control characters are refused."""
        with pytest.raises(InvalidNameError, match="consumer") as caught:
            validate_name("consumer", f"a{letter}b")
        assert caught.value.kind == "consumer"

    def test_an_empty_name_is_refused(self):
        """An empty name is refused."""
        with pytest.raises(InvalidNameError, match="empty"):
            validate_name("stream", "")

    def test_a_name_longer_than_servers_accept_is_refused(self):
        """A name that is longer than servers accept is refused."""
        longest = "x" * LONGEST_NAME
        assert validate_name("stream", longest) == longest
        with pytest.raises(InvalidNameError, match="255 bytes"):
            validate_name("stream", longest + "x")

    def test_a_name_that_is_not_text_is_refused(self):
        """A name that is not text raises InvalidTypeError."""
        with pytest.raises(InvalidTypeError):
            validate_name("stream", None)


class TestQueues:
    @pytest.mark.parametrize("name", ["q", "a.b", "a.*", ">", "größe"])
    def test_a_queue_may_contain_dots_and_wildcards(self, name):
        """A name is one word, which may contain dots and wildcards."""
        assert validate_queue(name) == name

    @pytest.mark.parametrize("name", ["", "a b", "a\tb", "a\r\nb", "a\x00b", "a\u2003b", "\ud800"])
    def test_a_queue_with_spaces_is_refused(self, name):
        """White space and control characters are refused."""
        with pytest.raises(InvalidNameError, match="invalid queue name") as caught:
            validate_queue(name)
        assert caught.value.argument == "queue"

    @pytest.mark.parametrize("name", [5, b"q", ["q"]])
    def test_a_queue_that_is_not_text_is_refused(self, name):
        """A name that is not text raises InvalidTypeError."""
        with pytest.raises(InvalidTypeError, match="queue"):
            validate_queue(name)


class TestApiPrefix:
    def test_the_api_prefix_is_the_default_a_domain_or_given(self):
        """The prefix is the default one, that of a domain, or the one given."""
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
    def test_an_api_prefix_and_a_domain_exclude_each_other(self, arguments):
        """A domain together with a prefix, and invalid values, are refused."""
        with pytest.raises(InvalidArgumentError):
            api_prefix(**arguments)
