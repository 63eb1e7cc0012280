"""
Durations and moments from callers.
"""

from __future__ import annotations

import datetime as dt
import math

import jetsync

LONGEST = 100 * 365 * 86_400.0
"""Seconds. Clocks of servers overflow in the year 2262."""

LONGEST_TTL = 1e9 - 1.0
"""Seconds. jetsync takes a longer time-to-live for one in nanoseconds."""


def seconds(
    name: str,
    value: object,
    *,
    least: float = 0.0,
    most: float = LONGEST,
    most_is: str = "100 years",
) -> float:
    """
    Return a duration in seconds.

    Raises:
        InvalidArgumentError, InvalidTypeError: It is no duration, or out of range.
    """
    if isinstance(value, dt.timedelta):
        found = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        found = float(value)
    else:
        raise jetsync.InvalidTypeError(
            f"{name} must be seconds or a timedelta, not {type(value).__name__}", argument=name
        )
    if not (math.isfinite(found) and least <= found <= most):
        raise jetsync.InvalidArgumentError(
            f"{name} must be from {least:g} seconds to {most_is}, not {found:g} seconds",
            argument=name,
        )
    return found


def count(name: str, value: object, least: int, most: int | None = None) -> int:
    """
    Return a whole number.

    Raises:
        InvalidArgumentError, InvalidTypeError: It is no whole number, or out of range.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise jetsync.InvalidTypeError(
            f"{name} must be a whole number, not {type(value).__name__}", argument=name
        )
    if value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise jetsync.InvalidArgumentError(f"{name} must be {limits}, not {value}", argument=name)
    return value


def start_at(delay: object, at: object, now: float) -> float | None:
    """
    Return when a job becomes available, in seconds since 1970; None for at once.

    Raises:
        InvalidArgumentError, InvalidTypeError: An argument is invalid, or both are given.
    """
    if delay is not None and at is not None:
        raise jetsync.InvalidArgumentError("give delay or at, not both", argument="delay")
    if delay is not None:
        wait = seconds("delay", delay)
        return now + wait if wait else None
    if at is None:
        return None
    if not isinstance(at, dt.datetime):
        raise jetsync.InvalidTypeError(
            f"at must be a datetime, not {type(at).__name__}", argument="at"
        )
    if at.tzinfo is None:
        raise jetsync.InvalidArgumentError("at must have a time zone", argument="at")
    found = at.timestamp()
    if found - now > LONGEST:
        raise jetsync.InvalidArgumentError("at must be within 100 years", argument="at")
    return found if found > now else None
