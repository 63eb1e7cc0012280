"""
Errors that several threads may get.
"""

from __future__ import annotations

import copy
from typing import NoReturn


def raise_failure(failure: Exception) -> NoReturn:
    """
    Raise a copy of *failure*, because each raise changes the traceback of the error.
    """
    raise copy.copy(failure) from failure.__cause__
