"""
Rows of a DataFrame into a stream, by ``foreachPartition``; Spark 3.5 and newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from jetsync_spark.common.clients import check_plugins
from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.task import application
from jetsync_spark.write.columns import OPTIONAL, Columns, types_of
from jetsync_spark.write.options import WriteOptions
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
    Publish the rows of a partition; give it to ``df.foreachPartition``.

    Immutable and picklable: it travels to the executors, where each worker process keeps one
    connection for all tasks with these options. A row is not copied more often than it has to be,
    but Spark hands rows over one by one: :func:`publish_arrow` costs a tenth per row.

    Args:
        options: How to connect. Secrets in it travel with the tasks; a credentials file is read on
            each executor. Plugins are given by their names; an object that is equal to its copies
            will do.
        stream: Name of the stream; rows for subjects that it does not take are refused.
        subject: A template with columns in braces, such as ``flights.{origin}.{carrier}``, or the
            name of the column that has the subject.
        data: The column of the payload: binary or string; null is an empty payload.
        headers: The column of the headers, ``map<string,array<string>>``. None takes the column
            ``headers`` where there is one, and so do the next three with theirs.
        msg_id: The column of the ids by which the stream drops duplicates.
        ttl: The column of the times-to-live: seconds, an interval, or ``never``.
        expected_sequence: The column of the sequence that the subject has to have; 0 for none.
        mode: ``atleastonce``, ``atomic`` or ``exactlyonce``.
        message: A function of a row that returns an ``OutboundMessage``, ``(subject, data)`` or
            ``(subject, data, headers)``, in the place of all columns.
        settings: Other options of the data source's writer, by their names in Python:
            ``max_in_flight``, ``chunk_size``, ``fast_ingest``, ``ack_timeout``, ``retry_timeout``,
            ``ledger_subject``, ``write_id``. A ``write_id`` stands for rows in the same partitions
            and the same order: nothing finds a run in another number of partitions, which
            :func:`publish_arrow` refuses.

    Raises:
        OptionError: they can not work together.
    """

    def __init__(
        self,
        options: jetsync.ConnectOptions,
        *,
        stream: str,
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
        self._columns = attrs.evolve(
            columns_of(subject, constant=False),
            data=data,
            headers=headers,
            msg_id=msg_id,
            ttl=ttl,
            expected_sequence=expected_sequence,
        )
        self._message = message
        self._application = application()

    def __repr__(self) -> str:
        return f"<JetStreamSink {self._write.stream} {self._write.mode}>"

    def __call__(self, rows: Iterable[Any]) -> None:
        """
        Publish rows and wait until all are stored; Spark calls this with each partition.

        Raises:
            JetStreamSparkError: a row can not be stored, or the server did not answer.
        """
        self.write(rows)

    def write(self, rows: Iterable[Any]) -> Written:
        """
        Publish rows, wait until all are stored, and return the counts.

        Raises: as the sink itself.
        """
        # Asked for by each worker once in a while, not by each task.
        return write_rows(self._plan(self._columns), rows)

    def check(self, df: DataFrame) -> None:
        """
        Check on the driver all that can be checked before the first row is written.

        Args:
            df: The DataFrame that is to be written.

        Raises:
            JetStreamSparkError: the stream or the columns make it impossible.
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
            patience=self._write.retry_timeout,
            application=self._application,
        )


def write_options(**settings: Any) -> WriteOptions:
    """
    Make the options of a writer of keyword arguments.

    Raises:
        OptionError: there is no such argument, or a value makes no sense.
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
