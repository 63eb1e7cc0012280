"""
The progress of a query as values, from what Spark reports about its last micro-batch.

Spark describes a Python source by the name and the address of a Java object. The offsets are the
source's own, however: they contain the name of the stream and a sequence.
"""

from __future__ import annotations

import ast
import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.options import errors_for_programs
from jetsync_spark.common.retry import ask_with_retry
from jetsync_spark.read.offsets import Offset
from jetsync_spark.read.queue_offsets import QueueOffset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql.streaming import StreamingQuery

    import jetsync

_SHOWN: Final = 8
"""Streams in a line for a log. A query may read thousands."""

__all__ = ["QueryProgress", "StreamProgress", "progress", "progress_of", "with_last_sequences"]


@attrs.frozen
class StreamProgress:
    """
    The progress of a query in a stream: what its last micro-batch read, and what is left.
    """

    stream: str
    """The name of the stream."""

    start: int
    """The first sequence of the micro-batch."""

    end: int
    """The sequence after the last one of the micro-batch. The next micro-batch begins there."""

    last: int | None
    """
    The last sequence of the stream, as the query or the server last reported it. None if it is
    unknown. For example, PySpark 4.0 and 4.1 do not report it.
    """

    @property
    def sequences(self) -> int:
        """
        The number of sequences in the micro-batch.

        If the stream has gaps, or a filter applies, the micro-batch has fewer rows.
        """
        return max(0, self.end - self.start)

    @property
    def backlog(self) -> int | None:
        """
        The number of sequences that the query has not read yet, or None if it is unknown.
        """
        return None if self.last is None else max(0, self.last + 1 - self.end)


@attrs.frozen
class QueryProgress:
    """
    The last micro-batch of a query. ``str`` returns one line for a log.
    """

    id: str
    """The ID of the query, which stays the same when the query restarts from its checkpoint."""

    run_id: str
    """The ID of this run of the query."""

    name: str | None
    """The name of the query, if it has one."""

    batch: int
    """The number of the micro-batch."""

    time: str
    """When the micro-batch began: ISO 8601, in UTC."""

    seconds: float
    """How long the micro-batch took, in seconds."""

    rows: int
    """The number of rows that the micro-batch read, from all sources."""

    input_rate: float
    """Rows that arrived per second since the previous micro-batch. 0 if Spark reports no rate."""

    rate: float
    """Rows that the query processed per second. 0 if Spark reports no rate."""

    streams: tuple[StreamProgress, ...]
    """The streams of all JetStream sources."""

    @property
    def backlog(self) -> int | None:
        """
        The backlog of all streams together, in sequences. None if that of one stream is unknown.
        """
        each = [stream.backlog for stream in self.streams]
        return None if None in each else sum(filter(None, each))

    def __str__(self) -> str:
        name = self.name or self.id
        found = f"query {name}, micro-batch {self.batch}: {self.rows} rows in {self.seconds:.3f} s"
        shown = self.streams
        if len(shown) > _SHOWN:
            found += f"; {len(shown)} streams, backlog {_known(self.backlog)}"
            found += f"; the {_SHOWN} largest backlogs"
            shown = tuple(sorted(shown, key=lambda each: -(each.backlog or 0))[:_SHOWN])
        for each in shown:
            found += f"; stream {each.stream} up to {each.end - 1}, backlog {_known(each.backlog)}"
        return found


def _known(backlog: int | None) -> int | str:
    return "unknown" if backlog is None else backlog


@errors_for_programs()
def progress(
    query: StreamingQuery, options: jetsync.ConnectOptions | None = None
) -> QueryProgress | None:
    """
    Return the progress of a query after its last micro-batch, or None before the first one.

    Works with Spark Connect too. The backlog is as of the last micro-batch, as the query reports
    it. PySpark 4.0 and 4.1 report none. With *options*, this function asks the server, so that the
    backlog also grows while a query hangs. Thread-safe.

    Args:
        query: The query.
        options: How to connect to the server. The connection is shared with other calls.

    Raises:
        JetStreamSparkError: The server could not be reached, or did not answer.
    """
    reported = query.lastProgress
    if reported is None:
        return None
    found = progress_of(reported)
    return found if options is None else with_last_sequences(found, options)


