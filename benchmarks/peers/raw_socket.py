"""
A blocking socket and ready-made bytes: the least that any Python client can cost.

It does the protocol's work (every ack and every message is counted by its frame, every ack that is
owed is sent) and nothing else: nothing is decoded, nothing can be lost and found again.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any

from benchmarks.jobs import measured
from benchmarks.peers._buckets import BUCKET, keys_of
from benchmarks.peers._callers import LIMIT, in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.jobs import Job, Sample
    from benchmarks.peers._callers import Running

CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n'
)
PING = b"PING\r\n"
READ_SIZE = 1 << 18

# Publishes that are joined into one write.
BLOCK = 256

# Finds the reply subjects of messages, whose payloads have no such line.
REPLIES = re.compile(rb"MSG \S+ \S+ (\S+) \d+\r\n").findall

# Fast ingest: messages for each ack, and acks that may be outstanding.
FLOW = 500
OUTSTANDING = 2


# What tracing adds to each message (W3C trace context).
TRACED = b"NATS/1.0\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n"

# Line ends of a message in a page of a direct read: HMSG, NATS/1.0, stream, subject, sequence,
# time, how many are left, the one before, the empty line; one behind the payload. And of its end.
DIRECT_LINES = 10
END_LINES = 6


class RawConnection:
    """
    Speak the client protocol over one blocking socket.
    """

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("nats://").partition(":")
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox = b"_INBOX.%b" % secrets.token_hex(8).encode()
        self.send(CONNECT + b"SUB " + self.inbox + b" 1\r\n")
        self._read_until(b"PONG\r\n")
        # A server that has more to say about itself says so with a second INFO; after this it has.
        self.flush()

    def close(self) -> None:
        """
        Close the socket.
        """
        self.socket.close()

    def send(self, data: bytes) -> None:
        """
        Write all of it.
        """
        self.socket.sendall(data)

    def flush(self) -> bytes:
        """
        Wait until the server has seen everything that was sent; return what was left to read.
        """
        self.send(b"PING\r\n")
        return self._read_until(b"PONG\r\n")

    def receive(self) -> bytes:
        """
        Return what is there without the server's own pings, which are answered. May be empty then.
        """
        data = self._read()
        # A ping that is cut by the end of the read would be counted as part of a frame.
        while not data.endswith(b"\n") and PING.startswith(data[data.rfind(b"\n") + 1 :]):
            data += self._read()
        if PING in data:
            self.send(b"PONG\r\n" * data.count(PING))
            data = data.replace(PING, b"")
        return data

    def _read(self) -> bytes:
        data = self.socket.recv(READ_SIZE)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def request(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """
        Make a JSON request, for setting things up.
        """
        data = json.dumps(body or {}).encode()
        self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), self.inbox, len(data), data))
        buffer = b""
        while True:
            buffer += self.receive()
            line, found, rest = buffer.partition(b"\r\n")
            if found:
                size = int(line.split()[-1])
                if len(rest) >= size + 2:
                    answer: dict[str, Any] = json.loads(rest[:size] or b"{}")
                    return answer

    def count_lines(self, wanted: int) -> bytes:
        """
        Read until so many line ends have come; return the last bytes that were read.

        A MSG frame has two line ends, its own and that after its payload, as none of the payloads
        here has any.
        """
        last = b""
        while wanted > 0:
            data = self.receive()
            wanted -= data.count(b"\n")
            last = data
        return last

    def _read_until(self, wanted: bytes) -> bytes:
        buffer = b""
        while wanted not in buffer:
            buffer += self.receive()
        return buffer.replace(wanted, b"")


class Peer:
    """
    Do the rows over a `RawConnection`.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url = url
        self.connection = RawConnection(url)
        self.traced = bool(options.get("traced"))

    def close(self) -> None:
        """
        Close the connection.
        """
        self.connection.close()

    def publish(self, job: Job) -> Sample:
        """
        Publish one message and wait for its ack, again and again.
        """
        return self._timed(job, _publish(job, self.connection.inbox), 2)

    def publish_many(self, job: Job) -> Sample:
        """
        Publish in blocks while the window has room; count the acks.
        """
        connection = self.connection
        message = (_publish_traced if self.traced else _publish)(job, connection.inbox)
        block = message * BLOCK
        sent = acked = lines = 0
        with measured(job.count) as sample:
            while acked < job.count:
                while sent < job.count and sent - acked + BLOCK <= job.window:
                    size = min(BLOCK, job.count - sent)
                    connection.send(block if size == BLOCK else message * size)
                    sent += size
                data = connection.receive()
                if b'"error"' in data:
                    raise ConnectionError(data)
                lines += data.count(b"\n")
                acked = lines // 2
        return sample

    publisher = publish_many

    def atomic(self, job: Job) -> Sample:
        """
        Send a ready-made batch, of which only the last message asks for an answer; then the next.
        """
        connection = self.connection
        left = job.count
        whole = _atomic(job, connection.inbox, job.batch)
        with measured(job.count) as sample:
            while left:
                size = min(job.batch, left)
                connection.send(
                    whole if size == job.batch else _atomic(job, connection.inbox, size)
                )
                if b'"error"' in connection.count_lines(2):
                    raise ConnectionError("a batch was refused")
                left -= size
        return sample

    def fast_ingest(self, job: Job) -> Sample:
        """
        Send ready-made blocks while no more than two of them are unconfirmed; read the acks.
        """
        connection = self.connection
        prefix = b"%b.%b" % (connection.inbox, secrets.token_hex(4).encode())
        connection.send(b"SUB %b.> 2\r\n" % prefix)
        blocks = _fast(job, prefix)
        acks = Acks(connection)
        with measured(job.count) as sample:
            connection.send(blocks[0])
            acks.read()
            sent = 1
            for block in blocks[1:]:
                while sent - acks.covered > FLOW * (OUTSTANDING - 1):
                    acks.read()
                connection.send(block)
                sent += FLOW
            while acks.count is None:
                acks.read()
        connection.send(b"UNSUB 2\r\n")
        if acks.count != job.count:
            raise ConnectionError(f"{acks.count} messages were taken")
        return sample

    def fetch(self, job: Job) -> Sample:
        """
        Pull a batch, count its frames, pull the next.
        """
        connection = self.connection
        pulls = _pulls(job, connection.inbox)
        with measured(job.count) as sample:
            for pull, size in pulls:
                connection.send(pull)
                if b"\nHMSG" in connection.count_lines(2 * size):
                    raise ConnectionError("a status instead of a message")
        return sample

    def fetch_ack(self, job: Job) -> Sample:
        """
        Pull a batch, find the reply subjects, acknowledge the messages of each read.
        """
        connection = self.connection
        pulls = _pulls(job, connection.inbox)
        with measured(job.count) as sample:
            for pull, size in pulls:
                connection.send(pull)
                _acknowledge(connection, size)
            connection.flush()
        return sample

    def consume(self, job: Job) -> Sample:
        """
        Ask for all of them at once, and count frames.
        """
        connection = self.connection
        pull = _pull(job, connection.inbox, job.count)
        with measured(job.count) as sample:
            connection.send(pull)
            if b"\nHMSG" in connection.count_lines(2 * job.count):
                raise ConnectionError("a status instead of a message")
        return sample

    consume_ack = fetch_ack
    ordered = consume

    def scan(self, job: Job) -> Sample:
        """
        Ask for a page, count its lines, ask for the next.
        """
        connection = self.connection
        begin = 1
        with measured(job.count) as sample:
            while begin <= job.count:
                size = min(job.batch, job.count - begin + 1)
                # Not limited in bytes: a blocking socket that does nothing else drains any page.
                body = json.dumps({"batch": size, "seq": begin}).encode()
                connection.send(_direct(job, connection.inbox, body))
                connection.count_lines(size * DIRECT_LINES + END_LINES)
                begin += size
        return sample

    def get_last(self, job: Job) -> Sample:
        """
        Ask for the last message, again and again.
        """
        request = _direct(job, self.connection.inbox, b"", f".{job.subject}")
        # Two of its lines are only in pages.
        return self._timed(job, request, DIRECT_LINES - 2)

    def get_last_for(self, job: Job) -> Sample:
        """
        Ask for the last messages of all subjects, again and again.
        """
        body = json.dumps({"multi_last": job.names()}).encode()
        request = _direct(job, self.connection.inbox, body)
        # Its end has one line more than that of a batch.
        return self._timed(job, request, job.subjects * DIRECT_LINES + END_LINES + 1)

    def kv_put(self, job: Job) -> Sample:
        """
        Publish the value of one key after the other.
        """
        inbox, payload = self.connection.inbox, job.payload()
        return self._each(job, [_pub(key, inbox, payload) for key in _key_subjects(job)], 2)

    def kv_get(self, job: Job) -> Sample:
        """
        Ask for the last message of one key after the other.
        """
        connection, payload = self.connection, job.payload()
        for subject in _key_subjects(job):
            connection.send(_pub(subject, connection.inbox, payload))
            connection.count_lines(2)
        requests = [_direct(job, connection.inbox, b"", f".{key}") for key in _key_subjects(job)]
        return self._each(job, requests, DIRECT_LINES - 2)

    def concurrent(self, job: Job) -> Sample:
        """
        Publish, or read, from several threads with a connection each, and publish in bulk with
        another one.

        If the options say so, all share one connection instead. Then one thread does the work of
        all of them: it sends the next message of a caller when it has read the ack of the last one.
        """
        if job.options.get("one"):
            return self._share(job)
        publishers = [RawConnection(self.url) for _ in range(job.options["callers"] + 1)]

        def call(connection: RawConnection) -> Callable[[], None]:
            message, lines = _publish(job, connection.inbox), 2
            if job.options.get("call") == "get_last":
                message = _direct(job, connection.inbox, b"", f".{job.subject}")
                lines = DIRECT_LINES - 2

            def ask() -> None:
                connection.send(message)
                connection.count_lines(lines)

            return ask

        def bulk(running: Running) -> int:
            connection = publishers[-1]
            block = _publish(job, connection.inbox) * BLOCK
            sent = lines = 0
            while running() or lines // 2 < sent:
                while running() and sent - lines // 2 + BLOCK <= job.window:
                    connection.send(block)
                    sent += BLOCK
                if lines // 2 < sent:
                    lines += connection.receive().count(b"\n")
            return sent

        try:
            return in_threads(job, list(map(call, publishers[:-1])), bulk)
        finally:
            for connection in publishers:
                connection.close()

    def _share(self, job: Job) -> Sample:
        callers, connection = job.options["callers"], self.connection
        window = job.window if job.options["bulk"] else 0
        payload = job.payload()
        # Caller n gets its acks at .n, the bulk publish at .b.
        messages = [
            _pub(job.subject, b"%b.%d" % (connection.inbox, n), payload) for n in range(callers)
        ]
        block = _pub(job.subject, connection.inbox + b".b", payload) * BLOCK
        connection.send(b"SUB %b.* 2\r\n" % connection.inbox)
        open_bulk = background = 0
        begins, times, now = [0] * callers, [], time.perf_counter_ns
        answered = Answered(connection)
        with measured(job.count) as sample:
            started = min(callers, job.count)
            for n in range(started):
                begins[n] = now()
                connection.send(messages[n])
            end = begins[0] + int(LIMIT * 1e9)
            while len(times) < job.count and now() < end:
                while open_bulk + BLOCK <= window:
                    connection.send(block)
                    open_bulk += BLOCK
                    background += BLOCK
                for name in answered.read():
                    if name == b"b":
                        open_bulk -= 1
                        continue
                    n = int(name)
                    times.append(now() - begins[n])
                    if started < job.count:
                        started += 1
                        begins[n] = now()
                        connection.send(messages[n])
        sample.count = started
        waiting = open_bulk + started - len(times)
        while waiting:
            waiting -= len(answered.read())
        connection.send(b"UNSUB 2\r\n")
        sample.latencies(times)
        if window:
            sample.background, sample.background_seconds = background, sample.seconds
        return sample

    def _timed(self, job: Job, request: bytes, lines: int) -> Sample:
        return self._each(job, [request] * job.count, lines)

    def _each(self, job: Job, requests: Sequence[bytes], lines: int) -> Sample:
        connection = self.connection
        times = []
        now = time.perf_counter_ns
        # An answer that is left from before would be taken for that of the next request.
        connection.flush()
        with measured(job.count) as sample:
            for request in requests:
                begin = now()
                connection.send(request)
                connection.count_lines(lines)
                times.append(now() - begin)
        if connection.flush():
            raise ConnectionError("there was more than one answer to a request")
        sample.latencies(times)
        return sample


