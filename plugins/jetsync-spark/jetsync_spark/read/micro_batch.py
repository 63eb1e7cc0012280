"""
The streaming reader: micro-batches of one stream or several.

One reader plans for as long as a query runs, in a process of its own. Pickled copies of it read in
the workers. An offset holds for each stream the sequence after the last one of its batch
(:mod:`jetsync_spark.read.offsets`). A batch that is planned again after a failure has the same
ranges of the streams, in the same parts.

A stream that the query finds while it runs, or after a restart, is read from its first message.

PySpark 4.0 and 4.1 have no admission control, so this reader limits a batch itself, counted from
the end of the last batch. The first batch of a run has no limit, because its start is not yet known
when Spark asks for its end. ``availableNow`` is one batch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.retry import ask_with_retry
from jetsync_spark.read.batch import read_part
from jetsync_spark.read.idle import IdleQuery
from jetsync_spark.read.offsets import Offset, Place, spans
from jetsync_spark.read.options import LATEST
from jetsync_spark.read.origin import (
    Loss,
    Origin,
    check_filters,
    origin_of,
    start_of,
)
from jetsync_spark.read.ranges import DEFAULT_PARTS, PER_CORE, cut, parts_for, parts_of, shares
from jetsync_spark.read.states import StreamStates
from jetsync_spark.read.tables import STREAM_COLUMNS, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.read.options import ReadOptions

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # PySpark before 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder for the class of PySpark 4.2."""


__all__ = ["StreamMicroBatchReader"]

CATCHING_UP: Final = 5.0
"""
Seconds to wait for a stream that ends before the query's offset, or is missing, as a new leader may
lag.
"""

CATCH_UP_PAUSE: Final = 0.1
"""Seconds between two checks of such a stream."""

SKIPPED: Final = 10_000
"""Minimum sequences without a match that an empty batch skips."""

TRIGGER_DELAY: Final = 900.0
"""Seconds after which a batch is planned that has fewer sequences than asked for: 15 minutes."""

_logger = jetsync.get_logger("jetsync.spark.stream_reader")


