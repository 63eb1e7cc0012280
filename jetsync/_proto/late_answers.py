"""
When a request whose answer is late is sent again.

A request that reaches a server just before it dies, or during a change of leader, never gets an
answer, and no server reports that. If the request may be processed twice, it is sent again with the
same reply subject. So the first answer counts, also that of a server that is only slow.
"""

from __future__ import annotations

from typing import Final

# Seconds after which an answer is late. Measured with three servers, a stream has another leader 4
# to 7 s after its leader has failed. Asking twice as often would end the pause a quarter of a
# second earlier on average, for twice the requests.
LATE: Final = 1.0

# The share of the time so far that passes before the next attempt. A call with the default timeout
# of 5 s sends at most 5 requests, one of 15 s 10, and one of 60 s 17.
SHARE: Final = 0.25


def next_attempt(elapsed: float, late: float = LATE) -> float:
    """
    Return how many seconds an attempt may take before the request is sent again.

    Args:
        elapsed: Seconds since the first attempt.
        late: Seconds after which the first answer was late.
    """
    return max(late, elapsed * SHARE)
