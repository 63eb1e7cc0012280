from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jetsync
from jetsync._proto import keys
from jetsync._proto.keys import KeyOperation, check_bucket, check_key, check_pattern
from jetsync.values.headers import Headers
from jetsync.values.stream_config import (
    ExternalStream,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from jetsync.values.ttl import MarkerReason

TOKENS = st.sampled_from(["a", "b", "c"])
KEYS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.builds(
    lambda parts, tail: ".".join([*parts, *tail]),
    st.lists(st.sampled_from(["a", "b", "*"]), max_size=3),
    st.sampled_from([["a"], ["*"], [">"]]),
)


class TestNames:
    @pytest.mark.parametrize("name", ["a", "A-b_9", "KV_x", "-"])
    def test_a_bucket_name_has_letters_digits_and_two_signs(self, name):
        """A bucket name has letters, digits, ``-`` and ``_``."""
        assert check_bucket(name) == name

    @pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">", "a/b", "ä", "a\n", "a*"])
    def test_invalid_buckets(self, name):
        """Other bucket names raise a ValueError."""
        with pytest.raises(jetsync.InvalidBucketError) as caught:
            check_bucket(name)
        assert isinstance(caught.value, ValueError)
        assert caught.value.name == name

    @pytest.mark.parametrize("key", ["a", "a.b", "A/b_c=d-9.x", "=", "_", "a" * 300])
    def test_a_key_has_parts_separated_by_dots(self, key):
        """A key has letters, digits and a few signs, in parts separated by dots."""
        assert check_key(key) == key

    @pytest.mark.parametrize(
        "key",
        ["", ".a", "a.", "a..b", "a b", ">", "*", "a.*", "a.>", "ä", "a\n", "$KV", "a\\b", "a\x00"],
    )
    def test_invalid_keys(self, key):
        """Other keys, and wildcards, raise a ValueError that gives the reason."""
        with pytest.raises(jetsync.InvalidKeyError) as caught:
            check_key(key)
        assert isinstance(caught.value, ValueError)
        assert caught.value.reason in str(caught.value)

    @pytest.mark.parametrize(
        ("check", "key", "reason"),
        [
            (check_key, "", "it is empty"),
            (check_key, "a.", "dot"),
            (check_key, "a.*", "a key cannot contain a wildcard"),
            (check_key, ">", "a key cannot contain a wildcard"),
            (check_key, "a b", "use letters, digits"),
            (check_key, "a*", "use letters, digits"),
            (check_pattern, "a.>.b", "'>' may only be the last part"),
            (check_pattern, "*.a b", "use letters, digits"),
            (check_pattern, "a b.>", "use letters, digits"),
        ],
    )
    def test_the_error_says_what_is_wrong_with_a_key(self, check, key, reason):
        """The error says what is wrong with a key or pattern."""
        with pytest.raises(jetsync.InvalidKeyError) as caught:
            check(key)
        assert reason in caught.value.reason

    @pytest.mark.parametrize("check", [check_bucket, check_key, check_pattern])
    @pytest.mark.parametrize("name", [None, 5, b"a"])
    def test_no_text(self, check, name):
        """Anything but text raises a TypeError."""
        with pytest.raises(TypeError):
            check(name)

    @pytest.mark.parametrize("pattern", [">", "*", "a", "a.*", "*.b.>", "a.>", "*.*"])
    def test_a_pattern_may_have_wildcards_for_whole_parts(self, pattern):
        """A pattern may have wildcards for whole parts."""
        assert check_pattern(pattern) == pattern

    @pytest.mark.parametrize("pattern", ["", "a..b", ">.a", "a*", "a.b>", ".>", "a b", "a.>.b"])
    def test_invalid_patterns(self, pattern):
        """Other patterns are rejected."""
        with pytest.raises(jetsync.InvalidKeyError):
            check_pattern(pattern)


def matches(pattern: str, key: str) -> bool:
    """Return whether *pattern* matches *key*."""
    wanted, parts = pattern.split("."), key.split(".")
    if wanted[-1] == ">":
        if len(parts) < len(wanted):
            return False
        parts, wanted = parts[: len(wanted) - 1], wanted[:-1]
    return len(wanted) == len(parts) and all(
        one in {"*", other} for one, other in zip(wanted, parts, strict=True)
    )


def covers(pattern: str, other: str) -> bool:
    """Return whether *pattern* matches every key that *other* matches."""
    wanted, parts = pattern.split("."), other.split(".")
    for place, part in enumerate(wanted):
        if part == ">":
            return len(parts) > place
        if place == len(parts) or parts[place] == ">" or part not in {"*", parts[place]}:
            return False
    return len(wanted) == len(parts)


def keys_and_patterns(count: int) -> list[str]:
    """Return so many keys, and as many patterns that match none of them."""
    return [f"{kind}{number}.{end}" for number in range(count) for kind, end in ("kx", "p*")]


