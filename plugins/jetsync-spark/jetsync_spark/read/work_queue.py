"""
The streaming reader of work queues and of other streams with a durable consumer.

A work-queue stream keeps each message until a consumer acknowledges it. An interest stream keeps it
until all its consumers have. The query reads such a stream through a durable pull consumer, and
acknowledges messages after Spark has committed their batch.

How a batch is made and read:

1. The planner, the one process that plans for as long as a query runs, pulls messages from the
   consumer, without payloads if the consumer has ``headers_only``. It keeps only their sequences.
2. The offset of a batch contains these sequences, as few runs (:mod:`jetsync_spark.read.deliveries`
   explains why they are few). Spark writes the offset to the checkpoint before it runs the batch.
3. The tasks read the messages by sequence, with direct gets. The messages are still in the stream,
   because nothing has acknowledged them. A task that runs again, and a batch that a restarted query
   runs again, therefore read the same messages. Each task compares the number of messages with the
   number in the offset.
4. Spark asks for the next batch only after it has committed the last one, and passes the end of the
   last one. The planner then acknowledges the messages of that batch, waits until the server has
   confirmed it, and only then plans another batch. An offset therefore need not contain the
   messages of earlier batches.

This gives the following guarantee: each message is in exactly one batch, and each batch has the
same rows whenever it runs. A sink that stores each batch once, such as Delta, files or mode
``exactlyonce``, stores each message exactly once. With other sinks, and with ``foreachBatch``, it
is at least once. These conditions apply:

- No other client pulls from the consumer, or it gets no message of a batch because the wait for
  redelivery (``ack_wait``) never ends. While a batch runs, a thread of the planner restarts this
  wait (:class:`~jetsync_spark.read.durable.Keeper`). While the query is down, nothing does.
- The stream removes no message that is not acknowledged. If a limit or a purge removes messages
  between steps 1 and 3, the tasks find fewer messages than planned and report data loss.
- The checkpoint is kept. A new checkpoint reads all messages that are not acknowledged.

What happens if the query is killed:

- Between steps 1 and 2, the messages are in no batch yet. The server redelivers them after
  ``ack_wait``, and they become part of a later batch.
- After step 2, Spark runs the batch again, from the checkpoint.
- After the commit, and before or during step 4, Spark passes the end of the committed batch to the
  new planner, which acknowledges its messages. If the server delivers some of them again, they are
  recognised and acknowledged again.

The last batch before a query stops is acknowledged by the next run, unless Spark asks for another
batch first, as it does at the end of ``availableNow``.

An idle query keeps one pull of 30 seconds at the server.

PySpark 4.0 and 4.1 do not pass the end of the last batch, so this reader needs 4.2.
"""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.read.batch import part_in_task, stream_in_task
from jetsync_spark.read.deliveries import Deliveries, Runs
from jetsync_spark.read.durable import Durable, Keeper
from jetsync_spark.read.origin import Loss, origin_of
from jetsync_spark.read.queue_offsets import QueueOffset
from jetsync_spark.read.range_reader import RangeReader
from jetsync_spark.read.ranges import Range, default_parts, parts_for
from jetsync_spark.read.tables import STREAM_COLUMNS, Table
from jetsync_spark.read.triggers import TELLS_START, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.read.durable import Source
    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.queue_offsets import QueuePart

__all__ = ["QueueReader", "read_part"]

MOST: Final = 100_000
"""Default maximum messages per micro-batch. The planner needs about 200 bytes for each."""

WAIT: Final = 0.2
"""Seconds for which latestOffset waits for messages, so that other sources do not wait long."""

CHECK: Final = 5.0
"""Seconds between two checks whether the stream and the consumer are the same as before."""

APART: Final = 10_000
"""Sequences between two runs beyond which they are read separately."""

ATTEMPTS: Final = 3
"""How often a batch is planned again because its consumer is no longer the same."""

REPLACED: Final = (
    "set failOnDataLoss to false to continue with the messages that the consumer delivers. If a "
    "backup was restored with its consumer, these are the messages that were not acknowledged when "
    "it was made, so rows of later micro-batches are read again"
)
"""The advice if the stream was created again or restored."""

