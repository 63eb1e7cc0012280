"""
A server of which tests write each line, for connections of nats-py.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

from jetsync._base.deadline import Deadline

LONG = 10.0


INFO = {"server_id": "S", "version": "2.15.1", "max_payload": 1000, "headers": True}


def until(condition, what="it"):
    """Return once another thread makes a condition true."""
    deadline = Deadline.after(LONG)
    while not condition():
        assert not deadline.expired(), f"{what} never came"
        time.sleep(0.0005)


class Peer:
    """One connection, as the scripted server sees it."""

    def __init__(self, sock):
        self.sock = sock
        self.lines = []
        self.ended = threading.Event()

    def send(self, data):
        self.sock.sendall(data)

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.ended.wait(LONG)


class ScriptedServer:
    """
    A minimal NATS server: greets, answers PING, records lines, calls back for publishes.

    Each connection takes the next of ``manners``: "greet", "silent",
    "slam" (closes at once), "mute" (greets and never answers) or "refuse" (the login).
    """

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self.manners = []
        self.peers = []
        self.info = dict(INFO)
        self.answers_ping = True
        # What the server sends when it gets a line with this verb.
        self.answers = {}
        self.on_publish = lambda peer, words, payload: None
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            manner = self.manners.pop(0) if self.manners else "greet"
            peer = Peer(sock)
            self.peers.append(peer)
            thread = threading.Thread(target=self._serve, args=(peer, manner), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer, manner):
        with peer.sock, peer.sock.makefile("rb") as stream:
            try:
                if manner in {"greet", "mute", "refuse"}:
                    peer.send(b"INFO " + json.dumps(self.info).encode() + b"\r\n")
                while manner != "slam" and (line := stream.readline()):
                    self._take(peer, manner, stream, line.rstrip())
            except OSError:
                pass
        peer.ended.set()

    def _take(self, peer, manner, stream, line):
        peer.lines.append(line)
        words = line.split()
        peer.send(self.answers.get(words[0].decode(), b""))
        if manner == "refuse":
            peer.send(b"-ERR 'Authorization Violation'\r\n")
        elif words[0] == b"PING" and manner == "greet" and self.answers_ping:
            peer.send(b"PONG\r\n")
        elif words[0] in {b"PUB", b"HPUB"}:
            payload = stream.read(int(words[-1]) + 2)[:-2]
            self.on_publish(peer, words, payload)

    def lines(self, verb, peer=-1):
        return [line for line in self.peers[peer].lines if line.startswith(verb)]

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self.peers:
            peer.close()
        for thread in self._threads:
            thread.join(LONG)
