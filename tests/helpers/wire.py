"""
A proxy that records the frames between a client and a server, and can drop some of them.

Tests of a wire format look at what was sent and what the server answered.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import attrs

from jetsync.values.headers import Headers
from jetsync.values.subjects import overlap

_WITH_PAYLOAD = {"PUB", "HPUB", "MSG", "HMSG"}

HOLD = "hold"
"""Keep a frame back until `Wire.release`."""

_LONG = 60.0
"""Seconds after which an idle connection is closed."""


@attrs.frozen
class WireFrame:
    """
    One command of a client, or one message of a server.
    """

    verb: str
    """In capitals. Messages with headers are ``PUB`` and ``MSG`` as well."""
    subject: str = ""
    reply: str = ""
    header: bytes | None = None
    data: bytes = b""
    """The payload; for other verbs, the rest of the line."""
    sid: str = ""
    """The number of the subscription; only ``MSG`` has it."""

    @property
    def headers(self):
        """The headers, parsed."""
        return Headers() if self.header is None else Headers.parse(self.header)[2]

    @property
    def status(self):
        """The code of the status line; None for a message without one."""
        return None if self.header is None else Headers.parse(self.header)[0]

    def json(self):
        """Return the payload as JSON; None if it is empty."""
        return json.loads(self.data) if self.data else None


def read_frame(data):
    """
    Return the first frame of *data* and its size, or None and 0 if it is not complete.
    """
    end = data.find(b"\r\n")
    if end < 0:
        return None, 0
    verb, _, rest = data[:end].decode().partition(" ")
    verb, words, size = verb.upper(), rest.split(), end + 2
    if verb not in _WITH_PAYLOAD:
        subject = words[0] if verb == "SUB" else ""
        return WireFrame(verb, subject, data=rest.encode()), size
    total = int(words[-1])
    if len(data) < size + total + 2:
        return None, 0
    body = data[size : size + total]
    numbers = 2 if verb[0] == "H" else 1
    inner = int(words[-2]) if numbers == 2 else 0
    names = words[:-numbers]
    # The subscription's number follows the subject.
    sid = names.pop(1) if verb.endswith("MSG") else ""
    reply = names[1] if len(names) > 1 else ""
    header = body[:inner] if numbers == 2 else None
    return WireFrame(
        verb.removeprefix("H"), names[0], reply, header, body[inner:], sid
    ), size + total + 2


class Wire:
    """
    Forward connections to a server frame by frame, and keep what passed.

    ``drop_sent`` and ``drop_received`` are functions of a frame. If they return true, the frame is
    recorded and not forwarded. If they return `HOLD`, `release` forwards it later.
    """

    def __init__(self, url):
        host, _, port = url.removeprefix("nats://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = []
        self.received = []
        self.subscriptions = []
        self.drop_sent = self.drop_received = lambda _frame: False
        self.refusing = False
        """Whether new connections are closed at once."""
        self._client = None
        self._held = []
        self._writing = threading.Lock()
        self._sockets = []
        self._threads = []
        self._start(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(_LONG)

    def cut(self):
        """
        End all connections.
        """
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def release(self):
        """
        Forward the frames that were held back.
        """
        held, self._held = self._held, []
        for sink, data in held:
            with self._writing:
                sink.sendall(data)

    def say(self, subject, status, **headers):
        """
        Send a status to the newest client, as the server would.
        """
        sids = [
            frame.data.split()[-1]
            for frame in list(self.subscriptions)
            if overlap(frame.subject, subject)
        ]
        lines = [f"NATS/1.0 {status}", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
        block = "\r\n".join(lines).encode()
        size = b"%d %d" % (len(block), len(block))
        data = b"HMSG %b %b %b\r\n%b\r\n" % (subject.encode(), sids[-1], size, block)
        with self._writing:
            self._client.sendall(data)

    def clear(self):
        """
        Forget the frames so far.
        """
        self.sent.clear()
        self.received.clear()

    def published(self, subject=">"):
        """
        Return the messages that clients have sent to *subject*, wildcards allowed.
        """
        return [f for f in list(self.sent) if f.verb == "PUB" and overlap(subject, f.subject)]

    def answers(self, subject=">"):
        """
        Return the messages that the server has sent to *subject*, wildcards allowed.
        """
        return [f for f in list(self.received) if f.verb == "MSG" and overlap(subject, f.subject)]

    def replies(self, request):
        """
        Return the answers to a message.
        """
        return self.answers(request.reply)

    def _start(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, _LONG)
            except OSError:
                client.close()
                continue
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(_LONG)
                self._sockets.append(sock)
            self._client = client
            self._start(self._forward, client, server, self.sent, "drop_sent")
            self._start(self._forward, server, client, self.received, "drop_received")

    def _forward(self, source, sink, record, drop):
        buffer = b""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                buffer += data
                passed, at = [], 0
                while True:
                    frame, size = read_frame(buffer[at:])
                    if frame is None:
                        break
                    record.append(frame)
                    if frame.verb == "SUB":
                        self.subscriptions.append(frame)
                    raw, verdict = buffer[at : at + size], getattr(self, drop)(frame)
                    if verdict == HOLD:
                        self._held.append((sink, raw))
                    elif not verdict:
                        passed.append(raw)
                    at += size
                buffer = buffer[at:]
                with self._writing:
                    sink.sendall(b"".join(passed))
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
