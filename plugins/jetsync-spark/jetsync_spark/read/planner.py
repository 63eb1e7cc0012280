"""
Where the micro-batches of a streaming query begin and end.

This module does no I/O and reads no clock. The reader reports what happens, with a method per
event, and sends the requests that the planner asks for:

- :meth:`Planner.wants` says for which streams to ask, and :meth:`Planner.saw` gets their states.
- :meth:`Planner.plan` returns the end of a batch. It returns :class:`Look` objects first if it
  needs to know which messages match a filter (:meth:`Planner.found`), and :data:`AGAIN` if a stream
  lags and has to be asked again.

A stream that the query finds while it runs, or after a restart, is read from its first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from jetsync_spark.read.matches import Matches, Step
from jetsync_spark.read.offsets import Offset, Place, not_before, spans
from jetsync_spark.read.origin import Loss, Origin
from jetsync_spark.read.planning import AGAIN, Again, Awaited, Limit, Look, Wanted
from jetsync_spark.read.ranges import (
    LARGEST_BYTES,
    cut,
    divide,
    group,
    parts_for,
    shares,
    up_to,
)
from jetsync_spark.read.sizes import Sizes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from jetsync_spark.read.moves import Moves
    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.ranges import Range, TaskRanges

__all__ = ["Planner"]

DISCOVER: Final = 5.0
"""Seconds between two requests for the streams that match a pattern."""

CATCHING_UP: Final = 5.0
"""
Seconds to wait for a stream that ends before the query's offset, or is missing, as a new leader may
lag.
"""

TRIGGER_DELAY: Final = 900.0
"""Seconds after which a batch is planned that has fewer sequences than asked for: 15 minutes."""


class Planner:
    """
    Plans micro-batches. Not thread-safe.

    Args:
        options: What to read.
        parts: The default number of parts of a batch.
        moves: Compares streams with positions.
    """

    def __init__(self, options: ReadOptions, parts: int, moves: Moves) -> None:
        self._options = options
        self._default_parts = parts
        self._loss = Loss(options)
        self._moves = moves
        self._initial: Offset | None = None
        self._reached: Offset | None = None
        """The end of the last planned batch, as PySpark before 4.2 does not pass the next start."""

        self._guessed: Offset | None = None
        """The end of the first batch of this run, if no batch was planned yet."""

        self._target: dict[str, int] | None = None
        """
        For each stream the sequence after the last one to read, if the query has a fixed end.
        """

        self._seen: dict[str, Origin] = {}
        self._named = frozenset(options.named)
        self._matched: frozenset[str] = frozenset()
        """The streams that match a pattern."""

        self._matched_at: float | None = None
        """When they were requested last."""

        self._behind_since: dict[str, float] = {}
        self._planned_at: float | None = None
        """When the last batch was planned."""

        self._matches = Matches(options.subject_filter)
        self._sizes = Sizes()
        self._awaited: Awaited | None = None

    @property
    def initial(self) -> Offset | None:
        """
        The start of the query, if it is known.
        """
        return self._initial

    @property
    def guessed(self) -> Offset | None:
        """
        The end of the first batch of this run, if its start was not known.
        """
        return self._guessed

    @property
    def has_end(self) -> bool:
        """
        Whether the query ends where the streams ended when it began.
        """
        return self._target is not None

    @property
    def awaited(self) -> Awaited | None:
        """
        What to wait for after a plan without a batch. None if other changes matter too.
        """
        return self._awaited

    @property
    def latest(self) -> Offset | None:
        """
        The ends of the streams when they were seen last.
        """
        if not self._seen:
            return None
        return Offset(
            {
                stream: Place(origin.created, origin.next, origin.first, last=origin.last)
                for stream, origin in self._seen.items()
            }
        )

    # States of streams

    def wants(self, begin: Offset | None, now: float) -> Wanted:
        """
        Return for which streams to ask.

        Args:
            begin: Include the streams of this offset.
            now: The time.
        """
        known = () if begin is None else filter(self._options.names_stream, begin.places)
        due = self._matched_at is None or now >= self._matched_at + DISCOVER
        return Wanted(
            self._named | self._matched | frozenset(known), bool(self._options.patterns) and due
        )

    def saw(
        self, origins: Mapping[str, Origin], matched: Collection[str] | None, now: float
    ) -> None:
        """
        Note the states of the streams that exist.

        Args:
            origins: The states by stream.
            matched: The streams that match a pattern. None if they were not requested.
            now: The time of the request.
        """
        self._seen = dict(origins)
        went_back = self._moves.saw(self._seen)
        # A stream that went back, or was restored, may have other messages with these sequences.
        self._matches.keep(origins.keys() - went_back)
        for origin in origins.values():
            self._sizes.saw(origin)
        if matched is not None:
            self._matched, self._matched_at = frozenset(matched), now

    # Starts

    def begins(self, starts: Mapping[str, int]) -> Offset:
        """
        Note where to start each stream that was seen, and return the start of the query.

        Raises:
            JetStreamSparkError: Messages were removed there and failOnDataLoss applies.
        """
        places = {}
        for stream, start in starts.items():
            origin = self._seen[stream]
            if start < origin.first:
                self._loss.gone(origin, start, origin.first)
            places[stream] = Place(origin.created, max(start, origin.first), last=origin.last)
        self._initial = Offset(places, initial=True)
        return self._initial

    def begin_of_next(self, start: Mapping[str, Any] | None) -> Offset | None:
        """
        Return the start of the next batch. None if it is not known.

        Args:
            start: What Spark says. None before PySpark 4.2.

        Raises:
            JetStreamSparkError: The checkpoint has only other streams.
        """
        return self._reached if start is None else self._moves.parsed(start)

    def fix_end(self) -> None:
        """
        Note that the query ends where the streams ended when they were seen last.
        """
        self._target = {stream: origin.next for stream, origin in self._seen.items()}

    def guess(self, now: float) -> Offset:
        """
        Return the end of the next batch, which begins here if it is the first of the query.

        Args:
            now: The time.
        """
        initial = None if self._initial is None else self._initial.places
        places = {}
        for stream, origin in self._seen.items():
            if initial is None:
                begins = 1
            else:
                begins = initial[stream].next if stream in initial else origin.first
            places[stream] = Place(
                origin.created, origin.next, begins, first=origin.first, last=origin.last
            )
        self._guessed = Offset(places, guessed=True)
        self._planned_at = now
        self._awaited = Awaited({stream: place.next for stream, place in places.items()})
        return self._guessed

    # Batches

    def plan(
        self, begin: Offset, limit: Limit, now: float
    ) -> Offset | tuple[Look, ...] | Literal[Again.AGAIN] | None:
        """
        Return the end of the next batch, or None if there is nothing to read yet.

        It is :data:`AGAIN` if the streams have to be asked again, and questions if the answers
        (:meth:`found`) are needed before the end is known.

        Args:
            begin: Where the batch begins.
            limit: The maximum of the batch.
            now: The time.

        Raises:
            JetStreamSparkError: Messages were lost and failOnDataLoss applies.
        """
        if self._target is not None and self._waits_for_any(begin, now):
            return AGAIN
        places = dict(begin.places)
        steps, gone = self._steps(places, now)
        if not gone and not any(step.lost for step in steps):
            due = self._due(sum(step.end - step.begins for step in steps))
            if now < due:
                self._await(begin, due)
                return None
            looks = self._matches.looks(steps)
            if looks:
                return looks
            steps = self._matches.of_steps(steps)
            if not steps:
                self._await(begin, None)
                return None
        self._planned_at = now
        return self._end_after(steps, places, limit)

    def found(self, look: Look, sequence: int | None) -> None:
        """
        Note the answer to a question: the sequence of the message, or None if there is none.
        """
        self._matches.found(self._seen[look.stream], sequence)

    def needs_states(self, start: Offset, end: Offset) -> bool:
        """
        Return whether :meth:`parts` needs the states of the streams, because the batch was planned
        by an earlier run of the query.
        """
        return not {*start.places, *end.places} <= self._seen.keys()

    def waits_for_missing(self, end: Offset, now: float) -> bool:
        """
        Return whether :meth:`parts` should get the states of missing streams again.
        """
        # Each stream has its own time limit, which begins now.
        waits = [self.waits_for(stream, now) for stream in end.places if self._is_gone(stream)]
        return any(waits)

    def parts(self, start: Offset, end: Offset) -> list[TaskRanges]:
        """
        Note that Spark reads a batch, and return what each task reads.

        This stays the same if the batch is planned again. A task reads less, and perhaps nothing,
        if streams were replaced, but keeps its number.

        Raises:
            JetStreamSparkError: Messages were lost and failOnDataLoss applies.
        """
        options = self._options
        present = self._moves.placed(end)
        if end.guessed:
            start, end = self._moves.placed(start), present
            if not start.initial:
                start = self._checked_guess(start, end)
        self._reached = not_before(start, end) if end.guessed else end
        ranges: list[Range] = []
        ends: dict[str, int] = {}
        for what in spans(start, end):
            place, origin = present.places[what.stream], self._seen.get(what.stream)
            ends[what.stream] = place.next
            if origin is not None and self._moves.is_other(place, origin):
                self._moves.report(place, origin)
                ends[what.stream] = 0
            elif self._is_gone(what.stream):
                self._report_gone(what.stream)
                ends[what.stream] = 0
            parts = what.parts or parts_for(
                len(what), least=options.min_partitions, most_each=options.max_records_per_partition
            )
            ranges += cut(what.stream, place.created, what.start, what.end, parts)
        # Writers identify tasks by number, so all are numbered before anything is left out.
        return [
            tuple(up_to(each, ends[each.stream]) for each in task if each.start < ends[each.stream])
            for task in group(ranges, end.tasks)
        ]

    def _is_gone(self, stream: str) -> bool:
        """Return whether the query continues without a stream. Else its task asks for it again."""
        options = self._options
        is_wanted = options.names_stream(stream) and stream not in self._seen
        return is_wanted and options.fail_on_data_loss is False

    def _checked_guess(self, first: Offset, last: Offset) -> Offset:
        """
        Report losses of a batch whose start was not known when its end was planned.

        Return the start without the streams that are read from their first messages.
        """
        places = dict(first.places)
        for stream, place in first.places.items():
            there = last.places.get(stream)
            if there is None:
                self._report_gone(stream)
            elif stream in self._seen and self._moves.is_other(place, self._seen[stream]):
                self._moves.report(place, self._seen[stream])
                del places[stream]
        return attrs.evolve(first, places=places)

    def _steps(self, places: dict[str, Place], now: float) -> tuple[list[Step], bool]:
        """
        Return what to read of each stream, and whether a stream is gone.

        The places of such streams are removed.
        """
        target, origins = self._target, self._seen
        steps, gone = [], False
        for stream in sorted({*places, *origins}):
            origin, place = origins.get(stream), places.get(stream)
            if origin is None:
                if self._options.names_stream(stream) and self.waits_for(stream, now):
                    continue
                self._report_gone(stream)
                self._moves.gone(stream, places.pop(stream))
                gone = True
                continue
            if place is None and target is not None and stream not in target:
                continue
            end = origin.next if target is None else min(origin.next, target.get(stream, 0))
            begins = origin.first if place is None else self._begin_after(place, origin, now)
            lost = place is not None and (begins, origin.created) != (place.next, place.created)
            if lost:
                # A stream that lost messages may use their sequences again.
                self._matches.forget(stream)
            if lost or end > begins:
                steps.append(Step(origin, begins, begins, max(begins, end), lost))
        return steps, gone

    def _end_after(self, steps: list[Step], places: Mapping[str, Place], limit: Limit) -> Offset:
        """Return the end of a batch that reads these steps of the streams, up to a limit."""
        options, sizes = self._options, self._sizes
        ends = self._ends(steps, limit)
        lengths = [end - step.begins for step, end in zip(steps, ends, strict=True)]
        bytes_ = [
            sizes.between(step.origin.stream, step.begins, end)
            for step, end in zip(steps, ends, strict=True)
        ]
        parts, tasks = divide(
            lengths,
            sizes=bytes_,
            least=options.min_partitions,
            most_each=options.max_records_per_partition,
            most_bytes_each=options.max_bytes_per_partition or LARGEST_BYTES,
            default=self._default_parts,
        )
        # The other streams stay where they are.
        found = {
            stream: Place(
                at.created, at.next, at.next, 0, last=self._moves.last(at, stream, at.next)
            )
            for stream, at in places.items()
        }
        for step, end, count in zip(steps, ends, parts, strict=True):
            origin = step.origin
            last = self._moves.last(places.get(origin.stream), origin.stream, end)
            found[origin.stream] = Place(origin.created, end, step.begins, count, last=last)
        return Offset(dict(sorted(found.items())), tasks=tasks)

    def _ends(self, steps: list[Step], limit: Limit) -> list[int]:
        """Return where each step ends under a limit. Each has at least one sequence."""
        sizes = self._sizes
        lengths = [step.end - step.first for step in steps]
        if limit.sequences is not None:
            lengths = shares(lengths, limit.sequences)
        ends = [step.first + length for step, length in zip(steps, lengths, strict=True)]
        if limit.bytes is None:
            return ends
        bytes_ = [
            sizes.between(step.origin.stream, step.first, end)
            for step, end in zip(steps, ends, strict=True)
        ]
        total = sum(bytes_)
        if total <= limit.bytes:
            return ends
        return [
            min(end, max(step.first + 1, sizes.end_of(step.origin.stream, step.first, part)))
            for step, end, part in zip(
                steps, ends, (limit.bytes * size / total for size in bytes_), strict=True
            )
        ]

    def _begin_after(self, place: Place, origin: Origin, now: float) -> int:
        """
        Return where the next batch of a stream begins. It moves only if messages were removed.

        Raises:
            JetStreamSparkError: Messages were lost and failOnDataLoss applies.
        """
        if self._moves.is_other(place, origin):
            self._moves.report(place, origin)
            self._behind_since.pop(origin.stream, None)
            return origin.first
        if origin.next < place.next:
            if self._target is None and self.waits_for(origin.stream, now):
                return place.next
            self._loss.behind(origin, place.next)
            return origin.next
        self._behind_since.pop(origin.stream, None)
        if origin.first > place.next:
            # Messages before this one matched no filter, so they are no loss.
            needed = self._matches.searched(origin)
            if origin.first <= needed:
                return needed
            self._loss.gone(origin, max(place.next, needed), origin.first)
            return origin.first
        return place.next

    def _report_gone(self, stream: str) -> None:
        """
        Note that a stream without a state is left out from now on.

        Raises:
            JetStreamSparkError: failOnDataLoss applies.
        """
        if self._options.names_stream(stream):
            self._loss.deleted(stream)
        else:
            self._loss.unlisted(stream)
        self._behind_since.pop(stream, None)
        self._matches.forget(stream)

    def waits_for(self, stream: str, now: float) -> bool:
        """
        Return whether to wait for a stream that lags or is missing.
        """
        return now - self._behind_since.setdefault(stream, now) < CATCHING_UP

    def _waits_for_any(self, begin: Offset, now: float) -> bool:
        """Return whether to wait before the plan of a query with a fixed end."""

        def lags(stream: str, place: Place) -> bool:
            origin = self._seen.get(stream)
            if origin is None:
                return self._options.names_stream(stream)
            return origin.created == place.created and origin.next < place.next

        # Each stream has its own time limit, which begins now.
        waits = [
            self.waits_for(stream, now)
            for stream, place in begin.places.items()
            if lags(stream, place)
        ]
        return any(waits)

    def _due(self, sequences: int) -> float:
        """Return the time before which a batch has to wait for more messages."""
        options = self._options
        least = options.min_offsets_per_trigger
        if (
            least is None
            or sequences >= least
            or self._target is not None
            or self._planned_at is None
        ):
            return 0.0
        delay = TRIGGER_DELAY if options.max_trigger_delay is None else options.max_trigger_delay
        return self._planned_at + delay

    def _await(self, begin: Offset, due: float | None) -> None:
        """Note for which messages to wait, and until when a batch is too small."""
        wanted = {}
        for stream, origin in self._seen.items():
            place = begin.places.get(stream)
            wanted[stream] = max(
                origin.first if place is None else place.next, self._matches.searched(origin)
            )
        ends = {stream: origin.next for stream, origin in self._seen.items()}
        # If a stream lags or is missing, time matters too.
        known = begin.places.keys() <= self._seen.keys() and all(
            wanted[stream] <= end if due is not None else wanted[stream] == end
            for stream, end in ends.items()
        )
        self._awaited = Awaited(ends, due) if known else None
