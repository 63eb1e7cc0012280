"""
Policies: how soon and how often an operation is retried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import attrs
import tenacity
from tenacity.stop import StopBaseT, stop_after_attempt, stop_never
from tenacity.wait import WaitBaseT, wait_fixed, wait_random_exponential

import jetsync

OPERATIONS: Final = ("publish", "publish_many", "publisher", "batch_commit")
"""
The names of the operations that can be retried: a single publish, a message of `publish_many` or of
a `Publisher`, and the commit of a batch.
"""

FIRST_WAIT: Final = 0.05
"""Scale of the first wait in seconds. Electing a leader takes about a second."""

LONGEST_WAIT: Final = 2.0
"""Maximum wait in seconds, so that the end of an outage is noticed soon."""

# tenacity's strategies need a state with a Retrying object, which is not used to run anything.
_RETRYING: Final = tenacity.Retrying()

Errors: TypeAlias = "type[Exception] | Iterable[type[Exception]]"


def _listed(value: Any, name: str) -> tuple[Any, ...]:
    """
    Return one or several values as a tuple.
    """
    if isinstance(value, (str, type)):
        return (value,)
    if not isinstance(value, Iterable):
        raise jetsync.InvalidTypeError(
            f"{name} must be one or a list of them, not {value!r}", argument=name
        )
    return tuple(value)


def _operations(value: str | Iterable[str]) -> frozenset[str]:
    names = frozenset(_listed(value, "operations"))
    unknown = sorted(f"{name}" for name in names - set(OPERATIONS))
    if unknown or not names:
        raise jetsync.InvalidArgumentError(
            f"unknown operations {', '.join(unknown)}; known are {', '.join(OPERATIONS)}"
            if unknown
            else "operations must not be empty",
            argument="operations",
        )
    return names


def _errors(value: Errors) -> tuple[type[Exception], ...]:
    classes = _listed(value, "errors")
    if not classes:
        raise jetsync.InvalidArgumentError("errors must not be empty", argument="errors")
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, Exception)):
            raise jetsync.InvalidTypeError(
                f"errors must be exception classes, not {cls!r}", argument="errors"
            )
    return classes


def _wait(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not (math.isfinite(value) and value >= 0):
            raise jetsync.InvalidArgumentError("wait must be 0 or more seconds", argument="wait")
        return wait_fixed(value)
    return value


def _stop(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise jetsync.InvalidArgumentError("stop must be 1 or more attempts", argument="stop")
        return stop_after_attempt(value)
    return value


def _callable(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if not callable(value):
        raise jetsync.InvalidTypeError(
            f"{field.name} must be a number or a function, not {value!r}",
            argument=field.name,
        )


@attrs.frozen(kw_only=True)
class Policy:
    """
    Define how soon and how often some operations are retried after some errors.

    A policy has no state. Threads and clients may share it.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: A value is invalid.
    """

    operations: frozenset[str] = attrs.field(default=OPERATIONS, converter=_operations)
    """The operations that the policy applies to."""

    errors: tuple[type[Exception], ...] = attrs.field(default=Exception, converter=_errors)
    """The error classes that the policy applies to, including subclasses."""

    when: Callable[[jetsync.Operation, Exception], bool] | None = attrs.field(
        default=None, validator=attrs.validators.optional(_callable)
    )
    """A function that returns whether the policy applies to an operation and error."""

    wait: WaitBaseT = attrs.field(
        default=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
        converter=_wait,
        validator=_callable,
    )
    """
    The wait before the next attempt: seconds, or a strategy of tenacity. The default is a random
    time, so that clients do not retry at the same moment. Its maximum starts at 0.05 s and doubles
    with each attempt, up to 2 s.
    """

    stop: StopBaseT = attrs.field(default=stop_never, converter=_stop, validator=_callable)
    """
    When to give up: a number of attempts, including the first, or a strategy of tenacity. The
    budget and the operation's own timeout apply too. 1 means no retry.
    """

    def covers(self, operation: jetsync.Operation, error: Exception) -> bool:
        """
        Return whether this policy applies to an operation and its error.
        """
        return (
            operation.name in self.operations
            and isinstance(error, self.errors)
            and (self.when is None or self.when(operation, error))
        )


def call_state(
    operation: jetsync.Operation, error: Exception, attempt: int
) -> tenacity.RetryCallState:
    """
    Return the state for tenacity's strategies: the attempt, the error and the elapsed time.

    The operation is its only positional argument.
    """
    state = tenacity.RetryCallState(_RETRYING, None, (operation,), {})
    state.attempt_number = attempt
    state.set_exception((type(error), error, None))
    state.start_time = (state.outcome_timestamp or time.monotonic()) - operation.elapsed
    return state
