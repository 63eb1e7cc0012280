"""
Requests for the states of streams.

A few streams are asked one by one. More streams are listed, 256 with one request, and the same list
finds the streams that match a pattern. The leaders of the streams answer both kinds of requests.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_spark.read.options import matches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jetsync_spark.read.options import ReadOptions

__all__ = ["Found", "StreamStates"]

LISTED: Final = 4
"""Minimum number of streams that are listed instead of asked one by one."""

PAGE: Final = 256
"""Streams of a page of a server's list."""

SLOW: Final = 3.5
"""
Seconds after which a page of a list counts as slow. A cluster waits 4 s for streams that do not
answer. On a busy machine, a list is slow too, but requests for each stream would be slower.
"""

PAUSE: Final = 60.0
"""Seconds for which streams are asked one by one after a list was slow or failed."""

_logger = jetsync.get_logger("jetsync.spark.reading")


@attrs.frozen
class Found:
    """
    The streams that exist.
    """

    streams: dict[str, jetsync.Stream]
    """The streams that were asked for, in the order of their names, with their current infos."""

    matched: frozenset[str] | None
    """The names that match a pattern. None if they were not requested."""


class StreamStates:
    """
    Asks for the streams that a query reads, with few requests.

    Not thread-safe. A pickled copy knows nothing.

    Args:
        options: The names and patterns of the streams.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._lists_from = 0.0
        """When streams may be listed again."""

        self._js: jetsync.JetStream | None = None
        """Where the streams were asked for last."""

        self._found: dict[str, jetsync.Stream] = {}
        """The streams that were found there."""

    def __reduce__(self) -> tuple[type[StreamStates], tuple[ReadOptions]]:
        return StreamStates, (self._options,)

    def ask(
        self,
        js: jetsync.JetStream,
        names: Collection[str],
        *,
        discover: bool = False,
        strict: bool = False,
    ) -> Found:
        """
        Return streams. Those that do not exist are left out.

        Args:
            js: Where to ask.
            names: The names.
            discover: Whether to add the streams that match a pattern.
            strict: Whether each stream that the options name has to exist. The only stream of a
                query always has to.

        Raises:
            StreamNotFoundError: Such a stream does not exist.
            JetSyncError: The servers did not answer.
        """
        wanted = {*names}
        listed, is_whole = self._list(js, len(wanted))
        matched = self._matching(listed) if is_whole else None
        if discover and matched is None:
            matched = self._matching(js.stream_names())
            listed = listed or self._list(js, len(wanted | matched))[0]
        wanted |= matched or frozenset()
        found = {}
        for name in sorted(wanted):
            stream = listed.get(name)
            if stream is None or not _has_leader(stream):
                try:
                    stream = js.stream(name)
                except jetsync.StreamNotFoundError:
                    if self._options.only_stream is not None or (
                        strict and name in self._options.streams
                    ):
                        raise
                    continue
            found[name] = stream
        self._js, self._found = js, found
        return Found(found, matched)

    def handle(self, js: jetsync.JetStream, name: str) -> jetsync.Stream:
        """
        Return a stream, whose info may be out of date. Ask for it only if it was not found before.
        """
        found = self._found.get(name) if js is self._js else None
        return js.stream(name) if found is None else found

    def _list(self, js: jetsync.JetStream, wanted: int) -> tuple[dict[str, jetsync.Stream], bool]:
        """
        Return the streams of the account, and whether these are certainly all.

        There are none if it is better to ask for each of the wanted ones.
        """
        began = time.monotonic()
        if wanted < LISTED or began < self._lists_from:
            return {}, False
        # In an account with many more streams, asking for the wanted ones takes fewer requests.
        most = PAGE * (wanted // LISTED)
        listed = {}
        try:
            for stream in itertools.islice(js.streams(), most + 1):
                listed[stream.name] = stream
        except jetsync.PermissionDeniedError as error:
            self._ask_instead(math.inf, str(error))
            return {}, False
        except (jetsync.RequestTimeoutError, jetsync.TemporarilyUnavailableError) as error:
            # A list needs the leader of the cluster's metadata. The streams may have theirs.
            self._ask_instead(PAUSE, str(error))
            return {}, False
        took = time.monotonic() - began
        if len(listed) > most:
            self._ask_instead(math.inf, "the account has too many streams")
        elif took > SLOW * math.ceil(len(listed) / PAGE):
            self._ask_instead(PAUSE, "the list was slow")
        # The cluster leaves out streams that do not answer, after it has waited for them.
        return listed, len(listed) <= most and took < SLOW

    def _matching(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that match a pattern."""
        patterns = self._options.patterns
        return frozenset(name for name in names if any(matches(each, name) for each in patterns))

    def _ask_instead(self, seconds: float, reason: str) -> None:
        self._lists_from = max(self._lists_from, time.monotonic() + seconds)
        _logger.info("streams_not_listed", reason=reason)


def _has_leader(stream: jetsync.Stream) -> bool:
    """
    Return whether the leader has described a stream.

    If there is none, a list has the description of any replica, or an empty one.
    """
    cluster = stream.cached_info.cluster
    return cluster is None or bool(cluster.leader)
