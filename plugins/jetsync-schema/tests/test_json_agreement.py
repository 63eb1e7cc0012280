"""
The plugin and the reference implementation of JSON Schema agree about every document.
"""

from __future__ import annotations

import json
import random
import time

import generated
import jsonschema
import pytest

from jetsync_schema import JsonSchema, Schemas, ViolationError
from jetsync_schema.errors import path_of


def identity(value):
    """
    Return a key that compares values as JSON does: 1 equals 1.0, and neither equals true.
    """
    if isinstance(value, list):
        return ("array", *map(identity, value))
    if isinstance(value, dict):
        return frozenset((name, identity(each)) for name, each in value.items())
    return isinstance(value, bool), value


def unique_items(validator, wanted, instance, _schema):
    """
    Replace a check of the reference, which misses equal items with an almost equal one between
    them.
    """
    if not wanted or not validator.is_type(instance, "array"):
        return
    if len(set(map(identity, instance))) < len(instance):
        yield jsonschema.ValidationError(f"{instance!r} has non-unique elements")


REFERENCES = {
    draft: jsonschema.validators.extend(reference, {"uniqueItems": unique_items})
    for draft, reference in {
        "4": jsonschema.Draft4Validator,
        "6": jsonschema.Draft6Validator,
        "7": jsonschema.Draft7Validator,
        "2019-09": jsonschema.Draft201909Validator,
        "2020-12": jsonschema.Draft202012Validator,
    }.items()
}

DOCUMENTS = 2000
"""For each of the five drafts."""

PER_SCHEMA = 20


def violation(plugin, data):
    """
    Return the plugin's result for a document.
    """
    try:
        plugin.check("orders.1", data)
    except ViolationError as error:
        return error
    return None


def agree(draft, seed, documents):
    """
    Compare the two for that many documents; return the number of valid ones.
    """
    source = random.Random(f"{draft} {seed}")
    valid = 0
    for _ in range(documents // PER_SCHEMA):
        schema = generated.Schemas(source, draft).whole()
        reference = REFERENCES[draft](schema)
        reference.check_schema(schema)
        plugin = Schemas({"orders.>": JsonSchema(schema, draft)})
        for _ in range(PER_SCHEMA):
            data = json.dumps(generated.shaped(source, schema, 4)).encode()
            said = json.loads(data)
            expected = reference.is_valid(said)
            valid += expected
            found = violation(plugin, data)
            assert (found is None) == expected, (schema, data, found)
            # For the schema `false`, the reference reports its parent.
            if found is not None and not found.reason.startswith("False schema"):
                places = {path_of(each.absolute_path) for each in reference.iter_errors(said)}
                assert found.path in places, (schema, data, found)
    return valid


@pytest.mark.parametrize("draft", REFERENCES)
def test_agrees_with_the_reference_on_every_document(draft):
    """
    10,000 documents over 500 schemas: whether each is valid, and the path of the first violation.
    """
    valid = agree(draft, 1, DOCUMENTS)

    # The documents include valid and invalid ones.
    assert DOCUMENTS / 10 < valid < DOCUMENTS * 9 / 10


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_agrees_with_the_reference_for_minutes():
    """
    The same with other documents each time.
    """
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for draft in REFERENCES:
            agree(draft, time.time_ns(), DOCUMENTS)


@pytest.mark.parametrize(
    ("schema", "data", "valid"),
    [
        ({"multipleOf": 0.01}, b"19.99", True),
        ({"multipleOf": 0.1}, b"0.3", True),
        ({"multipleOf": 0.1}, b"0.35", False),
        ({"pattern": r"^\d+$"}, rb'"1\n"', False),
        ({"pattern": r"^\d+$"}, '"\u0663"'.encode(), False),
        ({"type": "number"}, b"NaN", False),
        (True, b"[-Infinity]", False),
        (True, b"1e400", False),
        (True, rb'"\ud800"', False),
        (True, rb'"\ud83d\ude00"', True),
        (True, rb'"\\ud800"', True),
        (True, b"\xff\xfe1\x00", False),
    ],
)
def test_differs_from_the_reference_where_it_says_so(schema, data, valid):
    """
    The documented differences: decimals, ECMA-262 patterns, and input that RFC 8259 does not allow.
    """
    plugin = Schemas({">": JsonSchema(schema)})

    if valid:
        plugin.check("a", data)
    else:
        with pytest.raises(ViolationError):
            plugin.check("a", data)
