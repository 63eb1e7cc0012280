"""
Integers as servers send them: counters of any length, and 64-bit numbers.

``int`` and ``str`` are slow and refuse more than 4,300 digits. ``decimal`` is fast and has no such
limit. The server's ``max_payload`` limits what arrives.
"""

from __future__ import annotations

import decimal
import re
import reprlib
from typing import Final

from jetsync.errors import ProtocolError

# Decimal digits of a 64-bit number.
LONGEST_DIGITS: Final = 20

LARGEST: Final = (1 << 64) - 1

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


def parse_integer(text: str) -> int:
    """Return the integer in *text*; raises ValueError if it is not one."""
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not an integer")
    return int(decimal.Decimal(text))


def integer_text(number: int) -> str:
    """Return an integer in decimal digits."""
    return format(decimal.Decimal(number), "f")


def read_digits(text: str | bytes) -> int:
    """
    Return the sequence or count in a header or a subject.

    Raises:
        ProtocolError: It is not an unsigned 64-bit number in decimal digits.
    """
    if text.isascii() and text.isdigit() and len(text) <= LONGEST_DIGITS:
        number = int(text)
        if number <= LARGEST:
            return number
    raise ProtocolError(f"not a sequence or a count: {text[:40]!r}")


def read_count(value: object, what: str) -> int:
    """
    Return a JSON value that is a sequence or a count.

    Raises:
        ProtocolError: It is not an unsigned 64-bit integer. *what* names it in the error.
    """
    if type(value) is int and 0 <= value <= LARGEST:
        return value
    raise ProtocolError(f"{what} is not a sequence or a count: {reprlib.repr(value)}")
