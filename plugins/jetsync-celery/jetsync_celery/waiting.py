"""
Waiting for results: one read for those that exist, and watches for the rest.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from celery.backends.asynchronous import BaseResultConsumer, Drainer
from celery.exceptions import TimeoutError as CeleryTimeoutError

import jetsync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

INTERVAL: Final = 1.0
"""Most seconds between two calls of ``on_interval``."""

MOST_KEYS: Final = 200
"""Results that one watch waits for. A server compares all keys of a watch with each other: it took
0.9 s for 1,000, and more than 5 s for 5,000. The keys of 20,000 are larger than a message."""

PAUSE: Final = 0.2
"""Seconds between two attempts to begin a wait while the server is away."""

_logger = jetsync.get_logger("jetsync.celery")


class ResultConsumer(BaseResultConsumer):
    """
    Waits for results on behalf of Celery's result objects.

    Each wait has watches of its own, so threads and greenlets do not wait for each other, and no
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

        missing = set(keys)

        def take(value: bytes) -> None:
            """Pass on what is stored for a task."""
            meta = backend.decode_result(value)
            # Not as an attribute, because several threads may wait.
            if on_message:
                on_message(meta)
            self.on_state_change(meta, None)
            if meta["status"] in backend.READY_STATES:
                missing.discard(backend.get_key_for_task(meta["task_id"]))

        # Results are often there, and a watch costs the server more than three reads.
        for value in self._reach(partial(backend.values.get_many, keys), deadline):
            if value is not None:
                take(value)
            yield
        if on_interval:
            on_interval()
        while missing and not result.on_ready.ready:
            yield from self._watch(result, missing, take, deadline, on_interval)

    def _watch(
        self,
        result: Any,
        missing: set[str],
        take: Callable[[bytes], None],
        deadline: float | None,
        on_interval: Any,
    ) -> Iterator[None]:
        """Wait for some of the missing results, which *take* removes."""
        backend = self.backend
        keys = sorted(missing)[:MOST_KEYS]
        with self._reach(partial(backend.values.watch, keys), deadline) as watch:
            while not (missing.isdisjoint(keys) or result.on_ready.ready):
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

    def _reach(self, call: Callable[[], T], deadline: float | None) -> T:
        """Return what *call* returns, also if the server is away or a cluster elects a leader."""
        while True:
            try:
                return call()
            except jetsync.JetSyncError as error:
                if not self.backend.exception_safe_to_retry(error):
                    raise
                if deadline is not None and time.monotonic() >= deadline:
                    raise CeleryTimeoutError("The operation timed out.") from error
                _logger.warning("celery_wait_repeated", error=str(error))
            # Some of these errors come at once.
            time.sleep(PAUSE)


def _ids(result: Any) -> set[str]:
    """Return the ids of a result, or of all results of a set of them."""
    children = getattr(result, "results", None)
    if children is None:
        return {result.id}
    return {task_id for each in children for task_id in _ids(each)}
