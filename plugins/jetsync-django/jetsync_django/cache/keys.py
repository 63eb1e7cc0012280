"""
Cache keys as keys of a bucket.

Django allows any text as a cache key. A bucket allows letters, digits and ``-_=/.``.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["bucket_key"]

# A dot separates the parts of a subject, and `=` begins an encoded byte here.
_OTHER: Final = re.compile(r"[^-/_A-Za-z0-9]")

# The server limits a command, which includes the subject, to 4096 bytes by default.
LONGEST: Final = 1024


def bucket_key(key: str) -> str:
    """
    Return the key of a bucket for a cache key.

    Each byte of UTF-8 that a bucket does not allow is stored as ``=`` and two hexadecimal digits,
    so ``:1:user`` is ``=3A1=3Auser``. Keys that are longer than 1024 bytes when encoded are stored
    as ``==`` and their SHA-256.
    """
    encoded = _OTHER.sub(_escaped, key) or "="
    if len(encoded) <= LONGEST:
        return encoded
    return "==" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"={byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
