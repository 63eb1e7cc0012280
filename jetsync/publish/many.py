"""
Publish many messages with a window of acknowledgements, from one thread.

The calling thread does all the work: it encodes a block, writes it, and reads the acks that have
come while it waits for room. Nothing is dropped, and nothing is reported that is not known.
"""

from __future__ import annotations

import contextlib
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

from jetsync import events
from jetsync._base.deadline import Deadline
from jetsync._hooks.errors import PluginError
from jetsync.errors import (
    ConnectionClosedError,
    DisconnectedError,
)
from jetsync.publish.encode import BLOCK_MESSAGES
from jetsync.publish.errors import PublishManyError
from jetsync.publish.window import Window
from jetsync.values.outbound import PublishFailure, PublishReport, message_iterator, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jetsync._api.context import Context
    from jetsync._hooks.calls import Entered
    from jetsync.publish.window import WindowOptions
    from jetsync.values.headers import SharedHeaders
    from jetsync.values.outbound import OutboundMessage, PubAck


class BulkPublish:
    """
    One call of ``publish_many``.
    """

    def __init__(
        self,
        context: Context,
        options: WindowOptions,
        on_ack: Callable[[OutboundMessage, PubAck], object] | None,
    ) -> None:
        self._enter_wrappers = context.plugins.enter_publish
        self._ask_headers = context.plugins.shared_headers
        self._prepare = context.plugins.prepare
        self._lane = context.lane
        self._options = options
        self._on_ack = on_ack
        self._window = Window(context, options, keep_acks=on_ack is not None)
        self._callback_error: Exception | None = None
        """What ``on_ack`` raised first."""

        self._number = 0
        self._exhausted = False
        """Whether the iterable was read to its end."""

        self._unentered: list[PublishFailure] = []
        """Messages that could not be encoded, or that a plugin vetoed."""

        self._wrapped: deque[tuple[int, int, Entered]] = deque()
        """
        Windows that plugins wrap: the numbers of messages at which each begins and is to end.
        """

        self._shared: SharedHeaders | None = None
        """What plugins give to all messages of the last window."""

        self._stopped_at: PublishFailure | None = None
        """The message whose window no plugin let begin."""

        self._seen = (0, 0)
        """How many failures were looked at for plugins: of those sent, and of the others."""

        self._untold: list[tuple[int, Exception]] = []
        """Those of them that belong to windows which go on: numbers and errors."""

    def run(self, messages: Iterable[Any]) -> PublishReport:
        """Publish all, settle all, and return or raise the report."""
        source = message_iterator(messages)
        broken: Exception | None = None
        try:
            # Raises before anything is sent in a signal handler that cannot wait for acks.
            self._lane.prepare_wait()
            try:
                self._send_all(source)
            except (DisconnectedError, ConnectionClosedError) as error:
                if not self._window.failures:
                    broken = error
            except Exception as error:  # noqa: BLE001 - raised below, once all is settled.
                broken = error
            while self._window.unsettled:
                self._wait()
                try:
                    self._settle()
                except PluginError as error:
                    broken = broken or error
        finally:
            self._window.close()
            try:
                self._leave_wrappers(broken, everything=True)
            except Exception as error:  # noqa: BLE001 - raised below.
                broken = error
        return self._outcome(broken or self._callback_error)

    def _outcome(self, broken: Exception | None) -> PublishReport:
        """Return the report, or raise it, or what came between."""
        report = self._report()
        if isinstance(broken, PluginError):
            # What was sent before is not to be forgotten for that.
            broken.report = report
            if report.failures and self._number:
                raise PublishManyError(report) from broken
        if broken is not None:
            raise broken
        if report.failures:
            raise PublishManyError(report)
        return report

    def _send_all(self, source: Iterator[Any]) -> None:
        """
        Send until the source is exhausted, or until so much failed that it is no use to go on.
        """
        window, size = self._window, self._options.size
        # A handful of free places is not worth a write: it would make blocks shrink to nothing.
        least = max(min(BLOCK_MESSAGES, size) // 2, 1)
        while not self._exhausted and len(window.failures) + len(self._unentered) < size:
            self._settle()
            if self._callback_error is not None:
                return
            if window.room < least or window.is_full:
                self._wait()
            else:
                self._exhausted = self._send_block(source, min(window.room, BLOCK_MESSAGES))

    def _send_block(self, source: Iterator[Any], most: int) -> bool:
        """Encode and write one block; return whether the source is exhausted."""
        if self._enter_wrappers is not None:
            for item in source:
                try:
                    self._wrap_next()
                except PluginError as error:
                    self._stopped_at = PublishFailure(self._number, message_of(item), error)
                    raise
                source = chain((item,), source)
                break
            else:
                return True
        window, first = self._window, self._number
        frames: list[bytes] = []
        try:
            return window.encoder.frames(
                source,
                frames,
                window.prefix,
                first,
                flying=window.pipeline.flying,
                failures=self._unentered,
                shared=self._shared,
                prepare=self._prepare,
                most=most,
            )
        finally:
            # Also if the source raised: the messages that it gave before are published.
            self._number = first + len(frames)
            block = b"".join(frames)
            if block:
                window.write(block, range(first, self._number))

    def _wait(self) -> None:
        """Wait for an answer, or for the moment at which something is given up or sent again."""
        due = self._window.due()
        if due is not None:
            self._lane.wait(self._window.box, Deadline(due, self._options.ack_timeout))

    def _settle(self) -> None:
        window = self._window
        window.settle()
        if self._on_ack is not None:
            acked, window.pipeline.acked = window.pipeline.acked, []
            for _, item, ack in acked:
                try:
                    self._on_ack(message_of(item), ack)
                except Exception as error:  # noqa: BLE001 - raised once all is settled.
                    self._callback_error = self._callback_error or error
        if self._wrapped:
            self._leave_wrappers(None)

    def _report(self) -> PublishReport:
        tally = self._window.pipeline.tally
        failures = self._unentered + [
            PublishFailure(number, message_of(item), error)
            for number, item, error in self._window.failures
        ]
        if self._stopped_at is not None:
            failures.append(self._stopped_at)
        return PublishReport(
            count=tally.count,
            duplicates=tally.duplicates,
            first_sequence=tally.first_sequence,
            last_sequence=tally.last_sequence,
            failures=tuple(sorted(failures, key=lambda failure: failure.index)),
            exhausted=self._exhausted,
            streams=frozenset(tally.streams),
        )

    # Plugins around windows.

    def _wrap_next(self) -> None:
        """Enter the wrappers of the next window, once the one before has been filled."""
        if self._wrapped and self._number < self._wrapped[-1][1]:
            return
        assert self._enter_wrappers is not None
        operation = events.PublishOperation(
            messages=None, window=self._options.size, timeout=self._options.ack_timeout
        )
        end = self._number + self._options.size
        self._wrapped.append((self._number, end, self._enter_wrappers(operation)))
        if self._ask_headers is not None:
            self._shared = self._ask_headers(operation)

    def _leave_wrappers(self, error: Exception | None, *, everything: bool = False) -> None:
        """Leave the wrappers of the windows whose messages have all ended."""
        settled = self._number - self._window.unsettled
        with contextlib.ExitStack() as leaving:
            # Each is left, whatever another one raises; the stack calls the last one first.
            over: list[tuple[Entered, events.WindowResult | None]] = []
            while self._wrapped and (everything or self._wrapped[0][1] <= settled):
                start, _, entered = self._wrapped.popleft()
                over.append((entered, self._result(start, error)))
            for entered, result in reversed(over):
                leaving.callback(entered.leave, result, error if result is None else None)

    def _result(self, start: int, broken: Exception | None) -> events.WindowResult | None:
        """
        Say what became of the window that began with *start* and is left now, as *broken* ended the
        call or as all of its messages have ended; None where that came before its first message.
        """
        end = self._wrapped[0][0] if self._wrapped else self._number
        if broken is not None and start == end:
            return None
        sent, unsent = self._window.failures[self._seen[0] :], self._unentered[self._seen[1] :]
        self._seen = len(self._window.failures), len(self._unentered)
        self._untold += [(number, error) for number, _, error in sent]
        self._untold += [(failure.index, failure.error) for failure in unsent]
        errors = [error for number, error in self._untold if number < end]
        self._untold = [failure for failure in self._untold if failure[0] >= end]
        return events.WindowResult(
            messages=end - start,
            failed=len(errors),
            error=errors[0] if errors else broken,
            stream=self._window.pipeline.tally.stream,
        )
