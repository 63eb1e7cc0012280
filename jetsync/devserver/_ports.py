"""
Reserve loopback ports for servers that stop and restart.

A server that is stopped, killed or restarted must get its port again. Neither another test process
nor an outgoing connection may take it meanwhile. (A client that keeps reconnecting to a free
ephemeral port of its own host eventually connects to itself.)

On Linux a bound socket that does not listen reserves its port against both, and a server may still
bind and listen on it as long as both sides set ``SO_REUSEADDR``, which Go programs do. Elsewhere
that second bind fails, so the reservation is given up just before the server starts. On Windows
``SO_REUSEADDR`` would even let a socket share the port of one that listens, so nothing sets it.
"""

from __future__ import annotations

import socket
import sys

from jetsync._base.reprs import tolerant_repr

_HOLDS_WHILE_LISTENING = sys.platform == "linux"


@tolerant_repr
class PortReservation:
    """
    Hold one port on 127.0.0.1 until `release`.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        share_address(self._socket)
        try:
            self._socket.bind(("127.0.0.1", port))
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def let_listen(self) -> None:
        """
        Let another socket listen on the port. Elsewhere than on Linux, this ends the reservation.
        """
        if not _HOLDS_WHILE_LISTENING:
            self._socket.close()

    def release(self) -> None:
        """
        Release the port. Further calls do nothing.
        """
        self._socket.close()

    def __repr__(self) -> str:
        return f"<PortReservation {self.port}>"


def share_address(unbound: socket.socket) -> None:
    """
    Let a socket have the address of a reservation, and of connections that have ended.
    """
    if sys.platform != "win32":
        unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
