from __future__ import annotations

import datetime as dt
import decimal
import io
import pickle
import random
import uuid

import fastavro
import pytest
import shop
from fastavro.utils import generate_many

import jetsync
from jetsync_schema import (
    SCHEMA_ID,
    AvroSchema,
    DefinitionError,
    MismatchError,
    Schemas,
    ViolationError,
)
from jetsync_schema.formats.avro_walk import ByteWalk, named_types

TRIPS = Schemas({"trips.>": shop.TRIPS})
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def nested(levels, inner):
    """
    Return records, each of which contains the next one twice.
    """
    schema = inner
    for level in range(levels):
        again = f"r{level - 1}" if level else schema
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": again}]
        schema = {"type": "record", "name": f"r{level}", "fields": fields}
    return schema


def loaded(contract, data, schema_id=None):
    """
    Return the violations of a payload.
    """
    with pytest.raises(MismatchError) as caught:
        contract.load(data, schema_id)
    (found,) = caught.value.violations
    return found.path, found.reason


def dumped(contract, document):
    """
    Return the violations of a document.
    """
    with pytest.raises(MismatchError) as caught:
        contract.dump(document)
    (found,) = caught.value.violations
    return found.path, found.reason


def test_the_header_is_avros_own_fingerprint():
    """
    The fingerprints are those of the Avro specification for ``"null"`` and other schemas.
    """
    assert AvroSchema("null").schema_id == "63dd24e7cc258f8a"
    assert AvroSchema({"type": "null", "doc": "x"}).schema_id == "63dd24e7cc258f8a"


def test_avro_documents_get_defaults_for_missing_fields():
    """
    Documents are encoded with the header, and missing fields get their defaults.
    """
    message = TRIPS.encode("trips.1", {"id": "a", "stops": [{"km": 1.5}]})

    assert message.headers[SCHEMA_ID] == shop.TRIPS.schema_id
    assert shop.TRIPS.load(message.data) == {"id": "a", "stops": [{"km": 1.5, "note": None}]}


def test_older_schemas_are_converted_to_the_newest():
    """
    The header names the schema that wrote the document.
    """
    data = shop.OLD_TRIPS.dump({"id": "a"})

    assert shop.TRIPS.load(data, shop.OLD_TRIPS.schema_id) == {"id": "a", "stops": []}
    reason = "it ends too early: it needs 1 bytes, and 0 are left"
    assert loaded(shop.TRIPS, data) == ("$.stops", reason)


def test_an_unknown_header_is_refused():
    """
    The text lists the known schemas.
    """
    with pytest.raises(ViolationError, match="Schema-Id '1' is unknown; known ids: ") as caught:
        TRIPS.check("trips.1", b"", {SCHEMA_ID: "1"})

    assert shop.OLD_TRIPS.schema_id in str(caught.value)


def test_ids_may_be_given():
    """
    The ids may be those of a registry, for example.
    """
    contract = AvroSchema(shop.AVRO_2, id="8", versions={"7": shop.AVRO_1})

    assert (contract.schema_id, contract.known_ids) == ("8", ["8", "7"])
    assert contract.load(b"\x02a", "7")["stops"] == []


GOOD = shop.TRIPS.dump({"id": "a", "stops": [{"km": 1}, {"km": 2, "note": "x"}]})


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b"", "$.id", "ends too early"),
        (b"\x01", "$.id", "-1 bytes"),
        (b"\x02\xff\x00", "$.id", "not UTF-8"),
        (b"\xff" * 20, "$.id", "more than 64 bits"),
        (GOOD[:-1], "$.stops", "ends too early"),
        (GOOD[:-4], "$.stops[1].note", "ends too early"),
        (GOOD[:16], "$.stops[1].km", "it needs 8 bytes"),
        (GOOD + b"\0", "$", "1 bytes follow the end"),
        (
            b"\x02a\x02" + b"\0" * 8 + b"\x06",
            "$.stops[0].note",
            "there are 2 branches",
        ),
        (b"\x02a" + b"\xfe\xff\xff\xff\x0f", "$.stops[0].km", "ends too early"),
    ],
)
def test_the_path_of_invalid_bytes(data, path, reason):
    """
    The error has a path, which the library does not report.
    """
    found = loaded(shop.TRIPS, data)

    assert found[0] == path
    assert reason in found[1]


