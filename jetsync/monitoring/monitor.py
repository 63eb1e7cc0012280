"""
Ask the server for the figures of streams and consumers.

The lists of the API have 256 infos on a page. So the figures of 1,000 consumers of a stream take
four requests, not one for each consumer.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync._base.deadline import Deadline, Seconds
from jetsync._base.fields import check_count, wrong_type
from jetsync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
    JetSyncError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from jetsync.monitoring.oldest import OldestMessages
from jetsync.values.account import AccountInfo
from jetsync.values.consumer_info import ConsumerInfo
from jetsync.values.stream_info import StreamInfo
from jetsync.values.subjects import validate_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jetsync.jetstream import JetStream
    from jetsync.stream import Stream

FEW: Final = 16
"""
How many names are asked one by one, which needs no permission for the list. More than that are
looked up in the list.
"""

TIMEOUT: Final = 5.0
"""Seconds for a reading. Prometheus waits 10 seconds for a scrape by default."""

LOOKUPS: Final = 64
"""Messages that a reading looks up at most, to tell the age of the oldest unacknowledged ones."""

_LOST: Final = (ConnectionClosedError, ConnectionLostError, DisconnectedError)


@attrs.frozen(kw_only=True)
class ConsumerReading:
    """
    A consumer at the time of a reading.
    """

    info: ConsumerInfo
    """The server's description of the consumer."""

    oldest: dt.datetime | None = None
    """
    When the oldest message was stored that the consumer has not acknowledged. ``None`` if no
    message waits, or if the time is not known.
    """

    @property
    def is_waiting(self) -> bool:
        """
        Whether there are messages that the consumer has not acknowledged.
        """
        return self.info.num_ack_pending > 0 or self.info.num_pending > 0

    @property
    def oldest_age(self) -> float | None:
        """
        Age of the oldest unacknowledged message in seconds.

        It is 0 if no message waits, and ``None`` if the age is not known. The server's clock
        measures it.
        """
        if not self.is_waiting:
            return 0.0
        return age(self.info.ts, self.oldest)


@attrs.frozen(kw_only=True)
class StreamReading:
    """
    A stream at the time of a reading, with its consumers.
    """

    name: str
    """Name of the stream."""

    info: StreamInfo | None = None
    """The server's description of the stream; ``None`` if it did not answer."""

    consumers: tuple[ConsumerReading, ...] = ()
    """The consumers that were asked for, by name."""

    unanswered: int = 0
    """How many consumers the list lacks, for example because they have no leader."""

    error: JetSyncError | None = None
    """Why the description or the consumers are missing."""


@attrs.frozen(kw_only=True)
class Reading:
    """
    The figures of one moment.
    """

    streams: tuple[StreamReading, ...] = ()
    """The streams that were asked for, by name."""

    account: AccountInfo | None = None
    """The use and the limits of the account; ``None`` if they were not asked for."""

    unanswered: int = 0
    """
    How many streams of the account the list lacks, for example because they have no leader. Known
    if the account was asked for, too.
    """

    lookups: int = 0
    """How many messages were read, to tell the ages."""

    error: JetSyncError | None = None
    """
    Why the reading failed; ``None`` if it did not. A stream that does not answer has an error of
    its own.
    """


