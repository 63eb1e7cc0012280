"""
The requests that other clients send to JetStream.
"""

from __future__ import annotations

__all__ = ["asked"]


def asked(client, act):
    """
    Return the subjects of the requests to JetStream while a function runs.
    """
    with client.subscribe("$JS.API.>") as api:
        client.flush()
        act()
        client.flush()
        return [message.subject for message in iter(lambda: api.next(timeout=0.1), None)]