def calls_of(function, *arguments) -> int:
    """Return how many calls of functions a call makes, including those written in C."""
    calls = 0

    def note(_frame, event, _argument):
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return calls


class TestPatterns:
    @given(st.lists(PATTERNS, min_size=1, max_size=5), KEYS)
    def test_patterns_that_others_cover_can_be_left_out(self, patterns, key):
        """Leaving out patterns that others cover does not change which keys match."""
        kept = keys.covering(patterns)
        assert any(matches(each, key) for each in kept) is any(
            matches(each, key) for each in patterns
        )
        assert set(kept) <= set(patterns)
        assert len(keys.covering([*kept, ">"])) == 1

    @given(st.lists(PATTERNS, min_size=1, max_size=5))
    def test_no_pattern_covers_another(self, patterns):
        """What is kept has no pattern that could be left out as well."""
        kept = keys.covering(patterns)
        for each in kept:
            assert [other for other in kept if covers(other, each)] == [each]

    def test_the_work_grows_with_the_number_of_patterns(self):
        """Ten times as many keys and patterns take at most about ten times as many calls."""
        few, many = (calls_of(keys.covering, keys_and_patterns(count)) for count in (100, 1000))
        assert many < 11 * few


class TestOperations:
    @pytest.mark.parametrize(
        ("headers", "operation", "marker", "word"),
        [
            ({}, KeyOperation.PUT, None, None),
            ({"X": "DEL"}, KeyOperation.PUT, None, None),
            ({"KV-Operation": "PUT"}, KeyOperation.PUT, None, None),
            ({"KV-Operation": "DEL"}, KeyOperation.DELETE, None, "deleted"),
            ({"KV-Operation": "PURGE"}, KeyOperation.PURGE, None, "purged"),
            (
                {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "5s", "Nats-Rollup": "sub"},
                KeyOperation.PURGE,
                MarkerReason.MAX_AGE,
                "expired",
            ),
            ({"Nats-Marker-Reason": "Purge"}, KeyOperation.PURGE, MarkerReason.PURGE, "purged"),
            ({"Nats-Marker-Reason": "Remove"}, KeyOperation.DELETE, MarkerReason.REMOVE, "deleted"),
            ({"Nats-Marker-Reason": "Other"}, KeyOperation.PUT, None, None),
        ],
    )
    def test_the_headers_say_what_a_message_does_to_its_key(self, headers, operation, marker, word):
        """A message's headers say what it does to its key."""
        assert keys.operation_of(Headers(headers)) == (operation, marker)
        if word is not None:
            assert keys.why_gone(operation, marker) == word


class TestLayout:
    def test_the_keys_of_a_bucket_are_on_its_own_subjects(self):
        """The keys of a bucket are read and written on its own subjects."""
        layout = keys.layout_of("B", StreamConfig(name="KV_B"), "$JS.API")
        assert layout.origin_stream == "KV_B"
        assert layout.read_prefix == layout.write_prefix == "$KV.B."
        assert layout.key_of("$KV.B.a.b") == "a.b"
        assert layout.key_of("$KV.C.a") is None
        assert layout.origin_subject("a") == "$KV.B.a"

    def test_writes_to_a_bucket_in_a_domain_have_its_api_prefix(self):
        """Writes to a bucket in a domain begin with the API prefix of the domain."""
        layout = keys.layout_of("B", StreamConfig(name="KV_B"), "$JS.hub.API")
        assert (layout.read_prefix, layout.write_prefix) == ("$KV.B.", "$JS.hub.API.$KV.B.")

    def test_a_mirror_has_the_subjects_of_its_origin(self):
        """A mirror has the subjects of its origin, and writes go to the origin."""
        config = StreamConfig(name="KV_M", mirror=StreamSource(name="KV_B"))
        layout = keys.layout_of("M", config, "$JS.API")
        assert layout.origin_stream == "KV_B"
        assert layout.read_prefix == layout.write_prefix == "$KV.B."

    def test_writes_to_a_mirror_of_another_domain_have_its_prefix(self):
        """Writes to a mirror of another domain go to that domain."""
        source = StreamSource(name="KV_B", external=ExternalStream(api="$JS.hub.API"))
        layout = keys.layout_of("B", StreamConfig(name="KV_B", mirror=source), "$JS.leaf.API")
        assert layout.origin_api == "$JS.hub.API"
        assert (layout.read_prefix, layout.write_prefix) == ("$KV.B.", "$JS.hub.API.$KV.B.")

    def test_mirror_that_rewrites(self):
        """A mirror with a subject transform is read on the transformed subjects."""
        transform = SubjectTransform(src="$KV.B.>", dest="$KV.M.>")
        source = StreamSource(name="KV_B", subject_transforms=[transform])
        layout = keys.layout_of("M", StreamConfig(name="KV_M", mirror=source), "$JS.API")
        assert (layout.read_prefix, layout.write_prefix) == ("$KV.M.", "$KV.B.")
