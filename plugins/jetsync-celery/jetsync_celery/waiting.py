"""
Waiting for results: one read for those that exist, and one watch for the rest.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from celery.backends.asynchronous import BaseResultConsumer, Drainer
from celery.exceptions import TimeoutError as CeleryTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERVAL: Final = 1.0
"""Most seconds between two calls of ``on_interval``."""


class ResultConsumer(BaseResultConsumer):
    """
    Waits for results on behalf of Celery's result objects.

    Each wait has a watch of its own, so threads and greenlets do not wait for each other, and no
    thread runs in the background.
    """

    on_message: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Celery's other ones run a greenlet, which a watch does not need.
        self.drainer = Drainer(self)

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        """Do nothing: a wait begins with a watch."""

    def consume_from(self, task_id: str) -> None:
        """Do nothing: a wait begins with a watch."""

    def cancel_for(self, task_id: str) -> None:
        """Do nothing: a wait ends with its watch."""

    def drain_events(self, timeout: float | None = None) -> None:
        """Do nothing for a while; only `_wait_for_pending` reads."""
        time.sleep(timeout or 0.0)

    def _wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        on_interval: Any = None,
        on_message: Any = None,
        **kwargs: Any,
    ) -> Iterator[None]:
        deadline = None if timeout is None else time.monotonic() + timeout
        backend = self.backend
        keys = sorted({backend.get_key_for_task(task_id) for task_id in _ids(result)})
        if result.on_ready.ready:
            return

        def take(value: bytes) -> bool:
            """Pass on what is stored for a task, and return whether it is the result."""
            meta = backend.decode_result(value)
            # Not as an attribute, because several threads may wait.
            if on_message:
                on_message(meta)
            self.on_state_change(meta, None)
            return meta["status"] in backend.READY_STATES

        # Results are often there, and a watch costs the server more than three reads.
        missing = []
        for key, value in zip(keys, backend.mget(keys), strict=True):
            if value is None or not take(value):
                missing.append(key)
            yield
        if on_interval:
            on_interval()
        if result.on_ready.ready or not missing:
            return
        with backend.values.watch(missing) as watch:
            while not result.on_ready.ready:
                wait = INTERVAL
                if deadline is not None:
                    wait = min(wait, deadline - time.monotonic())
                entry = watch.next(timeout=max(wait, 0.0))
                value = backend.values.load(entry)
                if value is not None:
                    take(value)
                    yield
                elif deadline is not None and time.monotonic() >= deadline:
                    raise CeleryTimeoutError("The operation timed out.")
                if on_interval:
                    # Also after a result: it raises the error of an earlier task of a chain, or of
                    # a part of a chord, in place of the one that it has caused.
                    on_interval()


def _ids(result: Any) -> set[str]:
    """Return the ids of a result, or of all results of a set of them."""
    children = getattr(result, "results", None)
    if children is None:
        return {result.id}
    return {task_id for each in children for task_id in _ids(each)}
