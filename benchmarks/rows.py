"""
What is measured, and who takes part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.plugins import installed

Kind = Literal["publish", "read", "direct"]


@dataclass(frozen=True)
class Contender:
    """
    Name one line of a table: a peer, used in one way.
    """

    label: str
    peer: str
    """Module in ``benchmarks/peers``."""

    options: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Row:
    """
    Describe one table: a piece of work that all contenders do.
    """

    name: str
    title: str
    kind: Kind
    """
    ``publish`` starts with an empty stream, ``read`` with a full one and a new consumer, ``direct``
    with a full one.
    """

    latency: bool = False
    """Whether single calls are measured; else the rate is."""

    ack_policy: str = "none"
    """Of the consumer, for rows that read."""

    stream_config: dict[str, Any] = field(default_factory=dict, hash=False)
    """What the stream needs beyond name, subjects and storage: ``{"allow_atomic": True}``, say."""

    extra: tuple[Contender, ...] = ()
    """Contenders of this row only."""

    own: bool = False
    """
    Whether there are no others; the first of them is then what the others are compared with.
    """

    document: bool = False
    """Whether payloads are JSON documents."""

    work: str = ""
    """The peers' method; empty where it is called like the row."""

    batch: int | None = None
    """How many messages one fetch asks for, where it is not what the run says."""

    part: int = 1
    """Which part of the messages of a rate is enough, one in so many."""

    subjects: int = 1
    """How many subjects the messages that are read have; more than one are numbered."""

    own_consumer: bool = False
    """Whether contenders read with a consumer of their own, which they make and count by."""

    @property
    def method(self) -> str:
        """
        The name of the peers' method.
        """
        return self.work or self.name

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """
        Who takes part.
        """
        return self.extra if self.own else (*CONTENDERS, *self.extra)


RAW = Contender("raw socket", "raw_socket")
RAW_TRACED = Contender("raw socket, with a trace header", "raw_socket", {"traced": True})
NATS_PY = Contender("nats-py", "nats_py", {"loop": "asyncio"})
NATS_PY_UVLOOP = Contender("nats-py, uvloop", "nats_py", {"loop": "uvloop"})
NATSRPY = Contender("natsrpy, uvloop", "natsrpy", {"loop": "uvloop"})
JETSYNC = Contender("jetsync, asyncio", "jetsync", {"loop": "asyncio"})
JETSYNC_UVLOOP = Contender("jetsync, uvloop", "jetsync", {"loop": "uvloop"})

CONTENDERS = (RAW, NATS_PY, NATS_PY_UVLOOP, NATSRPY, JETSYNC, JETSYNC_UVLOOP)

BUCKET = {
    "subjects": ["bench.>", "$KV.BENCH.>"],
    "max_msgs_per_subject": 1,
    "allow_direct": True,
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "discard": "new",
}
"""What makes the stream a key-value bucket."""

_BATCH_ACK = Contender("jetsync, batch.ack()", "jetsync", {"loop": "uvloop", "batch_ack": True})

_NEXT = Contender("jetsync, next()", "jetsync", {"loop": "uvloop", "next": True})


def with_plugins() -> tuple[Contender, ...]:
    """
    Return jetsync without plugins, with each that is installed, and with all of them.
    """
    names = installed()
    together = [names] if len(names) > 1 else []
    return (
        Contender("no plugin", "jetsync", {"loop": "uvloop"}),
        *(
            Contender(" + ".join(chosen), "jetsync", {"loop": "uvloop", "plugins": chosen})
            for chosen in [*([name] for name in names), *together]
        ),
    )


