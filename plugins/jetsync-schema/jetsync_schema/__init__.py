"""
jetsync-schema: payload contracts for jetsync, by subject.

General layout, lowest first; a file imports only from those before it:

- vocabulary: ``errors``, ``_patterns``;
- kinds of contracts: ``contract``, then ``json_schema``, ``pydantic_model``, ``avro_schema`` with
  ``_avro_walk`` and ``_avro_values``;
- contracts written down: ``definitions``, ``_bucket``;
- what messages say in headers: ``messages``; all contracts at one moment: ``_table``;
- the plugin: ``schemas``, ``configured``.
"""

from __future__ import annotations

from jetsync_schema._bucket import Problem
from jetsync_schema.avro_schema import AvroSchema
from jetsync_schema.configured import ConfiguredSchemas
from jetsync_schema.contract import Contract
from jetsync_schema.errors import DefinitionError, MismatchError, Violation, ViolationError
from jetsync_schema.json_schema import JsonSchema
from jetsync_schema.messages import SCHEMA_ID, SCHEMA_VIOLATION, violation_of
from jetsync_schema.pydantic_model import PydanticModel
from jetsync_schema.schemas import Schemas, SchemaStatistics

__all__ = [
    "SCHEMA_ID",
    "SCHEMA_VIOLATION",
    "AvroSchema",
    "ConfiguredSchemas",
    "Contract",
    "DefinitionError",
    "JsonSchema",
    "MismatchError",
    "Problem",
    "PydanticModel",
    "SchemaStatistics",
    "Schemas",
    "Violation",
    "ViolationError",
    "violation_of",
]
