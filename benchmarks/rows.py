"""
What is measured, and who takes part.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.plugins import installed

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    """Variables of its process."""

    command: tuple[str, ...] = ()
    """
    What is started instead of ``python -m benchmarks.worker``: the same with another interpreter,
    or a program that speaks the same protocol.
    """


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

    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Options of all contenders; a peer ignores options that it does not know."""

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
        found = self.extra if self.own else (*CONTENDERS, *self.extra)
        return tuple(replace(each, options={**self.options, **each.options}) for each in found)


RAW = Contender("raw socket", "raw_socket")
RAW_TRACED = Contender("raw socket, with a trace header", "raw_socket", {"traced": True})
NATS_PY = Contender("nats-py", "nats_py", {"loop": "asyncio"})
NATS_PY_UVLOOP = Contender("nats-py, uvloop", "nats_py", {"loop": "uvloop"})
NATSRPY = Contender("natsrpy, uvloop", "natsrpy", {"loop": "uvloop"})
NATSIO = Contender("natsio, uvloop", "natsio", {"loop": "uvloop"})
NATS_GO = Contender("nats.go", "nats_go")
"""Takes part if a run names its program, which is built from ``nats_go/main.go``."""

JETSYNC = Contender("jetsync, asyncio", "jetsync", {"loop": "asyncio"})
JETSYNC_UVLOOP = Contender("jetsync, uvloop", "jetsync", {"loop": "uvloop"})

JETSYNC_PURE = Contender(
    "jetsync (pure Python)", "jetsync", {"loop": "uvloop"}, {"JETSYNC_SPEEDUPS": "0"}
)

CONTENDERS = (
    RAW,
    NATS_PY,
    NATS_PY_UVLOOP,
    NATSRPY,
    NATSIO,
    NATS_GO,
    JETSYNC,
    JETSYNC_UVLOOP,
    JETSYNC_PURE,
)

WORKER = ("-m", "benchmarks.worker")
"""The arguments of an interpreter that works for a contender."""

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


def present(
    contenders: Iterable[Contender], *, go: str | None = None, natsio: str | None = None
) -> list[Contender]:
    """
    Return the contenders that can take part.

    Args:
        contenders: All of them.
        go: The program of nats.go, which is left out without one.
        natsio: An interpreter that has natsio; None for this one.
    """
    found = []
    for each in contenders:
        if each.peer == NATS_GO.peer:
            if go is not None:
                found.append(replace(each, command=(go,)))
        elif each.peer == NATSIO.peer and natsio is not None:
            found.append(replace(each, command=(natsio, *WORKER)))
        else:
            found.append(each)
    return found


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


_ATOMIC = {"allow_atomic": True}
_FAST = {"allow_batched": True}
_DIRECT = {"allow_direct": True}

JOBS = (
    Row("publish", "publish, one at a time", "publish", latency=True),
    Row("publish_many", "publish_many, every ack seen", "publish"),
    Row("publisher", "publisher.publish, a future for each message", "publish"),
    Row(
        "publish_batch",
        "publish_batch, one atomic batch after the other",
        "publish",
        stream_config=_ATOMIC,
        work="atomic",
    ),
    Row(
        "atomic_add",
        "atomic_batch with add, one atomic batch after the other",
        "publish",
        stream_config=_ATOMIC,
        work="atomic",
        options={"add": True},
    ),
    Row(
        "fast_add_many",
        "fast_publisher.add_many",
        "publish",
        stream_config=_FAST,
        work="fast_ingest",
    ),
    Row(
        "fast_add",
        "fast_publisher.add",
        "publish",
        stream_config=_FAST,
        work="fast_ingest",
        options={"add": True},
    ),
    Row("fetch", "fetch, no acks", "read"),
    Row("fetch_ack", "fetch, message.ack() for each message", "read", ack_policy="explicit"),
    Row(
        "fetch_batch_ack",
        "fetch, batch.ack() for each batch",
        "read",
        ack_policy="explicit",
        work="fetch_ack",
        options={"batch_ack": True},
    ),
    Row(
        "consume",
        "consume, no acks",
        "read",
        extra=(Contender("jetsync, handler", "jetsync", {"loop": "uvloop", "handler": True}),),
    ),
    Row(
        "consume_ack",
        "consume, message.ack() for each message",
        "read",
        ack_policy="explicit",
        extra=(
            Contender("jetsync, ack='auto'", "jetsync", {"loop": "uvloop", "auto": True}),
            Contender("jetsync, handler", "jetsync", {"loop": "uvloop", "handler": True}),
        ),
    ),
    Row(
        "ordered",
        "read in order with an ordered consumer",
        "read",
        extra=(Contender("jetsync, fetch", "jetsync", {"loop": "uvloop", "fetch": True}),),
        own_consumer=True,
    ),
    Row(
        "scan",
        "scan, direct reads in pages of 10,000",
        "direct",
        stream_config=_DIRECT,
        batch=10_000,
    ),
    Row(
        "get_last",
        "get_last, a direct read of the last message of a subject",
        "direct",
        latency=True,
        stream_config=_DIRECT,
    ),
    Row("kv_put", "kv.put, one at a time", "publish", latency=True, stream_config=BUCKET),
    Row("kv_get", "kv.get, one at a time", "publish", latency=True, stream_config=BUCKET),
)
"""The main ways to publish and to read: the rows of a run that does not name any."""

VARIATIONS = (
    Row(
        "bulk_variants",
        "publish_many with a plugin that does nothing, and nats-py with a limit on each wait",
        "publish",
        # jetsync never waits without a limit; this is nats-py when it does not either.
        extra=(
            JETSYNC_UVLOOP,
            Contender("jetsync, one idle plugin", "jetsync", {"loop": "uvloop", "plugin": True}),
            Contender("nats-py, bounded wait", "nats_py", {"loop": "uvloop", "wait_stall": 5.0}),
        ),
        own=True,
        work="publish_many",
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
        "scan_1000",
        "scan, direct reads in pages of 1,000",
        "direct",
        stream_config=_DIRECT,
        work="scan",
        batch=1000,
    ),
    Row(
        "get_last_for",
        "read the last messages of 100 subjects directly",
        "direct",
        latency=True,
        stream_config=_DIRECT,
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
"""More rows, for runs that name them."""

ROWS = (*JOBS, *VARIATIONS)
