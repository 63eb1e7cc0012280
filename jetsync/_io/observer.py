"""
What nats-py and the transport report about a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jetsync.values.server_info import ServerInfo


class Observer(Protocol):
    """
    The session, as the seam and the transport see it.

    The loop thread calls these methods. They only set values, wake waiters and queue events.
    """

    def on_connected(self) -> None:
        """Allow writes: nats-py has completed the handshake."""

    def on_disconnected(self) -> None:
        """Report a lost connection. The lane has already handled the loss."""

    def on_lame_duck(self) -> None:
        """Report that the server will close the connection soon."""

    def on_discovered(self, urls: tuple[str, ...]) -> None:
        """Report servers that have joined the cluster."""

    def on_info(self, server: ServerInfo) -> None:
        """Keep the server's last INFO."""

    def on_server_error(self, text: str) -> None:
        """Fail the calls that an ``-ERR`` line of the server refuses."""

    def on_error(self, error: Exception) -> None:
        """Report an error that belongs to no call. nats-py continues by itself."""

    def on_closed(self, cause: Exception | None) -> None:
        """End all waits: the connection is closed, or nats-py gave up because of *cause*."""
