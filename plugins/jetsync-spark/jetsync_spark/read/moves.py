"""
Streams that take the place of those of a checkpoint: restored backups, mirrors, renamed streams and
streams of other clusters.

This module does no I/O. A position belongs to the stream that was created at a certain time, and
holds one message of it with its time (:class:`~jetsync_spark.read.offsets.Stored`). Backups and
mirrors keep sequences and times. If a stream has the same message, it has the same messages before
it, and the query continues. The query fails, or does what ``onReplacedStream`` says, if the message
has another time, or if it is missing in a stream that was created at another time.

Messages that were published after the restore of an older backup have later times than this
message, because the query had seen it before. ``newer`` therefore begins at the first message with
a later time, or at the position if that is before it.

The time of creation alone does not tell whether a stream is the same. A copy of a server's disk has
the same time, and some backups that single servers restore. So each run of a query also compares
each stream once, which needs a request only if the stream has new messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.read.offsets import Offset
from jetsync_spark.read.options import CONTINUE, FAIL, LARGEST, NEWER, RESTART
from jetsync_spark.read.origin import Loss
from jetsync_spark.read.planning import AGAIN, Again, Compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from jetsync_spark.read.offsets import Place, Stored
    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.origin import Origin

__all__ = ["Moves"]

_logger = jetsync.get_logger("jetsync.spark.reading")


@attrs.frozen
class _Answer:
    """
    Whether a stream continues the sequences of a position.
    """

    most: int | None
    """
    Positions after this sequence move there. None if the stream is read from its first message.
    """

    why: str = ""
    """How the streams differ."""


class Moves:
    """
    Finds the present streams of positions. Not thread-safe.

    Args:
        options: The names of moved streams, and what to do if a stream was replaced.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._loss = Loss(options)
        self._how = options.on_replaced_stream
        if self._how == FAIL and options.fail_on_data_loss is False:
            self._how = NEWER
        self._new = dict(options.moved_streams)
        self._old = {new: old for old, new in options.moved_streams}
        self._answers: dict[Compare, _Answer] = {}
        self._trusted: set[str] = set()
        """The streams of which this run has seen that they are the same."""

        self._seen: Mapping[str, Origin] = {}
        self._gone: dict[str, Place] = {}
        """The positions of deleted streams, which may be restored."""

    def parsed(self, given: Mapping[str, Any]) -> Offset:
        """
        Parse an offset of the checkpoint. Its streams get their present names.

        They keep their order, because it determines the numbers of the partitions.

        Raises:
            JetStreamSparkError: It is malformed, has only other streams, or has positions of a
                stream and of the one that it was moved to.
        """
        offset = Offset.from_json(given)
        places: dict[str, Place] = {}
        for stream, place in offset.places.items():
            name = self._new.get(stream, stream)
            if name in places or (name != stream and name in offset.places):
                raise JetStreamSparkError(
                    f"the checkpoint has a position of stream {name}, beside the one of {stream} "
                    "that movedStreams names",
                    stream=name,
                    cure="correct movedStreams: each stream continues one stream of the checkpoint",
                )
            places[name] = place
        if places and not any(map(self._options.names_stream, places)):
            source = self._options.source
            raise JetStreamSparkError(
                f"the checkpoint belongs to stream {', '.join(places)}",
                stream=source,
                cure="give each query a checkpoint of its own, or, if the stream was moved, name "
                f'it: movedStreams {{"{next(iter(places))}": "{source}"}}',
            )
        return attrs.evolve(offset, places=places)

    def saw(self, origins: Mapping[str, Origin]) -> set[str]:
        """
        Note the states of the streams that exist. Return those that went back since the last call.
        """
        went_back = {
            stream
            for stream, origin in origins.items()
            if (known := self._seen.get(stream)) is not None
            and (
                origin.next < known.next
                or (origin.next == known.next and origin.last != known.last)
            )
        }
        # A missing stream may be another one when it returns.
        self._trusted = {each for each in self._trusted if each in origins} - went_back
        self._seen = origins
        return went_back

    def gone(self, stream: str, place: Place) -> None:
        """
        Note that the query continues without a stream that was deleted.
        """
        self._gone[stream] = place

    def with_returned(self, offset: Offset) -> Offset:
        """
        Return an offset with the positions of deleted streams that this run has seen return.

        A restore deletes a stream first, so a query that continues without it would otherwise read
        it from its first message.
        """
        if not self._gone:
            return offset
        back = {each: place for each, place in self._gone.items() if each in self._seen}
        for stream in back.keys() & offset.places.keys():
            del self._gone[stream]
        return attrs.evolve(offset, places=dict(sorted({**back, **offset.places}.items())))

    def doubts(
        self, offset: Offset, waits_for: Callable[[str], bool]
    ) -> tuple[Compare, ...] | Literal[Again.AGAIN]:
        """
        Return the questions whose answers :meth:`placed` needs.

        It is :data:`AGAIN` if the streams have to be asked again, because a mirror may still get
        the message.

        Args:
            offset: A position.
            waits_for: Says whether to wait for a stream that lags.
        """
        found, waits = [], False
        for about in self._open(offset):
            is_there = (
                about.last is not None and about.last.sequence < self._seen[about.stream].next
            )
            if is_there or not waits_for(about.stream):
                found.append(about)
            elif not about.is_same:
                waits = True
        return AGAIN if waits else tuple(found)

    def _open(self, offset: Offset) -> Iterator[Compare]:
        """Yield the questions that need a request."""
        for stream, place in offset.places.items():
            origin = self._seen.get(stream)
            if origin is None:
                continue
            is_trusted = place.created == origin.created and stream in self._trusted
            if is_trusted and not self._answers:
                continue
            about = _about(place, origin)
            if is_trusted or about in self._answers:
                continue
            if place.next <= 1 or (place.last is not None and place.last == origin.last):
                # Before the first message, nothing was read.
                self._continues(about)
            elif place.last is None:
                self.compared(about, None, None)
            else:
                yield about

    def wants_newer(self, about: Compare, time: str | None) -> bool:
        """
        Return whether :meth:`compared` needs the first message after the time of the one asked for.

        Args:
            about: The question.
            time: When the message with the sequence was stored. None if there is none.
        """
        return self._how == NEWER and about.last is not None and not self._is_same(about, time)

    def compared(self, about: Compare, time: str | None, newer: int | None) -> None:
        """
        Note the answer to a question.

        Args:
            about: The question.
            time: When the message with the sequence was stored. None if there is none.
            newer: The sequence of the first message after that time, if :meth:`wants_newer`.
        """
        last, origin = about.last, self._seen[about.stream]
        if self._is_same(about, time):
            self._continues(about)
            return
        if last is None:
            why = "the checkpoint does not say how to compare them: an earlier version wrote it"
        elif time is not None:
            why = (
                f"its message {last.sequence} is from {time}, and the one that the query saw from "
                f"{last.time}, so its sequences are those of other messages"
            )
        elif about.is_same:
            why = (
                f"the query has read up to sequence {about.next - 1}, and the stream ends at "
                f"{origin.next - 1}"
            )
        else:
            why = (
                f"it has no message {last.sequence}, which the query saw, so its sequences may be "
                "those of other messages"
            )
        most = {CONTINUE: origin.next, NEWER: newer}.get(self._how)
        self._answers[about] = _Answer(most, why)
        if self._how != FAIL:
            begins = origin.first if most is None else min(about.next, most)
            _logger.warning("stream_replaced", stream=about.stream, what=why, begins=begins)

    def placed(self, offset: Offset) -> Offset:
        """
        Return an offset with positions in the present streams, unless they are read from their
        first messages.
        """
        if not self._answers:
            return offset
        places = dict(offset.places)
        for stream, place in offset.places.items():
            origin = self._seen.get(stream)
            answer = None if origin is None else self._answers.get(_about(place, origin))
            if origin is None or answer is None or answer.most is None:
                continue
            places[stream] = attrs.evolve(
                place,
                created=origin.created,
                next=min(place.next, answer.most),
                # A message of the other stream says nothing about this one.
                last=place.last if answer.most == LARGEST else origin.last,
            )
        return attrs.evolve(offset, places=places)

    def is_other(self, place: Place, origin: Origin) -> bool:
        """
        Return whether a position that :meth:`placed` has returned is not one of the stream.
        """
        about = _about(place, origin)
        answer = self._answers.get(about)
        return not about.is_same or (answer is not None and answer.most is None)

    def last(self, place: Place | None, stream: str, end: int) -> Stored | None:
        """
        Return a message at or after the end of a batch, which costs no request.

        The earliest one that is known is best, because more backups have it.
        """
        origin, known = self._seen.get(stream), None if place is None else place.last
        if origin is None or origin.next < end:
            return known
        is_of_stream = place is not None and not self.is_other(place, origin)
        if is_of_stream and known is not None and end - 1 <= known.sequence < origin.next:
            return known
        return origin.last

    def report(self, place: Place, origin: Origin) -> None:
        """
        Report that a stream does not continue. The query reads it from its first message.

        Raises:
            JetStreamSparkError: The query fails.
        """
        if self._how == RESTART:
            return
        about, at = _about(place, origin), place.next
        answer = self._answers.get(about, _Answer(None))
        old = self._old.get(about.stream)
        self._loss.replaced(
            origin,
            place.created if old is None else f"{place.created}, which was {old}",
            answer.why,
            cure=f"find out what happened to the stream, and start the query once with "
            "onReplacedStream. With newer, it continues at the first message that is newer than "
            f"those it saw, or at sequence {at} if that is before. With continue, it continues at "
            f"sequence {at}, whatever the messages before it are. With restart, it reads the "
            "stream from its first message, and so reads rows again that the stream still has",
        )

    def _is_same(self, about: Compare, time: str | None) -> bool:
        """Return whether a message with this time, or none, shows that the sequences continue."""
        if about.last is not None and time is not None:
            return time == about.last.time
        # Limits and deletes remove messages.
        reaches = about.last is None or about.next <= self._seen[about.stream].next
        return about.is_same and reaches

    def _continues(self, about: Compare) -> None:
        """Note that the sequences continue."""
        if about.is_same:
            self._trusted.add(about.stream)
            return
        self._answers[about] = _Answer(LARGEST)
        _logger.info("stream_continues", stream=about.stream, was=about.was, created=about.created)


def _about(place: Place, origin: Origin) -> Compare:
    return Compare(origin.stream, place.created, origin.created, place.next, place.last)
