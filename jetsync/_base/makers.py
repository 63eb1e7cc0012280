"""
Fast construction of objects that are made for each message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from jetsync._base.speedups import with_twin

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@with_twin
def maker(kind: type[T], names: tuple[str, ...]) -> Callable[..., T]:  # noqa: ARG001 - for C
    """
    Return a function that makes objects of a frozen class from the values of all its fields.

    The ``__init__`` that attrs makes calls a method for each field, because the class refuses to
    set them. An acknowledgement takes 1.2 us with it and 0.4 us with the twin, on Python 3.11.

    Args:
        kind: A class that is frozen and has no converters, no validators and no base with fields.
        names: Its fields in the order of its arguments.
    """
    return kind
