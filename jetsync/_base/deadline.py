"""
Durations, and one timeout across the many steps of a call.

Each public call makes one deadline and passes it down; no step restarts it. Deadlines use the
monotonic clock, so a change of the wall clock does not affect a wait.
"""

from __future__ import annotations

import datetime as dt
import math
import threading
import time
from typing import Final, TypeAlias

from jetsync.errors import InvalidArgumentError, InvalidTypeError

Seconds: TypeAlias = float | int | dt.timedelta
"""
A duration: seconds as a number, or a ``timedelta``.
"""

# 31 years. Locks raise an error for waits that the system clock cannot hold. Plain numbers from
# here on are refused: one second in nanoseconds is the same number.
MAX_SECONDS: Final = 1e9

# The longest wait for a lock, which raises an error otherwise: 292 years, but 49 days on Windows.
LONGEST_WAIT: Final = threading.TIMEOUT_MAX

# Durations are sent in whole nanoseconds. Less would become 0: no limit, or the default.
SHORTEST: Final = 1e-9


class ServerSeconds(float):
    """
    A duration that a server sent and that users could not write as a number.
    """

    __slots__ = ()


def as_seconds(value: Seconds, name: str = "timeout", *, minimum: float = 0.0) -> float:
    """
    Return a duration as float seconds.

    Args:
        value: Seconds as a number, or a ``timedelta``.
        name: The argument or field, for the error.
        minimum: The shortest duration that is allowed, in seconds.

    Raises:
        InvalidTypeError: *value* is neither; a ``bool`` is not a number here.
        InvalidArgumentError: *value* is shorter than *minimum*, not finite, or a number that looks
            like nanoseconds.
    """
    given: object = value
    if isinstance(given, dt.timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        try:
            seconds = float(given)
        except OverflowError:
            seconds = math.inf
    else:
        raise InvalidTypeError(
            f"{name} must be seconds or a timedelta, not {type(value).__name__}", argument=name
        )
    if seconds < minimum or not math.isfinite(seconds):
        problem = f"must be a finite number of seconds >= {minimum:g}, not {seconds:g}"
    elif 0.0 < seconds < SHORTEST:
        problem = f"must be seconds, and {seconds:g} is less than a nanosecond"
    elif seconds >= MAX_SECONDS and not isinstance(given, (dt.timedelta, ServerSeconds)):
        problem = f"must be seconds or a timedelta, and {given} looks like nanoseconds"
    else:
        return seconds
    raise InvalidArgumentError(f"{name} {problem}", argument=name)


class Deadline:
    """
    A moment on the monotonic clock by which a call has to end.

    Immutable, so any number of threads may share one.
    """

    __slots__ = ("at", "total")

    def __init__(self, at: float, total: float) -> None:
        # The moment, in terms of ``time.monotonic()``.
        self.at: float = at
        # How long the whole call may take, in seconds, for errors.
        self.total: float = total

    @classmethod
    def after(cls, seconds: Seconds | None) -> Deadline:
        """
        Make a deadline that lies ``seconds`` ahead of now. ``None`` means that it never passes.

        Raises:
            InvalidTypeError, InvalidArgumentError: as :func:`as_seconds`.
        """
        if type(seconds) is float and SHORTEST <= seconds < MAX_SECONDS:
            return cls(time.monotonic() + seconds, seconds)
        total = MAX_SECONDS if seconds is None else as_seconds(seconds)
        return cls(time.monotonic() + min(total, MAX_SECONDS), total)

    def remaining(self) -> float:
        """
        Return the seconds left, 0 once it has passed.
        """
        left = self.at - time.monotonic()
        # Calls below accept the result as a timeout.
        if left > LONGEST_WAIT:
            return LONGEST_WAIT
        return left if left >= SHORTEST else 0.0

    def expired(self) -> bool:
        """
        Return whether no time is left.
        """
        return time.monotonic() >= self.at

    def at_most(self, seconds: float) -> Deadline:
        """
        Return the earlier of this deadline and one ``seconds`` from now, for a step that has a
        limit of its own.
        """
        at = time.monotonic() + seconds
        return self if self.at <= at else Deadline(at, seconds)

    def __repr__(self) -> str:
        return f"<Deadline {self.remaining():.3f} s of {self.total:g} s left>"


# For calls that try once.
NO_WAIT: Final = Deadline(0.0, 0.0)

# For waits without a timeout: one deadline, because making one costs a microsecond.
FOREVER: Final = Deadline.after(None)