ROWS = (
    Row("publish", "publish, one at a time", "publish", latency=True),
    Row(
        "publish_many",
        "publish in bulk, every ack seen",
        "publish",
        extra=(
            # jetsync never waits without a limit; this is nats-py when it does not either.
            Contender("nats-py, bounded wait", "nats_py", {"loop": "uvloop", "wait_stall": 5.0}),
            Contender("jetsync, one idle plugin", "jetsync", {"loop": "uvloop", "plugin": True}),
        ),
    ),
    Row(
        "publisher",
        "publish message by message, a future for each",
        "publish",
        extra=(Contender("jetsync, publish_many", "jetsync", {"loop": "uvloop", "bulk": True}),),
    ),
    Row(
        "atomic",
        "publish atomic batches, one after the other",
        "publish",
        stream_config={"allow_atomic": True},
        extra=(Contender("jetsync, batch.add", "jetsync", {"loop": "uvloop", "add": True}),),
    ),
    Row(
        "fast_ingest",
        "publish by fast ingest",
        "publish",
        stream_config={"allow_batched": True},
        extra=(
            Contender("jetsync, fast.add", "jetsync", {"loop": "uvloop", "add": True}),
            Contender("jetsync, publish_many", "jetsync", {"loop": "uvloop", "bulk": True}),
        ),
    ),
    Row("fetch", "fetch, no acks", "read"),
    Row(
        "fetch_ack",
        "fetch, each message acknowledged",
        "read",
        ack_policy="explicit",
        extra=(_BATCH_ACK,),
    ),
    Row(
        "fetch_1",
        "fetch of one message, no acks",
        "read",
        extra=(_NEXT,),
        work="fetch",
        batch=1,
        part=20,
    ),
    Row(
        "fetch_1_ack",
        "fetch of one message, acknowledged",
        "read",
        ack_policy="explicit",
        extra=(_NEXT,),
        work="fetch_ack",
        batch=1,
        part=20,
    ),
    Row("fetch_100", "fetch of 100, no acks", "read", work="fetch", batch=100),
    Row(
        "fetch_100_ack",
        "fetch of 100, each message acknowledged",
        "read",
        ack_policy="explicit",
        extra=(_BATCH_ACK,),
        work="fetch_ack",
        batch=100,
    ),
    Row("fetch_10000", "fetch of 10,000, no acks", "read", work="fetch", batch=10_000),
    Row(
        "fetch_10000_ack",
        "fetch of 10,000, each message acknowledged",
        "read",
        ack_policy="explicit",
        extra=(_BATCH_ACK,),
        work="fetch_ack",
        batch=10_000,
    ),
    Row(
        "ordered",
        "read in order, with a consumer that is made again where it has to be",
        "read",
        extra=(Contender("jetsync, fetch", "jetsync", {"loop": "uvloop", "fetch": True}),),
        own_consumer=True,
    ),
    Row(
        "consume",
        "consume, no acks",
        "read",
        extra=(Contender("jetsync, handler", "jetsync", {"loop": "uvloop", "handler": True}),),
    ),
    Row(
        "consume_ack",
        "consume, each message acknowledged",
        "read",
        ack_policy="explicit",
        extra=(
            Contender("jetsync, ack='auto'", "jetsync", {"loop": "uvloop", "auto": True}),
            Contender("jetsync, handler", "jetsync", {"loop": "uvloop", "handler": True}),
        ),
    ),
    Row("kv_put", "put keys, one at a time", "publish", latency=True, stream_config=BUCKET),
    Row("kv_get", "get keys, one at a time", "publish", latency=True, stream_config=BUCKET),
    Row("kv_watch", "watch a bucket until all is there", "publish", stream_config=BUCKET, part=8),
    Row(
        "kv_get_many",
        "read a hundred keys at a time",
        "publish",
        stream_config=BUCKET,
        batch=100,
        part=8,
    ),
    Row(
        "scan",
        "read a stream directly, in pages of 1,000",
        "direct",
        stream_config={"allow_direct": True},
        batch=1000,
    ),
    Row(
        "scan_10000",
        "read a stream directly, in pages of 10,000",
        "direct",
        stream_config={"allow_direct": True},
        work="scan",
        batch=10_000,
    ),
    Row(
        "get_last",
        "read the last message of a subject directly",
        "direct",
        latency=True,
        stream_config={"allow_direct": True},
    ),
    Row(
        "get_last_for",
        "read the last messages of 100 subjects directly",
        "direct",
        latency=True,
        stream_config={"allow_direct": True},
        subjects=100,
    ),
    Row(
        "plugins_publish_many",
        "publish in bulk, every ack seen, with plugins",
        "publish",
        # What the headers of tracing cost whoever sends them, and the rest of it.
        extra=(*with_plugins(), RAW, RAW_TRACED),
        own=True,
        work="publish_many",
        document=True,
    ),
    Row(
        "plugins_consume",
        "consume, no acks, with plugins",
        "read",
        extra=with_plugins(),
        own=True,
        work="consume",
        document=True,
    ),
)
