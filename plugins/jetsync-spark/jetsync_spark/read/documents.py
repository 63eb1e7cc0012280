"""
JSON payloads as a column, and the messages whose payload does not have its type.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import pyarrow as pa

import jetsync
from jetsync_spark.common.dead_letters import (
    DEAD_LETTER,
    FAIL,
    columns_text,
    dead_letter,
    dead_letters_of,
    store_dead_letters,
)
from jetsync_spark.common.errors import JetStreamSparkError, OptionError, explain
from jetsync_spark.common.retry import Retry, ask_with_retry
from jetsync_spark.common.subjects import overlap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jetsync_spark.common.dead_letters import DeadLetter, DeadLetters
    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.common.task import Task
    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.queue_offsets import QueuePart
    from jetsync_spark.read.ranges import Range
    from jetsync_spark.read.tables import Table

__all__ = ["MARKING", "Documents", "check_messages", "documents_type"]

MARKING: Final = "schema"
"""The plugin jetsync-schema, which marks messages that violate their contract."""

_LEAVES: Final = frozenset(
    {"string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double"}
)

_Converter: TypeAlias = Callable[[Any, str], Any]

_LARGEST_FLOAT: Final = (2 - 2**-23) * 2.0**127
_LARGEST_DOUBLE: Final = sys.float_info.max

_logger = jetsync.get_logger("jetsync.spark.reading")


def documents_type(kind: Any, column: str) -> pa.StructType:
    """
    Return the type of Arrow for a Spark type of documents.

    Raises:
        OptionError: JSON has no such values.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    _check_type(kind, column)
    return to_arrow_type(kind)


def _check_type(kind: Any, path: str) -> None:
    name = kind.typeName()
    if name == "struct":
        for field in kind.fields:
            _check_type(field.dataType, f"{path}.{field.name}")
    elif name == "array":
        _check_type(kind.elementType, path)
    elif name == "map" and kind.keyType.typeName() == "string":
        _check_type(kind.valueType, path)
    elif kind.simpleString() not in _LEAVES:
        raise OptionError(
            f"{path} has the type {kind.simpleString()}, which JSON does not have",
            option=path,
            cure="declare it as string, and cast it in the query",
        )


def check_messages(settings: ConnectSettings, options: ReadOptions, table: Table) -> None:
    """
    Check the options about invalid messages before a query reads.

    Raises:
        OptionError: They do not belong together.
        JetStreamSparkError: Dead letters cannot be stored.
    """
    if options.on_invalid_message == FAIL:
        return
    if table.documents is None and MARKING not in settings.plugins:
        raise OptionError(
            "onInvalidMessage has nothing to check",
            option="onInvalidMessage",
            cure="read a column json with the type of the payloads, such as "
            '.schema("sequence long, json struct<id: bigint>"), or load the plugin schema',
        )
    subject = options.dead_letter_subject
    if subject is None:
        return
    found = ask_with_retry(
        settings,
        f"jetsync-spark-plan-{options.source}",
        lambda js: dead_letters_of(js, subject),
        options.retry_timeout,
        "planning to read failed",
        options.source,
        keep=False,
    )
    read = not options.subject_filter or any(
        overlap(each, subject) for each in options.subject_filter
    )
    if options.names_stream(found.stream) and read:
        raise OptionError(
            f"the query would read its own dead letters from stream {found.stream}",
            option="deadLetterSubject",
            cure="give a subject of another stream, or a subjectFilter that does not match it",
        )


