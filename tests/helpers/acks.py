"""
What runs of acks contain, in both variants.
"""

from __future__ import annotations

import struct
from typing import Any


def acks_of(run: list[Any]) -> list[tuple[int, int]]:
    """Return the numbers and the sequences of a run."""
    found: list[tuple[int, int]] = []
    for part in run:
        if isinstance(part, bytes):
            found += struct.iter_unpack("=QQ", part)
        else:
            found.append((int(part[0]), int(part[1])))
    return found
