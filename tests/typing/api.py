"""
The public API as users write it. Checked by `mypy --strict` and pyright, never run.

`reveal_type` would only print; an annotated assignment fails if the type differs.
"""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Iterator
from typing import Literal

import jetsync
from jetsync.devserver import DevServer

# --- connecting -------------------------------------------------------------------------------


def connecting(context: ssl.SSLContext) -> None:
    """
    Ways to connect, and the methods of a client.
    """
    data = b""
    with jetsync.connect() as client:
        js: jetsync.JetStream = client.jetstream()
        version: str = client.server.version
        level: int = client.server.api_level
        limit: int = client.server.max_payload
        flags: tuple[bool, bool] = (client.is_connected, client.is_closed)
        rtt: float = client.rtt()
        client.flush(timeout=dt.timedelta(seconds=1))
        client.publish("a", "b", headers={"A": ["1", "2"]}, reply="c")
        answer: jetsync.Message = client.request("a", b"", timeout=1)
        with client.subscribe("a", queue="q") as subscription:
            for message in subscription:
                data = message.data
        client.drain(timeout=1)
        client.close()
        print(js, version, level, limit, flags, rtt, answer, data)

    jetsync.connect("nats://a:4222", name="x", connect_timeout=dt.timedelta(seconds=2)).close()
    jetsync.connect(["nats://a", "nats://b"], tls=context, plugins=[object(), "retry"]).close()
    options = jetsync.ConnectOptions(user="u", password="p", loop="asyncio")
    jetsync.connect(options=options).jetstream(domain="hub", timeout=3)
    from_elsewhere: list[jetsync.ConnectOptions] = [
        jetsync.ConnectOptions.from_env(),
        jetsync.ConnectOptions.from_context("prod"),
    ]
    print(from_elsewhere)

    with DevServer(version="2.10.26", cluster=3) as server:
        url: str = server.url
        print(url)


# --- streams and consumers --------------------------------------------------------------------


def managing(js: jetsync.JetStream) -> None:
    """
    Create, change, list and remove streams and consumers.
    """
    config = jetsync.StreamConfig(
        name="ORDERS",
        subjects=["orders.>"],
        allow_atomic=True,
        allow_direct=True,
        allow_msg_ttl=True,
    )
    stream: jetsync.Stream = js.create_stream(config)
    stream = js.create_stream("S", subjects=["s.>"])
    stream = js.create_or_update_stream(config)
    stream = js.update_stream(config)
    stream = js.stream("S")
    names: Iterator[str] = iter(js.stream_names(subject="a"))
    name: str = js.stream_name_by_subject("a.b")
    js.delete_stream("S")

    info: jetsync.StreamInfo = stream.info(subjects_filter=">", deleted_details=True)
    info = stream.cached_info
    purged: int = stream.purge(subject="a", keep=3)
    stream.delete_message(1, secure=True)

    worker: jetsync.Consumer = stream.create_consumer(jetsync.ConsumerConfig(durable_name="worker"))
    worker = js.create_consumer("S", jetsync.ConsumerConfig(durable_name="worker"))
    worker = stream.consumer("worker")
    about: jetsync.ConsumerInfo = worker.info()
    stream.pause_consumer("worker", dt.datetime.now(dt.timezone.utc))
    stream.resume_consumer("worker")
    stream.delete_consumer("worker")
    stream.delete()
    print(names, name, info, purged, about)


# --- publishing -------------------------------------------------------------------------------


