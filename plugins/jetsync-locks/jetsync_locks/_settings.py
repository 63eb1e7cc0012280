"""
The settings of a lease, and the bucket that it needs.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_locks._errors import LeaseLostError

if TYPE_CHECKING:
    from jetsync import KeyValue
    from jetsync.typing import Seconds

LEASE: Final = 15
"""Default time-to-live in seconds."""

SHORTEST: Final = 2
"""Servers remove expired keys up to 0.3 s late, and count whole seconds."""

LONGEST: Final = 86_400

MARGIN: Final = 10
"""The default margin is the lease divided by this."""

RENEWALS: Final = 3
"""Renewals per lease: one may be lost and another one late."""

LONGEST_ATTEMPT: Final = 5.0
"""Maximum seconds for one attempt to write, so that a lost answer is noticed."""


def seconds_of(name: str, value: Seconds) -> float:
    """
    Return a duration in seconds.
    """
    if isinstance(value, dt.timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise jetsync.InvalidTypeError(
            f"{name} must be seconds or a timedelta, not {value!r}", argument=name
        )
    if not (math.isfinite(value) and value >= 0):
        raise jetsync.InvalidArgumentError(
            f"{name} must be 0 or more seconds, not {value!r}", argument=name
        )
    return float(value)


def timeout_of(value: Seconds | None) -> float:
    """
    Return a timeout in seconds; infinite for None.
    """
    return math.inf if value is None else seconds_of("timeout", value)


@attrs.frozen
class Settings:
    """
    How long a lease lasts, and what happens when it is lost.
    """

    lease: int
    """The time-to-live of a ticket on the server, in whole seconds."""

    margin: float
    """How many seconds earlier its owner considers the lease lost."""

    on_lost: Callable[[LeaseLostError], object] | None
    """Called by the background thread when a held lease is lost."""

    @property
    def valid(self) -> float:
        """Seconds for which the owner may rely on a write, counted from before it was sent."""
        return self.lease - self.margin

    @property
    def interval(self) -> float:
        """Seconds between renewals."""
        return self.lease / RENEWALS

    @property
    def attempt(self) -> float:
        """Seconds for one attempt to write."""
        return min(self.lease / 5, LONGEST_ATTEMPT)


def settings_of(
    lease: Seconds, margin: Seconds | None, on_lost: Callable[[LeaseLostError], object] | None
) -> Settings:
    """
    Check the settings of a lease.
    """
    seconds = seconds_of("lease", lease)
    if not (seconds.is_integer() and SHORTEST <= seconds <= LONGEST):
        raise jetsync.InvalidArgumentError(
            f"lease must be {SHORTEST} to {LONGEST} whole seconds, because servers remove keys to"
            f" the second, not {lease!r}",
            argument="lease",
        )
    early = seconds / MARGIN if margin is None else seconds_of("margin", margin)
    if early > seconds / RENEWALS:
        raise jetsync.InvalidArgumentError(
            f"margin must be at most a third of the lease, so that renewals have time, not"
            f" {margin!r}",
            argument="margin",
        )
    if on_lost is not None:
        check_function("on_lost", on_lost)
    return Settings(int(seconds), early, on_lost)


def check_function(name: str, value: object) -> None:
    """
    Refuse what is no function, and a function whose call would run none of its code.
    """
    if not callable(value):
        raise jetsync.InvalidTypeError(f"{name} must be a function, not {value!r}", argument=name)
    jetsync.check_function(name, value)


def check_handle(bucket: object) -> None:
    """
    Refuse an object that is no bucket.
    """
    if not isinstance(bucket, jetsync.KeyValue):
        raise jetsync.InvalidTypeError(
            f"the bucket must be a KeyValue, as from js.create_or_update_key_value(...), not"
            f" {bucket!r}",
            argument="bucket",
        )


def check_bucket(bucket: KeyValue, lease: int) -> None:
    """
    Refuse a bucket that cannot hold leases. Asks the server only if the known answer is no.

    Raises:
        jetsync.ConfigurationError: The bucket has another configuration than leases need.
    """
    config = bucket.stream.config
    if _problem(config, lease) is not None:
        config = bucket.status().stream_info.config
    problem = _problem(config, lease)
    if problem is not None:
        raise jetsync.ConfigurationError(
            f"bucket {bucket.bucket!r} cannot hold leases: {problem}; use"
            f" create_or_update_key_value({bucket.bucket!r}, history=1, limit_marker_ttl=60)"
        )


def _problem(config: jetsync.StreamConfig, lease: int) -> str | None:
    if config.mirror is not None:
        return "it is a mirror"
    if not config.allow_msg_ttl or not config.subject_delete_marker_ttl:
        # Without markers, each replica removes expired keys by its own clock.
        return "it has no limit_marker_ttl, which needs server 2.11 or later"
    if config.max_msgs_per_subject != 1:
        return f"it keeps {config.max_msgs_per_subject} revisions per key, not 1"
    if config.max_age and config.max_age < lease:
        return f"its ttl of {config.max_age:g} s is shorter than the lease of {lease} s"
    return None
