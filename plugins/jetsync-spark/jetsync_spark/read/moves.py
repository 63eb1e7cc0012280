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

from typing import TYPE_CHECKING

import attrs

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.read.options import CONTINUE, FAIL, LARGEST, NEWER, RESTART
from jetsync_spark.read.planning import Compare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync_spark.read.offsets import Offset, Place
    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.origin import Loss, Origin

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
        loss: Reports streams that do not continue.
    """

    def __init__(self, options: ReadOptions, loss: Loss) -> None:
        self._loss = loss
        self._how = options.on_replaced_stream
        if self._how == FAIL and options.fail_on_data_loss is False:
            self._how = NEWER
        self._new = dict(options.moved_streams)
        self._old = {new: old for old, new in options.moved_streams}
        self._answers: dict[Compare, _Answer] = {}
        self._trusted: set[str] = set()
        """The streams of which this run has seen that they are the same."""

    def renamed(self, offset: Offset) -> Offset:
        """
        Return an offset with the present names of its streams.

        Raises:
            JetStreamSparkError: It has positions of a stream and of the one that it was moved to.
        """
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
        return attrs.evolve(offset, places=dict(sorted(places.items()))) if self._new else offset

    def distrust(self, stream: str) -> None:
        """
        Note that a stream may be another one than before.
        """
        self._trusted.discard(stream)

    def doubts(self, offset: Offset, origins: Mapping[str, Origin]) -> tuple[Compare, ...]:
        """
        Return the questions whose answers :meth:`placed` needs.

        Args:
            offset: An offset with present names.
            origins: The states of the streams.
        """
        found = []
        for stream, place in offset.places.items():
            origin = origins.get(stream)
            if origin is None:
                continue
            about = _about(place, origin)
            if about in self._answers or (about.is_same and stream in self._trusted):
                continue
            if place.next <= 1 or (place.last is not None and place.last == origin.last):
                # Before the first message, nothing was read.
                self._continues(about)
            elif place.last is None:
                self.compared(about, None, None, origin)
            else:
                found.append(about)
        return tuple(found)

    def wants_newer(self, about: Compare, time: str | None) -> bool:
        """
        Return whether :meth:`compared` needs the first message after the time of the one asked for.

        Args:
            about: The question.
            time: When the message with the sequence was stored. None if there is none.
        """
        return self._how == NEWER and about.last is not None and time != about.last.time

    def compared(self, about: Compare, time: str | None, newer: int | None, origin: Origin) -> None:
        """
        Note the answer to a question.

        Args:
            about: The question.
            time: When the message with the sequence was stored. None if there is none.
            newer: The sequence of the first message after that time, if :meth:`wants_newer`.
            origin: The state of the stream.
        """
        last = about.last
        if last is not None and time == last.time:
            self._continues(about)
            return
        if time is None and about.is_same and (last is None or about.next <= origin.next):
            # Limits and deletes remove messages.
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

    def placed(self, offset: Offset, origins: Mapping[str, Origin]) -> Offset:
        """
        Return an offset with positions in the present streams, unless they are read from their
        first messages.
        """
        places = dict(offset.places)
        for stream, place in offset.places.items():
            origin = origins.get(stream)
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

    def _continues(self, about: Compare) -> None:
        """Note that the sequences continue."""
        if about.is_same:
            self._trusted.add(about.stream)
            return
        self._answers[about] = _Answer(LARGEST)
        _logger.info("stream_continues", stream=about.stream, was=about.was, created=about.created)


def _about(place: Place, origin: Origin) -> Compare:
    return Compare(origin.stream, place.created, origin.created, place.next, place.last)