def zigzag(number):
    """
    Return an integer in Avro's encoding, however many bits it has.
    """
    number = number * 2 if number >= 0 else -number * 2 - 1
    said = bytearray()
    while number > 0x7F:
        said.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*said, number])


ARRAY = {"type": "array", "items": "string"}


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        (shop.SIZES, zigzag(-1), "index -1 is invalid: there are 3 symbols"),
        (["null", "string"], zigzag(-1) + b"\x02a", "index -1 is invalid: there are 2 branches"),
        ("int", zigzag(2**31), "an int takes more than 32 bits"),
        ("int", zigzag(-(2**31) - 1), "an int takes more than 32 bits"),
        (["int", "null"], b"\0" + zigzag(2**40), "an int takes more than 32 bits"),
        ("boolean", b"\x07", "a boolean is neither 0 nor 1"),
        ("long", zigzag(2**63), "an integer takes more than 64 bits"),
        ("long", b"\x80" * 12 + b"\x01", "an integer takes more than 64 bits"),
        (ARRAY, zigzag(-1) + zigzag(9) + b"\x02a\0", "has 2 bytes instead of its stated 9"),
    ],
)
@pytest.mark.parametrize("older", [False, True])
def test_invalid_avro_is_refused(schema, data, reason, older):
    """
    The library would read each of these as some value, and other libraries as another one.
    """
    newer = schema if isinstance(schema, list) else [schema, "bytes"]
    contract = AvroSchema(newer, versions={"1": schema}) if older else AvroSchema(schema)

    assert reason in loaded(contract, data, "1" if older else None)[1]


@pytest.mark.parametrize(
    ("schema", "data", "value"),
    [
        ("int", zigzag(2**31 - 1), 2**31 - 1),
        ("int", zigzag(-(2**31)), -(2**31)),
        ("long", zigzag(-(2**63)), -(2**63)),
        ("long", b"\x80\x00", 0),
        (["int", "string"], b"\x02\x08" + "яя".encode(), "яя"),
        (ARRAY, zigzag(-1) + zigzag(2) + b"\x02a\0", ["a"]),
        ({"type": "map", "values": "boolean"}, b"\x04\x02a\0\x02a\x01\0", {"a": True}),
        ({"type": "int", "logicalType": "date"}, b"\x02", dt.date(1970, 1, 2)),
    ],
)
def test_each_valid_encoding_is_read(schema, data, value):
    """
    The library does not write all valid encodings: blocks with sizes, or a key twice.
    """
    assert AvroSchema(schema).load(data) == value


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    ("kind", "base", "number"),
    [
        ("date", "int", 3_000_000),
        ("date", "int", -800_000),
        ("timestamp-millis", "long", 253_402_300_800_000),
        ("timestamp-micros", "long", 2**62),
        ("local-timestamp-millis", "long", 253_402_300_800_000),
    ],
)
def test_dates_that_python_does_not_have_are_read_as_numbers(kind, base, number, older):
    """
    The specification allows years before 1 and after 9999.
    """
    schema = record(("t", {"type": base, "logicalType": kind}), ("u", UUID))
    newer = record(*[(each["name"], each["type"]) for each in schema["fields"]], ("n", ["null"]))
    newer["fields"][-1]["default"] = None
    document = {"t": number, "u": uuid.UUID(int=1)}
    written = AvroSchema(schema).dump(document)
    if older:
        contract = AvroSchema(newer, versions={"1": schema})
        assert contract.load(written, "1") == {**document, "n": None}
    else:
        assert AvroSchema(schema).load(written) == document


