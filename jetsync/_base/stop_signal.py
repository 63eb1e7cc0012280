"""
Ending a program at a signal, after its open work is done.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch
from jetsync.errors import ConflictingUseError, InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from typing_extensions import Self

    from jetsync._base.deadline import Seconds

# The signals by which systems and people end a program: SIGBREAK is Ctrl-Break on Windows, and what
# a supervisor there sends to a group of processes.
STOP_SIGNALS: Final[tuple[int, ...]] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name)
)

# Seconds to send acknowledgements if the time after the signal is over.
SHORTEST_DRAIN: Final = 1.0

# Seconds after the first signal during which others are ignored. A supervisor or a terminal may
# signal a whole group of processes. If a parent in it also passes its signal on, the program gets
# two: 13 ms apart with `uv run` under supervisord. People take longer, or press Ctrl-C again.
REPEATS: Final = 0.5


class Stopped(SystemExit):
    """
    Raised at the end of a block after a signal. A block around it drains its client, too.
    """


class StopSignal:
    """
    The context manager that ``Client.stop_on_signal`` returns.

    :meth:`is_set` and :meth:`wait` may be called in any thread. The ``with`` statement has to be in
    the main thread, because Python calls signal handlers there.
    """

    def __init__(
        self,
        signals: Sequence[int],
        exit_code: int | None,
        timeout: Seconds,
        *,
        on_change: Callable[[bool], object],
        on_timeout: Callable[[], object],
        on_end: Callable[[float], object],
    ) -> None:
        """
        Args are those of ``Client.stop_on_signal``, and three callbacks.

        *on_change* is called with True in the signal handler, and with False when the block is
        over. If the block is not over *timeout* seconds after the signal, *on_timeout* is called in
        a thread of its own. *on_end* is called at the end of the block after a signal, with the
        seconds that it may take.
        """
        for number in signals:
            if type(number) is bool or number not in list(signal.valid_signals()):
                kind = InvalidArgumentError if type(number) is int else InvalidTypeError
                raise kind(
                    f"signals must be signal numbers, such as signal.SIGTERM, not {number!r}",
                    argument="signals",
                )
        self._signals = signals
        self._exit_code = exit_code
        self._timeout = timeout
        self._on_change = on_change
        self._on_timeout = on_timeout
        self._on_end = on_end
        self._previous: dict[int, Any] = {}
        self._latch = Latch()
        # Set at the end of the block.
        self._over = Latch()
        # Begins with the signal.
        self._deadline = Deadline.after(timeout)
        # Never passes before the signal, because another one may interrupt the handler.
        self._repeats = Deadline.after(None)
        self._number: int | None = None

    def __repr__(self) -> str:
        state = "waits for" if self._number is None else "got"
        numbers = self._signals if self._number is None else [self._number]
        names = ", ".join(signal.Signals(number).name for number in numbers)
        return f"<StopSignal {state} {names}>"

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise ConflictingUseError(
                "stop_on_signal works in the main thread only: Python calls signal handlers there"
            )
        try:
            for number in self._signals:
                self._previous[number] = signal.signal(number, self._handle)
        except BaseException as error:
            # Also after Ctrl-C, because `with` does not call `__exit__` then.
            self._restore()
            if isinstance(error, OSError):
                name = signal.Signals(number).name
                raise InvalidArgumentError(
                    f"signals: no program can handle {name}", argument="signals"
                ) from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        is_complete = kind is None or kind is Stopped
        try:
            if self._number is not None and is_complete:
                self._on_end(max(self._deadline.remaining(), SHORTEST_DRAIN))
        finally:
            try:
                if self._number is not None and not self._repeats.expired():
                    # The previous handlers would take a repeat for the first signal.
                    time.sleep(self._repeats.remaining())
            finally:
                self._restore()
        if self._number is not None and kind is None:
            raise Stopped(self._status(self._number))

    @property
    def signal(self) -> int | None:
        """The number of the signal that has arrived; None before a signal."""
        return self._number

    def is_set(self) -> bool:
        """Return whether a signal has arrived."""
        return self._latch.is_set()

    def wait(self, *, timeout: Seconds | None = None) -> bool:
        """
        Wait until a signal arrives, and return whether one has.

        Args:
            timeout: Seconds to wait. Default: no limit.
        """
        return self._latch.wait(Deadline.after(timeout).remaining())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            if self._repeats.expired():
                # The second signal: do not wait any longer.
                raise SystemExit(self._status(number))
            return
        self._number = number
        self._repeats = Deadline.after(REPEATS)
        self._deadline = Deadline.after(self._timeout)
        self._latch.set()
        self._on_change(True)
        # Not `threading.Thread`: the interrupted code may hold a lock that its `start` takes.
        _thread.start_new_thread(self._watch_time, ())
        around = getattr(self._previous.get(number), "__self__", None)
        if isinstance(around, StopSignal):
            # The block of another client: its reads end, too.
            around._handle(number, frame)  # noqa: SLF001 - of the same class

    def _watch_time(self) -> None:
        if not self._over.wait(self._deadline.remaining()):
            self._on_timeout()

    def _status(self, number: int) -> int:
        return 128 + number if self._exit_code is None else self._exit_code

    def _restore(self) -> None:
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            # None is a handler that was not installed by Python code.
            if handler is not None:
                signal.signal(number, handler)
        self._on_change(False)