def publishing(js: jetsync.JetStream, rows: Iterator[bytes]) -> None:
    """
    Publish one message and many.
    """
    ack: jetsync.PubAck = js.publish(
        "orders.1",
        b"...",
        headers=jetsync.Headers([("A", "1")]),
        msg_id="a-1",
        ttl=3600,
        expect=jetsync.Expect(last_subject_sequence=0),
        timeout=1,
        retries=0,
        retry_wait=0.1,
    )
    ack = js.publish("orders.1", "text", ttl="never")
    ack = js.publish("orders.1", memoryview(b"..."), ttl=dt.timedelta(hours=1))
    sequence: int = ack.sequence
    duplicate: bool = ack.duplicate

    report: jetsync.PublishReport = js.publish_many(("orders.2", row) for row in rows)
    js.publish_many([("orders.1", "a"), ("orders.2", "b", {"A": "1"})])
    js.publish_many([jetsync.OutboundMessage("orders.1", b"", msg_id="x")], window=10)
    try:
        js.publish_many([], ack_timeout=1)
    except jetsync.PublishManyError as error:
        report = error.report
    print(sequence, duplicate, report.count, report.failures)

    with js.publisher(window=4096, on_report=print) as publisher:
        future: jetsync.PublishFuture = publisher.publish("orders.2", b"...", msg_id="y")
        ack = future.result(timeout=1)
        state: tuple[bool, BaseException | None] = (future.done(), future.exception())
        left: int = publisher.flush(timeout=1)
        print(ack, state, left, publisher.pending)


# --- fetching ---------------------------------------------------------------------------------


def fetching(worker: jetsync.Consumer) -> None:
    """
    A batch, one message, and every acknowledgement.
    """
    batch: jetsync.MessageBatch = worker.fetch(100, max_bytes=1 << 20, expires=5, heartbeat=1)
    for message in batch:
        subject: str = message.subject
        data: bytes = message.data
        values: list[str] = message.headers.get_all("A")
        value: str | None = message.headers.get("A")
        stored: dt.datetime = message.metadata.timestamp
        sequence: int = message.sequence
        marker: jetsync.MarkerReason | None = message.marker
        message.ack()
        message.nak(delay=1.5)
        message.in_progress()
        message.term("reason")
        message.ack_sync(timeout=1)
        print(subject, data, values, value, stored, sequence, marker)
    batch.ack()
    worker.fetch(no_wait=True, group="g", min_pending=1, min_ack_pending=1, priority=0)

    one: jetsync.Message | None = worker.next(expires=dt.timedelta(seconds=5))
    print(one)


# --- consuming --------------------------------------------------------------------------------


def consuming(worker: jetsync.Consumer) -> None:
    """
    An iterator, a handler, and how they end.
    """

    def handle(message: jetsync.Message) -> None:
        message.ack()

    with worker.consume(max_messages=100, stop_after=10, ack="auto") as messages:
        for message in messages:
            data: bytes = message.data
            print(data)
        following: jetsync.Message | None = messages.next(timeout=dt.timedelta(seconds=1))
        messages.drain()
    running: jetsync.Consumption = worker.consume(
        handle, threads=4, ordered_by="subject", on_error="leave", keep_alive=True, expires=5
    )
    running.close()
    over: bool = running.wait(timeout=1) and running.closed
    error: BaseException | None = running.error
    counts: jetsync.ConsumptionStatistics = running.statistics()
    print(following, over, error, counts.received, counts.pending)


# --- key-value --------------------------------------------------------------------------------


def keys_and_values(js: jetsync.JetStream) -> None:
    """
    A bucket, its keys, a watch and a transaction.
    """
    kv: jetsync.KeyValue = js.create_key_value(
        jetsync.KeyValueConfig(bucket="B", history=5, ttl=dt.timedelta(hours=1), storage="memory")
    )
    kv = js.create_key_value("B")
    revision: int = kv.put("a", "text", ttl="never")
    revision = kv.update("a", b"x", last=revision) + kv.create("b", b"", ttl=5) + kv.delete("a")
    entry: jetsync.Entry = kv.get("b", revision)
    value: bytes = entry.value
    found: dict[str, jetsync.Entry] = kv.get_many(["a", "b.*"], at=dt.datetime.now(dt.timezone.utc))
    names: list[str] = kv.keys("a.*", "b")
    with kv.watch("a.>", updates_only=True) as watch:
        for each in watch.initial():
            print(each.operation is jetsync.KeyOperation.PUT, each.marker)
        following: jetsync.Entry | None = watch.next(timeout=1.5)
    with kv.atomic(timeout=5) as tx:
        tx.update("a", b"", last=3)
        tx.create("c", b"")
    changed: int = tx.revisions["a"]
    maybe: jetsync.Entry | None = kv.get("a", default=None)
    there: bool = "a" in kv
    document: object = entry.json()
    paths: jetsync.KeyValue = kv.with_codec(keys=jetsync.PathCodec())
    raw: bytes = paths.get("/a").value
    objects = paths.with_codec(values=jetsync.JsonCodec(), on_undecodable=print)
    objects.put("/a", {"left": 2})
    left: int = objects.get("/a").value["left"]
    print(maybe, there, document, raw, left)
    modified: int | None = kv.modify("a", lambda entry: entry.value if entry else None, ttl=5)

    def take(entry: jetsync.Entry | None) -> jetsync.KeyOperation | str:
        return jetsync.KeyOperation.PURGE if entry is None else "0"

    def same_ttl(entry: jetsync.Entry | None) -> float | Literal["never"] | None:
        return None if entry is None else entry.ttl

    modified = kv.modify("a", take, ttl=same_ttl, timeout=dt.timedelta(seconds=5))
    objects.modify("/a", lambda entry: {"left": 1} if entry is None else entry.value)
    status: jetsync.KeyValueStatus = kv.status()
    print(value, found, names, following, changed, modified, status.values)
    print(list(js.key_value_names()))


