"""
Mutations of an honest server's frames, as a hostile server makes them.

Each mutation takes a random generator and a frame, and returns the bytes to send instead, or a list
of blocks if these are too many for one.
"""

from __future__ import annotations

import json
import re

from middleman import Frame

HUGE = 99_000_000_000
"""A size that is only declared, never sent."""
CHUNK = 1 << 16
FLOOD = [bytes(CHUNK)] * (96 << 4)
"""The payload of a frame that declares more than any client may keep: 96 MiB."""
LINE = [b"a" * CHUNK] * (8 << 4)
"""8 MiB of a line that does not end."""
DEEP = 50_000

SIZES = [-1, 0, 1, 7, 1 << 31, HUGE, 1 << 64, "+5", "1_0", "0x10", "x", "", "9" * 4300, "٣", "1e3"]
VALUES = [None, -1, 0, True, "text", "", [], [1], {}, {"a": 1}, 1.5, 1 << 64, "\0", "é" * 100]
ERRORS = [
    "Unknown Protocol Operation",
    "Attempted To Connect To Route Port",
    "Authorization Violation",
    "Authentication Timeout",
    "User Authentication Expired",
    "User Authentication Revoked",
    "Account Authentication Expired",
    "Invalid Client Protocol",
    "Maximum Control Line Exceeded",
    "Maximum Connections Exceeded",
    "maximum account active connections exceeded",
    "maximum subscriptions exceeded",
    "Maximum Payload Violation",
    "Parser Error",
    "Secure Connection - TLS Required",
    "Stale Connection",
    "Slow Consumer",
    "Server Shutdown",
    "Invalid Subject",
    'Permissions Violation for Subscription to "quiet"',
    'Permissions Violation for Publish to "chaos.one"',
    "",
    "\0\x1b[31m",
    "x" * 10_000,
]
UNASKED = [
    b"PONG\r\n",
    b"PONG\r\n" * 20,
    b"PING\r\n" * 20,
    b"+OK\r\n",
    b"\r\n",
    b"\n",
    b"\0\0\0\0",
    b"msg x 1 1\r\nx\r\n",
    b"MSG\r\n",
    b"MSG x\r\n",
    b"MSG x 1 y z 4\r\nEVIL\r\n",
    b"MSG stranger 987654 4\r\nEVIL\r\n",
    b"HMSG x 1 12 4\r\nNATS/1.0\r\n\r\nx\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"PUB x 1\r\nx\r\n",
    b"\xff\xfe\xfd\r\n",
    b"-ERR\r\n",
    b"-ERR no quotes\r\n",
]
INFOS = [
    b"null",
    b"[1]",
    b'"text"',
    b"12",
    b"{}",
    b"{",
    b"",
    b"NaN",
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b'{"max_payload":-1}',
    b'{"max_payload":"much"}',
    b'{"max_payload":1e400}',
    b'{"connect_urls":null}',
    b'{"connect_urls":"127.0.0.1:1"}',
    b'{"connect_urls":[null,1,"","[::","127.0.0.1:99999999","nats://","a b:1","127.0.0.1:x"]}',
    b'{"connect_urls":["127.0.0.1:1"]}',
    b'{"ws_connect_urls":[null,{}]}',
    b'{"ldm":"maybe"}',
    b'{"tls_required":true}',
    b'{"nonce":5}',
    b'{"headers":false}',
    b'{"client_id":"x","version":7,"server_name":["forged"],"jetstream":"no"}',
    b'{"server_name":"' + b"x" * 300_000 + b'"}',
]


def flip(chance, frame: Frame) -> bytes:
    raw = bytearray(frame.raw)
    for _ in range(chance.randint(1, 8)):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    return bytes(raw)


def truncate(chance, frame: Frame) -> bytes:
    return frame.raw[: chance.randrange(len(frame.raw))]


def twice(_, frame: Frame) -> bytes:
    return frame.raw * 2


def drop(_chance, _frame: Frame) -> bytes:
    return b""


def unasked(chance, frame: Frame) -> bytes:
    extra = [
        chance.choice(UNASKED),
        f"-ERR '{chance.choice(ERRORS)}'\r\n".encode(),
        b"INFO " + chance.choice(INFOS) + b"\r\n",
    ]
    return frame.raw + chance.choice(extra)


def sizes(chance, frame: Frame) -> list[bytes]:
    """Replace one of the sizes; half of the huge ones are followed by a flood."""
    words = frame.line.split()
    size = chance.choice(SIZES)
    words[chance.choice([-1, -2]) if frame.headers else -1] = str(size).encode()
    flood = FLOOD if size == HUGE and chance.random() < 0.5 else []
    return [b" ".join(words) + b"\r\n" + frame.headers + frame.body, *flood]