@pytest.mark.parametrize("base", [{"type": "bytes"}, {"type": "fixed", "name": "Price", "size": 4}])
def test_digits_of_decimals(base):
    """
    A decimal with more digits is refused, because the library would round it.
    """
    contract = AvroSchema(
        record(("d", {**base, "logicalType": "decimal", "precision": 4, "scale": 2}))
    )
    size = b"\x08" if base["type"] == "bytes" else b""
    for number in (9999, -9999, 0):
        found = contract.load(size + number.to_bytes(4, "big", signed=True))
        assert found == {"d": decimal.Decimal(number) / 100}
    for number in (10_000, -10_001, 2**31 - 1):
        said = loaded(contract, size + number.to_bytes(4, "big", signed=True))
        assert said == ("$.d", "a decimal has more than 4 digits")
    for text in ("100", "1E2", "123.45"):
        assert dumped(contract, {"d": decimal.Decimal(text)})[0] in {"$.d", "$"}


def test_no_error_shows_values():
    """
    Neither the text of an error nor its cause has a value, because both are logged.
    """
    schema = record(("size", shop.SIZES), ("n", "int"), ("u", UUID))
    plugin = Schemas({">": AvroSchema(schema)})
    for document in (
        {"size": "hunter2", "n": 1, "u": "hunter2"},
        {"size": "S", "n": "hunter2", "u": "hunter2"},
        {"size": "S", "n": 1, "u": Secret()},
    ):
        with pytest.raises(ViolationError) as caught:
            plugin.encode("a", document)
        shop.check_silent(caught.value)
    with pytest.raises(ViolationError, match="cannot be read: ValueError") as caught:
        plugin.check("a", b"\0\0\x0ehunter2")
    shop.check_silent(caught.value)


class Secret:
    """
    A value that records whether it was converted to text.
    """

    def __str__(self):
        raise RuntimeError("hunter2")

    __repr__ = __bytes__ = __str__


UUID = {"type": "string", "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("document", "path", "reason"),
    [
        ({"id": 1}, "$.id", "expected string, not"),
        ({}, "$", "field 'id' is missing"),
        ({"id": "a", "more": 1}, "$", "no field 'more'"),
        (
            {"id": "a", "stops": [{"km": 1}, {"km": "x"}]},
            "$.stops[1].km",
            "expected double, not",
        ),
        (
            {"id": "a", "stops": [{"km": 1, "note": 5}]},
            "$.stops[0].note",
            "expected string, not",
        ),
        ({"id": "a", "stops": {"a": 1}}, "$.stops", "expected array, not"),
        (5, "$", "expected Trip, not int"),
    ],
)
def test_the_path_of_an_invalid_document(document, path, reason):
    """
    Published documents have a path, too.
    """
    found = dumped(shop.TRIPS, document)

    assert found[0] == path
    assert reason in found[1]


def test_ranges_and_keys():
    """
    An int has 32 bits, and the path of a map's value has its key.
    """
    contract = AvroSchema({"type": "map", "values": ["null", "int"]})

    assert dumped(contract, {"a b": 2**40})[0] == "$['a b']"
    assert dumped(AvroSchema(["int", "string"]), 2**40) == (
        "$",
        "the value is not a valid Avro int or string",
    )
    assert dumped(AvroSchema(record(("n", "int"))), {"n": 2**40}) == (
        "$.n",
        "the value is not a valid Avro int",
    )


def test_documents_of_any_depth_end_somewhere():
    """
    A byte per level must not crash the process, as the library's recursion would.
    """
    contract = AvroSchema(NODE)
    value = None
    for _ in range(60):
        value = {"next": value}
    assert contract.load(contract.dump(value)) == value

    path, reason = loaded(contract, b"\x02" * 1_000_000 + b"\0")
    assert path.startswith("$.next.next")
    assert "128 levels" in reason
    for _ in range(100_000):
        value = {"next": value}
    assert "128 levels" in dumped(contract, value)[1]
    while value is not None:
        # One by one, because the interpreter also frees them recursively.
        value = value["next"]


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "R", "fields": [{"name": "x", "type": "null"}]},
    ],
)
def test_arrays_of_nothing_are_refused(items):
    """
    A few bytes could claim any number of items that need no bytes.
    """
    with pytest.raises(DefinitionError, match="endless"):
        AvroSchema(
            {
                "type": "record",
                "name": "A",
                "fields": [{"name": "x", "type": {"type": "array", "items": items}}],
            }
        )


