"""
Read one part of a stream completely, or report which messages are missing.

A part is read by direct gets, which leave nothing on the server. If the stream does not allow them,
it is read by an ordered consumer. Work queues allow no such consumer, so each of their messages is
then requested separately. Any process can read a part again with the same result. These cases need
care:

- A replica lags. Before a server's last message counts as the end of the stream, the leader is
  asked. ``Stream.scan`` does this for direct gets, and this module for the consumer.
- Servers are unavailable. Reading continues after the last message, for a limited time.
- Single messages were deleted. Their sequences are skipped.
- Messages were purged or removed by a limit after the part was planned. If there is a gap, the
  stream is asked whether it now begins after the start of the gap.
- The stream was deleted and created again. Its creation time tells.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import itertools
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_spark.common.errors import BehindError, explain
from jetsync_spark.common.retry import Retry
from jetsync_spark.common.subjects import without_covered
from jetsync_spark.read.origin import Loss, origin_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.origin import Origin
    from jetsync_spark.read.ranges import Range

__all__ = ["RangeReader"]

_SILENCE: Final = 5.0
"""Seconds without a message after which the consumer's pending count is requested."""

_logger = jetsync.get_logger("jetsync.spark.reading")


class RangeReader:
    """
    Reads the messages of one part in pages.

    Args:
        stream: The stream. Its state may be out of date.
        part: The range to read.
        options: The options of the read.
    """

    def __init__(self, stream: jetsync.Stream, part: Range, options: ReadOptions) -> None:
        self._stream = stream
        self._part = part
        self._options = options
        self._filters = without_covered(options.subject_filter)
        self._loss = Loss(options)
        self._position = part.start
        """The sequence after the last message that was read."""

        self._gap: int | None = None
        """The first missing sequence, which may be lost. None without a gap."""

        self._by_consumer = False

    def pages(self) -> Iterator[jetsync.StoredPage]:
        """
        Yield the messages in order, in pages.

        Raises:
            JetStreamSparkError: Messages are missing, or the servers did not answer in time.
        """
        part = self._part
        retry = Retry(self._options.retry_timeout)
        while self._position < part.end:
            try:
                start, pages = self._position, self._attempt()
                # The attempt began with a request for the stream's state.
                if not self._is_whole(origin_of(self._stream.cached_info)):
                    return
                if self._position != start:
                    # A lagging replica may still have the messages that are lost.
                    continue
                for page in pages:
                    if not self._take(page):
                        return
                    yield page
                    retry.reset()
                break
            except jetsync.NotSupportedError as error:
                # The stream has no direct gets, or incomplete mirrors answer them.
                if self._by_consumer:
                    raise explain(error, "reading failed", stream=part.stream) from error
                self._by_consumer = True
                _logger.warning("reading_by_consumer", stream=part.stream, reason=str(error))
            except jetsync.JetSyncError as error:
                if isinstance(error, jetsync.StreamNotFoundError) and not self._is_whole():
                    # Another stream has its name.
                    return
                if not retry.wait_after(error):
                    raise explain(error, "reading failed", stream=part.stream) from error
        if self._position < part.end:
            self._gap = self._position
        if self._gap is not None or self._stream.config.mirror is not None:
            # A scan recognises the messages of another stream by their times, but a mirror copies
            # these.
            self._is_whole()

    def _take(self, page: jetsync.StoredPage) -> bool:
        """Record gaps before and in a page. Return whether to continue."""
        position, last = self._position, page[-1].sequence
        if last - position + 1 != len(page):
            # Sequences rise, so this is a binary search, and most messages are not looked at.
            self._gap = position + bisect.bisect_left(
                range(len(page)), True, key=lambda n: page[n].sequence != position + n
            )
        self._position = last + 1
        return self._gap is None or self._is_whole()

    def _is_whole(self, origin: Origin | None = None) -> bool:
        """
        Return whether the missing sequences had no messages when the part was planned.

        Args:
            origin: The state of the stream. None asks the leader.

        Raises:
            JetStreamSparkError: They had messages, and the query fails on data loss.
        """
        part = self._part
        if origin is None:
            origin = self._look()
        if origin.created != part.created:
            self._loss.replaced(origin, part.created)
            # Its sequences are another stream's, and none of these rows was planned.
            return False
        begins = min(origin.first, part.end)
        wanted, self._gap = self._gap, None
        if wanted is None:
            wanted = self._position
            self._position = max(wanted, begins)
        if wanted < begins:
            self._loss.gone(origin, wanted, begins)
        return True

    def _look(self) -> Origin:
        return Retry(self._options.retry_timeout).call(
            lambda: origin_of(self._stream.info()), "reading failed", self._part.stream
        )

    def _attempt(self) -> Iterator[jetsync.StoredPage]:
        """Ask for the stream's state, and return the pages from where the part has come to."""
        filters = self._filters
        if self._by_consumer:
            policy = self._stream.info().config.retention
            if policy is not None and policy.value != "limits":
                return self._merged([self._from_leader(each) for each in filters or (">",)])
            return self._consumed(filters)
        if len(filters) > 1:
            return self._merged([self._scan(each, len(filters)) for each in filters])
        return self._scan(filters[0] if filters else None).pages()

    def _scan(self, subject: str | None, of: int = 1) -> jetsync.StreamScan:
        """Scan messages that match a filter. *of* scans share the memory limit."""
        return self._stream.scan(
            start=self._position,
            end=self._part.end - 1,
            subject=subject,
            page=self._options.fetch_batch,
            max_bytes=max(1, self._options.fetch_max_bytes // of),
        )

    def _from_leader(self, subject: str) -> Generator[jetsync.StoredMessage, None, None]:
        """Yield messages that match a filter. Each one costs a request."""
        position = self._position
        with contextlib.suppress(jetsync.MessageNotFoundError):
            while position < self._part.end:
                message = self._stream.get_next(subject, position, direct=False)
                if message.sequence >= self._part.end:
                    return
                yield message
                position = message.sequence + 1

    def _merged(
        self, scans: Sequence[jetsync.StreamScan | Generator[jetsync.StoredMessage, None, None]]
    ) -> Iterator[jetsync.StoredPage]:
        """Merge the messages of several filters, as a request has only one filter."""
        try:
            messages = heapq.merge(*scans, key=lambda message: message.sequence)
            # Filters may overlap, so each sequence is yielded once.
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
        """Yield messages of an ordered consumer."""
        part, options = self._part, self._options
        with self._stream.ordered_consumer(
            filter_subjects=list(filters) or None,
            opt_start_seq=self._position,
            max_reset_attempts=5,
        ) as consumer:
            left = consumer.cached_info.num_pending
            asked_for = None
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
                    if consumer.name != asked_for:
                        # A consumer that was created again may belong to another stream.
                        asked_for = consumer.name
                        self._check_same()
                    yield jetsync.StoredPage(page)
                elif left:
                    # The next message may be larger than a page, or may have been removed. If the
                    # consumer was deleted, the next fetch recreates it.
                    with contextlib.suppress(jetsync.ConsumerNotFoundError):
                        left = consumer.info().num_pending
        if not behind_end and self._position < part.end:
            self._ask_leader(filters)

    def _check_same(self) -> None:
        """
        Ask the leader whether the stream is the one that was planned.

        Raises:
            StreamNotFoundError: Another stream has its name.
        """
        if self._look().created != self._part.created:
            raise jetsync.StreamNotFoundError(
                description="another stream has its name", stream=self._part.stream
            )

    def _ask_leader(self, filters: tuple[str, ...]) -> None:
        """
        Ask the leader whether the consumer, which may run on a replica, has delivered everything.

        Raises:
            BehindError: The replica lags.
        """
        part, stream = self._part, self._stream
        for subject in filters or (">",):
            try:
                found = stream.get_next(subject, self._position, direct=False)
            except (jetsync.MessageNotFoundError, jetsync.PermissionDeniedError):
                # Without permission to ask the leader, the replica has to be trusted.
                continue
            if found.sequence < part.end:
                raise BehindError(
                    f"a replica lags behind: the leader has sequence {found.sequence}, and a "
                    f"consumer found no message from {self._position} on",
                    stream=part.stream,
                    cure="check that the stream's replicas are current, and raise retryTimeoutMs "
                    "to wait longer for them",
                )
