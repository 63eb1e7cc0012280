"""
Reading one part of a stream, and knowing whether that was all of it.

A part is read by direct gets, which leave nothing on the server, or where the stream has none by an
ordered consumer. It can be read again at any time, by any process, with the same result. What ends
it early is told from what is missing in it:

- a replica that lags: the leader is asked before the end of what a server has is taken for the end
  of the stream, by ``Stream.scan`` itself, and here for the consumer;
- servers that are away: the part is read on from behind the last message, for a bounded time;
- messages that were deleted one by one: sequences without a message, which are passed over;
- messages that were purged, or dropped by a limit, after the part was planned: where there is a
  gap, the stream is asked whether it begins behind the start of the gap by now;
- a stream that was made again: it says when it was made.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_spark.common.errors import BehindError, explain
from jetsync_spark.common.headers import without_ledger
from jetsync_spark.common.retry import Patience, patiently
from jetsync_spark.read.origin import Loss, look

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.origin import Origin
    from jetsync_spark.read.ranges import Range

__all__ = ["RangeReader"]

_SILENCE: Final = 5.0
"""Seconds without a message after which a consumer is asked what is left."""

_logger = jetsync.get_logger("jetsync.spark.reading")


class RangeReader:
    """
    The messages of one part, page by page.

    Args:
        js: Where to read.
        part: What to read.
        options: How.
    """

    def __init__(self, js: jetsync.JetStream, part: Range, options: ReadOptions) -> None:
        self._js = js
        self._part = part
        self._options = options
        self._filters = _needed(options.subject_filter)
        self._loss = Loss(options)
        self._position = part.start
        """The sequence behind the last message that came."""

        self._gap: int | None = None
        """The first sequence that did not come, and may be lost; None if there is none."""

        self._by_consumer = False

    def pages(self) -> Iterator[jetsync.StoredPage]:
        """
        Yield the messages in their order, those of one answer together.

        Raises:
            JetStreamSparkError: messages are gone that were to be read, or there is no answer.
        """
        part = self._part
        patience = Patience(self._options.retry_timeout)
        if not self._whole():
            return
        while self._position < part.end:
            try:
                for page in self._attempt():
                    if not self._take(page):
                        return
                    rows = page if self._options.include_ledger else without_ledger(page)
                    if rows:
                        yield rows
                    patience.went_well()
                break
            except jetsync.NotSupportedError as error:
                # No direct gets of many messages, or mirrors answer that have less than the stream.
                if self._by_consumer:
                    raise explain(error, "reading failed", stream=part.stream) from error
                self._by_consumer = True
                _logger.warning("reading_by_consumer", stream=part.stream, reason=str(error))
            except jetsync.JetSyncError as error:
                if not patience.bear(error):
                    raise explain(error, "reading failed", stream=part.stream) from error
        if self._position < part.end:
            self._gap = self._position
        self._whole()

    def _take(self, page: jetsync.StoredPage) -> bool:
        """Note what is missing before and in a page; return whether to go on."""
        sequences = page.sequences
        last = sequences[-1]
        if last - self._position + 1 != len(sequences):
            expected = itertools.count(self._position)
            self._gap = next(n for n, came in zip(expected, sequences, strict=False) if n != came)
        self._position = last + 1
        return self._gap is None or self._whole()

    def _whole(self) -> bool:
        """
        Return whether what has not come was not there when the part was planned.

        Raises:
            JetStreamSparkError: it was, and that is a failure.
        """
        part = self._part
        origin = self._look()
        if origin.created != part.created:
            self._loss.replaced(origin, part.created)
            # Its sequences are another stream's, and none of these rows was planned.
            return False
        wanted = self._position if self._gap is None else self._gap
        self._gap = None
        begins = min(origin.first, part.end)
        if wanted < begins:
            self._loss.gone(origin, wanted, begins)
            if self._position == part.start:
                self._position = begins
        return True

    def _look(self) -> Origin:
        stream = self._part.stream
        seconds = self._options.retry_timeout
        return patiently(lambda: look(self._js, stream), seconds, "reading failed", stream)

    def _attempt(self) -> Iterator[jetsync.StoredPage]:
        """Yield pages from where the part has come to."""
        filters = self._filters
        if self._by_consumer:
            return self._consumed(filters)
        if len(filters) > 1:
            return self._merged(filters)
        return self._scan(filters[0] if filters else None).pages()

    def _scan(self, subject: str | None, of: int = 1) -> jetsync.StreamScan:
        """Read what has a subject; one *of* several scans that are in memory together."""
        return self._stream().scan(
            start=self._position,
            end=self._part.end - 1,
            subject=subject,
            page=self._options.fetch_batch,
            max_bytes=max(1, self._options.fetch_max_bytes // of),
        )

    def _stream(self) -> jetsync.Stream:
        return self._js.stream(self._part.stream)

    def _merged(self, filters: tuple[str, ...]) -> Iterator[jetsync.StoredPage]:
        """Yield what matches one of several filters; a request has room for one."""
        scans = [self._scan(subject, len(filters)) for subject in filters]
        try:
            messages = heapq.merge(*scans, key=lambda message: message.sequence)
            # Filters may overlap.
            yield from self._grouped(
                next(same) for _, same in itertools.groupby(messages, lambda each: each.sequence)
            )
        finally:
            for scan in scans:
                scan.close()

    def _grouped(self, messages: Iterable[jetsync.StoredMessage]) -> Iterator[jetsync.StoredPage]:
        page, size = [], 0
        for message in messages:
            page.append(message)
            size += len(message.data)
            if len(page) >= self._options.fetch_batch or size >= self._options.fetch_max_bytes:
                yield jetsync.StoredPage(page)
                page, size = [], 0
        if page:
            yield jetsync.StoredPage(page)

    def _consumed(self, filters: tuple[str, ...]) -> Iterator[jetsync.StoredPage]:
        """Yield what an ordered consumer brings."""
        part, options = self._part, self._options
        with self._stream().ordered_consumer(
            filter_subjects=list(filters) or None,
            opt_start_seq=self._position,
            max_reset_attempts=5,
        ) as consumer:
            left = consumer.cached_info.num_pending
            behind_end = False
            most, max_bytes = options.fetch_batch, options.fetch_max_bytes
            large = False
            while left:
                batch = (
                    consumer.fetch(1, expires=_SILENCE)
                    if large
                    else consumer.fetch(most, max_bytes=max_bytes, expires=_SILENCE)
                )
                page = []
                for message in batch:
                    said = message.metadata
                    left = said.pending
                    if said.stream_sequence >= part.end:
                        behind_end = True
                        left = 0
                        break
                    page.append(
                        jetsync.StoredMessage(
                            part.stream,
                            message.subject,
                            said.stream_sequence,
                            said.timestamp_ns,
                            message.headers,
                            message.data,
                        )
                    )
                    if not left:
                        break
                large = not page
                if page:
                    yield jetsync.StoredPage(page)
                elif left:
                    # The next message may be larger than a page, or what the consumer waits for may
                    # have been removed. If it is gone itself, the next fetch makes another one.
                    with contextlib.suppress(jetsync.ConsumerNotFoundError):
                        left = consumer.info().num_pending
        if not behind_end and self._position < part.end:
            self._ask_leader(filters)

    def _ask_leader(self, filters: tuple[str, ...]) -> None:
        """
        Ask whether a consumer that has no more has seen all; it may be at a replica.

        Raises:
            BehindError: it has not.
        """
        part, stream = self._part, self._stream()
        for subject in filters or (">",):
            try:
                found = stream.get_next(subject, self._position, direct=False)
            except (jetsync.MessageNotFoundError, jetsync.PermissionDeniedError):
                # Who may not ask the leader has to take the word of the consumer.
                continue
            if found.sequence < part.end:
                raise BehindError(
                    f"a replica is behind: the leader has sequence {found.sequence}, and a "
                    f"consumer found nothing from {self._position} on",
                    stream=part.stream,
                    cure="see that the stream's replicas are current, and raise retryTimeoutMs to "
                    "wait longer for them",
                )


def _needed(filters: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out filters within another one, which servers refuse for a consumer."""
    each_once = tuple(dict.fromkeys(filters))
    return tuple(
        one
        for one in each_once
        if not any(_is_part(one, other) for other in each_once if other != one)
    )


def _is_part(one: str, other: str) -> bool:
    """Tell whether all subjects of a wildcard are of another one, too."""
    ours, theirs = one.split("."), other.split(".")
    for place, wanted in enumerate(theirs):
        if wanted == ">":
            return place < len(ours)
        if place == len(ours) or ours[place] == ">" or wanted not in {"*", ours[place]}:
            return False
    return len(ours) == len(theirs)
