"""
One JetStream context: an account, and the streams that it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync._api.account import Account
from jetsync._api.known_streams import StreamCache

if TYPE_CHECKING:
    from jetsync._io.connection import Connection


class Context(Account):
    """
    The state that all handles of one JetStream context share. Thread-safe.
    """

    __slots__ = ("streams",)

    def __init__(
        self, connection: Connection, *, prefix: str, domain: str | None, default_timeout: float
    ) -> None:
        super().__init__(connection, prefix=prefix, domain=domain, default_timeout=default_timeout)
        self.streams: StreamCache = StreamCache(self)