def test_schemas_with_repeated_records_are_read_quickly():
    """
    Thirty records, each of which contains the next one twice, have a billion paths.
    """
    schema = nested(30, "int")
    AvroSchema(schema, versions=[schema])
    with pytest.raises(DefinitionError, match="endless"):
        AvroSchema({"type": "array", "items": nested(8, "null")})


@pytest.mark.parametrize(
    "schema", [{"type": "nope"}, 5, {"type": "record"}, None, {"type": "array"}]
)
def test_a_broken_avro_schema_is_refused(schema):
    """
    A broken schema is refused when the contract is made.
    """
    with pytest.raises(DefinitionError, match="Avro"):
        AvroSchema(schema)


def record(*fields, **more):
    """
    Return a schema of a record with these fields.
    """
    return {
        "type": "record",
        "name": "R",
        "fields": [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields],
        **more,
    }


ENUM = {"type": "enum", "name": "E", "symbols": ["a", "b"]}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (record(("x", "int")), record(("x", "long")), None),
        (record(("x", "long")), record(("x", "int")), "$.x: long cannot be read as int"),
        (record(("x", "int")), record(), None),
        (
            record(),
            record(("x", "int")),
            "$.x: the writer's schema lacks it",
        ),
        (record(), record(("x", "int", 1)), None),
        (record(("x", "int")), record(("x", ["null", "double"])), None),
        (record(("x", ["null", "int"])), record(("x", "int")), "$.x: null cannot be read as int"),
        (
            record(("x", "int")),
            record(("x", ["null", "string"])),
            "$.x: int cannot be read as any",
        ),
        (ENUM, {**ENUM, "symbols": ["a"]}, "symbol 'b' was removed"),
        (ENUM, {**ENUM, "symbols": ["a"], "default": "a"}, None),
        (ENUM, {**ENUM, "symbols": ["c", "b", "a"]}, None),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            "another size",
        ),
        (record(), {**record(), "name": "S"}, "R is not S"),
        (record(), {**record(aliases=["R"]), "name": "S"}, None),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, r"$['*']"),
        ({"type": "array", "items": "string"}, {"type": "array", "items": "bytes"}, None),
        (NODE, NODE, None),
        ("int", record(), "int cannot be read as record"),
    ],
)
def test_a_schema_has_to_be_able_to_read_its_versions(old, new, problem):
    """
    By Avro's rules, incompatible versions are refused when the contract is made, and compatible
    ones are read.
    """
    if problem is not None:
        with pytest.raises(DefinitionError) as caught:
            AvroSchema(new, versions=[old])
        assert problem in str(caught.value)
        return
    contract = AvroSchema(new, versions={"old": old})
    for value in generate_many(fastavro.parse_schema(old), 3):
        data = io.BytesIO()
        fastavro.schemaless_writer(data, fastavro.parse_schema(old), value)
        contract.load(data.getvalue(), "old")


EVERYTHING = {
    "type": "record",
    "name": "All",
    "namespace": "shop",
    "fields": [
        {"name": "a", "type": ["null", "boolean", "string"]},
        {"name": "b", "type": {"type": "map", "values": "long"}},
        {
            "name": "c",
            "type": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 2}},
        },
        {"name": "d", "type": ENUM},
        {"name": "e", "type": {"type": "array", "items": ["E", "F", "bytes", "float"]}},
        {"name": "f", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "g", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "h", "type": "int"},
        {"name": "i", "type": {"type": "array", "items": ["boolean", "int"]}},
    ],
}


