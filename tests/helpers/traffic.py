"""
What a client has sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jetsync

# A PING or a PONG. A server also pings two seconds after a client connects.
_KEEP_ALIVE = 6


def sent_nothing(client: jetsync.Client, since: int) -> bool:
    """
    Return whether a client has sent no message since its ``bytes_out`` was *since*.
    """
    return client.statistics().bytes_out - since in {0, _KEEP_ALIVE, 2 * _KEEP_ALIVE}
