"""
Configurations and numbers that are given to calls. ``values/test_codec.py`` tests the other checks.
"""

from __future__ import annotations

import pytest

from jetsync._base.fields import config_of, whole_number
from jetsync.errors import InvalidArgumentError, InvalidTypeError
from jetsync.values.consumer_config import ConsumerConfig
from jetsync.values.stream_config import StreamConfig


def test_a_name_comes_first():
    """
    The first argument is the name, and keywords are the other fields.
    """
    config = config_of(StreamConfig, "S", {"max_msgs": 1}, "create_stream()")
    assert config == StreamConfig(name="S", max_msgs=1)


def test_a_name_may_stand_for_another_field():
    """
    The plain name of a consumer is the durable name; the keyword ``name`` is not.
    """
    what = "create_consumer()"
    given = config_of(ConsumerConfig, "worker", {"max_deliver": 2}, what, key="durable_name")
    assert given == ConsumerConfig(durable_name="worker", max_deliver=2)
    given = config_of(ConsumerConfig, "worker", {"name": "a"}, what, key="durable_name")
    assert given == ConsumerConfig(durable_name="worker", name="a")
    with pytest.raises(InvalidTypeError, match="given durable_name twice"):
        config_of(ConsumerConfig, "a", {"durable_name": "b"}, what, key="durable_name")


def test_keywords_are_laid_over_a_copy():
    """
    Keywords change a copy of the object.
    """
    given = StreamConfig(name="S", max_msgs=1)
    config = config_of(StreamConfig, given, {"max_msgs": 2}, "create_stream()")
    assert (config.max_msgs, given.max_msgs) == (2, 1)


@pytest.mark.parametrize(
    ("given", "fields", "text"),
    [
        ({"name": "S"}, {}, "takes a name or a StreamConfig, not dict"),
        (ConsumerConfig(), {}, "takes a name or a StreamConfig, not ConsumerConfig"),
        ("S", {"nam": "S"}, r"create_stream\(\) has no argument 'nam'; did you mean 'name'?"),
        ("S", {"zzzz": 1}, "the fields are .*subjects"),
        (StreamConfig(), {"_received": {}}, "no argument '_received'"),
    ],
)
def test_an_unknown_argument_is_refused_with_a_suggestion(given, fields, text):
    """
    The error names the call and suggests a field.
    """
    with pytest.raises(InvalidTypeError, match=text):
        config_of(StreamConfig, given, fields, "create_stream()")


def test_values_are_checked():
    """
    Values are checked as in the constructor.
    """
    with pytest.raises(InvalidTypeError, match="subjects"):
        config_of(StreamConfig, "S", {"subjects": "a"}, "create_stream()")


@pytest.mark.parametrize(
    ("value", "error"),
    [(value, InvalidArgumentError) for value in (0, -1, 2**63, 2**64)]
    + [(value, InvalidTypeError) for value in (True, 1.0, "1", None)],
)
def test_sequences_are_whole_numbers_from_one(value, error):
    """
    Sequences are integers from 1 to 2**63 - 1.
    """
    with pytest.raises(error, match="sequence"):
        whole_number("sequence", value)
