from __future__ import annotations

import random

import pytest

import jetsync
from jetsync_schema import JsonSchema, Schemas
from jetsync_schema.registry.patterns import Patterns, check_pattern


def matches(pattern, subject):
    """
    Return whether a pattern matches, as NATS documents it.
    """
    wanted, given = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or token not in {"*", given[place]}:
            return False
    return len(wanted) == len(given)


def rank(pattern):
    """
    Return a sort key for patterns: for each token a literal, then `*`, then `>`.
    """
    return [{"*": 1, ">": 2}.get(token, 0) for token in pattern.split(".")]


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [
        ("orders.1", "orders.*"),
        ("orders.1.created", "orders.*.created"),
        ("orders.7.created", "orders.7.>"),
        ("orders.7", "orders.7"),
        ("orders.8.x", "orders.>"),
        ("orders", ">"),
        ("other", ">"),
    ],
)
def test_the_most_specific_pattern_counts(subject, wanted):
    """
    From the left, a literal token precedes `*`, and `*` precedes `>`, which matches one or more
    tokens.
    """
    patterns = Patterns()
    for pattern in ("orders.*", ">", "orders.*.created", "orders.7.>", "orders.7", "orders.>"):
        patterns.add(pattern, pattern)

    assert patterns.find(subject) == wanted


def test_any_patterns_and_subjects():
    """
    The result is always the matching pattern with the lowest rank.
    """
    source = random.Random(7)
    for _ in range(300):
        patterns = Patterns()
        there = set()
        for _ in range(source.randrange(1, 12)):
            tokens = source.choices("ab*", k=source.randrange(1, 4))
            if source.random() < 0.4:
                tokens.append(">")
            there.add(".".join(tokens))
        for pattern in there:
            patterns.add(pattern, pattern)
        for _ in range(20):
            subject = ".".join(source.choices("abc", k=source.randrange(1, 5)))
            fitting = sorted((each for each in there if matches(each, subject)), key=rank)
            assert patterns.find(subject) == (fitting[0] if fitting else None)
            assert len(fitting) < 2 or rank(fitting[0]) != rank(fitting[1])


def test_nothing_matches_nothing():
    """
    A subject that no pattern matches has no contract.
    """
    assert Patterns().find("a") is None


@pytest.mark.parametrize("pattern", ["", ".", "a..b", "a.", "a b", "a.\t", ">.a", "a.>.b"])
def test_an_invalid_pattern_is_refused(pattern):
    """
    Empty tokens, spaces, and a `>` before the end are refused.
    """
    with pytest.raises(jetsync.InvalidSubjectError):
        Schemas({pattern: JsonSchema(True)})


def test_a_pattern_of_subjects_must_be_text():
    """
    A pattern must be text.
    """
    with pytest.raises(jetsync.InvalidTypeError):
        check_pattern(5)


def test_a_bucket_in_another_domain_is_found():
    """
    A key that is written through a domain's API has the contract of the bucket's subject.
    """
    for more in ({}, {">": JsonSchema(True)}):
        plugin = Schemas({"$KV.config.>": JsonSchema(False), **more}, unlisted="refuse")

        with pytest.raises(ValueError, match="False schema"):
            plugin.check("$JS.hub.API.$KV.config.a.b", b"1")


def test_a_subject_that_looks_like_a_key():
    """
    A stream may have such subjects, and their own contract comes first.
    """
    plugin = Schemas({"orders.>": JsonSchema(False), "$KV.config.>": JsonSchema(True)})
    with pytest.raises(ValueError, match="orders"):
        plugin.check("orders.$KV.config.a", b"1")

    plugin = Schemas({"$KV.config.>": JsonSchema(False)})
    with pytest.raises(ValueError, match="False schema"):
        plugin.check("prefix.of.hub.$KV.config.a", b"1")
    plugin.check("$KV.other.a", b"1")


def test_many_subjects_are_forgotten_again():
    """
    The memory for subjects is bounded, and forgetting one changes no result.
    """
    plugin = Schemas({"a.*": JsonSchema({"type": "integer"})})
    for number in range(20_000):
        plugin.check(f"a.{number}", b"1")

    with pytest.raises(ValueError, match="integer"):
        plugin.check("a.0", b"x".join([b'"', b'"']))