def test_agrees_with_the_library_on_bytes_at_random():
    """
    The walk that finds the path agrees with the library about every payload.
    """
    parsed = fastavro.parse_schema(EVERYTHING)
    names = named_types(parsed)
    contract = AvroSchema(EVERYTHING)
    source = random.Random(11)
    fits = 0
    for value in generate_many(parsed, 300):
        data = bytearray(contract.dump({**value, "f": 1, "g": decimal.Decimal(5)}))
        for _ in range(source.randrange(3)):
            data[source.randrange(len(data))] = source.randrange(256)
        if source.random() < 0.2:
            del data[source.randrange(len(data)) :]
        found = ByteWalk(data, names).run(parsed)
        try:
            contract.load(bytes(data))
        except MismatchError as error:
            said = error.violations[0]
        else:
            said = None
            fits += 1
        # Only the library detects values that are invalid for a logical type.
        assert said == found or (found is None and "cannot be read" in str(said)), data
    assert 50 < fits < 300


def test_headers_are_only_looked_at_where_they_matter():
    """
    A schema's header on another kind of contract means nothing.
    """
    Schemas({">": shop.ORDERS}).check("a", shop.GOOD, {SCHEMA_ID: "none"})


def test_a_pickled_avro_contract_keeps_its_versions():
    """
    A pickled contract keeps its versions.
    """
    again = pickle.loads(pickle.dumps(shop.TRIPS))

    assert again == shop.TRIPS
    assert again.known_ids == shop.TRIPS.known_ids


def test_ids_are_text():
    """
    Ids must be text, because they are sent as headers.
    """
    for wrong in ("", 5):
        with pytest.raises(jetsync.ConfigurationError, match="an id must be text"):
            AvroSchema("null", id=wrong)
    with pytest.raises(jetsync.ConfigurationError, match="versions must be"):
        AvroSchema("null", versions="int")


@pytest.mark.parametrize(
    "schema",
    [
        nested(22, "null"),
        nested(100, "null"),
        nested(22, {"type": "null"}),
        {"type": "array", "items": ["null", nested(22, "null")]},
        {"type": "map", "values": nested(22, "null")},
        {
            "type": "record",
            "name": "first",
            "fields": [{"name": "n", "type": "int"}, {"name": "rest", "type": nested(22, "null")}],
        },
    ],
)
def test_a_schema_whose_values_explode_is_refused(schema):
    """
    A schema is refused if a few bytes could be a document with millions of parts.
    """
    with pytest.raises(DefinitionError, match="more than 1,000 parts that take no bytes"):
        AvroSchema(schema)
    with pytest.raises(DefinitionError, match="more than 1,000 parts that take no bytes"):
        AvroSchema("int", versions=[schema])


def test_the_most_parts_that_take_no_bytes():
    """
    A value may have 1,000 parts that take no bytes, and no more.
    """

    def nulls(count):
        fields = [{"name": f"n{number}", "type": "null"} for number in range(count)]
        return {
            "type": "record",
            "name": "outer",
            "fields": [{"name": "n", "type": "int"}, *fields],
        }

    assert len(AvroSchema(nulls(1_000)).load(b"\0")) == 1_001
    with pytest.raises(DefinitionError, match="a value of outer has more than 1,000 parts"):
        AvroSchema(nulls(1_001))


def test_parts_that_take_bytes_are_not_limited():
    """
    Records may contain each other if their fields take bytes, and a few nulls do no harm.
    """
    assert AvroSchema(nested(8, "null")).load(b"")
    assert AvroSchema(nested(12, "int")).load(bytes(2**12))
    fields = [{"name": f"n{number}", "type": ["null", "long"]} for number in range(3_000)]
    wide = AvroSchema({"type": "record", "name": "wide", "fields": fields})
    assert wide.load(bytes(3_000))["n2999"] is None
    assert AvroSchema(NODE).load(b"\0") == {"next": None}
