"""
Publish the rows of a DataFrame with ``foreachPartition``. Needs Spark 3.5 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from jetsync_spark.common.clients import check_plugins
from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.names import is_case_sensitive
from jetsync_spark.common.options import errors_for_programs
from jetsync_spark.common.task import application, in_foreach_batch
from jetsync_spark.write.columns import OPTIONAL, Columns, types_of
from jetsync_spark.write.options import EXACTLY_ONCE, WriteOptions
from jetsync_spark.write.partition import write_rows
from jetsync_spark.write.plan import columns_of, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

    import jetsync
    from jetsync_spark.write.plan import Plan
    from jetsync_spark.write.written import Written

__all__ = ["JetStreamSink"]


class JetStreamSink:
    """
    Publishes the rows of a partition. Pass it to ``df.foreachPartition``.

    The sink is immutable and can be pickled. On the executors, each worker process uses one
    connection for all tasks with these options. Spark passes rows to the sink one by one.
    :func:`publish_arrow` gets them in batches, and needs a tenth of the time per row.

    Args:
        options: How to connect. Secrets are sent with the tasks. A credentials file is read on each
            executor. Pass plugins by name, or as objects that equal their pickled copies.
        stream: Name of the stream, or of several streams with commas between them. Rows whose
            subject they do not capture are rejected. Leave it out with ``bucket="name"``, which
            writes the columns ``key``, ``value``, ``operation``, ``ttl`` and ``expected_revision``
            to a key-value bucket. The column arguments do not apply then.
        subject: A template with columns in braces, such as ``flights.{origin}.{carrier}``, or the
            name of the column of the subject.
        data: The column of the payload, binary or string. Null means an empty payload.
        headers: The column of the headers, such as ``map<string,array<string>>``. None means the
            column ``headers``, if it exists. Likewise, None for the next three arguments means the
            column with the name of the argument, if it exists.
        msg_id: The column of the message IDs, by which the stream drops duplicates.
        ttl: The column of the times-to-live: seconds, an interval, or ``never``.
        expected_sequence: The column of the expected last sequence of the subject. 0 means that
            the subject has no message.
        mode: ``atleastonce``, ``atomic`` or ``exactlyonce``.
        message: A function that converts a row to an ``OutboundMessage``, ``(subject, data)`` or
            ``(subject, data, headers)``. If given, the sink ignores the column arguments.
        settings: Other fields of the writer's options: ``max_in_flight``, ``chunk_size``,
            ``fast_ingest``, ``ack_timeout``, ``retry_timeout``, ``on_invalid_row``,
            ``dead_letter_subject``, ``ledger_subject``, ``write_id``, ``batch_id``. With a
            ``write_id``, each run must have the same rows in the same partitions and order. The
            sink does not detect a run with another number of partitions. :func:`publish_arrow` and
            :func:`exactly_once` do. In ``foreachBatch`` over Spark Connect, mode ``exactlyonce``
            needs a ``write_id`` and a ``batch_id``, which is the number that Spark passes.

    Raises:
        OptionError: An argument is invalid, or arguments exclude each other.
    """

    @errors_for_programs()
    def __init__(
        self,
        options: jetsync.ConnectOptions,
        *,
        stream: str = "",
        subject: str = "subject",
        data: str = "data",
        headers: str | None = None,
        msg_id: str | None = None,
        ttl: str | None = None,
        expected_sequence: str | None = None,
        mode: str = "atleastonce",
        message: Callable[[Any], Any] | None = None,
        **settings: Any,
    ) -> None:
        check_plugins(options)
        self._options = options
        self._write = write_options(stream=stream, mode=mode, **settings)
        check_batch(self._write)
        if message is not None and self._write.bucket is not None:
            raise OptionError(
                "a function makes messages for streams, not changes of a bucket",
                option="message",
                cure="leave it out, and compute the columns key and value with df.select",
            )
        self._columns = columns_of(
            subject,
            constant=False,
            bucket=self._write.bucket,
            data=data,
            headers=headers,
            msg_id=msg_id,
            ttl=ttl,
            expected_sequence=expected_sequence,
            case_sensitive=is_case_sensitive(),
        )
        self._message = message
        self._application = application()

    def __repr__(self) -> str:
        return f"<JetStreamSink {self._write.stream} {self._write.mode}>"

    def __call__(self, rows: Iterable[Any]) -> None:
        """
        Publish rows and wait until all are stored. Spark calls this with each partition.

        Raises:
            JetStreamSparkError: A row cannot be stored, or the server did not answer.
        """
        self.write(rows)

    @errors_for_programs()
    def write(self, rows: Iterable[Any]) -> Written:
        """
        Publish rows, wait until all are stored, and return the counts.

        Raises:
            JetStreamSparkError: A row cannot be stored, or the server did not answer.
        """
        # Each worker caches the stream's configuration.
        return write_rows(self._plan(self._columns), rows)

    @errors_for_programs()
    def check(self, df: DataFrame) -> None:
        """
        Check on the driver whether *df* can be written.

        Args:
            df: The DataFrame to write.

        Raises:
            JetStreamSparkError: The write is not possible.
        """
        columns = self._columns
        if self._message is None:
            types = types_of(df.schema)
            columns = columns.within(types)
            columns.check_types(types)
        self._plan(columns)

    def _plan(self, columns: Columns) -> Plan:
        return make_plan(
            self._options,
            self._write,
            columns,
            make=self._message,
            application=self._application,
        )


def check_batch(write: WriteOptions) -> None:
    """
    Reject a write in ``foreachBatch`` over Spark Connect whose micro-batch is not known.

    Otherwise all micro-batches of a query would count as repetitions of the first one.

    Raises:
        OptionError: The number of the micro-batch is missing.
    """
    if write.mode == EXACTLY_ONCE and write.batch_id is None and in_foreach_batch():
        raise OptionError(
            "mode exactlyonce cannot identify the micro-batch, which Spark Connect does not tell",
            option="batch_id",
            cure="set batch_id to the number that foreachBatch passes, and a write_id that no "
            "other query of the stream uses and that stays the same when the query restarts",
        )


def write_options(**settings: Any) -> WriteOptions:
    """
    Create the options of a writer from keyword arguments.

    Raises:
        OptionError: An argument is unknown or invalid.
    """
    known = {field.name for field in attrs.fields(WriteOptions)} - {"subject"}
    for name in settings:
        if name not in known:
            raise OptionError(
                f"there is no argument {name}",
                option=name,
                cure=f"known are {', '.join(sorted(known | {'subject', 'data', *OPTIONAL}))}",
            )
    return WriteOptions(**settings)