class Monitor:
    """
    Asks the server for the figures of streams and consumers, one reading at a time.

    A list of streams and a list of consumers take one request for each 256 of them. Up to 16 names
    without a ``*`` are asked one by one instead. Then the user needs no permission for the lists. A
    stream without consumers takes no request for its consumers.

    The age of the oldest unacknowledged message may take one more request for a consumer. A reading
    makes at most *lookups* of them, and none once their payloads have 8 MiB. It begins with the
    consumers whose last acknowledgement is the longest ago. It remembers a message that it has
    found until the consumer acknowledges it, but at most for 5 minutes.

    Several threads may share a monitor, but only one may read at a time.

    Args:
        js: Where to ask.
        streams: Names of streams. A ``*`` stands for any text.
        consumers: Names of consumers, likewise.
        ephemeral: Whether a ``*`` also finds consumers that are not durable. The names of ordered
            consumers are random, so each of them would be a new time series.
        account: Whether to ask for the use and the limits of the account.
        lookups: How many messages to read at most for one reading. Default: 64. 0 turns the ages
            off, except those that take no request.

    Raises:
        InvalidNameError, InvalidTypeError, InvalidArgumentError: An argument is not valid.
    """

    def __init__(
        self,
        js: JetStream,
        *,
        streams: Iterable[str] = "*",
        consumers: Iterable[str] = "*",
        ephemeral: bool = False,
        account: bool = True,
        lookups: int = LOOKUPS,
    ) -> None:
        self._js = js
        self._streams = Names("stream", streams)
        self._consumers = Names("consumer", consumers)
        self._ephemeral = ephemeral
        self._account = account
        check_count("lookups", lookups, 0)
        self._oldest = OldestMessages(lookups)
        # Streams that did not answer in the last reading. They are asked last, because each of them
        # may take all of the time.
        self._silent: set[str] = set()
        self._listed = 0

    def __repr__(self) -> str:
        return f"<Monitor of {self._streams}, {self._consumers}>"

    def read(self, *, timeout: Seconds = TIMEOUT) -> Reading:
        """
        Ask the server, and return the figures. Errors of the server are part of the result.

        If the server does not answer, the call ends within twice the timeout, because the last
        request may begin right before its end.

        Args:
            timeout: Seconds for all requests. Default: 5.
        """
        deadline = Deadline.after(timeout)
        try:
            account = None
            if self._account:
                account = self._js.account_info(timeout=deadline.remaining())
            found = sorted(self._ask_streams(deadline), key=self._order)
            answers = [self._ask_consumers(each, deadline) for each in found]
            self._silent = {each.name for each in answers if each.error is not None}
            return self._with_ages(found, answers, account, deadline)
        except JetSyncError as error:
            return Reading(error=error)

    def _ask_streams(self, deadline: Deadline) -> Iterator[Stream | StreamReading]:
        """Yield the streams, or why one of them did not answer."""
        if self._streams.are_few:
            for name in sorted(self._streams.given, key=lambda each: each in self._silent):
                try:
                    yield self._js.stream(name, timeout=_left(deadline))
                except _LOST:
                    raise
                except JetSyncError as error:
                    yield StreamReading(name=name, error=error)
            return
        self._listed = 0
        missing = {name for name in self._streams.given if "*" not in name}
        for stream in self._js.streams(timeout=_left(deadline)):
            _left(deadline)
            self._listed += 1
            missing.discard(stream.name)
            if self._streams.match(stream.name):
                yield stream
        for name in missing:
            why = "the list of streams does not have it"
            lacking = StreamNotFoundError(description=why, stream=name)
            yield StreamReading(name=name, error=lacking)

    def _order(self, stream: Stream | StreamReading) -> tuple[bool, str]:
        return stream.name in self._silent, stream.name

    def _ask_consumers(self, stream: Stream | StreamReading, deadline: Deadline) -> StreamReading:
        """Return a stream with its consumers, without ages."""
        if isinstance(stream, StreamReading):
            return stream
        info = stream.cached_info
        count = info.state.consumer_count
        answered = 0
        found: list[ConsumerReading] = []
        failed: JetSyncError | None = None
        try:
            if self._consumers.are_few and self._streams.are_few:
                failed = self._ask_each(stream, found, deadline)
                # They are not compared with the number of all consumers.
                count = 0
            elif count and self._consumers.given:
                for consumer in stream.consumers(timeout=_left(deadline)):
                    _left(deadline)
                    answered += 1
                    if self._is_wanted(consumer.cached_info):
                        found.append(ConsumerReading(info=consumer.cached_info))
        except _LOST:
            raise
        except StreamNotFoundError as error:
            # It was deleted after the list was made.
            return StreamReading(name=stream.name, error=error)
        except JetSyncError as error:
            failed = error
        return StreamReading(
            name=stream.name,
            info=info,
            consumers=tuple(sorted(found, key=lambda each: each.info.name)),
            unanswered=max(0, count - answered) if self._consumers.given else 0,
            error=failed,
        )

    def _ask_each(
        self, stream: Stream, found: list[ConsumerReading], deadline: Deadline
    ) -> JetSyncError | None:
        """Ask for each consumer by its name, and return the last error."""
        failed: JetSyncError | None = None
        for name in self._consumers.given:
            try:
                consumer = stream.consumer(name, timeout=_left(deadline))
                found.append(ConsumerReading(info=consumer.cached_info))
            except _LOST:
                raise
            except JetSyncError as error:
                failed = error
        return failed

    def _is_wanted(self, info: ConsumerInfo) -> bool:
        if info.name in self._consumers.given:
            return True
        is_durable = self._ephemeral or info.config.durable_name is not None
        return is_durable and self._consumers.match(info.name)

    def _with_ages(
        self,
        found: Sequence[Stream | StreamReading],
        answers: Sequence[StreamReading],
        account: AccountInfo | None,
        deadline: Deadline,
    ) -> Reading:
        """Return the reading, with the times of the oldest messages."""
        waiting = [
            (stream, consumer.info)
            for stream, answer in zip(found, answers, strict=True)
            if not isinstance(stream, StreamReading)
            for consumer in answer.consumers
            if consumer.is_waiting
        ]
        times = self._oldest.find(waiting, deadline)
        streams = (
            attrs.evolve(
                answer,
                consumers=tuple(
                    attrs.evolve(each, oldest=times.get((answer.name, each.info.name)))
                    for each in answer.consumers
                ),
            )
            for answer in answers
        )
        unanswered = 0
        if account is not None and not self._streams.are_few:
            unanswered = max(0, account.streams - self._listed)
        return Reading(
            streams=tuple(sorted(streams, key=lambda each: each.name)),
            account=account,
            unanswered=unanswered,
            lookups=self._oldest.lookups,
        )


