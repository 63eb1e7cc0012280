from __future__ import annotations

import json
import pickle
import sys
import threading

import pytest
import shop

import jetsync
from jetsync_schema import DefinitionError, JsonSchema, MismatchError, Schemas, ViolationError


def violations(schema, document, **options):
    """
    Return the violations of a document.
    """
    with pytest.raises(MismatchError) as caught:
        JsonSchema(schema, **options).load(json.dumps(document).encode())
    return caught.value.violations


def test_a_json_schema_error_has_subject_contract_and_path():
    """
    The text and the attributes have everything that is needed to find the mistake.
    """
    plugin = Schemas({"orders.>": shop.ORDERS})
    with pytest.raises(ViolationError) as caught:
        plugin.check("orders.1", shop.BAD)

    error = caught.value
    assert (error.subject, error.contract, error.path) == ("orders.1", "orders.>", shop.PATH)
    assert str(error) == (
        "subject 'orders.1' breaks contract 'orders.>': $.items[3].price:"
        ' the value is not of type "number"'
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_at_most_ten_violations():
    """
    At most ten violations are listed; the text shows the first and the number of others.
    """
    plugin = Schemas({">": JsonSchema({"items": {"type": "integer"}})})
    with pytest.raises(ViolationError, match=r"\(and 9 more\)") as caught:
        plugin.check("a", json.dumps(["x"] * 10_000))

    assert len(caught.value.violations) == 10


def test_the_error_of_a_json_schema_shows_no_values():
    """
    Documents may be secret: neither the text nor the attributes show their values.
    """
    secret = "hunter2"
    schema = {"properties": {"a": {"type": "integer"}, "b": {"enum": [1]}, "c": {"maxLength": 2}}}

    found = violations(schema, {"a": secret, "b": secret, "c": secret})

    assert len(found) == 3
    assert secret not in str(found)


def test_the_closest_alternative_is_shown():
    """
    If no branch of `anyOf` matches, the text shows the violation inside the closest one.
    """
    inner = {"properties": {"n": {"type": "integer"}}, "type": "object"}
    (found,) = violations(
        {"properties": {"a": {"anyOf": [{"type": "null"}, inner]}}}, {"a": {"n": "x"}}
    )

    assert found.path == "$.a"
    assert "closest: $.a.n" in found.reason


@pytest.mark.parametrize(
    ("way", "path"),
    [
        (["a", "b"], "$.a.b"),
        ([3, "x_1"], "$[3].x_1"),
        (["unit price"], "$['unit price']"),
        (["it's"], '$["it\'s"]'),
        (["é"], "$['\\xe9']"),
        (["1"], "$['1']"),
        (["a.b"], "$['a.b']"),
        (["007", 0], "$['007'][0]"),
    ],
)
def test_paths_are_unambiguous(way, path):
    """
    A name that is not a plain word is written in brackets.
    """
    schema, document = {"type": "integer"}, "x"
    for step in reversed(way):
        if isinstance(step, int):
            schema, document = {"items": schema}, [1] * step + [document]
        else:
            schema, document = {"properties": {step: schema}}, {step: document}

    assert violations(schema, document)[0].path == path


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value at line 1 column 1"),
        (b'{"a": 1,\n "b" 2}', "line 2 column 6"),
        (b"{} {}", "Extra data"),
        (b'"\xff"', "byte 1 is not UTF-8"),
        (b"\xef\xbb\xbf1", "Expecting value"),
        (b"[" * 200_000, "nested too deeply"),
        (b"NaN", "NaN is not JSON"),
        (rb'["\ud83d"]', "half of a surrogate pair"),
        (b"1" * 5000, "digits" if sys.version_info >= (3, 10, 7) else ""),
        ("{'a': 1}", "property name"),
    ],
)
def test_invalid_json(data, reason):
    """
    The error has the place in the text, and the path is that of the whole document.
    """
    with pytest.raises(ViolationError, match="not JSON") as caught:
        Schemas({">": JsonSchema(True)}).check("a", data)

    assert caught.value.path == "$"
    assert reason in caught.value.reason


def test_payloads_of_all_types_are_checked():
    """
    Text, bytes, bytearrays and views of any shape are checked.
    """
    plugin = Schemas({">": shop.ORDERS})
    for kind in (bytes, bytearray, memoryview, bytes.decode):
        plugin.check("a", kind(shop.GOOD))
        with pytest.raises(ViolationError):
            plugin.check("a", kind(shop.BAD))
    plugin.check("a", memoryview(b"".join(bytes([each, 0]) for each in shop.GOOD))[::2])


def test_a_large_document_is_checked_to_its_end():
    """
    A violation in the last item of ten megabytes is found.
    """
    items = [{"price": 1.25, "note": "x" * 80}] * 90_000 + [{"price": -1}]
    data = json.dumps({"id": "1", "items": items})
    assert len(data) > 9_000_000

    with pytest.raises(ViolationError) as caught:
        Schemas({">": shop.ORDERS}).check("a", data)
    assert caught.value.path == "$.items[90000].price"


