"""
What holds for some operations and errors: how soon another attempt is made, and how often.
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

OPERATIONS: Final = ("publish", "window", "batch_commit")
"""
What may be tried again: a single publish, a message of `publish_many` or of a `Publisher`, and a
batch that is committed.
"""

FIRST_WAIT: Final = 0.05
"""Seconds: the first wait is at most twice as long. A new leader takes about a second."""

LONGEST_WAIT: Final = 2.0
"""Seconds: no wait is longer, so that the end of an outage is noticed soon."""

# Strategies are given a state that belongs to an object which runs a function; here none is run.
_RETRYING: Final = tenacity.Retrying()

Errors: TypeAlias = "type[Exception] | Iterable[type[Exception]]"


def kind_of(operation: jetsync.Operation) -> str:
    """
    Return which of `OPERATIONS` it is.
    """
    if isinstance(operation, jetsync.PublishOperation) and operation.window is not None:
        return "window"
    return operation.name


def _listed(value: Any, name: str) -> tuple[Any, ...]:
    """
    Return one thing or several as several.
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
            f"there is no operation {', '.join(unknown) or 'in an empty list'};"
            f" there are {', '.join(OPERATIONS)}",
            argument="operations",
        )
    return names


def _errors(value: Errors) -> tuple[type[Exception], ...]:
    classes = _listed(value, "errors")
    if not classes:
        raise jetsync.InvalidArgumentError("there is no error in an empty list", argument="errors")
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, Exception)):
            raise jetsync.InvalidTypeError(
                f"errors must be classes of errors, not {cls!r}", argument="errors"
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
            f"{field.name} must be a number or something to call, not {value!r}",
            argument=field.name,
        )


@attrs.frozen(kw_only=True)
class Policy:
    """
    Say for some operations and errors how soon another attempt is made, and how often.

    Free of state, and so fit to be shared by threads and clients.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: A value that means nothing.
    """

    operations: frozenset[str] = attrs.field(default=OPERATIONS, converter=_operations)
    """Which of `OPERATIONS` it is for."""

    errors: tuple[type[Exception], ...] = attrs.field(default=Exception, converter=_errors)
    """For which errors, subclasses included."""

    when: Callable[[jetsync.Operation, Exception], bool] | None = attrs.field(
        default=None, validator=attrs.validators.optional(_callable)
    )
    """A further condition: whether it is for this operation and error."""

    wait: WaitBaseT = attrs.field(
        default=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
        converter=_wait,
        validator=_callable,
    )
    """
    How long to wait before the next attempt: seconds, or a strategy of tenacity. By default a
    random part of a time that doubles, so that many clients do not come back at the same moment.
    """

    stop: StopBaseT = attrs.field(default=stop_never, converter=_stop, validator=_callable)
    """
    When to give up: a number of attempts, the first one included, or a strategy of tenacity. The
    budget and the operation's own time limit hold besides. 1 means never to try again.
    """

    def covers(self, kind: str, operation: jetsync.Operation, error: Exception) -> bool:
        """
        Tell whether this policy is for the operation, which is of *kind*, and its error.
        """
        return (
            kind in self.operations
            and isinstance(error, self.errors)
            and (self.when is None or self.when(operation, error))
        )


def call_state(
    operation: jetsync.Operation, error: Exception, attempt: int
) -> tenacity.RetryCallState:
    """
    Return what strategies of tenacity look at: the attempt, the error, the time that went by.

    The operation is its one positional argument.
    """
    state = tenacity.RetryCallState(_RETRYING, None, (operation,), {})
    state.attempt_number = attempt
    state.set_exception((type(error), error, None))
    state.start_time = (state.outcome_timestamp or time.monotonic()) - operation.elapsed
    return state
