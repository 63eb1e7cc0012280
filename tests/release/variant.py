"""
Check which variant of jetsync is installed: ``python variant.py compiled``, or ``pure``.

The wheels of all systems are tested with it, so it needs only jetsync.
"""

from __future__ import annotations

import platform
import sys

import jetsync
from jetsync._base import speedups


def main() -> None:
    """
    End with an error unless the variant runs that the argument names.
    """
    (wanted,) = sys.argv[1:]
    about = f"jetsync {jetsync.__version__} on Python {platform.python_version()}"
    if wanted != ("compiled" if speedups.VARIANT == "compiled" else "pure"):
        sys.exit(f"FAILED: {about}: {wanted} is expected, and {speedups.VARIANT} runs")
    bases = jetsync.Message.__mro__
    if any(base.__module__ == "jetsync._speedups" for base in bases) != (wanted == "compiled"):
        sys.exit(f"FAILED: {about}: {wanted} is expected, and messages are {bases}")
    print(f"{about}: {speedups.VARIANT}")


if __name__ == "__main__":
    main()