def _direct(job: Job, inbox: bytes, body: bytes, subject: str = "") -> bytes:
    where = f"$JS.API.DIRECT.GET.{job.stream}{subject}".encode()
    return b"PUB %b %b %d\r\n%b\r\n" % (where, inbox, len(body), body)


def _pub(subject: str, inbox: bytes, payload: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(payload), payload)


def _publish(job: Job, inbox: bytes) -> bytes:
    return _pub(job.subject, inbox, job.payload())


def _key_subjects(job: Job) -> list[str]:
    return [f"$KV.{BUCKET}.{key}" for key in keys_of(job)]


def _publish_traced(job: Job, inbox: bytes) -> bytes:
    size, payload = len(TRACED), job.payload()
    sizes = b"%d %d" % (size, size + len(payload))
    return b"HPUB %b %b %b\r\n%b%b\r\n" % (job.subject.encode(), inbox, sizes, TRACED, payload)


class Answered:
    """
    Whose acks have come, by the last token of their subjects.
    """

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection
        self._rest = b""

    def read(self) -> list[bytes]:
        """
        Read what is there.
        """
        *lines, self._rest = (self._rest + self._connection.receive()).split(b"\r\n")
        names = []
        for line in lines:
            if line.startswith(b"MSG "):
                names.append(line.split(b" ", 2)[1].rpartition(b".")[2])
            elif b'"error"' in line:
                raise ConnectionError(line)
        return names


