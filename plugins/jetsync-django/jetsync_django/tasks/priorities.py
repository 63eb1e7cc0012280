"""
Django's priorities, which are -100 to 100, as the steps of a queue, of which there are at most ten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

__all__ = ["DEFAULT_BOUNDS", "bounds_of", "step_of"]

LEAST, MOST, MOST_STEPS = -100, 100, 10

# Round numbers, and those just around the default of 0, are what programs use.
DEFAULT_BOUNDS: Final = (-100, -50, -10, 0, 1, 10, 25, 50, 75, 100)


def bounds_of(given: Any, setting: str) -> tuple[int, ...]:
    """
    Return the lowest priority of each step, from the option ``PRIORITIES``.

    Raises:
        ImproperlyConfigured: They are not 1 to 10 rising whole numbers from -100 to 100, or do not
            begin with -100.
    """
    found = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    is_valid = (
        0 < len(found) <= MOST_STEPS
        and all(isinstance(each, int) and LEAST <= each <= MOST for each in found)
        and list(found) == sorted(set(found))
        and found[0] == LEAST
    )
    if not is_valid:
        raise ImproperlyConfigured(
            f"{setting}: PRIORITIES must be 1 to {MOST_STEPS} rising whole numbers from {LEAST} to"
            f" {MOST}, of which the first is {LEAST}, not {given!r}"
        )
    return found


def step_of(priority: int, bounds: Sequence[int]) -> int:
    """
    Return the step of a priority: 0 is the lowest one.
    """
    return bisect_right(bounds, priority) - 1
