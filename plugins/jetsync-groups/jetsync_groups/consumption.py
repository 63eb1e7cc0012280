"""
A member that consumes: it joins, follows the changes of its group, and leaves.

One thread per consumption watches the document of the group. Handlers run in a thread of the
consumption of the member's consumer.

Guarantees
- An elastic member changes its partitions in this order: stop pulling, wait until the handler has
  returned, wait until the server has processed the acknowledgements, delete the consumer, create it
  again. Until then the server refuses the consumer of any member that would get one of the keys.
- A consumer that was deleted or lost is created again, as long as the group has the member.
- The thread ends with the consumption, and with the client.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_groups.consumer import (
    UNREACHABLE,
    MustWaitError,
    configuration,
    create,
    delete_if_own,
    pinned,
    pull_expiry,
    settle,
)
from jetsync_groups.errors import GroupChangedError, GroupDocumentError, NotAMemberError
from jetsync_groups.names import PRIORITY_GROUP
from jetsync_groups.worker import Worker

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from jetsync_groups.dead_letters import DeadLetters
    from jetsync_groups.documents import ElasticSettings, StaticSettings
    from jetsync_groups.member import Plan

__all__ = ["GroupConsumption", "GroupStatistics"]

LOOK: Final = 0.1
"""Seconds between two looks at the local state. No request is made for it."""

RETRY: Final = (0.05, 1.0)
"""Shortest and longest wait in seconds before a member tries again to create its consumer."""

CHECK: Final = 5.0
"""Shortest time in seconds between two checks that the consumer on the server is still the same."""

GONE: Final = (
    jetsync.ConsumerDeletedError,
    jetsync.ConsumerNotFoundError,
    jetsync.ConsumerUnavailableError,
    jetsync.StreamNotFoundError,
    jetsync.ConsumptionClosedError,
)

_logger = jetsync.get_logger("jetsync_groups")


@attrs.frozen
class GroupStatistics:
    """
    The counters of a member's consumption.
    """

    handled: int
    """Calls of the handler that returned."""

    failures: int
    """Calls of the handler that raised."""

    dead_letters: int
    """Messages that were given up, and whose copies were stored."""

    joins: int
    """How often the member created or found its consumer."""

    longest_wait: float
    """
    The longest time in seconds that the member waited for a consumer, because others still had its
    partitions.
    """


class GroupConsumption:
    """
    A member's consumption; made by :meth:`Member.consume`.

    It continues after lost connections, changes of the group, and lost consumers. It ends after
    :meth:`close`, when the client is closed, when the group is deleted, and with an error if the
    group is changed in another way than its members, if the server refuses the member for good, or
    if the client gives up reconnecting.

    Thread-safe. The end of a ``with`` block closes it and waits for the handler.
    """

    # Threads: any; `_run` runs in a thread of its own.
    # Locks: none. Only that thread sets the fields, except `_closing`; each is set in one step.

    def __init__(
        self,
        plan: Plan,
        handler: Callable[[jetsync.Message], object],
        letters: DeadLetters | None,
        *,
        settings: ElasticSettings | StaticSettings,
        watch: jetsync.Watch[bytes],
        max_messages: int,
    ) -> None:
        self._plan = plan
        self._handler = handler
        self._letters = letters
        self._settings = settings
        self._watch = watch
        self._max_messages = max_messages
        self._pid = os.getpid()
        # No Event: a signal handler that interrupts its `set` would wait for its lock for ever.
        self._closing = False
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._consumer: jetsync.Consumer | None = None
        self._consumption: jetsync.Consumption | None = None
        self._filters: list[str] = []
        self._created: dt.datetime | None = None
        self._worker = Worker(handler, letters)
        self._joins = 0
        self._longest_wait = 0.0
        # Since when the member waits for its consumer, when it tries again, and how long it waits
        # after that.
        self._waiting_since: float | None = None
        self._next_try, self._pause = 0.0, RETRY[0]
        self._next_check = 0.0
        name = f"jetsync-groups-{plan.member}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "active" if self.is_active else "waiting"
        plan = self._plan
        return f"<GroupConsumption {plan.stream}/{plan.group} member {plan.member!r} {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        self.wait()

    @property
    def partitions(self) -> tuple[int, ...]:
        """
        The partitions that the member has now; none while it waits for its consumer.

        If several processes run the member, one of them gets the messages.
        """
        found = {int(each.partition(".")[0]) for each in self._filters}
        return tuple(sorted(found)) if self.is_active else ()

    @property
    def is_active(self) -> bool:
        """
        Whether the member has its consumer.
        """
        return self._consumption is not None and not self.closed

    @property
    def closed(self) -> bool:
        """
        Whether the consumption has ended, and the handler has returned.
        """
        return self._done.is_set()

    @property
    def error(self) -> BaseException | None:
        """
        The error that ended the consumption. None if it is open, or ended without an error.
        """
        return self._error

    def close(self) -> None:
        """
        Stop now. The handler that is running is not interrupted, and its message is acknowledged.

        An elastic member's consumer stays on the server for ``ack_wait``, and a static member's
        until the group is deleted. So the member's messages wait for its next instance. Does not
        wait, see :meth:`wait`. Safe to repeat, and safe in a signal handler.
        """
        self._closing = True
        consumption = self._consumption
        if consumption is not None and os.getpid() == self._pid:
            consumption.close()

    def wait(self, *, timeout: float | None = None) -> bool:
        """
        Wait until the consumption has ended. Return whether that is so.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Raises:
            ConflictingUseError: The caller is the handler, which would wait for itself.
            ForkedProcessError: The consumption belongs to the parent of this process.
        """
        if os.getpid() != self._pid:
            raise jetsync.ForkedProcessError
        if self._worker.thread == threading.get_ident():
            raise jetsync.ConflictingUseError("the handler cannot wait for its own end")
        ended = self._done.wait(timeout)
        if ended and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return ended

    def statistics(self) -> GroupStatistics:
        """
        Return the current counters.
        """
        worker = self._worker
        return GroupStatistics(
            handled=worker.handled,
            failures=worker.failures,
            dead_letters=worker.dead_letters,
            joins=self._joins,
            longest_wait=self._longest_wait,
        )

    # The thread of the member.

    def _run(self) -> None:
        try:
            self._follow()
        except jetsync.HandleClosedError:
            pass  # The client was drained, or the bucket was deleted with all groups.
        except BaseException as error:  # noqa: BLE001 - shown to whoever waits.
            # Without a cause, the application has closed the client, which ends the handlers, too.
            if not isinstance(error, jetsync.ConnectionClosedError) or error.__cause__ is not None:
                self._error = error
                self._log("group_member_failed", error=repr(error), warn=True)
        finally:
            self._end()
            self._done.set()

    def _end(self) -> None:
        """Stop the handlers, wait for them, and close the watch; raises nothing."""
        try:
            self._leave(delete=False)
        except jetsync.JetSyncError as error:
            self._log("group_leave_failed", error=repr(error), warn=True)
        # The server deletes the watch's consumer after a while if this fails.
        with contextlib.suppress(jetsync.JetSyncError):
            self._watch.close()

    def _follow(self) -> None:
        while self._is_open():
            entry = self._watch.next(timeout=LOOK)
            if entry is not None and self._is_open() and not self._apply(entry):
                return
            if self._is_open():
                self._check()
            due = self._consumption is None and time.monotonic() >= self._next_try
            if due and self._is_open():
                self._join()

    def _is_open(self) -> bool:
        return not self._closing

    def _apply(self, entry: jetsync.Entry[bytes]) -> bool:
        """Follow a change of the document; return False if the group was deleted."""
        plan = self._plan
        if entry.operation is not jetsync.KeyOperation.PUT:
            # Deleted, purged or expired.
            self._log("group_deleted")
            self._leave(delete=True)
            return False
        try:
            wanted = plan.parse(entry.value)
        except GroupDocumentError:
            # A durable consumer has the progress of its member, which the next document may want.
            self._leave(delete=not plan.is_static)
            raise
        if not plan.may_change(self._settings, wanted):
            self._leave(delete=True)
            raise GroupChangedError(plan.stream, plan.group, "its settings were changed")
        self._settings = wanted
        if self._filters_now() != self._filters:
            self._leave(delete=True)
            self._next_try, self._pause = 0.0, RETRY[0]
        return True

    def _filters_now(self) -> list[str]:
        return self._settings.filters(self._plan.member)

    def _check(self) -> None:
        """Leave a consumer that is lost, or that is not the member's any more."""
        consumption, consumer = self._consumption, self._consumer
        if consumption is None or consumer is None:
            return
        error = consumption.error
        if consumption.closed or error is not None:
            if error is not None and not isinstance(error, GONE):
                raise error
            self._log("group_consumer_lost", error=repr(error), warn=True)
            self._leave(delete=False)
            return
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + max(self._plan.ack_wait, CHECK)
        try:
            found = consumer.info(timeout=self._plan.timeout).config.filter_subjects or []
        except (jetsync.ConsumerNotFoundError, jetsync.StreamNotFoundError):
            found = None
        except UNREACHABLE:
            return
        if found is None or sorted(found) != sorted(self._filters):
            self._log("group_consumer_replaced", warn=True)
            self._leave(delete=False)

    def _join(self) -> None:
        """Create the member's consumer and consume, or note when to try again."""
        plan, filters = self._plan, self._filters_now()
        if not filters:
            if plan.is_static:
                raise NotAMemberError(plan.stream, plan.group, f"it has no member {plan.member!r}")
            self._waiting_since = None
            return
        now = time.monotonic()
        since = self._waiting_since = self._waiting_since or now
        config = configuration(
            plan.consumer_name,
            filters,
            durable=plan.is_static,
            ack_wait=plan.ack_wait,
            max_ack_pending=plan.max_ack_pending,
        )
        try:
            found = create(plan.source, config, timeout=plan.timeout)
        except MustWaitError as error:
            if self._pause == RETRY[0]:
                self._log("group_member_waits", reason=str(error))
            self._next_try = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, RETRY[1])
            return
        waited = time.monotonic() - since
        self._waiting_since, self._pause = None, RETRY[0]
        self._longest_wait = max(self._longest_wait, waited)
        self._worker = Worker(self._handler, self._letters, before=self._worker)
        self._consumption = found.consume(
            self._worker,
            ack="auto",
            keep_alive=True,
            max_messages=self._max_messages,
            expires=pull_expiry(plan.ack_wait),
            group=PRIORITY_GROUP,
        )
        self._consumer, self._filters = found, filters
        self._created = found.cached_info.created
        self._joins += 1
        self._next_check = time.monotonic() + max(plan.ack_wait, CHECK)
        self._log("group_member_joined", partitions=self.partitions, waited=round(waited, 3))
        if self._closing:
            self._consumption.close()

    def _leave(self, *, delete: bool) -> None:
        """
        Stop pulling, wait until the handler has returned and its acknowledgement has arrived.

        With *delete*, then delete the consumer, unless another instance of the member has it. If
        it is not deleted, the server does so once it is not used, and nothing is in progress.
        """
        consumption, consumer, worker = self._consumption, self._consumer, self._worker
        if consumption is None or consumer is None:
            self._filters = []
            return
        started = time.monotonic()
        consumption.close()
        while not consumption.wait(timeout=self._plan.ack_wait):
            waited = round(time.monotonic() - started, 3)
            self._log("group_handler_awaited", waited=waited, warn=True)
        self._consumption = self._consumer = None
        self._filters = []
        open_here = consumption.statistics().received - worker.calls + len(worker.failed)
        info = settle(consumer, self._created, open_here)
        is_deleted, source, timeout = False, self._plan.source, self._plan.timeout
        try:
            if info is not None and delete:
                is_deleted = delete_if_own(
                    source, consumer, info, worker.pin, open_here, timeout=timeout
                )
            elif info is not None and worker.pin is not None and pinned(info) == worker.pin:
                # Another instance of the member gets messages at once.
                source.unpin_consumer(consumer.name, PRIORITY_GROUP, timeout=timeout)
        except (jetsync.ConsumerNotFoundError, jetsync.StreamNotFoundError):
            pass
        except UNREACHABLE as error:
            self._log("group_consumer_not_deleted", error=repr(error), warn=True)
        waited = round(time.monotonic() - started, 3)
        self._log("group_member_left", consumer_deleted=is_deleted, waited=waited)

    def _log(self, event: str, *, warn: bool = False, **fields: object) -> None:
        plan = self._plan
        log = _logger.warning if warn else _logger.info
        log(event, stream=plan.stream, group=plan.group, member=plan.member, **fields)