_logger = jetsync.get_logger("jetsync.spark.work_queue")


class QueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Plans and reads micro-batches of a durable consumer.

    Spark calls the reader from one thread at a time. Pickled copies of it read in the workers.

    Args:
        settings: How to connect.
        options: What to read.
        schema: The columns.
        parallelism: How many tasks the cluster runs at once. None if that is not known.
    """

    def __init__(
        self,
        settings: ConnectSettings,
        options: ReadOptions,
        schema: StructType,
        parallelism: int | None = None,
    ) -> None:
        options.for_streaming()
        if not TELLS_START:
            raise OptionError(
                "option consumer needs PySpark 4.2 or newer: older versions do not tell a source "
                "which batch is committed",
                option="consumer",
                cure="use a newer PySpark, or read a stream of retention limits",
            )
        self._given = settings, options, schema, parallelism
        self._settings = settings
        self._options = options
        self._table = Table(schema, STREAM_COLUMNS)
        self._default_parts = default_parts(parallelism)
        self._most = options.max_offsets_per_trigger or MOST
        connection = f"jetsync-spark-plan-{options.source}-{options.consumer}"
        self._durable = Durable(settings, options, self._most, connection)
        self._keeper = Keeper(settings, connection, options.source, options.consumer or "")
        self._loss = Loss(options)
        self._deliveries = Deliveries()
        self._source: Source | None = None
        self._looked_at = 0.0
        self._accepted: tuple[str, str] | None = None
        """The stream and the consumer with which the query continues, although they are others."""

        self._settled: QueueOffset | None = None
        """The offset whose batch is acknowledged."""

        self._planned: tuple[QueueOffset, QueueOffset] | None = None
        """The start and the end of the batch that was planned last."""

        self._is_idle = False
        self._left: int | None = None
        """How many messages to read, if the query has a fixed end."""

    def __reduce__(self) -> tuple[type[QueueReader], tuple[Any, ...]]:
        return QueueReader, self._given

    # Planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the names are Spark's.
        """
        Return the start of the query. Create the consumer if it does not exist.
        """
        source = self._look() if self._source is None else self._source
        return self._offset(source).to_json()

    def latestOffset(  # noqa: N802 - as above.
        self, start: dict[str, Any], limit: object = None
    ) -> dict[str, Any]:
        """
        Acknowledge the batch that ends at *start*, and return the end of the next batch.

        Args:
            start: The start of the batch. It is returned if there are no new messages.
            limit: The limit of the batch.
        """
        begin = self._parsed(start)
        if self._planned is not None and self._planned[0] == begin:
            # Spark asks again before it has run the batch.
            return self._planned[1].to_json()
        if begin != self._settled:
            self._settle(begin)
        end = self._next(begin, getattr(limit, "max_rows", None))
        if end is None:
            return start
        self._planned = begin, end
        self._renew(self._check_source(end))
        return end.to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - as above.
        """
        Return the limit of a batch if the trigger has none.
        """
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above.
        """
        End the query after as many messages as can be delivered now.
        """
        self._left = self._look().available

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - as above.
        """
        Return nothing, because an offset has no position in the stream.
        """
        return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """
        Return the parts of a batch. They stay the same if the batch is planned again.
        """
        begin, last = self._parsed(start), self._parsed(end)
        if begin == last:
            return []
        if self._planned is None or self._planned[1] != last:
            # Another process has planned it. Its messages are not acknowledged.
            source = self._check_source(last)
            self._deliveries.adopt(self._sequences(last))
            self._planned = begin, last
            self._renew(source)
        return [InputPartition(part) for part in last.tasks()]

    def commit(self, end: dict[str, Any]) -> None:
        """
        Do nothing, because Spark calls this one batch late.
        """

    def stop(self) -> None:
        """
        Leave the messages of the batch to the server, which redelivers them. Spark seldom calls
        this: it kills the process instead.
        """
        self._keeper.keep(array("Q"), 0.0)

    # Reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one part.
        """
        return read_part(self._settings, self._options, self._table, partition.value)

    # The consumer

    def _parsed(self, given: dict[str, Any]) -> QueueOffset:
        """Parse an offset, and reject one of another consumer."""
        offset, options = QueueOffset.from_json(given), self._options
        if (offset.stream, offset.consumer) != (options.source, options.consumer):
            raise JetStreamSparkError(
                f"the checkpoint belongs to consumer {offset.consumer} of stream {offset.stream}",
                stream=options.source,
                cure="give each query a checkpoint of its own",
            )
        return offset

    def _check_source(self, known: QueueOffset) -> Source:
        """
        Return the stream and the consumer. From time to time, ask whether they are still the same.

        Args:
            known: An offset of the query.

        Raises:
            JetStreamSparkError: They are others, and messages may be lost.
        """
        source = self._source
        if source is None or time.monotonic() >= self._looked_at + CHECK:
            source = self._look()
        identity = source.origin.created, source.made
        if identity not in {(known.created, known.made), self._accepted}:
            if source.origin.created != known.created:
                self._loss.replaced(source.origin, known.created, cure=REPLACED)
                # The new stream uses the sequences of the committed batch again.
                self._deliveries.commit(Runs())
            elif source.is_queue:
                # The stream still has all messages that were not acknowledged.
                _logger.warning("consumer_recreated", stream=known.stream, consumer=known.consumer)
            else:
                self._loss.recreated(source.origin, known.consumer)
            self._deliveries.clear()
            self._accepted = identity
        return source

    def _renew(self, source: Source) -> None:
        """Restart the wait for redelivery of the batch from now on."""
        self._keeper.keep(self._deliveries.unacknowledged, source.renew)

    def _look(self) -> Source:
        """Ask for the stream and the consumer, and create the consumer if it does not exist."""
        found = self._durable.look()
        if found is None:
            if self._options.create_consumer is False:
                raise OptionError(
                    f"stream {self._options.source} has no consumer {self._options.consumer}",
                    option="consumer",
                    cure="create it, correct the name, or leave out createConsumer",
                )
            found = self._durable.create()
        if self._source is None:
            self._warn(found)
        self._source, self._looked_at = found, time.monotonic()
        return found

    def _warn(self, found: Source) -> None:
        """Log what makes a consumer slower than one that the query would create."""
        names = {"stream": found.origin.stream, "consumer": self._options.consumer}
        if not found.headers_only:
            _logger.warning("payloads_in_planner", **names, reason="no headers_only")
        if found.most is not None and found.most < self._most:
            _logger.warning("small_batches", **names, max_ack_pending=found.most)
        if found.gives_up:
            _logger.warning("deliveries_limited", **names, max_deliver=found.gives_up)

    def _settle(self, begin: QueueOffset) -> None:
        """Acknowledge the batch that ends at an offset, because Spark has committed it."""
        self._keeper.keep(array("Q"), 0.0)
        if self._check_source(begin).origin.created != begin.created:
            # These sequences are other messages now.
            self._deliveries.commit(Runs())
        else:
            is_known = self._planned is not None and self._planned[1] == begin
            batch = self._deliveries.batch if is_known else None
            self._acknowledge(begin, lambda: self._sequences(begin) if batch is None else batch)
            self._deliveries.commit(begin.runs)
        self._settled, self._planned = begin, None

    def _acknowledge(self, begin: QueueOffset, which: Callable[[], Sequence[int]]) -> None:
        """Acknowledge messages. If the consumer was created again, it delivers them again."""
        for _ in range(ATTEMPTS):
            if self._durable.acknowledge(self._check_source(begin), which):
                return
            self._source = None
        raise self._unstable()

    def _next(self, begin: QueueOffset, limit: int | None) -> QueueOffset | None:
        """Return the end of the next batch, or None if there are no messages."""
        for _ in range(ATTEMPTS):
            source = self._check_source(begin)
            most = min(filter(None, (self._most, limit, source.most)))
            if not self._fetch(source, most):
                self._source = None
                continue
            again = self._deliveries.take_again()
            if again:
                self._acknowledge(begin, lambda: again)  # noqa: B023 - called at once.
            if not self._deliveries:
                self._is_idle = True
                return None
            now = self._look()
            if now.made != source.made:
                continue
            # If the filters were changed meanwhile, messages of the batch may match neither.
            is_same = now.filters == source.filters
            parts = self._deliveries.plan(
                most, self._parts_for, skips_others=is_same and now.skips_others
            )
            self._is_idle = False
            return attrs.evolve(
                self._offset(now), filters=now.filters if is_same else (), parts=parts
            )
        raise self._unstable()

    def _fetch(self, source: Source, most: int) -> bool:
        """Fetch messages for a batch. Return whether the consumer still exists."""
        held = self._deliveries
        if self._is_idle and self._left is None and not held:
            found = self._durable.wait(source, WAIT)
            if not found:
                return found is not None
            held.add(found)
        # Messages that are held longer may be redelivered before others are delivered.
        until = time.monotonic() + source.renew
        while len(held) < most and self._left != 0:
            asked = min(most - len(held), source.at_once)
            if self._left is not None:
                asked = min(asked, self._left)
            found = self._durable.fetch(source, asked)
            if found is None:
                return False
            held.add(found)
            if self._left is not None:
                self._left -= len(found)
            if not found or (source.headers_only and len(found) < asked):
                break
            if held and time.monotonic() >= until:
                break
        return True

    def _parts_for(self, messages: int) -> int:
        options = self._options
        return parts_for(
            messages,
            least=options.min_partitions,
            most_each=options.max_records_per_partition,
            default=self._default_parts,
        )

    def _offset(self, source: Source) -> QueueOffset:
        origin = source.origin
        return QueueOffset(
            origin.stream, origin.created, self._options.consumer or "", source.made, source.filters
        )

    def _sequences(self, offset: QueueOffset) -> array[int]:
        """Return the sequences of a batch that another process has planned."""
        options = attrs.evolve(
            self._options,
            subject_filter=offset.filters,
            # Some may be acknowledged, and so removed.
            fail_on_data_loss=False,
        )
        found = array("Q")
        for run in offset.runs.runs:
            if run.is_dense:
                found.extend(range(run.first, run.last + 1))
                continue
            part = Range(offset.stream, offset.created, run.first, run.last + 1)
            with stream_in_task(self._settings, options, offset.stream) as (_, stream):
                for page in RangeReader(stream, part, options).pages():
                    found.extend(_sequences_of(page))
        return found

    def _unstable(self) -> JetStreamSparkError:
        return JetStreamSparkError(
            f"consumer {self._options.consumer} was deleted or created again {ATTEMPTS} times",
            stream=self._options.source,
            cure="check which program manages this consumer",
        )