class Acks:
    """
    What a server says to fast ingest: how far it is, and how much it was in the end.
    """

    def __init__(self, connection: RawConnection) -> None:
        self.covered = 0
        self.count: int | None = None
        self._connection = connection
        self._rest = b""

    def read(self) -> None:
        """
        Read what is there.
        """
        *lines, self._rest = (self._rest + self._connection.receive()).split(b"\r\n")
        for line in lines:
            if line.startswith(b"{"):
                answer = json.loads(line)
                if "error" in answer:
                    raise ConnectionError(line)
                if answer.get("type") == "ack":
                    self.covered = max(self.covered, answer["seq"])
                self.count = answer.get("count", self.count)


def _atomic(job: Job, inbox: bytes, size: int) -> bytes:
    """
    Return all of a batch. Its id may be used again once the batch has ended.
    """
    payload, pieces = job.payload(), []
    for number in range(1, size + 1):
        commit = b"Nats-Batch-Commit: 1\r\n" if number == size else b""
        header = b"NATS/1.0\r\nNats-Batch-Id: raw\r\nNats-Batch-Sequence: %d\r\n%b\r\n" % (
            number,
            commit,
        )
        sizes = len(header), len(header) + len(payload)
        reply = inbox if commit else b""
        pieces.append(
            b"HPUB %b %b %d %d\r\n%b%b\r\n" % (job.subject.encode(), reply, *sizes, header, payload)
        )
    return b"".join(pieces)