class Documents:
    """
    The documents of one part of a stream, and its invalid messages. Not thread-safe.

    Args:
        client: The client that stores dead letters.
        js: Its context.
        options: What happens to invalid messages.
        part: The part.
        task: The task that reads it.
        kind: The type of the documents. None reads no documents.
        marks: Whether a plugin marks invalid messages.
    """

    def __init__(
        self,
        client: jetsync.Client,
        js: jetsync.JetStream,
        options: ReadOptions,
        part: Range | QueuePart,
        task: Task,
        *,
        kind: pa.StructType | None,
        marks: bool,
    ) -> None:
        self._client = client
        self._js = js
        self._options = options
        self._kind = kind
        self._convert = _converter(kind) if kind is not None else _truth
        self._marks = marks
        self._part = part
        self._task = task
        self._letters: DeadLetters | None = None
        self.count = 0
        """The number of invalid messages."""

        self._first: str | None = None
        """Why the first of them is invalid."""

    def take(self, page: jetsync.StoredPage) -> tuple[jetsync.StoredPage, pa.Array | None]:
        """
        Return the valid messages of a page, and their documents.

        Dead letters are stored when this returns.

        Raises:
            JetStreamSparkError: A message is invalid, and the query fails then, or a dead letter
                cannot be stored.
        """
        faults = self._marked(page) if self._marks else {}
        column = None
        if self._kind is not None:
            payloads = page.to_arrow(["data"]).column(0).to_pylist()
            column, more = _parsed(payloads, self._kind, self._convert)
            faults = {**more, **faults}
        if faults:
            self._handle(page, faults)
            kept = [place for place in range(len(page)) if place not in faults]
            page = jetsync.StoredPage([page[place] for place in kept])
            if column is not None:
                column = column.take(pa.array(kept, pa.int64()))
        return page, column

    def log(self) -> None:
        """Log how many messages were invalid, if there were any."""
        if self.count:
            _logger.warning(
                "invalid_messages",
                stream=self._part.stream,
                messages=self.count,
                dead_letters=self._options.dead_letter_subject,
                first=self._first,
            )

    @staticmethod
    def _marked(page: jetsync.StoredPage) -> dict[int, str]:
        """Return why messages violate the contracts of their subjects, by their places."""
        # This package does not depend on the plugin, which the user has loaded.
        violation_of = importlib.import_module("jetsync_schema").violation_of
        found = ((place, violation_of(message)) for place, message in enumerate(page))
        return {place: str(error) for place, error in found if error is not None}

    def _handle(self, page: jetsync.StoredPage, faults: Mapping[int, str]) -> None:
        policy = self._options.on_invalid_message
        if policy == FAIL:
            place = min(faults)
            raise JetStreamSparkError(
                f"message {page[place].sequence} is invalid: {faults[place]}",
                stream=self._part.stream,
                subject=page[place].subject,
                cure="correct the schema, or set onInvalidMessage to skip or deadLetter",
            )
        self.count += len(faults)
        if self._first is None:
            place = min(faults)
            self._first = f"message {page[place].sequence}: {faults[place]}"
        if policy == DEAD_LETTER:
            self._store([self._letter(page[place], reason) for place, reason in faults.items()])

    def _letter(self, message: jetsync.StoredMessage, reason: str) -> DeadLetter:
        subject = self._options.dead_letter_subject
        assert subject is not None
        if self._letters is None:
            self._letters = Retry(self._options.retry_timeout).call(
                lambda: dead_letters_of(self._js, subject), "reading failed", self._part.stream
            )
        largest = self._client.server.max_payload
        if self._letters.max_size is not None:
            largest = min(largest, self._letters.max_size)
        about = {
            "Stream": self._part.stream,
            "Sequence": message.sequence,
            "Subject": message.subject,
            "Query": self._task.query,
            "Batch": self._task.batch,
            "Columns": columns_text({"headers": message.headers.to_dict()})
            if message.headers
            else None,
        }
        letter = dead_letter(subject, reason, bytes(message.data), largest, about)
        # A task that runs again reads the same messages.
        whose = f"{self._task.query}:" if self._task.query else ""
        part = self._part
        return attrs.evolve(
            letter, msg_id=f"{whose}{subject}:{part.stream}:{part.created}:{message.sequence}"
        )

    def _store(self, letters: list[DeadLetter]) -> None:
        retry = Retry(self._options.retry_timeout)

        def wait(report: jetsync.PublishReport) -> None:
            first = next(iter(report.failures), None)
            if first is not None and not retry.wait_after(first.error):
                raise explain(
                    first.error,
                    "a dead letter could not be stored",
                    stream=self._part.stream,
                    subject=first.message.subject,
                ) from first.error

        store_dead_letters(self._js, letters, wait)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).decode


def _parsed(
    payloads: Sequence[bytes], kind: pa.StructType, convert: _Converter
) -> tuple[pa.Array, dict[int, str]]:
    """
    Return the documents in payloads, and why some of them are invalid, by their places.

    Invalid documents are null.
    """
    documents: list[Any] = []
    faults: dict[int, str] = {}
    for place, data in enumerate(payloads):
        try:
            document = convert(_decode(data.decode()), "$")
        except (ValueError, RecursionError) as error:
            faults[place] = str(error) or type(error).__name__
            document = None
        documents.append(document)
    return pa.array(documents, kind), faults


def _converter(kind: pa.DataType) -> _Converter:
    """
    Return a function that checks a value of JSON and converts it for Arrow.

    Arrow itself would cut fractions off, and take a text for a list of characters.
    """
    types = pa.types
    if types.is_struct(kind):
        return _struct([(field.name, _field(field)) for field in kind])
    if types.is_map(kind):
        return _map(_field(kind.item_field))
    if types.is_list(kind):
        return _list(_field(kind.value_field))
    if types.is_integer(kind):
        half = 1 << (kind.bit_width - 1)
        return partial(_whole, -half, half - 1)
    if types.is_floating(kind):
        return partial(_number, _LARGEST_FLOAT if kind.bit_width == 32 else _LARGEST_DOUBLE)
    return _text if types.is_string(kind) else _truth


def _field(field: pa.Field) -> _Converter:
    convert = _converter(field.type)
    nullable = field.nullable

    def converted(value: Any, path: str) -> Any:
        if value is not None:
            return convert(value, path)
        if nullable:
            return None
        raise ValueError(f"{path} is missing or null")

    return converted


def _struct(fields: list[tuple[str, _Converter]]) -> _Converter:
    def converted(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise ValueError(f"{path} is no object")
        return {name: convert(value.get(name), f"{path}.{name}") for name, convert in fields}

    return converted


def _map(convert: _Converter) -> _Converter:
    def converted(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise ValueError(f"{path} is no object")
        return [(_text(name, path), convert(each, path)) for name, each in value.items()]

    return converted


def _list(convert: _Converter) -> _Converter:
    def converted(value: Any, path: str) -> Any:
        if type(value) is not list:
            raise ValueError(f"{path} is no array")
        return [convert(each, path) for each in value]

    return converted


def _whole(least: int, most: int, value: Any, path: str) -> Any:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{path} is no whole number from {least} to {most}")
    return value


def _number(most: float, value: Any, path: str) -> Any:
    if type(value) not in {int, float} or not -most <= value <= most:
        raise ValueError(f"{path} is no number up to {most:g}")
    return float(value)


def _text(value: Any, path: str) -> Any:
    if type(value) is not str:
        raise ValueError(f"{path} is no string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{path} has an unpaired surrogate") from None
    return value


def _truth(value: Any, path: str) -> Any:
    if type(value) is not bool:
        raise ValueError(f"{path} is no boolean")
    return value