def read_part(
    settings: ConnectSettings, options: ReadOptions, table: Table, part: QueuePart
) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of one part, over the connection of this worker.

    Repeated calls yield the same rows, until the messages are acknowledged.

    Raises:
        JetStreamSparkError: Messages are missing, or the servers did not answer in time.
    """
    wanted = attrs.evolve(options, subject_filter=part.filters)
    with part_in_task(settings, options, table, part) as (stream, rows_of):
        for runs in part.runs.apart(APART):
            first, last = runs.bounds
            left = len(runs)
            what = Range(part.stream, part.created, first, last + 1)
            for page in RangeReader(stream, what, wanted).pages():
                chosen = _chosen(page, runs)
                left -= len(chosen)
                rows = rows_of(chosen) if chosen else None
                if rows is not None:
                    yield rows
            if left > 0:
                Loss(options).missing(origin_of(stream.cached_info), first, last + 1, left)
            elif left < 0:
                raise JetStreamSparkError(
                    f"there are {-left} messages between sequences {first} and {last} that the "
                    f"consumer had not delivered when the batch was planned",
                    stream=part.stream,
                    cure="start with a new checkpoint, and report this",
                )


def _chosen(page: jetsync.StoredPage, runs: Runs) -> jetsync.StoredPage:
    """Return the messages of a page that belong to some runs."""
    if runs.include(page[0].sequence, page[-1].sequence):
        return page
    chosen = [place for place, each in enumerate(_sequences_of(page)) if each in runs]
    return page if len(chosen) == len(page) else jetsync.StoredPage([page[at] for at in chosen])


def _sequences_of(page: jetsync.StoredPage) -> list[int]:
    found: list[int] = page.to_arrow(("sequence",)).column(0).to_pylist()
    return found