def endless_line(chance, _: Frame) -> list[bytes]:
    return [chance.choice([b"MSG ", b"INFO {", b"-ERR '", b""]), *LINE]


def words(chance, frame: Frame) -> bytes:
    """Change the subject, the sid or the reply subject."""
    parts = frame.line.split()
    place = chance.randrange(1, len(parts) - 1) if len(parts) > 2 else 0
    if chance.random() < 0.4 and b"." in parts[place]:
        # One token, such as one of the numbers in an ack subject.
        tokens = parts[place].split(b".")
        tokens[chance.randrange(len(tokens))] = chance.choice([b"", b"x", b"-1", b"9" * 4300])
        parts[place] = b".".join(tokens)
    else:
        parts[place] = chance.choice([b"", b"0", b"-1", b"999999", b"1.5", b"\xff\0", b">", b"*"])
    return b" ".join(parts) + b"\r\n" + frame.headers + frame.body


def header_block(chance, frame: Frame) -> bytes:
    """Replace the headers of a message, or give it some."""
    block = chance.choice(
        [
            b"NATS/1.0 " + b"9" * 4300 + b"\r\n\r\n",
            b"NATS/1.0 abc\r\n\r\n",
            b"NATS/1.0 -1\r\n\r\n",
            b"NATS/1.0 100\r\n\r\n",
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: x\r\n\r\n",
            b"NATS/1.0 404 No Messages\r\n\r\n",
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: -1\r\n\r\n",
            b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
            b"NATS/1.0 409 \xff\xfe\r\n\r\n",
            b"NATS/1.0 503\r\n\r\n",
            b"NATS/9.9\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.0\r\n: empty\r\n\r\n",
            b"NATS/1.0\r\nA: \0\xff\r\n\r\n",
            b"NATS/1.0\r\nNats-Sequence: -1\r\nNats-Stream: \r\nNats-Subject: \r\n\r\n",
            b"NATS/1.0\r\nNats-Sequence: true\r\nNats-Time-Stamp: never\r\n\r\n",
            b"NATS/1.0\r\nNats-TTL: x\r\nNats-Num-Pending: x\r\nKV-Operation: \xff\r\n\r\n",
            b"NATS/1.0",
            b"",
        ]
    )
    parts = frame.line.split()
    middle = parts[1:-2] if frame.headers else parts[1:-1]
    count = [b"%d" % len(block), b"%d" % (len(block) + len(frame.body) - 2)]
    return b" ".join([b"HMSG", *middle, *count]) + b"\r\n" + block + frame.body


def json_body(chance, frame: Frame) -> bytes:
    """Change the JSON that a message carries."""
    text = frame.body[:-2]
    try:
        value = json.loads(text)
    except ValueError:
        return flip(chance, frame)
    kind = chance.randrange(5)
    if kind == 0:
        text = chance.choice([b"[" * DEEP, b'{"a":' * DEEP, b"{", b"null", b"NaN", b"[1]", b'"x"'])
    elif kind == 1:
        text = json.dumps({"error": chance.choice(VALUES)}).encode()
    elif kind == 2:
        number = chance.choice([b"-1", b"true", b"9" * 5000])
        text = re.sub(rb"\d+", number, text, count=1)
    else:
        text = json.dumps(changed(chance, value)).encode()
    words = frame.line.split()[:-1]
    return b" ".join([*words, b"%d" % len(text)]) + b"\r\n" + text + b"\r\n"


def changed(chance, value):
    """Return a JSON value with one of the values in it replaced or left out."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.15:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: changed(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.7:
        return [changed(chance, value[0]), *value[1:]]
    return chance.choice(VALUES)


def info(chance, frame: Frame) -> bytes:
    """Change one field of an INFO, or replace it."""
    if chance.random() < 0.5:
        return b"INFO " + chance.choice(INFOS) + b"\r\n"
    value = changed(chance, json.loads(frame.line[5:]))
    return b"INFO " + json.dumps(value).encode() + b"\r\n"


ANY = [flip, truncate, twice, drop, unasked, unasked, endless_line]
BY_KIND = {
    "INFO": [*ANY, info, info, info, info],
    "MSG": [*ANY, sizes, sizes, words, header_block, json_body, json_body, json_body],
    "HMSG": [*ANY, sizes, sizes, words, header_block, header_block, header_block],
}


def mutate(chance, frame: Frame) -> tuple[str, list[bytes]]:
    """Return the name of a mutation, and the bytes to send."""
    mutation = chance.choice(BY_KIND.get(frame.kind, ANY))
    data = mutation(chance, frame)
    return mutation.__name__, data if isinstance(data, list) else [data]
