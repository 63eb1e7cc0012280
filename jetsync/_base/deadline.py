"""
One time-out across the many steps of a call.

A deadline is made at the door of each public call and handed down; no step restarts it. It reads
the monotonic clock, so a change of the wall clock neither cuts a wait short nor makes it longer.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from typing import Final, TypeAlias

from jetsync.errors import InvalidArgumentError, InvalidTypeError

__all__ = ["Deadline", "as_seconds"]

Seconds: TypeAlias = float | int | dt.timedelta
"""
A duration: seconds as a number, or a ``timedelta``.
"""

LONGEST: Final = 1e9
"""
Seconds that a wait really takes at most, 31 years: locks raise for what no system clock can hold.
"""


def as_seconds(value: Seconds, name: str = "timeout", *, minimum: float = 0.0) -> float:
    """
    Return a duration as float seconds.

    Args:
        value: Seconds as a number, or a ``timedelta``.
        name: What the argument is called where the user gave it, for the error.
        minimum: The least that is allowed, in seconds, inclusive.

    Raises:
        InvalidTypeError: it is neither; a ``bool`` is not a number here.
        InvalidArgumentError: it is less than ``minimum``, or not finite.
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
    # Infinity is refused with the rest: nothing here waits for ever, and time.sleep would not take
    # it either.
    if not math.isfinite(seconds) or seconds < minimum:
        raise InvalidArgumentError(
            f"{name} must be a finite number of seconds >= {minimum:g}, not {seconds:g}",
            argument=name,
        )
    return seconds


class Deadline:
    """
    A moment on the monotonic clock by which a call has to be over.

    Immutable, so any number of threads may share one.
    """

    __slots__ = ("at", "total")

    def __init__(self, at: float, total: float) -> None:
        self.at = at
        """The moment, in the terms of ``time.monotonic()``."""
        self.total = total
        """How long the whole call may take, in seconds; for error texts."""

    @classmethod
    def after(cls, seconds: Seconds) -> Deadline:
        """
        Make a deadline that lies ``seconds`` ahead of now.

        Raises:
            InvalidTypeError, InvalidArgumentError: as :func:`as_seconds`.
        """
        if type(seconds) is float and 0.0 <= seconds <= LONGEST:
            return cls(time.monotonic() + seconds, seconds)
        total = as_seconds(seconds)
        return cls(time.monotonic() + min(total, LONGEST), total)

    def remaining(self) -> float:
        """
        Return the seconds left, 0 once it has passed.
        """
        return max(0.0, self.at - time.monotonic())

    def expired(self) -> bool:
        """
        Return whether no time is left.
        """
        return time.monotonic() >= self.at

    def at_most(self, seconds: float) -> Deadline:
        """
        Return the nearer one of this deadline and one ``seconds`` ahead of now, for a step with a
        limit of its own.
        """
        at = time.monotonic() + seconds
        return self if self.at <= at else Deadline(at, seconds)

    def __repr__(self) -> str:
        return f"<Deadline {self.remaining():.3f} s of {self.total:g} s left>"
