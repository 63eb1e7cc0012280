"""
Errors that several threads may get, and those of the program's own functions.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import TracebackType


def raise_failure(failure: Exception) -> NoReturn:
    """
    Raise a copy of *failure*, because each raise changes the traceback of the error.
    """
    raise copy.copy(failure) from failure.__cause__


def raised_at(error: BaseException) -> TracebackType | None:
    """
    Return the innermost entry of the traceback, which has the line that raised *error*.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place
