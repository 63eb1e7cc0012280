"""
Read definitions from a key-value bucket, with a thread that follows all changes.

The thread is a daemon. It ends after `BucketSource.stop`, or when the bucket's client closes. It
passes the definitions to one function. No other thread calls that function, and no lock is held
during the call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_schema.errors import reason_of
from jetsync_schema.registry.definitions import Definition, parse_definition

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync_schema.registry.definitions import Surroundings

__all__ = ["Problem"]

THREAD_NAME: Final = "jetsync-schema"

FIRST_PAUSE: Final = 0.5
"""Seconds before the next attempt to read the bucket; doubled after each failure."""

LONGEST_PAUSE: Final = 15.0

LOADING: Final = 30.0
"""Timeout for reading the bucket again, in seconds."""

BROKEN: Final = "schema_broken"
"""A definition in the bucket is invalid. The last valid one is used, if there is one."""
CHANGED: Final = "schema_changed"
"""A definition in the bucket has taken effect, or was deleted."""
UNREADABLE: Final = "schemas_unreadable"
"""The bucket cannot be read at the moment. The definitions that were read before stay in use."""
CALLBACK_FAILED: Final = "callback_failed"
"""The application's callback for problems raised an exception."""

# Unlike jetsync's own loggers, this one has no null handler. So a program that has not configured
# logging shows broken schemas on stderr, where they are noticed.
_logger = jetsync.get_logger("jetsync_schema")


@attrs.frozen
class Problem:
    """
    An unusable definition in a bucket, or an unreadable bucket.
    """

    bucket: str
    """The bucket's name."""

    key: str | None
    """The key of the definition; None if the bucket cannot be read."""

    reason: str
    """What is wrong."""

    revision: int = 0
    """The revision of the definition; 0 if the bucket cannot be read."""

    in_use: int = 0
    """The revision of the last valid definition, which is used instead; 0 if there is none."""


@attrs.frozen
class Loaded:
    """
    A definition with its bucket, key and revision.
    """

    bucket: str
    key: str
    revision: int
    definition: Definition
    value: bytes

    def problem(self, reason: str) -> Problem:
        """
        Return a problem with this definition, which is valid on its own.
        """
        return Problem(self.bucket, self.key, reason, self.revision)


