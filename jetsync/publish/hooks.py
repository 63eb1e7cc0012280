"""
Call the plugins of a bulk publish or a batch.

A bulk publish is one call of ``publish_many``, or one publisher from its creation to its end.
jetsync enters the wrappers (``jetsync_publish``) once around it, and asks for its shared headers
once before its first message. A batch has shared headers too, but its wrappers wrap only the
commit.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetsync import events
from jetsync._base.deadline import FOREVER
from jetsync._base.turn import Turn
from jetsync.errors import PublishOutcomeUnknownError
from jetsync.values.outbound import coerce_outbound, with_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync._hooks.calls import Entered, Transform
    from jetsync._hooks.manager import Plugins
    from jetsync._proto.pipeline import Tally
    from jetsync.values.headers import SharedHeaders


T = TypeVar("T")

# Seconds for which outcomes are collected before plugins get them in one report.
REPORT_INTERVAL: Final = 1.0


class OutcomeReports:
    """
    Report to plugins how many messages of a bulk publish are stored or have failed.

    The thread that processes the acks calls it, so it needs no lock.

    Args:
        status: Calls ``jetsync_status``.
        operation: The bulk publish.
        tally: Counts its acks.
    """

    def __init__(
        self,
        status: Callable[[events.StatusEvent], None],
        operation: events.PublishOperation,
        tally: Tally,
    ) -> None:
        self._status = status
        self._operation = operation
        self._tally = tally
        # The acks and duplicates that were reported.
        self._reported = (0, 0)
        # The failures since the last report, and the first error.
        self._failed = self._unknown = 0
        self._error: Exception | None = None
        # When the next report is due; infinite if there is nothing to report.
        self.due: float = math.inf

    def note(self, errors: Iterable[Exception]) -> bool:
        """Count acks and these errors of failed messages; return whether a report is due."""
        for error in errors:
            self._failed += 1
            self._unknown += isinstance(error, PublishOutcomeUnknownError)
            self._error = self._error or error
        if self._failed or self._tally.count > self._reported[0]:
            now = time.monotonic()
            self.due = min(self.due, now + REPORT_INTERVAL)
            return self.due <= now
        return False

    def send(self, interrupted: int = 0) -> None:
        """
        Call the plugins with what was counted since the last report, unless there is nothing.

        Args:
            interrupted: How many messages were in flight when an interrupt ended the wait for acks.
        """
        tally = self._tally
        (acknowledged, duplicates), failed = self._reported, self._failed + interrupted
        if tally.count == acknowledged and not failed:
            return
        event = events.PublishCountsEvent(
            publish=self._operation,
            stream=next(iter(tally.streams), None),
            acknowledged=tally.count - acknowledged,
            duplicates=tally.duplicates - duplicates,
            failed=failed,
            unknown=self._unknown + interrupted,
            error=self._error,
        )
        self._reported = tally.count, tally.duplicates
        self._failed = self._unknown = 0
        self._error, self.due = None, math.inf
        self._status(event)


class BulkHooks:
    """
    The plugins around one bulk publish.

    Args:
        plugins: The client's plugins.
    """

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self.prepare: Transform | None = plugins.prepare
        self.shared_headers: SharedHeaders | None = None
        # Whether plugins add headers to messages or prepare them.
        self.changes_messages: bool = plugins.prepare is not None
        # None if no plugin implements `jetsync_status`.
        self.reports: OutcomeReports | None = None
        self._entered: Entered | None = None

    def begin(self, describe: Callable[[], events.PublishOperation], tally: Tally) -> None:
        """
        Enter the wrappers and ask for the shared headers, before the first message.

        Args:
            describe: Returns the operation for plugins; not called without plugins.
            tally: Counts the acks.

        Raises:
            PluginError: A plugin failed. The wrappers that were entered have been left.
        """
        plugins = self._plugins
        if not any((plugins.status, plugins.enter_publish, plugins.shared_headers)):
            return
        operation = describe()
        if plugins.status is not None:
            self.reports = OutcomeReports(plugins.status, operation, tally)
        if plugins.enter_publish is not None:
            self._entered = plugins.enter_publish(operation)
        if plugins.shared_headers is not None:
            ask, entered = plugins.shared_headers, self._entered
            self.shared_headers = (
                ask(operation) if entered is None else entered.guard(ask, operation)
            )
            self.changes_messages |= self.shared_headers is not None

    def run(self, call: Callable[[], T]) -> T:
        """Run *call* inside the wrappers. Return its result, or the one that replaces it."""
        return call() if self._entered is None else self._entered.run(call)

    def leave(self, result: object, error: BaseException | None = None) -> None:
        """Leave the wrappers with the outcome. Raise what they raise, except for *error*."""
        if self._entered is None:
            return
        try:
            self._entered.leave(result, error)
        except BaseException as raised:
            if raised is not error:
                raise

    def prepared(self, item: Any) -> Any:
        """Return a message after the plugins have prepared it. Any thread. Raises PluginError."""
        if self.shared_headers is not None:
            item = with_shared(item, self.shared_headers)
        return item if self.prepare is None else self.prepare(coerce_outbound(item))


def batch_hooks(plugins: Plugins) -> BatchHooks | None:
    """Return the hooks of a batch; None if no plugin changes messages."""
    changes_messages = plugins.prepare is not None or plugins.shared_headers is not None
    return BatchHooks(plugins) if changes_messages else None


def refuse_staging(*_: object) -> int:
    """Stage nothing, in place of ``Stage.stage``, because the message may have to be changed."""
    return 0


class BatchHooks:
    """
    The plugins that change the messages of a batch.
    """

    # Threads: any.
    # Locks: the headers turn, `_asking`, lets one thread ask the plugins.

    def __init__(self, plugins: Plugins) -> None:
        self._prepare = plugins.prepare
        self._ask_headers = plugins.shared_headers
        # The answer, in a list as soon as the plugins have given it.
        self._answer: list[SharedHeaders | None] = []
        self._asking = Turn("a plugin that is asked for the headers of this batch")

    def prepared(self, item: Any, operation: Callable[[], events.Operation]) -> Any:
        """
        Return a message after the plugins have prepared it.

        Args:
            item: The message.
            operation: Describes the batch. Keeping it would create a reference cycle.

        Raises:
            PluginError: A plugin vetoed the message or failed; the message is not sent.
        """
        if self._ask_headers is not None:
            shared = self._shared_headers(operation)
            if shared is not None:
                item = with_shared(item, shared)
        return item if self._prepare is None else self._prepare(coerce_outbound(item))

    def _shared_headers(self, operation: Callable[[], events.Operation]) -> SharedHeaders | None:
        """Return the shared headers; the first call asks the plugins."""
        if not self._answer:
            # If the plugin that is asked adds a message to this batch, that message gets no shared
            # headers, because its call would wait for itself.
            if self._asking.owned():
                return None
            self._asking.run(FOREVER, self._ask, operation)
        return self._answer[0]

    def _ask(self, operation: Callable[[], events.Operation]) -> None:
        assert self._ask_headers is not None
        if not self._answer:
            self._answer.append(self._ask_headers(operation()))
