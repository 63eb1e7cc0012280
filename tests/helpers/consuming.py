"""
Options of consumptions for tests of engines.
"""

from __future__ import annotations

from jetsync._proto.consume import ConsumeOptions


def options(**changes):
    """
    Return options for a buffer of ten messages that is refilled at half.
    """
    plain = {
        "stream": "S",
        "consumer": "C",
        "max_messages": 10,
        "max_bytes": None,
        "threshold": 5,
        "expires": 30.0,
        "heartbeat": 5.0,
    }
    return ConsumeOptions(**{**plain, **changes})