@attrs.frozen
class _Step:
    """
    What the next batch may read of one stream.
    """

    origin: Origin
    """The stream."""

    begins: int
    """Where the batch begins."""

    first: int
    """The first sequence that matters. A limit counts from there."""

    end: int
    """The sequence after the last one, without a limit."""

    lost: bool = False
    """Whether messages are missing, so that the offset has to move."""


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Plans and reads micro-batches of streams.

    Spark does not say when a query ends. The consumers that wait for new messages are therefore
    such that the server deletes them by itself. Spark calls the reader from one thread at a time.

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
        self._settings = settings
        self._options = options
        self._table = Table(schema, STREAM_COLUMNS)
        self._connection = f"jetsync-spark-plan-{options.source}"
        self._default_parts = DEFAULT_PARTS if parallelism is None else PER_CORE * parallelism
        self._loss = Loss(options)
        self._initial: Offset | None = None
        self._reached: Offset | None = None
        """The end of the last planned batch, as PySpark before 4.2 does not pass the next start."""

        self._target: dict[str, int] | None = None
        """
        For each stream the sequence after the last one to read, if the query has a fixed end.
        """

        self._states = StreamStates(options)
        self._seen: dict[str, Origin] | None = None
        self._idle = IdleQuery(settings, self._connection, options, self._states)
        self._behind_since: dict[str, float] = {}
        self._planned_at: float | None = None
        """When the last batch was planned."""

        self._searched: dict[str, tuple[str, int]] = {}
        """
        For each stream, when it was created, and a sequence. No message between the last batch and
        this sequence matches a filter.
        """

    # Planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the names are Spark's.
        """
        Return the start of the query. Repeated calls return the same offset.
        """
        if self._initial is None:
            self._initial = self._ask(self._first)
            for stream, place in self._initial.places.items():
                _logger.info("query_begins", stream=stream, sequence=place.next)
        return self._initial.to_json()

    def latestOffset(  # noqa: N802 - as above.
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """
        Return the end of the next batch, or *start* if there are no new messages.

        Args:
            start: The start of the batch. None before PySpark 4.2.
            limit: The limit of the batch. None before PySpark 4.2.
        """
        told = start is not None
        begin = (self._reached or self._initial) if start is None else Offset.from_json(start)
        if begin is None:
            # PySpark 4.0 and 4.1 do not say whether this is a new query or a restart.
            return self._guess().to_json()
        self._check(begin)
        end = None
        if self._target is not None or self._idle.may_have_news():
            origins = self._now(begin)
            if self._target is not None:
                origins = self._caught_up(begin, origins)
            end = self._end(begin, origins, self._most(limit, told=told))
            self._expect(begin, origins, idle=end is None)
        self._idle.asked()
        if end is None:
            return begin.to_json() if start is None else start
        self._planned_at = time.monotonic()
        return end.to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - as above.
        """
        Return the limit of a batch if the trigger has none.
        """
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above.
        """
        Fix the end of the query at the current ends of the streams.
        """
        origins = self._now()
        self._target = {stream: origin.next for stream, origin in origins.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - as above.
        """
        Return the last known ends of the streams for the query's progress, without a request.
        """
        if not self._seen:
            return None
        return Offset(
            {
                stream: Place(origin.created, origin.next, origin.first)
                for stream, origin in self._seen.items()
            }
        ).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """
        Return the parts of a batch. They stay the same if the batch is planned again.
        """
        options = self._options
        first, last = Offset.from_json(start), Offset.from_json(end)
        self._check(last)
        if last.guessed and not first.initial:
            self._check_guess(first, last)
        self._reached = last
        self._idle.ends()
        ranges = []
        for what in spans(first, last):
            parts = what.parts or parts_for(
                len(what), least=options.min_partitions, most_each=options.max_records_per_partition
            )
            ranges += cut(what.stream, what.created, what.start, what.end, parts)
        return [InputPartition(each) for each in ranges]

    def commit(self, end: dict[str, Any]) -> None:  # noqa: ARG002 - Spark's.
        """
        Note that the query has read a batch, perhaps of another source. The checkpoint holds the
        offset.
        """
        self._idle.ends()

    def stop(self) -> None:
        """
        Do nothing, because nothing outlives the process.
        """

    # Reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one part.
        """
        return read_part(self._settings, self._options, self._table, partition.value)

    def _first(self, js: jetsync.JetStream) -> Offset:
        options = self._options
        streams = self._states.ask(js, strict=True)
        if not streams:
            _logger.warning("no_stream_matches", pattern=options.source)
        origins = [origin_of(stream.cached_info) for stream in streams.values()]
        check_filters(streams, origins, options.subject_filter)
        places = {}
        for origin in origins:
            place = start_of(options, streams[origin.stream], origin, default=LATEST)
            if place < origin.first:
                self._loss.gone(origin, place, origin.first)
                place = origin.first
            places[origin.stream] = Place(origin.created, place)
        return Offset(places, initial=True)

    def _guess(self) -> Offset:
        """Return the end of the next batch, which begins here if it is the first of the query."""
        origins = self._now()
        try:
            initial = Offset.from_json(self.initialOffset()).places
        except JetStreamSparkError:
            # If this is the first batch, Spark calls initialOffset and gets the error.
            initial = {stream: Place(origin.created, 1) for stream, origin in origins.items()}
        places = {}
        for stream, origin in origins.items():
            begins = initial[stream].next if stream in initial else origin.first
            places[stream] = Place(origin.created, origin.next, begins, first=origin.first)
        return Offset(places, guessed=True)

    def _check_guess(self, first: Offset, last: Offset) -> None:
        """Report losses of a batch whose start was not known when its end was planned."""
        for stream, place in first.places.items():
            there = last.places.get(stream)
            if there is None:
                self._is_gone(stream, at_once=True)
            elif there.created != place.created:
                origin = self._now(last).get(stream)
                if origin is not None:
                    self._loss.replaced(origin, place.created)

    def _check(self, offset: Offset) -> None:
        """Reject a checkpoint that has only other streams."""
        places = offset.places
        if places and not any(map(self._options.names_stream, places)):
            raise JetStreamSparkError(
                f"the checkpoint belongs to stream {', '.join(places)}",
                stream=self._options.source,
                cure="give each query a checkpoint of its own",
            )

    def _end(self, begin: Offset, origins: Mapping[str, Origin], most: int | None) -> Offset | None:
        """
        Return the end of the next batch, or None if there is nothing to read yet.

        Raises:
            JetStreamSparkError: Messages were lost and failOnDataLoss applies.
        """
        target, places, steps, gone = self._target, dict(begin.places), [], False
        for stream in sorted({*places, *origins}):
            origin, place = origins.get(stream), places.get(stream)
            if origin is None:
                if self._is_gone(stream):
                    del places[stream]
                    gone = True
                continue
            if place is None and target is not None and stream not in target:
                continue
            end = origin.next if target is None else min(origin.next, target.get(stream, 0))
            begins = origin.first if place is None else self._begin_of_next(place, origin)
            lost = place is not None and (begins, origin.created) != (place.next, place.created)
            if lost:
                # A stream that lost messages may use their sequences again.
                self._searched.pop(stream, None)
            if lost or end > begins:
                steps.append(_Step(origin, begins, begins, max(begins, end), lost))
        if not gone and not any(step.lost for step in steps):
            if self._is_too_early(sum(step.end - step.begins for step in steps)):
                return None
            steps = self._with_matches(steps)
            if not steps:
                return None
        return self._end_after(steps, places, most)

    def _end_after(
        self, steps: list[_Step], places: Mapping[str, Place], most: int | None
    ) -> Offset:
        """Return the end of a batch that reads these steps of the streams, up to a limit."""
        options = self._options
        lengths = [step.end - step.first for step in steps]
        if most is not None:
            lengths = shares(lengths, most)
        ends = [step.first + length for step, length in zip(steps, lengths, strict=True)]
        parts = parts_of(
            [end - step.begins for step, end in zip(steps, ends, strict=True)],
            least=options.min_partitions,
            most_each=options.max_records_per_partition,
            default=self._default_parts,
        )
        # The other streams stay where they are.
        found = {stream: Place(at.created, at.next, at.next, 0) for stream, at in places.items()}
        for step, end, count in zip(steps, ends, parts, strict=True):
            found[step.origin.stream] = Place(step.origin.created, end, step.begins, count)
        return Offset(dict(sorted(found.items())))

    def _begin_of_next(self, begin: Place, origin: Origin) -> int:
        """
        Return where the next batch of a stream begins. It moves only if messages were removed.

        Raises:
            JetStreamSparkError: Messages were lost and failOnDataLoss applies.
        """
        if origin.created != begin.created:
            self._loss.replaced(origin, begin.created)
            return origin.first
        if origin.next < begin.next:
            if self._waits_for(origin.stream):
                return begin.next
            self._loss.behind(origin, begin.next)
            return origin.next
        self._behind_since.pop(origin.stream, None)
        if origin.first > begin.next:
            created, searched = self._searched.get(origin.stream, ("", 0))
            # Messages before this one matched no filter, so they are no loss.
            needed = searched if created == origin.created else 0
            if origin.first <= needed:
                return needed
            self._loss.gone(origin, max(begin.next, needed), origin.first)
            return origin.first
        return begin.next

    def _is_gone(self, stream: str, *, at_once: bool = False) -> bool:
        """
        Return whether a stream without a state is left out from now on.

        Raises:
            JetStreamSparkError: It is, and failOnDataLoss applies.
        """
        if not self._options.names_stream(stream):
            self._loss.unlisted(stream)
        elif not at_once and self._waits_for(stream):
            return False
        else:
            self._loss.deleted(stream)
        self._behind_since.pop(stream, None)
        self._searched.pop(stream, None)
        return True

    def _waits_for(self, stream: str) -> bool:
        """Return whether to wait for a stream that lags or is missing."""
        since = self._behind_since.setdefault(stream, time.monotonic())
        return self._target is None and time.monotonic() - since < CATCHING_UP

    def _is_too_early(self, sequences: int) -> bool:
        """Return whether a batch has to wait for more messages. The first one never does."""
        options = self._options
        least = options.min_offsets_per_trigger
        if least is None or sequences >= least or self._target is not None:
            return False
        delay = TRIGGER_DELAY if options.max_trigger_delay is None else options.max_trigger_delay
        return self._planned_at is not None and time.monotonic() < self._planned_at + delay

    def _with_matches(self, steps: list[_Step]) -> list[_Step]:
        """
        Return the steps that have a message which matches a filter, from this message on.

        A span without such a message is not a batch. It becomes part of the next one, unless it is
        in the older half of its stream, where a limit of the stream may soon remove messages. There
        it is skipped, if need be by an empty batch.
        """
        if not self._options.subject_filter:
            return steps
        found = []
        for step in steps:
            first = min(self._first_match(step), step.end)
            is_old = 2 * step.begins < step.origin.first + step.origin.next
            if first < step.end or (is_old and first - step.begins >= SKIPPED):
                begins = first if is_old else step.begins
                found.append(attrs.evolve(step, begins=begins, first=first))
        return found

    def _first_match(self, step: _Step) -> int:
        """Return the sequence of the first message that matches a filter, or the end."""
        origin = step.origin
        created, start = self._searched.get(origin.stream, ("", 0))
        start = max(step.begins, start) if created == origin.created else step.begins

        def look(js: jetsync.JetStream) -> list[int]:
            stream = self._states.handle(js, origin.stream)
            found = []
            for each in self._options.subject_filter:
                try:
                    found.append(stream.get_next(each, start, direct=False).sequence)
                except jetsync.MessageNotFoundError:
                    continue
                except jetsync.PermissionDeniedError:
                    # Without permission to ask the leader, any message may match.
                    return [start]
            return found

        found = self._ask(look) if start < step.end else []
        first: int = min(found, default=step.end)
        self._searched[origin.stream] = (origin.created, first)
        return first

    def _caught_up(self, begin: Offset, origins: dict[str, Origin]) -> dict[str, Origin]:
        """Wait for streams that lag, because a run to a fixed end checks only once."""

        def lags(stream: str, place: Place) -> bool:
            origin = origins.get(stream)
            if origin is None:
                return self._options.names_stream(stream)
            return origin.created == place.created and origin.next < place.next

        end = time.monotonic() + CATCHING_UP
        while any(lags(*each) for each in begin.places.items()) and time.monotonic() < end:
            time.sleep(CATCH_UP_PAUSE)
            origins = self._now(begin)
        return origins

    def _most(self, limit: object, *, told: bool) -> int | None:
        """Return the maximum sequences of the next batch, or None for no limit."""
        if not told:
            return self._options.max_offsets_per_trigger
        return getattr(limit, "max_rows", None)

    def _expect(self, begin: Offset, origins: Mapping[str, Origin], *, idle: bool) -> None:
        """Note for which messages to wait, after the streams were asked."""
        if not idle:
            self._idle.ends()
            return
        wanted = {}
        for stream, origin in origins.items():
            place = begin.places.get(stream)
            wanted[stream] = origin.first if place is None else place.next
            created, searched = self._searched.get(stream, ("", 0))
            if created == origin.created:
                wanted[stream] = max(wanted[stream], searched)
        ends = {stream: origin.next for stream, origin in origins.items()}
        # If a stream lags or is missing, or the batch would be too small, time matters too.
        known = begin.places.keys() <= origins.keys() and wanted == ends
        self._idle.expects(wanted if known else None)

    def _now(self, begin: Offset | None = None) -> dict[str, Origin]:
        """
        Ask for the states of the streams.

        A stream that was deleted is left out, unless it is the only one that the options name.

        Args:
            begin: Include the streams of this offset even if a list of streams omits them.
        """
        known = [] if begin is None else filter(self._options.names_stream, begin.places)
        wanted = [*known]

        def look(js: jetsync.JetStream) -> dict[str, Origin]:
            streams = self._states.ask(js, wanted)
            return {name: origin_of(stream.cached_info) for name, stream in streams.items()}

        seen: dict[str, Origin] = self._ask(look)
        self._seen = seen
        self._idle.requested()
        return seen

    def _ask(self, call: Callable[[jetsync.JetStream], Any]) -> Any:
        stream = self._options.source
        return ask_with_retry(
            self._settings,
            self._connection,
            call,
            self._options.retry_timeout,
            "planning to read failed",
            stream,
        )