class Names:
    """
    Names of streams or consumers, in which ``*`` stands for any text.

    A ``*`` is not valid in a name, so each text is either a name or a pattern.
    """

    def __init__(self, kind: str, given: Iterable[str]) -> None:
        if isinstance(given, str):
            given = (given,)
        elif not isinstance(given, Iterable):
            raise wrong_type(f"{kind}s", "names", given)
        self.given = tuple(dict.fromkeys(given))
        name: Any
        for name in self.given:
            # With a letter in place of each wildcard, the rest has to be valid.
            validate_name(kind, name.replace("*", "x") if isinstance(name, str) else name)
        patterns = [".*".join(map(re.escape, name.split("*"))) for name in self.given]
        self._pattern = re.compile("|".join(patterns) or "(?!)", re.DOTALL)

    def __repr__(self) -> str:
        return ", ".join(self.given)

    @property
    def are_few(self) -> bool:
        """
        Whether these are names only, and so few that each is asked for.
        """
        return 0 < len(self.given) <= FEW and not any("*" in name for name in self.given)

    def match(self, name: str) -> bool:
        """
        Return whether a name is one of these, or matches a pattern.
        """
        return self._pattern.fullmatch(name) is not None


def age(now: dt.datetime | None, then: dt.datetime | None) -> float | None:
    """
    Return the seconds since *then* at the time *now* of the server; ``None`` if there is no time.
    """
    if then is None:
        return None
    now = dt.datetime.now(dt.timezone.utc) if now is None else now
    return max(0.0, (now - then).total_seconds())


def _left(deadline: Deadline) -> float:
    """Return the seconds left, and raise RequestTimeoutError if there are none."""
    left = deadline.remaining()
    if not left:
        raise RequestTimeoutError(
            "", deadline.total, what="the figures of streams and consumers did not arrive"
        )
    return left