def progress_of(reported: Mapping[str, Any]) -> QueryProgress:
    """
    Convert a report of Spark.

    Args:
        reported: What ``lastProgress`` of a query returns, or the JSON of an event, parsed.
    """
    sources = reported["sources"]
    return QueryProgress(
        id=str(reported["id"]),
        run_id=str(reported["runId"]),
        name=reported["name"],
        batch=reported["batchId"],
        time=reported["timestamp"],
        seconds=(reported.get("batchDuration") or 0) / 1000,
        rows=int(_of_all("numInputRows", reported)),
        input_rate=_of_all("inputRowsPerSecond", reported),
        rate=_of_all("processedRowsPerSecond", reported),
        streams=tuple(each for source in sources for each in _streams_of(source)),
    )


def with_last_sequences(found: QueryProgress, options: jetsync.ConnectOptions) -> QueryProgress:
    """
    Return the progress with the present ends of its streams, which their leaders report.

    Args:
        found: The progress.
        options: How to connect.

    Raises:
        JetStreamSparkError: The server could not be asked.
    """

    def ask(js: jetsync.JetStream) -> dict[str, int]:
        names = {each.stream for each in found.streams}
        return {name: js.stream(name).cached_info.state.last_seq for name in names}

    if not found.streams:
        return found
    last = ask_with_retry(
        options,
        "jetsync-spark-progress",
        ask,
        0.0,  # Who asks for the progress would rather hear that it is not known.
        "asking for the progress failed",
        found.streams[0].stream,
    )
    streams = (attrs.evolve(each, last=last[each.stream]) for each in found.streams)
    return attrs.evolve(found, streams=tuple(streams))


def _of_all(name: str, reported: Mapping[str, Any]) -> float:
    """
    Return a figure of all sources together. Spark Connect reports only those of each source.
    """
    if reported.get(name) is not None:
        return _finite(reported[name])
    return sum(_finite(source.get(name)) for source in reported["sources"])


def _finite(value: float | str | None) -> float:
    # Spark reports NaN or an infinity, over Connect as text, for a micro-batch that took no time.
    number = float(value or 0)
    return number if 0 <= number < float("inf") else 0.0


def _streams_of(source: Mapping[str, Any]) -> Iterable[StreamProgress]:
    """
    Yield the progress of the streams of a source. Other sources have none.
    """
    yield from _of_consumer(source)
    end, start, latest = (
        _offset(source[name]) for name in ("endOffset", "startOffset", "latestOffset")
    )
    for stream, place in (end.places if end else {}).items():
        begins, before = place.begins, start and start.places.get(stream)
        if begins is None or (before and before.next == place.next):
            # A report without a micro-batch repeats the end of the last one.
            begins = place.next
        # PySpark 4.0 and 4.1 report the end of the micro-batch again. Only such an end has parts or
        # is guessed.
        now = None if latest is None or latest.guessed else latest.places.get(stream)
        last = None if now is None or now.parts is not None else now.next - 1
        yield StreamProgress(stream, begins, place.next, last)


def _of_consumer(source: Mapping[str, Any]) -> Iterable[StreamProgress]:
    """
    Yield the progress of a source with a consumer, whose backlog only the server knows.
    """
    with contextlib.suppress(ValueError, SyntaxError, JetStreamSparkError):
        end = QueueOffset.from_json(_json_of(source["endOffset"]))
        if end.parts:
            first, last = end.runs.bounds
            # A report without a micro-batch repeats the end of the last one.
            is_same = source["startOffset"] == source["endOffset"]
            yield StreamProgress(end.stream, last + 1 if is_same else first, last + 1, None)


def _offset(reported: Any) -> Offset | None:
    """
    Return an offset of this package, or None.
    """
    try:
        return Offset.from_json(_json_of(reported))
    except (ValueError, SyntaxError, JetStreamSparkError):
        # Without an offset, Spark's text is None or null.
        return None


def _json_of(reported: Any) -> Any:
    """
    Return an offset as JSON. Spark reports some as text.

    Raises:
        ValueError, SyntaxError: The text is malformed.
    """
    if not isinstance(reported, str):
        return reported
    # PySpark 4.0 reports the repr of a dictionary.
    return ast.literal_eval(reported) if reported.startswith("{'") else json.loads(reported)
