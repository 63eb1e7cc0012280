"""
A plugin that records the arguments and outcomes of hook calls.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import attrs

from jetsync._base.locks import interrupt_safe_lock
from jetsync._base.reprs import tolerant_repr
from jetsync.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from jetsync.events import (
        BatchCommitOperation,
        DirectReadOperation,
        FetchOperation,
        Operation,
        PublishOperation,
        StatusEvent,
    )
    from jetsync.values.message import Message
    from jetsync.values.outbound import OutboundMessage
    from jetsync.values.stored import StoredMessage
    from jetsync.values.ttl import MarkerReason

HOOKS = (
    "jetsync_prepare_message",
    "jetsync_shared_headers",
    "jetsync_publish",
    "jetsync_batch_commit",
    "jetsync_fetch",
    "jetsync_message_received",
    "jetsync_ttl_marker",
    "jetsync_status",
    "jetsync_retry",
)


@tolerant_repr
@attrs.define
class HookCall:
    """
    One call of a hook.
    """

    hook: str
    """The hook's name, ``jetsync_publish`` for example."""

    arguments: dict[str, Any]
    """The arguments by name."""

    thread: str
    """The name of the calling thread."""

    result: Any = None
    """For a wrapper hook: what the operation returned."""

    error: BaseException | None = None
    """For a wrapper hook: what the operation raised."""

    finished: bool = True
    """For a wrapper hook: whether the operation has ended."""

    def __getitem__(self, argument: str) -> Any:
        return self.arguments[argument]


@tolerant_repr
class HookRecorder:
    """
    Record every hook call. Pass it to ``jetsync.connect(plugins=[recorder])``.

    It changes no message. Its ``jetsync_retry`` leaves the decision to the next
    plugin. If any plugin implements that hook, this one included, the client's built-in rule for
    retries is off. To keep the rule, leave the hook out of *hooks*. Calls are recorded in the order
    in which they began. Threads and clients can share a recorder.

    Args:
        hooks: The hooks to implement, by default all. The client does less work for hooks that no
            plugin implements, so name only the hooks that the test needs.

    Raises:
        ValueError: A hook does not exist.
    """

    def __init__(self, *hooks: str) -> None:
        unknown = sorted(set(hooks) - set(HOOKS))
        if unknown:
            raise ValueError(f"there is no hook {', '.join(unknown)}")
        self._hooks = hooks or HOOKS
        self._lock = interrupt_safe_lock()
        self._changed = threading.Condition(self._lock)
        self._calls: list[HookCall] = []
        for name in HOOKS:
            if name not in self._hooks:
                # pluggy registers the functions among the attributes of the object.
                setattr(self, name, None)

    @property
    def calls(self) -> list[HookCall]:
        """
        A copy of all calls so far, oldest first.
        """
        with self._lock:
            return list(self._calls)

    @property
    def names(self) -> list[str]:
        """
        The hook names of all calls so far, oldest first.
        """
        return [call.hook for call in self.calls]

    def of(self, hook: str) -> list[HookCall]:
        """
        Return the calls of one hook, oldest first.
        """
        return [call for call in self.calls if call.hook == hook]

    def clear(self) -> None:
        """
        Forget the calls so far.
        """
        with self._lock:
            self._calls.clear()

    def wait_for(self, hook: str, count: int = 1, *, timeout: float = 5.0) -> list[HookCall]:
        """
        Wait until *count* calls of a hook have ended.

        Args:
            hook: The hook's name.
            count: How many calls.
            timeout: Seconds.

        Returns:
            All calls of that hook so far.

        Raises:
            TimeoutError: Fewer calls have ended within the timeout.
        """

        def done() -> list[HookCall]:
            return [call for call in self._calls if call.hook == hook and call.finished]

        with self._lock:
            if not self._changed.wait_for(lambda: len(done()) >= count, timeout):
                raise TimeoutError(
                    f"{hook} was called {len(done())} times within {timeout:g} s, not {count} times"
                )
            return [call for call in self._calls if call.hook == hook]

    def __iter__(self) -> Iterator[HookCall]:
        return iter(self.calls)

    def __len__(self) -> int:
        with self._lock:
            return len(self._calls)

    def __repr__(self) -> str:
        return f"<HookRecorder calls={len(self)}>"

    # -- the hooks --------------------------------------------------------------------------------

    @hookimpl
    def jetsync_prepare_message(self, message: OutboundMessage) -> None:
        """
        Record the message as it is now. Plugins that run later may still change it.
        """
        self._record("jetsync_prepare_message", message=message)

    @hookimpl
    def jetsync_shared_headers(self, operation: PublishOperation | BatchCommitOperation) -> None:
        """
        Record the call and return no headers.
        """
        self._record("jetsync_shared_headers", operation=operation)

    @hookimpl(wrapper=True)
    def jetsync_publish(self, operation: PublishOperation) -> Generator[None, Any, Any]:
        """
        Record a publish, a call of ``publish_many`` or a publisher, and its outcome.
        """
        return (yield from self._around("jetsync_publish", operation))

    @hookimpl(wrapper=True)
    def jetsync_batch_commit(self, operation: BatchCommitOperation) -> Generator[None, Any, Any]:
        """
        Record a commit and its outcome.
        """
        return (yield from self._around("jetsync_batch_commit", operation))

    @hookimpl(wrapper=True)
    def jetsync_fetch(
        self, operation: FetchOperation | DirectReadOperation
    ) -> Generator[None, Any, Any]:
        """
        Record a pull or a direct read and its outcome.
        """
        return (yield from self._around("jetsync_fetch", operation))

    @hookimpl
    def jetsync_message_received(self, message: Message | StoredMessage) -> None:
        """
        Record a message that is delivered to the program.
        """
        self._record("jetsync_message_received", message=message)

    @hookimpl
    def jetsync_ttl_marker(self, message: Message | StoredMessage, reason: MarkerReason) -> None:
        """
        Record a limit marker.
        """
        self._record("jetsync_ttl_marker", message=message, reason=reason)

    @hookimpl
    def jetsync_status(self, event: StatusEvent) -> None:
        """
        Record an event.
        """
        self._record("jetsync_status", event=event)

    @hookimpl
    def jetsync_retry(self, operation: Operation, error: Exception, attempt: int) -> None:
        """
        Record an attempt that failed.
        """
        self._record("jetsync_retry", operation=operation, error=error, attempt=attempt)

    # -- inside -----------------------------------------------------------------------------------

    def _record(self, hook: str, *, finished: bool = True, **arguments: Any) -> HookCall:
        thread = threading.current_thread().name
        call = HookCall(hook, arguments, thread, finished=finished)
        with self._lock:
            self._calls.append(call)
            self._changed.notify_all()
        return call

    def _around(self, hook: str, operation: Operation) -> Generator[None, Any, Any]:
        call = self._record(hook, finished=False, operation=operation)
        try:
            call.result = yield
        except BaseException as error:
            call.error = error
            raise
        finally:
            with self._lock:
                call.finished = True
                self._changed.notify_all()
        return call.result
