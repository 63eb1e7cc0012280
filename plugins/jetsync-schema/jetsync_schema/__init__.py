"""
jetsync-schema: payload contracts for jetsync, by subject.

Layout:

- ``schemas`` is the plugin, and ``configured`` the plugin as configured by environment variables.
- ``contract``, ``errors`` and ``messages`` hold what all kinds of contracts share.
- ``formats`` holds the kinds: Avro, JSON Schema and pydantic.
- ``registry`` reads definitions and selects the contract of a subject.
"""

from __future__ import annotations

from jetsync_schema.configured import ConfiguredSchemas
from jetsync_schema.contract import Contract
from jetsync_schema.errors import DefinitionError, MismatchError, Violation, ViolationError
from jetsync_schema.formats.avro_schema import AvroSchema
from jetsync_schema.formats.json_schema import JsonSchema
from jetsync_schema.formats.pydantic_model import PydanticModel
from jetsync_schema.messages import SCHEMA_ID, SCHEMA_VIOLATION, violation_of
from jetsync_schema.registry.bucket import Problem
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