def _fast(job: Job, prefix: bytes) -> list[bytes]:
    """
    Return the first message, which starts a batch, then blocks of the others; the last one commits.
    """
    subject, payload = job.subject.encode(), job.payload()
    messages = []
    for number in range(1, job.count + 1):
        operation = 0 if number == 1 else 2 if number == job.count else 1
        reply = b"%b.%d.fail.%d.%d.$FI" % (prefix, FLOW, number, operation)
        messages.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))
    starts = range(1, len(messages), FLOW)
    return [messages[0], *(b"".join(messages[start : start + FLOW]) for start in starts)]


def _pulls(job: Job, inbox: bytes) -> list[tuple[bytes, int]]:
    """
    Return a pull for each batch, the last of which may be smaller, and how many it asks for.
    """
    whole, rest = divmod(job.count, job.batch)
    pulls = [(_pull(job, inbox), job.batch)] * whole
    return [*pulls, (_pull(job, inbox, rest), rest)] if rest else pulls


def _pull(job: Job, inbox: bytes, batch: int = 0) -> bytes:
    body = json.dumps({"batch": batch or job.batch, "expires": 30_000_000_000}).encode()
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{job.stream}.{job.consumer}".encode()
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, inbox, len(body), body)


def _acknowledge(connection: RawConnection, count: int) -> None:
    """
    Read so many messages, and acknowledge those of each read in one write.
    """
    rest = b""
    while count > 0:
        data = rest + connection.receive()
        end = data.rfind(b"\n") + 1
        replies, rest = REPLIES(data[:end]), data[end:]
        if replies:
            connection.send(b"".join([b"PUB %b 4\r\n+ACK\r\n" % reply for reply in replies]))
            count -= len(replies)