def test_threads_share_a_contract():
    """
    Many threads check at the same time, and each gets its own result.
    """
    plugin = Schemas({"a.*": shop.ORDERS})
    wrong = []

    def work(number):
        for turn in range(200):
            try:
                plugin.check(f"a.{turn}", shop.BAD if number % 2 else shop.GOOD)
                wrong.extend([number] * (number % 2))
            except ViolationError as error:
                if not number % 2 or error.path != shop.PATH:
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        ({"type": "nope"}, {}, r"\$\.type"),
        ({"pattern": "["}, {}, "regex"),
        ({"$ref": "#/$defs/x"}, {}, "does not exist"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, {}, "there is no document"),
        ({"$ref": "file:///etc/hostname"}, {}, "there is no document"),
        ({"$schema": "http://example.com/own"}, {}, "meta-schema"),
        ("true", {}, "a schema must be an object"),
        (None, {}, "a schema must be an object"),
        ({}, {"draft": "3"}, "draft must be one of 4, 6"),
        ({"exclusiveMinimum": True}, {}, "exclusiveMinimum"),
    ],
)
def test_a_broken_json_schema_is_refused_without_a_fetch(schema, options, reason):
    """
    A broken schema is refused when the contract is made, and nothing is fetched.
    """
    with pytest.raises(DefinitionError, match=reason) as caught:
        JsonSchema(schema, **options)
    assert isinstance(caught.value, jetsync.ConfigurationError)


def test_the_draft_is_the_one_that_is_named():
    """
    The draft is that of `$schema`, or of the argument, or else 2020-12.
    """
    old = {"exclusiveMinimum": True, "minimum": 1}
    JsonSchema(old, "4")
    JsonSchema({"$schema": "http://json-schema.org/draft-04/schema#", **old})
    with pytest.raises(DefinitionError):
        JsonSchema(old)

    assert violations({"prefixItems": [{"type": "null"}]}, [1])
    JsonSchema({"prefixItems": [{"type": "null"}]}, "7").load(b"[1]")


def test_formats_are_checked_on_request():
    """
    By default, formats are annotations, as the drafts define.
    """
    JsonSchema({"format": "date"}).load(b'"x"')

    assert violations({"format": "date"}, "x", formats=True)


def test_schemas_may_refer_to_given_schemas():
    """
    A schema may refer to given ones by name, through several of them, and to their parts.
    """
    documents = {
        "address.json": {"properties": {"zip": {"$ref": "types.json#/$defs/zip"}}},
        "types.json": {"$defs": {"zip": {"pattern": "^[0-9]+$"}}},
    }
    (found,) = violations(
        {"properties": {"to": {"$ref": "address.json"}}},
        {"to": {"zip": "x"}},
        documents=documents,
    )

    assert found.path == "$.to.zip"


def test_another_process_compiles_a_pickled_json_schema():
    """
    The other process compiles the schema.
    """
    contract = JsonSchema({"$ref": "a"}, "7", formats=True, documents={"a": {"format": "date"}})
    again = pickle.loads(pickle.dumps(contract))

    assert again == contract
    with pytest.raises(MismatchError):
        again.load(b'"x"')


@pytest.mark.parametrize(
    "document",
    [{"a": object(), "b": "hunter2"}, {"a": float("nan")}, "hunter2\ud83d", {(): "hunter2"}],
)
def test_an_encoding_error_of_a_json_schema_shows_no_values(document):
    """
    Neither the text of an error nor its cause has a value, because both are logged.
    """
    with pytest.raises(ViolationError, match="not JSON") as caught:
        Schemas({">": JsonSchema(True)}).encode("a", document)

    shop.check_silent(caught.value)
    with pytest.raises(ViolationError, match="not JSON") as caught:
        Schemas({">": JsonSchema(True)}).check("a", b'{"a": "hunter2", \xff}')
    shop.check_silent(caught.value)


def test_json_documents_are_encoded_and_decoded():
    """
    `encode` makes the message, and first refuses a document that violates the contract.
    """
    plugin = Schemas({"orders.>": shop.ORDERS})
    message = plugin.encode("orders.1", {"id": "é"})
    assert (message.subject, message.data) == ("orders.1", '{"id":"é"}'.encode())
    assert message.headers is None

    with pytest.raises(ViolationError, match="required"):
        plugin.encode("orders.1", {})
    with pytest.raises(ViolationError, match="not JSON"):
        plugin.encode("orders.1", {"id": float("nan")})
    with pytest.raises(ViolationError, match="not JSON"):
        plugin.encode("orders.1", {"id": b"1"})
    with pytest.raises(jetsync.InvalidArgumentError, match="has no contract"):
        plugin.encode("others.1", {})


