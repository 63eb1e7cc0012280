"""
Integers of any length as text, exactly.

``int`` and ``str`` refuse more than 4300 digits, as they would take long; ``decimal`` is fast and
has no such bound. What a server sends is bounded by its ``max_payload``.
"""

from __future__ import annotations

import decimal
import re
from typing import Final

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


def parse_integer(text: str) -> int:
    """Return the integer that a text is; raises ValueError if it is something else."""
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not an integer")
    return int(decimal.Decimal(text))


def integer_text(number: int) -> str:
    """Return an integer in decimal digits."""
    return format(decimal.Decimal(number), "f")
