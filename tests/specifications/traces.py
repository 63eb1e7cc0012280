"""
Record what jetsync and a server say to each other, as traces for traceassert.

    python tests/specifications/traces.py FOLDER [USE ...] [--server VERSION]

https://github.com/synadia-labs/traceassert judges recorded traffic of clients. This script writes
a file ``USE.expanded.json`` for each use, in the format that traceassert reads: JSON lines, one for
each frame. Its example about fast ingest reads the traces ``fastbatch`` and ``single``. To judge
another trace, give it one of these names.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import jetsync

# Found by the line above.
from helpers.wire import Wire
from jetsync.devserver import DevServer
from jetsync.testing import eventually

STREAM, SUBJECT = "TRACED", "TRACED.a"

PING = ".4.$FI"
"""How the reply subject of a ping ends."""


def main() -> int:
    """
    Write the traces.
    """
    parser = argparse.ArgumentParser(description="Write traces for traceassert.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("uses", nargs="*", metavar="USE", help=f"by default all: {', '.join(USES)}")
    parser.add_argument("--server", metavar="VERSION", help="by default the installed version")
    options = parser.parse_args()
    if unknown := set(options.uses) - set(USES):
        parser.error(f"there is no use {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    with DevServer(options.server) as server:
        for name in options.uses or USES:
            lines = record(name, server.url)
            path = options.folder / f"{name}.expanded.json"
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
            sys.stdout.write(f"{path}: {len(lines) - 2} frames\n")
    return 0


def record(name, url):
    """
    Run one use with a client of its own, and return the lines of its trace.
    """
    started, begin, events = datetime.now(timezone.utc), time.monotonic(), []
    # One thread of the proxy forwards what the client sends, another one what the server sends.
    lock = threading.Lock()

    def stamp():
        # The system's clock may be set back meanwhile.
        when = started + timedelta(seconds=time.monotonic() - begin)
        return when.isoformat().replace("+00:00", "Z")

    def note(direction, frame):
        # The proxy notes a frame before it forwards it, so an answer always follows what it
        # answers.
        found = fields(frame)
        with lock:
            # The header is line 1.
            line = {"line": len(events) + 2, "at": stamp(), "dir": direction}
            events.append({**line, **found})
        return False

    first = stamp()
    with Wire(url) as wire:
        # The proxy asks these for each frame whether to drop it.
        wire.drop_sent = lambda frame: note("to_server", frame)
        wire.drop_received = lambda frame: note("from_server", frame)
        with jetsync.connect(wire.url, name=f"jetsync {name}") as client:
            USES[name](client.jetstream(), wire)
            client.jetstream().delete_stream(STREAM)
    header = {"version": 1, "device": "jetsync", "ts": first, "protocol": "client"}
    duration = time.monotonic() - begin
    return [
        {"format": "traceassert-expanded", "version": 2, "header": header},
        *events,
        {"footer": {"ts": stamp(), "duration": int(duration * 1e9)}},
    ]


def fields(frame):
    """
    Return what the format says about one frame.
    """
    found = {"verb": frame.verb, "subject": frame.subject, "reply": frame.reply, "sid": frame.sid}
    data = frame.data
    if frame.verb == "SUB":
        _, *queue, found["sid"] = data.decode().split()
        found["queue"], data = "".join(queue), b""
    elif frame.verb == "UNSUB":
        found["sid"], data = data.decode().split()[0], b""
    elif frame.header is not None:
        found["verb"], found["header"] = f"H{frame.verb}", frame.headers.to_dict()
    found["payload"] = base64.b64encode(data).decode()
    return {name: value for name, value in found.items() if value}


def lose_third(wire):
    """
    Lose the third message of a fast batch on its way to the server.
    """
    note = wire.drop_sent
    wire.drop_sent = lambda frame: note(frame) or frame.reply.endswith(".3.1.$FI")


def fast_stream(js):
    """
    Create a stream that takes fast batches.
    """
    return js.create_stream(STREAM, subjects=[f"{STREAM}.>"], storage="memory", allow_batched=True)


def fast_batch(js, count, *, last=None, **options):
    """
    Publish some messages as a fast batch. The commit has a message if *last* is given.
    """
    publisher = js.fast_publisher(**options)
    for number in range(1, count + 1):
        publisher.add(SUBJECT, b"%d" % number)
    return publisher.commit() if last is None else publisher.commit(SUBJECT, last)


def fastbatch(js, _wire):
    """
    A fast batch, of which the last message commits it.
    """
    fast_stream(js)
    fast_batch(js, 499, gap="ok", flow=100, last=b"500")


def single(js, _wire):
    """
    A fast batch of one message.
    """
    fast_stream(js)
    fast_batch(js, 0, last=b"1")


def fast_end(js, _wire):
    """
    A fast batch that allows no gap, and is committed without a message.
    """
    fast_stream(js)
    fast_batch(js, 50, gap="fail", flow=10)


def fast_headers(js, _wire):
    """
    A fast batch with headers.
    """
    fast_stream(js)
    with js.fast_publisher() as publisher:
        for number in range(5):
            publisher.add(SUBJECT, b"x", headers={"Number": str(number)}, msg_id=f"id-{number}")


def fast_ping(js, wire):
    """
    A fast batch that pauses until it is kept alive by a ping.
    """
    fast_stream(js)
    publisher = js.fast_publisher(flow=2)
    for number in range(3):
        publisher.add(SUBJECT, b"%d" % number)
    eventually(lambda: any(f.reply.endswith(PING) for f in list(wire.sent)), timeout=30)
    publisher.commit(SUBJECT, b"last")


def fast_gap_ok(js, wire):
    """
    A fast batch that loses a message and continues.
    """
    fast_stream(js)
    lose_third(wire)
    fast_batch(js, 20, gap="ok", flow=5, last=b"21")


def fast_gap_fail(js, wire):
    """
    A fast batch that ends at a lost message.
    """
    fast_stream(js)
    lose_third(wire)
    with suppress(jetsync.BatchGapError):
        fast_batch(js, 20, gap="fail", flow=5, last=b"21")


def fast_expect_ok(js, _wire):
    """
    A fast batch that continues after a message that the server refuses.
    """
    fast_stream(js)
    with js.fast_publisher(gap="ok") as publisher:
        publisher.add(SUBJECT, b"1")
        publisher.add(SUBJECT, b"2", expect=jetsync.Expect(last_sequence=77))
        publisher.add(SUBJECT, b"3")


def atomic(js, _wire):
    """
    An atomic batch.
    """
    js.create_stream(STREAM, subjects=[f"{STREAM}.>"], storage="memory", allow_atomic=True)
    with js.atomic_batch() as batch:
        for number in range(5):
            batch.add(SUBJECT, b"%d" % number)


def pulls(js, _wire):
    """
    A fetch, a consumption and an empty fetch.
    """
    stream = js.create_stream(STREAM, subjects=[f"{STREAM}.>"], storage="memory")
    js.publish_many((SUBJECT, b"%d" % number) for number in range(20))
    consumer = stream.create_consumer("worker")
    for message in consumer.fetch(5):
        message.ack()
    with consumer.consume(stop_after=15, ack="auto") as messages:
        list(messages)
    list(consumer.fetch(1, no_wait=True))


def reads(js, _wire):
    """
    Direct reads of single messages and of several.
    """
    stream = js.create_stream(STREAM, subjects=[f"{STREAM}.>"], storage="memory", allow_direct=True)
    for number in range(3):
        js.publish(f"{STREAM}.{number}", b"%d" % number)
    stream.get_last(f"{STREAM}.0")
    stream.get_message(2)
    with suppress(jetsync.MessageNotFoundError):
        stream.get_message(99)
    list(stream.get_last_for(f"{STREAM}.>"))


USES = {
    use.__name__.replace("_", "-"): use
    for use in (
        fastbatch,
        single,
        fast_end,
        fast_headers,
        fast_ping,
        fast_gap_ok,
        fast_gap_fail,
        fast_expect_ok,
        atomic,
        pulls,
        reads,
    )
}
"""What is recorded, by the name of the trace."""


if __name__ == "__main__":
    sys.exit(main())
