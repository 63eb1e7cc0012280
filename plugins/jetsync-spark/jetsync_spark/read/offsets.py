"""
The offsets of a streaming query, which Spark keeps in its checkpoint as JSON.

This module does no I/O. Spark compares offsets as text and stores the end of each micro-batch. It
does not store the start of the query: after a restart it asks for the start again, and "latest" is
then somewhere else. Each end therefore also holds the start of its batch, and the first offset is
marked as unreliable (:attr:`Offset.initial`).

An end also holds a message of each stream, with the time at which it was stored. A stream that has
the same message, such as a restored backup or a mirror, continues the sequences of the query
(:mod:`jetsync_spark.read.moves`).

An end also holds the number of parts of its batch, and how tasks share them, because exactly-once
writers identify partitions by their number. A batch that is planned again is cut in the same way,
whatever the options, the machine and the version of this package are by then.

The JSON of an offset with one stream has a form of its own, which earlier versions wrote and read
too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync_spark.common.errors import JetStreamSparkError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Offset", "Place", "Span", "Stored", "not_before", "spans"]

ONE: Final = 1
"""The version of an offset with one stream."""

SEVERAL: Final = 2
"""The version of an offset with any number of streams."""

CONSUMER: Final = 3
"""The version of the offsets of a query with a consumer, which have a module of their own."""

SHARED: Final = 4
"""
The version of an offset whose tasks read several parts. Packages that cannot do so reject it, as
they would number the partitions in another way.
"""


@attrs.frozen
class Stored:
    """
    A message of a stream. Its sequence and its time identify the messages up to it.
    """

    sequence: int
    """Its sequence."""

    time: str
    """When it was stored."""


@attrs.frozen
class Place:
    """
    A position in one stream.
    """

    created: str
    """When the stream was created."""

    next: int
    """The sequence to read next."""

    begins: int | None = None
    """The start of the batch that ends here. None in the first offset of a query."""

    parts: int | None = None
    """The number of parts of this batch. None if it follows from the length of the batch."""

    first: int | None = None
    """The first sequence of the stream, only if :attr:`Offset.guessed`."""

    last: Stored | None = None
    """
    The last message of the stream when the position was planned, which may be after the position.
    None if the stream never had one, and in a checkpoint of an earlier version.
    """

    def to_json(self) -> dict[str, Any]:
        """
        Return the position for Spark. The order of the keys never changes.
        """
        place = {
            "created": self.created,
            "seq": self.next,
            "from": self.begins,
            "parts": self.parts,
            "first": self.first,
            "last": None if self.last is None else [self.last.sequence, self.last.time],
        }
        return {key: value for key, value in place.items() if value is not None}

    @classmethod
    def from_json(cls, given: Mapping[str, Any], *, initial: bool) -> Place:
        """
        Parse a position.

        Raises:
            KeyError, TypeError, ValueError: The position is malformed.
        """
        parts, first, last = given.get("parts"), given.get("first"), given.get("last")
        return cls(
            given["created"],
            int(given["seq"]),
            None if initial else int(given["from"]),
            None if parts is None else int(parts),
            None if first is None else int(first),
            None if last is None else Stored(int(last[0]), str(last[1])),
        )


@attrs.frozen
class Offset:
    """
    A position in each stream of a query.
    """

    places: Mapping[str, Place]
    """The positions by stream, in the order of the names in the checkpoint."""

    initial: bool = False
    """Whether this is the start of a query, which may differ after a restart."""

    guessed: bool = False
    """
    Whether the starts of the batch are only valid for the first batch of a query. PySpark 4.0 and
    4.1 ask for an end before they say whether the batch is the first.
    """

    tasks: tuple[int, ...] | None = None
    """
    How many successive parts of this batch each task reads. None if each task reads one part.
    """

    def to_json(self) -> dict[str, Any]:
        """
        Return the offset for Spark. The order of the keys never changes.
        """
        marks = {"initial": True} if self.initial else {"guessed": True} if self.guessed else {}
        if len(self.places) == 1 and self.tasks is None:
            ((stream, place),) = self.places.items()
            return {"v": ONE, "stream": stream, **place.to_json(), **marks}
        streams = {stream: place.to_json() for stream, place in sorted(self.places.items())}
        if self.tasks is None:
            return {"v": SEVERAL, "streams": streams, **marks}
        return {"v": SHARED, "streams": streams, "tasks": list(self.tasks), **marks}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Offset:
        """
        Parse an offset from a checkpoint.

        Args:
            given: A result of :meth:`to_json`, of this version or an earlier one.

        Raises:
            JetStreamSparkError: The offset is malformed.
        """
        try:
            version = given["v"]
            initial, guessed = bool(given.get("initial")), bool(given.get("guessed"))
            if version == ONE:
                streams = {given["stream"]: given}
            elif version in {SEVERAL, SHARED}:
                streams = given["streams"]
            elif version == CONSUMER:
                raise JetStreamSparkError(
                    f"the checkpoint is of a query with option consumer {given['consumer']}",
                    stream=given["stream"],
                    cure="give that option again, or start with a new checkpoint",
                )
            else:
                raise ValueError(version)
            places = {
                stream: Place.from_json(place, initial=initial)
                for stream, place in sorted(streams.items())
            }
            tasks = tuple(map(int, given["tasks"])) if version == SHARED else None
        except (AttributeError, LookupError, TypeError, ValueError):
            raise JetStreamSparkError(
                f"the checkpoint has an offset that this version cannot parse: {given}",
                cure="use the version that wrote it, or start with a new checkpoint",
            ) from None
        return cls(places, initial, guessed, tasks)


@attrs.frozen
class Span:
    """
    The range of one stream that a micro-batch reads.
    """

    stream: str
    """The stream."""

    created: str
    """When the stream was created."""

    start: int
    """The first sequence."""

    end: int
    """The sequence after the last one."""

    parts: int | None = None
    """The number of parts. None if it follows from the length."""

    def __len__(self) -> int:
        return self.end - self.start


def spans(start: Offset, end: Offset) -> list[Span]:
    """
    Return the ranges between two offsets that are not empty, in the order of the end's streams.

    The end holds the start of its batch. Spark's start may be earlier if lost messages are skipped.
    It may be anything if the query restarted before its first batch, or if a stream was recreated.
    """
    return [] if start == end else [each for each in _spans(start, end) if each]


def not_before(start: Offset, end: Offset) -> Offset:
    """
    Return an end without places before the start, as a lagging leader may have reported it.
    """
    if start.initial:
        return end
    places = dict(end.places)
    for stream, place in places.items():
        begun = start.places.get(stream)
        if begun is not None and begun.created == place.created and begun.next > place.next:
            places[stream] = attrs.evolve(place, next=begun.next)
    return attrs.evolve(end, places=places)


def _spans(start: Offset, end: Offset) -> Iterator[Span]:
    for stream, last in end.places.items():
        first = start.places.get(stream)
        begins = last.next if last.begins is None else last.begins
        if start.initial:
            pass
        elif first is not None and first.created == last.created:
            begins = first.next if end.guessed else begins
        elif end.guessed:
            begins = last.first or 1
        yield Span(stream, last.created, begins, max(begins, last.next), last.parts)
