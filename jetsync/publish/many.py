"""
Publish many messages with a window of acknowledgements, from one thread.

The calling thread does all the work. It encodes a block, writes it, and reads the acks that arrive
while it waits for room. Every message ends up in the report as stored or failed.
"""

from __future__ import annotations

import contextlib
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from jetsync._hooks.errors import PluginError
from jetsync.errors import ConnectionClosedError, DisconnectedError
from jetsync.publish.encode import BLOCK_MESSAGES
from jetsync.publish.errors import PublishManyError
from jetsync.publish.hooks import HookedWindow, PublishHooks
from jetsync.publish.window import Window
from jetsync.values.outbound import PublishFailure, message_iterator, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jetsync._api.context import Context
    from jetsync.publish.window import WindowOptions
    from jetsync.values.outbound import OutboundMessage, PubAck, PublishReport


# The number of the first retry, above all places in an iterable.
FIRST_RETRY: Final = 1 << 40


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
        self._lane = context.lane
        self._prepare = context.plugins.prepare
        self._hooks = PublishHooks(context.plugins, options.size)
        self._options = options
        self._on_ack = on_ack
        self._window = Window(context, options, keep_acks=on_ack is not None)
        # The number of the next message. Retries have numbers of their own.
        self._number = 0
        self._window.number = FIRST_RETRY
        # The first error of ``on_ack``.
        self._callback_error: Exception | None = None
        # Whether the iterable was read to its end.
        self._exhausted = False
        # The message whose window could not begin because a plugin failed.
        self._stopped_at: PublishFailure | None = None
        # The windows that plugins wrap, oldest first, and the number of the first message.
        self._hooked: dict[HookedWindow, int] = {}
        # The failed messages and the acks that earlier windows have counted.
        self._counted = (0, 0)

    def run(self, messages: Iterable[Any]) -> PublishReport:
        """Publish all messages, wait until each has ended, and return or raise the report."""
        source = message_iterator(messages)
        broken: BaseException | None = None
        try:
            # Raises before anything is sent in a signal handler that cannot wait for acks.
            self._lane.prepare_wait()
            try:
                self._send_all(source)
            except (DisconnectedError, ConnectionClosedError) as error:
                # If a block could not be written, the report has the error.
                if all(failure is not error for _, _, failure in self._window.failures):
                    broken = error
            except Exception as error:  # noqa: BLE001 - raised below, once all have ended.
                broken = error
            while self._window.open_count:
                self._window.wait(self._window.due())
                try:
                    self._settle()
                except PluginError as error:
                    broken = broken or error
        except BaseException as error:
            # Ctrl-C: the outcome of the messages in flight is unknown.
            broken = error
            raise
        finally:
            self._window.close()
            try:
                self._leave_windows(broken, everything=True)
            except Exception as error:  # noqa: BLE001 - raised below.
                broken = error
        broken = broken or self._callback_error
        failures = [
            PublishFailure(number, message_of(item), error)
            for number, item, error in self._window.failures
        ]
        if self._stopped_at is not None:
            failures.append(self._stopped_at)
        report = self._window.pipeline.tally.report(failures, exhausted=self._exhausted)
        if isinstance(broken, PluginError):
            # The caller has to learn what was sent before.
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
        Send until the source is exhausted, or until a full window of messages has failed.
        """
        window, size = self._window, self._options.size
        # Writing into a few free places would make the blocks ever smaller.
        least = max(min(BLOCK_MESSAGES, size) // 2, 1)
        while not self._exhausted and len(window.failures) < size:
            self._settle()
            if self._callback_error is not None:
                return
            room = size - window.open_count
            if room < least or window.is_full:
                window.wait(window.due())
            else:
                self._exhausted = self._send_block(source, min(room, BLOCK_MESSAGES))

    def _send_block(self, source: Iterator[Any], most: int) -> bool:
        """Encode and write one block; return whether the source is exhausted."""
        window, hooked = self._window, None
        first = self._number
        if self._hooks.wraps:
            for item in source:
                try:
                    hooked = self._hooks.join(self._options.operation)
                except PluginError as error:
                    self._stopped_at = PublishFailure(first, message_of(item), error)
                    raise
                source = chain((item,), source)
                break
            else:
                return True
        frames: list[bytes] = []
        try:
            return window.encoder.frames(
                source,
                frames,
                window.prefix,
                first,
                flying=window.pipeline.entering,
                failures=window.failures,
                shared=None if hooked is None else hooked.shared,
                prepare=self._prepare,
                most=most,
            )
        finally:
            # Also if the source raised: the messages that it gave before are published.
            self._number = first + len(frames)
            if hooked is not None:
                self._hooked.setdefault(hooked, first)
                self._hooks.add(hooked, len(frames) - 1)
            block = b"".join(frames)
            if block:
                window.write(block, range(first, self._number))

    def _settle(self) -> None:
        window = self._window
        window.settle()
        acked = window.take_acked() if window.pipeline.acked else ()
        if self._on_ack is not None:
            for item, ack in acked:
                try:
                    self._on_ack(message_of(item), window.pipeline.full_ack(ack))
                except Exception as error:  # noqa: BLE001 - raised once all have ended.
                    self._callback_error = self._callback_error or error
        if self._hooked:
            self._leave_windows()

    def _leave_windows(
        self, broken: BaseException | None = None, *, everything: bool = False
    ) -> None:
        """Subtract ended messages from the plugins' windows, and leave windows that are over."""
        tally, failures = self._window.pipeline.tally, self._window.failures
        failed, acked = self._counted
        self._counted = len(failures), tally.count
        for number, _, error in failures[failed:]:
            # A message that is sent again may fail after its window is over.
            opened = [window for window in self._hooked if window.open]
            before = [window for window in opened if self._hooked[window] <= number]
            if opened:
                self._hooks.part((before or opened[:1])[-1], error)
        acked = tally.count - acked
        for window in self._hooked:
            # An ack does not show its window, so it counts for the oldest one.
            count = min(acked, window.open)
            if count:
                window.stream = next(iter(tally.streams), None)
                self._hooks.part(window, None, count)
                acked -= count
        over = self._hooks.take_over()
        if everything:
            self._hooks.close()
            over = list(self._hooked)
        # Each window is left, whatever the wrappers of another one raise.
        with contextlib.ExitStack() as leaving:
            for window in reversed(over):
                del self._hooked[window]
                leaving.callback(window.leave, broken)