# --- errors -----------------------------------------------------------------------------------


def counting(js: jetsync.JetStream, stream: jetsync.Stream, moment: dt.datetime) -> None:
    """
    Counters, schedules, and many acknowledgements.
    """
    counter = stream.counter("hits.home")
    value: int = counter.add()
    value = counter.add(-5, msg_id="a", timeout=dt.timedelta(seconds=1)) + counter.load()
    entry: jetsync.CounterEntry = counter.entry()
    value += entry.value + entry.sources["EU"]["hits.eu"]
    entries: dict[str, jetsync.CounterEntry] = stream.counters("hits.>")
    print(value, entries)
    ack: jetsync.PubAck = js.schedule(
        "plan.a", b"x", target="out.a", at=moment, ttl=60, headers={"A": "b"}
    )
    js.schedule("plan.b", target="out.b", every=dt.timedelta(minutes=1), rollup=True)
    js.schedule("plan.c", target="out.c", cron="@daily", time_zone="UTC", source="in.c")
    many: int = jetsync.ack_many(stream.consumer("worker").fetch(10))
    print(ack, many)


def failing(js: jetsync.JetStream) -> None:
    """
    The attributes of errors.
    """
    try:
        js.publish("a", b"")
    except jetsync.WrongLastSequenceError as error:
        last: int | None = error.last_sequence
        code: tuple[int, int] = (error.code, error.err_code)
        print(last, code)
    except jetsync.PublishOutcomeUnknownError as error:
        msg_id: str | None = error.msg_id
        print(msg_id)
    except jetsync.JetSyncError as error:
        root: Exception = error
        print(root)


# --- hooks ------------------------------------------------------------------------------------


class Plugin:
    """
    A plugin that sees every message before it is sent.
    """

    @jetsync.hookimpl
    def jetsync_prepare_message(self, message: jetsync.OutboundMessage) -> jetsync.OutboundMessage:
        """
        Leave the message as it is.
        """
        return message


# --- reading without a consumer -----------------------------------------------------------------


def reading(stream: jetsync.Stream, moment: dt.datetime) -> None:
    """
    Single messages, batches, snapshots of many subjects, whole streams.
    """
    one: jetsync.StoredMessage = stream.get_at(moment, direct=True)
    batch: jetsync.DirectBatch = stream.get_batch(10, sequence=1, subject="a.>", max_bytes=1000)
    left: int | None = batch.pending
    then: jetsync.DirectBatch = stream.get_last_for({"a", "b"}, up_to_time=moment, reread=True)
    with then:
        values: dict[str, bytes] = {message.subject: message.data for message in then}
    gone: tuple[tuple[str, ...], int] = (then.missing, then.vanished)
    scan: jetsync.StreamScan = stream.scan(start_time=one.timestamp_ns, end=9, timeout=1)
    first: jetsync.StoredMessage = next(scan)
    rest: Iterator[jetsync.StoredMessage] = iter(scan)
    scan.close()
    print(left, values, gone, first, rest)