class BucketSource:
    """
    The definitions of a bucket, including all later changes.

    Args:
        bucket: The bucket.
        around: The models and files that definitions may refer to.
        changed: Called with all valid definitions by key, after each change. Returns the conflicts
            between definitions as further problems.
        told: Called once for each problem.
    """

    def __init__(
        self,
        bucket: jetsync.KeyValue,
        around: Surroundings,
        changed: Callable[[dict[str, Loaded]], list[Problem]],
        told: Callable[[Problem], None] | None,
    ) -> None:
        self._bucket = bucket
        self._around = around
        self._changed = changed
        self._told = told
        self._good: dict[str, Loaded] = {}
        """Used only by the thread, and before that by the caller of :meth:`start`."""

        self._broken: dict[str, Problem] = {}
        self._unreadable: Problem | None = None
        self._conflicts: list[Problem] = []
        self._problems: tuple[Problem, ...] = ()
        self._telling = jetsync.interrupt_safe_lock()
        """Held briefly while the problems are collected."""

        self._stopping = threading.Event()
        self._lock = jetsync.interrupt_safe_lock()
        self._progress = threading.Condition(self._lock)
        self._revision = 0
        """The last revision that has taken effect. Protected by `_lock`."""

        self._watch: jetsync.Watch | None = None

    @property
    def problems(self) -> tuple[Problem, ...]:
        """
        The current problems.
        """
        return self._problems

    @property
    def revision(self) -> int:
        """
        The last revision of the bucket that has taken effect.
        """
        return self._revision

    def start(self, timeout: float) -> None:
        """
        Load all definitions, and follow their changes from then on.

        Raises:
            JetSyncError: The bucket cannot be read within *timeout* seconds.
        """
        watch = self._load(timeout)
        threading.Thread(target=self._run, args=(watch,), name=THREAD_NAME, daemon=True).start()

    def stop(self) -> None:
        """
        Stop following changes. Safe to repeat, from any thread.
        """
        self._stopping.set()
        watch = self._watch
        if watch is not None:
            watch.close()

    def wait_revision(self, revision: int, timeout: float) -> bool:
        """
        Wait until a revision has taken effect; return whether it has.
        """
        with self._lock:
            return self._progress.wait_for(lambda: self._revision >= revision, timeout)

    # The thread.

    def _run(self, watch: jetsync.Watch) -> None:
        while True:
            try:
                for entry in watch:
                    self._take(entry)
                    self._publish(entry.revision)
                # The source was stopped, or its client is closed.
                return
            except jetsync.JetSyncError as error:
                self._note_unreadable(error)
            finally:
                watch.close()
            again = self._reopen()
            if again is None:
                return
            watch = again

    def _reopen(self) -> jetsync.Watch | None:
        """Read the bucket again when possible. Return None after a stop or if the client closed."""
        pause = FIRST_PAUSE
        while not self._stopping.wait(pause):
            pause = min(pause * 2.0, LONGEST_PAUSE)
            try:
                return self._load(LOADING)
            except jetsync.ConnectionClosedError:
                return None
            except jetsync.JetSyncError as error:
                self._note_unreadable(error)
        return None

    def _load(self, timeout: float) -> jetsync.Watch:
        """Read all definitions, and return the watch for later changes."""
        until = time.monotonic() + timeout
        watch = self._bucket.watch(timeout=timeout)
        self._watch = watch
        try:
            if self._stopping.is_set():
                raise jetsync.ConnectionClosedError
            there: set[str] = set()
            for entry in watch.initial(timeout=max(until - time.monotonic(), 0.0)):
                there.add(entry.key)
                self._take(entry)
            for key in [*self._good, *self._broken]:
                if key not in there:
                    self._forget(key)
            self._unreadable = None
            self._publish(watch.revision)
        except BaseException:
            watch.close()
            raise
        return watch

    def _take(self, entry: jetsync.Entry) -> None:
        """Read one definition. If it is invalid, the last valid one stays in use."""
        key = entry.key
        if entry.is_deleted:
            self._forget(key)
            return
        before = self._good.get(key)
        if before is not None and before.value == entry.value:
            self._good[key] = attrs.evolve(before, revision=entry.revision)
            self._broken.pop(key, None)
            return
        try:
            self._good[key] = self._read(entry)
        except Exception as error:  # noqa: BLE001 - no definition may end the thread
            if before is None:
                before = self._earlier(key, entry.revision)
            self._broken[key] = Problem(
                self._bucket.bucket,
                key,
                reason_of(error),
                entry.revision,
                0 if before is None else before.revision,
            )
            return
        self._broken.pop(key, None)
        _logger.info(CHANGED, bucket=entry.bucket, key=key, revision=entry.revision)

    def _read(self, entry: jetsync.Entry) -> Loaded:
        definition = parse_definition(entry.value, entry.key, self._around)
        return Loaded(entry.bucket, entry.key, entry.revision, definition, entry.value)

    def _earlier(self, key: str, revision: int) -> Loaded | None:
        """Return the last valid definition in the key's history, for a source that starts now."""
        try:
            history = self._bucket.history(key, timeout=LOADING)
        except jetsync.JetSyncError:
            return None
        for entry in reversed(history):
            if entry.is_deleted:
                return None
            if entry.revision < revision:
                with contextlib.suppress(Exception):
                    self._good[key] = self._read(entry)
                    return self._good[key]
        return None

    def _forget(self, key: str) -> None:
        self._broken.pop(key, None)
        if self._good.pop(key, None) is not None:
            _logger.info(CHANGED, bucket=self._bucket.bucket, key=key, deleted=True)

    def _publish(self, revision: int) -> None:
        """Apply the definitions that were read, and report their problems."""
        self.note_conflicts(self._changed(dict(self._good)))
        with self._lock:
            self._revision = revision
            self._progress.notify_all()

    def note_conflicts(self, conflicts: list[Problem]) -> None:
        """
        Record which definitions conflict with other contracts.
        """
        self._conflicts = conflicts
        self._tell()

    def _note_unreadable(self, error: jetsync.JetSyncError) -> None:
        if not self._stopping.is_set():
            self._unreadable = Problem(self._bucket.bucket, None, reason_of(error))
            self._tell()

    def _tell(self) -> None:
        """Update the current problems, and report the new ones."""
        with self._telling:
            whole = [] if self._unreadable is None else [self._unreadable]
            found = (*whole, *list(self._broken.values()), *self._conflicts)
            before, self._problems = self._problems, found
        for problem in found:
            if problem not in before:
                self._report(problem)

    def _report(self, problem: Problem) -> None:
        _logger.error(
            UNREADABLE if problem.key is None else BROKEN,
            **attrs.asdict(problem, filter=lambda _, value: value is not None),
        )
        if self._told is None:
            return
        try:
            self._told(problem)
        except Exception as error:  # noqa: BLE001 - a callback must not end the thread
            _logger.error(CALLBACK_FAILED, error=repr(error))  # noqa: TRY400
