"""
How many examples a property test draws.
"""

from __future__ import annotations

import os

_SHARE = float(os.environ.get("JETSYNC_TEST_EXAMPLES", "1"))


def examples(count: int) -> int:
    """
    Return how many of *count* examples to draw: a share of them, by ``JETSYNC_TEST_EXAMPLES``.

    tox sets it in the environments that repeat tests of ``tox run -e tests``, such as `lowest`.
    """
    return max(round(count * _SHARE), 1)


RUNS = int(os.environ.get("JETSYNC_PROPERTY_RUNS", examples(1000)))
"""How often the long property tests are run; ``tox run -e soak`` does so ten times as often."""
