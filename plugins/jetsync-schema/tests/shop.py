"""
Contracts and documents for tests: orders with items that have a price.
"""

from __future__ import annotations

import json

from jetsync_schema import AvroSchema, JsonSchema

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"price": {"type": "number", "minimum": 0}},
                "required": ["price"],
            },
        },
    },
    "required": ["id"],
}

ORDERS = JsonSchema(SCHEMA)

GOOD = json.dumps({"id": "1", "items": [{"price": 1.5}] * 4}).encode()
BAD = json.dumps(
    {"id": "1", "items": [{"price": 1}, {"price": 2}, {"price": 3}, {"price": "x"}]}
).encode()
"""The path at which the document violates the contract."""

PATH = "$.items[3].price"

AVRO_1 = {"type": "record", "name": "Trip", "fields": [{"name": "id", "type": "string"}]}
AVRO_2 = {
    "type": "record",
    "name": "Trip",
    "fields": [
        {"name": "id", "type": "string"},
        {
            "name": "stops",
            "default": [],
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Stop",
                    "fields": [
                        {"name": "km", "type": "double"},
                        {"name": "note", "type": ["null", "string"], "default": None},
                    ],
                },
            },
        },
    ],
}

TRIPS = AvroSchema(AVRO_2, versions=[AVRO_1])
OLD_TRIPS = AvroSchema(AVRO_1)

SIZES = {"type": "enum", "name": "Size", "symbols": ["S", "M", "L"]}


def check_silent(error, secret="hunter2"):
    """
    Check that neither an error nor any of its causes shows a value.
    """
    while error is not None:
        assert secret not in f"{error} {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
