"""
A listener that reports the progress of all queries of a session.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.streaming import StreamingQueryListener

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.monitor.values import QueryProgress, progress_of, with_last_sequences

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ProgressListener"]

_logger = jetsync.get_logger("jetsync.spark.progress")


class ProgressListener(StreamingQueryListener):
    """
    Reports each micro-batch of all queries: to a log, to a function and to OpenTelemetry.

    Pass it to ``spark.streams.addListener``, also in a session of Spark Connect. Spark calls it in
    a separate thread, for all queries, including those that do not use JetStream.

    The log ``jetsync.spark.progress`` gets an event ``query_progress`` for each micro-batch. If the
    package ``opentelemetry-api`` is installed, there are these metrics, with the label
    ``jetsync.spark.query`` (the name of the query or its ID):

    - ``jetsync.spark.backlog``, a gauge: sequences that a query has not read yet, with the label
      ``messaging.destination.name`` (the stream),
    - ``jetsync.spark.rows``, a counter of rows that were read,
    - ``jetsync.spark.batch.duration``, a histogram of seconds.

    Args:
        report: Called with the progress after each micro-batch. Its errors are logged.
        options: How to connect to the server. If given, each read of the gauge asks the server for
            the last sequence of each stream, so that the backlog also grows while a query hangs.
            Without *options*, the gauge shows the state after the last micro-batch.
        meter_provider: OpenTelemetry's provider. By default the global one.
    """

    def __init__(
        self,
        report: Callable[[QueryProgress], object] | None = None,
        *,
        options: jetsync.ConnectOptions | None = None,
        meter_provider: Any = None,
    ) -> None:
        self._report = report
        self._options = options
        self._lock = jetsync.interrupt_safe_lock()
        self._running: dict[str, QueryProgress] = {}
        self._metrics = self._make_metrics(meter_provider)

    def running(self) -> list[QueryProgress]:
        """
        Return the last progress of each running query that has completed a micro-batch.

        With *options*, this call asks the server, so the backlog is current. If that fails, the
        call logs the error and the backlog is None. Thread-safe.
        """
        with self._lock:
            found = list(self._running.values())
        return found if self._options is None else [self._now(each) for each in found]

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - the names are Spark's.
        """
        Log that a query has started.
        """
        _logger.info("query_started", query=event.name or str(event.id), run=str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - as above.
        """
        Report a micro-batch.
        """
        found = progress_of(json.loads(event.progress.json))
        with self._lock:
            self._running[found.run_id] = found
        _logger.info(
            "query_progress",
            query=found.name or found.id,
            batch=found.batch,
            rows=found.rows,
            seconds=found.seconds,
            backlog=found.backlog,
        )
        if self._metrics is not None:
            self._metrics.count(found)
        if self._report is not None:
            try:
                self._report(found)
            except Exception as error:
                _logger.exception("report_failed", error=repr(error))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - as above.
        """
        Do nothing, because an idle query has no new progress.
        """

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - as above.
        """
        Log that a query has ended, with its error if it failed, and stop reporting it.
        """
        with self._lock:
            found = self._running.pop(str(event.runId), None)
        name = found.name if found is not None and found.name else str(event.id)
        _logger.info("query_ended", query=name, run=str(event.runId), error=event.exception)

    def _make_metrics(self, provider: Any) -> Any:
        try:
            from jetsync_spark.monitor.metrics import Metrics
        except ImportError:  # opentelemetry-api is not installed.
            return None
        return Metrics(provider, self.running)

    def _now(self, found: QueryProgress) -> QueryProgress:
        assert self._options is not None
        try:
            return with_last_sequences(found, self._options)
        except JetStreamSparkError as error:
            _logger.warning("backlog_unknown", query=found.name or found.id, error=str(error))
            unknown = (attrs.evolve(each, last=None) for each in found.streams)
            return attrs.evolve(found, streams=tuple(unknown))
