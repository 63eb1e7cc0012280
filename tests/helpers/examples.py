"""
How many examples a property test draws.
"""

from __future__ import annotations

import os

SHARE = float(os.environ.get("JETSYNC_TEST_EXAMPLES", "0.4"))
"""The share of the examples of an ordinary run; ``tox run -e soak`` draws ten times all of them."""


def examples(count: int) -> int:
    """
    Return how many of *count* examples to draw: a share of them, by ``JETSYNC_TEST_EXAMPLES``.

    tox sets it in the environments that repeat tests of ``tox run -e tests``, such as `lowest`.
    """
    return max(round(count * SHARE), 1)


RUNS = examples(1000)
"""How often the long property tests are run."""
