"""
A fake server: forwards connections to a real server, or sends scripted bytes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import deque

LONG = 30.0
"""Seconds after which an idle connection is closed."""

HEARD = None
"""In a script: wait until the client has sent something."""

RELAY = "RELAY"
"""
At the end of a script: relay everything from here on, in both directions. The INFO of the real
server is left out, because the script has sent one.
"""

HONEST = {"version": "2.15.1", "headers": True, "max_payload": 1 << 20}


def info(**fields):
    """
    Return the INFO line of the real server with some changes.
    """
    fields = {"server_id": "EVIL", "server_name": "evil", **HONEST, **fields}
    return b"INFO " + json.dumps(fields).encode() + b"\r\n"


class FakeServer:
    """
    A TCP proxy that can also send scripts in place of the server.

    ``plays`` holds one script for each of the next connections: pieces of bytes that are sent one
    by one, with `HEARD` between pieces that must be separate segments. A script that ends with
    `"PONG"` then answers each PING, and one that ends with `RELAY` relays the real server. All
    other connections are forwarded.
    """

    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.plays = deque()
        self.heard = []
        """The bytes that the clients have sent, one entry for each script that has ended."""

        self._let_through = threading.Event()
        self._let_through.set()
        self._sockets = []
        self._clients = []
        self._threads = []
        self._start(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.plays.clear()
        self.release()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(LONG)

    @property
    def url(self):
        return f"nats://127.0.0.1:{self.port}"

    def hold(self):
        """
        Hold connections to the real server until `release`.
        """
        self._let_through.clear()

    def release(self):
        self._let_through.set()

    def inject(self, data):
        """
        Send bytes to all clients, between two frames of the server if that is idle.
        """
        for sock in self._clients:
            sock.sendall(data)

    def cut(self):
        """
        End all connections.
        """
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _start(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(LONG)
            self._sockets.append(sock)
            self._clients.append(sock)
            if self.plays:
                self._start(self._play, sock, self.plays.popleft())
            else:
                self._start(self._forward, sock)

    def _play(self, sock, pieces):
        heard = b""
        with sock, contextlib.suppress(OSError):
            answers, relays = pieces[-1] == "PONG", pieces[-1] == RELAY
            for piece in pieces[:-1] if answers or relays else pieces:
                if piece is HEARD:
                    heard += sock.recv(1 << 16)
                else:
                    sock.sendall(piece)
            if relays:
                self._relay(sock)
            pings = heard.count(b"PING\r\n")
            while True:
                if answers:
                    sock.sendall(b"PONG\r\n" * pings)
                data = sock.recv(1 << 16)
                if not data:
                    break
                heard += data
                pings = data.count(b"PING\r\n")
        self.heard.append(heard)

    def _relay(self, sock):
        with socket.create_connection(("127.0.0.1", self._target), LONG) as server:
            self._sockets.append(server)
            while server.recv(1) not in {b"\n", b""}:
                pass
            self._start(self._copy, sock, server)
            self._copy(server, sock)

    def _forward(self, sock):
        self._let_through.wait(LONG)
        try:
            server = socket.create_connection(("127.0.0.1", self._target), LONG)
        except OSError:
            sock.close()
            return
        self._sockets.append(server)
        self._start(self._copy, sock, server)
        self._copy(server, sock)
        server.close()
        sock.close()

    def _copy(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