@pytest.mark.parametrize("contracts", [{">": {"type": "object"}}, {">": dict}, {">": None}])
def test_a_bare_json_schema_is_refused(contracts):
    """
    A bare schema is refused, because its kind is not clear.
    """
    with pytest.raises(jetsync.InvalidTypeError, match="JsonSchema"):
        Schemas(contracts)


def test_a_plugin_without_anything_to_do_is_refused():
    """
    Without contracts, or with both directions off, the plugin is refused.
    """
    with pytest.raises(jetsync.ConfigurationError, match="nothing to check"):
        Schemas()
    with pytest.raises(jetsync.ConfigurationError, match="publish is False"):
        Schemas({}, publish=False)
    with pytest.raises(jetsync.InvalidArgumentError, match="'off', 'raise', 'term', 'mark'"):
        Schemas({}, receive="drop")
    with pytest.raises(jetsync.InvalidArgumentError, match="'allow', 'refuse'"):
        Schemas({}, unlisted="deny")


def ladder(levels, step):
    """
    Return definitions, each of which uses the next one in a way that *step* makes.
    """
    found = {f"d{level}": step({"$ref": f"#/$defs/d{level + 1}"}) for level in range(levels)}
    return {"$defs": {**found, f"d{levels}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


TWICE = {
    "allOf": lambda ref: {"allOf": [ref, ref]},
    "anyOf": lambda ref: {"anyOf": [ref, {"not": ref}]},
    "oneOf": lambda ref: {"oneOf": [ref, {"type": "null"}, ref]},
    "if": lambda ref: {"if": ref, "then": ref, "else": ref},
    "dependentSchemas": lambda ref: {"dependentSchemas": {"a": ref}, **ref},
    "property": lambda ref: {"properties": {"a": {"allOf": [ref, ref]}}},
    "two kinds of property": lambda ref: {
        "properties": {"a": ref},
        "patternProperties": {"": ref},
        "unevaluatedProperties": False,
    },
    "items": lambda ref: {"items": ref, "contains": ref},
    "prefix": lambda ref: {"prefixItems": [ref, ref], "contains": ref},
    "names": lambda ref: {"propertyNames": {"allOf": [ref, ref]}},
}
"""Ways to use a definition twice for one value."""


@pytest.mark.parametrize("way", TWICE)
def test_a_schema_with_exponential_cost_is_refused(way):
    """
    A schema is refused if one path of a document could take more than 10,000 evaluations.
    """
    with pytest.raises(DefinitionError, match="more than 10,000 evaluations"):
        JsonSchema(ladder(30, TWICE[way]))

    assert JsonSchema(ladder(5, TWICE[way]))


def test_the_cost_of_other_documents_counts():
    """
    References by pointer, anchor, name and address all count, also to other documents.
    """
    twice = {"allOf": [{"$ref": "more.json#/$defs/d0"}, {"$ref": "more.json#/$defs/d0"}]}
    more = ladder(12, TWICE["allOf"])
    with pytest.raises(DefinitionError, match="evaluations"):
        JsonSchema(twice, documents={"more.json": more})
    costly = ladder(14, TWICE["allOf"])
    for reference, own in (
        ("#here", {"$anchor": "here"}),
        ("urn:here", {"$id": "urn:here", "$defs": costly["$defs"]}),
        ("https://x.test/here", {"$id": "https://x.test/here", "$defs": costly["$defs"]}),
    ):
        part = {"$ref": costly["$ref"], **own}
        with pytest.raises(DefinitionError, match="evaluations"):
            JsonSchema({"$defs": {**costly["$defs"], "x": part}, "$ref": reference})


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize(
    ("name", "pointer"), [("a/b", "a~1b"), ("a~b", "a~0b"), ("~1", "~01"), ("a%b", "a%25b")]
)
def test_the_cost_of_names_with_escapes_counts(keyword, name, pointer):
    """
    References to definitions whose names are escaped count, and dynamic ones do, too.
    """
    costly = ladder(14, TWICE["allOf"])
    definitions = {**costly["$defs"], name: {"$ref": costly["$ref"]}}
    with pytest.raises(DefinitionError, match="evaluations"):
        JsonSchema({"$defs": definitions, keyword: f"#/$defs/{pointer}"})


def test_parts_that_are_used_once_for_each_value_are_not_limited():
    """
    Schemas that refer to themselves, and large ones, are accepted.
    """
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "required": ["left"]}
    assert JsonSchema(tree).load(b'{"left": {"left": 1}}')
    wide = {"properties": {f"p{n}": {"$ref": "#/$defs/d0"} for n in range(20_000)}}
    wide["$defs"] = ladder(6, TWICE["allOf"])["$defs"]
    assert JsonSchema(wide).load(b'{"p1": 1}') == {"p1": 1}
    deep = ladder(60, lambda ref: {"properties": {"a": ref, "b": ref}})
    assert JsonSchema(deep).load(b"{}") == {}
