"""
Keywords of public calls are typed by TypedDicts, which must match their classes.
"""

from __future__ import annotations

import typing

import attrs
import pytest

import jetsync
from jetsync.kv.config import KeyValueFields
from jetsync.options import ConnectFields, OptionsFields
from jetsync.values import consumer_config, stream_config
from jetsync.values.codec import Choice
from jetsync.values.consumer_config import ConsumerFields
from jetsync.values.stream_config import StreamFields

PAIRS = [
    # The missing fields are parameters of the calls.
    (StreamFields, jetsync.StreamConfig, {"name"}),
    (ConsumerFields, jetsync.ConsumerConfig, set()),
    (KeyValueFields, jetsync.KeyValueConfig, {"bucket"}),
    (OptionsFields, jetsync.ConnectOptions, set()),
    (ConnectFields, jetsync.ConnectOptions, {"servers", "plugins"}),
]


def accepted(cls, left_out):
    """
    Return the fields that the constructor of a class accepts, with their types in the source.
    """
    written = {}
    for base in reversed(cls.__mro__):
        written |= vars(base).get("__annotations__", {})
    # The annotation of the converter counts, unless it is Any.
    init = {name: str(typed) for name, typed in cls.__init__.__annotations__.items()}
    return {
        item.name: written[item.name] if init[item.name].endswith("Any") else init[item.name]
        for item in attrs.fields(cls)
        if not item.name.startswith("_") and item.name not in left_out
    }


@pytest.mark.parametrize(("fields", "cls", "left_out"), PAIRS)
def test_the_keywords_are_the_fields_of_the_class(fields, cls, left_out):
    """
    They have the same names and the same types.
    """
    keywords = {name: typed.__forward_arg__ for name, typed in fields.__annotations__.items()}
    wanted = accepted(cls, left_out)
    assert {name: text.replace("typing.", "") for name, text in wanted.items()} == keywords


@pytest.mark.parametrize("module", [stream_config, consumer_config])
def test_the_literals_are_those_of_the_enumerations(module):
    """
    Type checkers accept exactly the values of each enumeration as literals.
    """
    enumerations = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Choice)
    ]
    enumerations.remove(Choice)
    assert enumerations
    for enumeration in enumerations:
        cls, words = typing.get_args(getattr(module, f"{enumeration.__name__}Input"))
        assert cls is enumeration
        assert list(typing.get_args(words)) == [member.value for member in enumeration]
