"""
`jetsync check`: streams, consumers, servers and buckets for monitoring systems.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import click

from jetsync._io.tls import asks_tls
from jetsync.cli._checks import (
    METADATA,
    CheckGroup,
    Level,
    Result,
    Threshold,
    check_of,
    limits_of,
    options_of,
)
from jetsync.cli._connection import connect, jetstream
from jetsync.cli._name_completion import bucket_argument, consumer_argument, stream_argument
from jetsync.cli._output import duration
from jetsync.cli.doctor import ask_servers, unhealthy
from jetsync.errors import ApiError, KeyNotFoundError, NoRespondersError
from jetsync.monitoring import Monitor, samples
from jetsync.monitoring.metrics import SILENT, leader, replica_lag
from jetsync.monitoring.monitor import age
from jetsync.values.subjects import validate_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    import jetsync
    from jetsync.monitoring import ConsumerReading
    from jetsync.values.stream_info import StreamInfo

PEERS: Final = (
    Threshold("peer-lag", "operations behind at the slowest follower"),
    Threshold(
        "peer-seen", "time since a follower was last seen", "s", defaults={"critical": SILENT}
    ),
)
FULL: Final = (Threshold("full", "of the limit of messages or bytes used", "%"),)
STREAM: Final = (
    Threshold("msgs", "messages", below=True),
    Threshold("subjects", "subjects"),
    Threshold("lag", "messages that a mirror or source has not copied"),
    Threshold("seen", "time since a mirror or source was last active", "s"),
    *FULL,
    *PEERS,
)
CONSUMER: Final = (
    Threshold("unprocessed", "unprocessed messages"),
    Threshold("outstanding-ack", "unacknowledged messages in flight"),
    Threshold("redelivery", "redelivered messages in flight"),
    Threshold("oldest", "age of the oldest unacknowledged message", "s"),
    Threshold("last-delivery", "time since the last delivery", "s"),
    Threshold("last-ack", "time since the last acknowledgement", "s"),
    Threshold("waiting", "waiting pulls"),
    *PEERS,
)
BUCKET: Final = (Threshold("values", "values"), *FULL, *PEERS)
CONNECTION: Final = (
    Threshold("connect", "time to connect", "s", defaults={"warn": 0.5, "critical": 1.0}),
    Threshold("rtt", "round trip", "s", defaults={"warn": 0.5, "critical": 1.0}),
)
ACCOUNT: Final = (
    Threshold("store", "of the disk limit used", "%", defaults={"warn": 75, "critical": 90}),
    Threshold("mem", "of the memory limit used", "%", defaults={"warn": 75, "critical": 90}),
    Threshold("streams", "of the limit of streams used", "%"),
    Threshold("consumers", "of the limit of consumers used", "%"),
)
SERVERS: Final = (
    Threshold("cpu", "CPU at the busiest server", "%"),
    Threshold("conn", "connections at the server with most of them"),
    Threshold("subs", "subscriptions at the server with most of them"),
    Threshold("uptime", "time since the youngest server started", "s", below=True),
)

# Enough for a median that one slow answer does not move.
_PINGS: Final = 5

expect_option = click.option(
    "--peer-expect",
    type=click.IntRange(min=1),
    metavar="N",
    help="CRITICAL unless there are N replicas, the leader included.",
)


@click.group(cls=CheckGroup)
def check() -> None:
    """
    Check streams, consumers, servers and buckets, for monitoring systems.

    The exit code is 0 for OK, 1 for WARNING, 2 for CRITICAL and 3 for UNKNOWN, as Nagios, Icinga
    and others expect it. The line has the values after a `|`. Limits may also be in the metadata of
    a stream or consumer, under io.nats.monitor. and the name of the option.
    """


@check.command("stream")
@stream_argument
@options_of(STREAM)
@click.option("--min-sources", type=click.IntRange(min=0), metavar="N", help="CRITICAL if fewer.")
@click.option("--max-sources", type=click.IntRange(min=0), metavar="N", help="CRITICAL if more.")
@expect_option
def check_stream(*, options: jetsync.ConnectOptions, stream: str, **given: Any) -> Result:
    """
    Check the size, the sources and the replicas of STREAM.

    Without limits, the check is OK if the stream has a leader.
    """
    info, result = read_stream(options, validate_name("stream", stream), "stream", stream)
    sources = [*([info.mirror] if info.mirror else []), *info.sources]
    metadata = info.config.metadata
    fewest = number_of("min-sources", given, metadata)
    if fewest is not None and len(sources) < fewest:
        result.problem(Level.CRITICAL, f"{len(sources)} sources, fewer than {fewest}")
    most = number_of("max-sources", given, metadata)
    if most is not None and len(sources) > most:
        result.problem(Level.CRITICAL, f"{len(sources)} sources, more than {most}")
    values: dict[str, float | None] = {
        "msgs": info.state.messages,
        "subjects": info.state.num_subjects,
        **fullness(info),
        **peers(result, info.cluster, number_of("peer-expect", given, metadata)),
    }
    if sources:
        values["lag"] = max(each.lag for each in sources)
        values["seen"] = longest(each.active for each in sources)
        for each in sources:
            if each.error:
                result.problem(
                    Level.CRITICAL, f"source {each.name}: {each.error.get('description', 'failed')}"
                )
    result.judge(STREAM, values, limits_of(STREAM, given, metadata))
    return result


@check.command("consumer")
@stream_argument
@consumer_argument
@options_of(CONSUMER)
@click.option(
    "--pinned", is_flag=True, help="CRITICAL unless each priority group has a pinned client."
)
@expect_option
def check_consumer(
    *, options: jetsync.ConnectOptions, stream: str, name: str, pinned: bool, **given: Any
) -> Result:
    """
    Check what the consumer NAME of STREAM has not delivered or not acknowledged yet.

    The values come from the server, so they are also true if all workers are dead. Without limits,
    the check is OK if the consumer has a leader.
    """
    # A monitor takes patterns, too.
    one, other = validate_name("stream", stream), validate_name("consumer", name)
    monitor = Monitor(jetstream(options), streams=[one], consumers=[other], account=False)
    reading = monitor.read(timeout=options.request_timeout)
    check_of(reading)
    (consumer,) = reading.streams[0].consumers
    info = consumer.info
    result = Result("consumer", f"{stream}/{name}", samples=list(samples(reading)))
    metadata = info.config.metadata
    result.judge(
        CONSUMER,
        {
            **consumer_values(consumer),
            **peers(result, info.cluster, number_of("peer-expect", given, metadata)),
        },
        limits_of(CONSUMER, given, metadata),
    )
    if info.paused:
        result.notes.append("paused")
    if pinned or (metadata or {}).get(f"{METADATA}pinned") == "true":
        groups = {each.group: each.pinned_client_id for each in info.priority_groups}
        wanted = info.config.priority_groups or ()
        free = [name for name in wanted if not groups.get(name)]
        if free or not wanted:
            text = f"no client is pinned in {', '.join(free)}" if free else "no priority groups"
            result.problem(Level.CRITICAL, text)
    return result


def consumer_values(consumer: ConsumerReading) -> dict[str, float | None]:
    """
    Return the values of a consumer.

    What never happened counts from the creation of the consumer.
    """
    info = consumer.info
    return {
        "unprocessed": info.num_pending,
        "outstanding-ack": info.num_ack_pending,
        "redelivery": info.num_redelivered,
        "oldest": consumer.oldest_age,
        "last-delivery": age(info.ts, info.delivered.last_active or info.created),
        "last-ack": age(info.ts, info.ack_floor.last_active or info.created),
        "waiting": info.num_waiting,
    }


@check.command("bucket")
@bucket_argument
@options_of(BUCKET)
@click.option("--key", metavar="KEY", help="CRITICAL unless this key has a value.")
@expect_option
def check_bucket(
    *, options: jetsync.ConnectOptions, bucket: str, key: str | None, **given: Any
) -> Result:
    """
    Check the key-value bucket BUCKET.

    Without limits, the check is OK if the bucket has a leader.
    """
    store = jetstream(options).key_value(bucket)
    info, result = read_stream(options, f"KV_{bucket}", "bucket", bucket)
    metadata = info.config.metadata
    values: dict[str, float | None] = {
        "values": info.state.messages,
        **fullness(info),
        **peers(result, info.cluster, number_of("peer-expect", given, metadata)),
    }
    result.judge(BUCKET, values, limits_of(BUCKET, given, metadata))
    if key is not None:
        try:
            store.get(key)
        except KeyNotFoundError:
            result.problem(Level.CRITICAL, f"key {key} has no value")
    return result


@check.command("server")
@options_of((*CONNECTION, *ACCOUNT, *SERVERS))
@click.option(
    "--expect",
    type=click.IntRange(min=1),
    metavar="N",
    help="CRITICAL unless N servers answer. Needs a user of the system account.",
)
@click.option("--tls-required", is_flag=True, help="CRITICAL unless the connection uses TLS.")
@click.option("--auth-required", is_flag=True, help="CRITICAL unless the server asks for a login.")
@click.option("--js-required", is_flag=True, help="CRITICAL unless the account has JetStream.")
def check_server(
    *,
    options: jetsync.ConnectOptions,
    expect: int | None,
    tls_required: bool,
    auth_required: bool,
    js_required: bool,
    **given: Any,
) -> Result:
    """
    Check the connection, the limits of the account, and the health of all servers.

    The last one needs a user of the system account, as --expect and the limits for CPU,
    connections, subscriptions and uptime do.
    """
    thresholds = (*CONNECTION, *ACCOUNT, *SERVERS)
    limits = limits_of(thresholds, given)
    start = time.perf_counter()
    with connect(options) as client:
        server = client.server
        result = Result("server", server.server_name or server.server_id)
        values: dict[str, float | None] = {
            "connect": time.perf_counter() - start,
            "rtt": statistics.median(client.rtt() for _ in range(_PINGS)),
        }
        if tls_required and not (server.raw.get("tls_required") is True or asks_tls(options)):
            result.problem(Level.CRITICAL, "the connection does not use TLS")
        if auth_required and server.raw.get("auth_required") is not True:
            result.problem(Level.CRITICAL, "the server asks for no login")
        try:
            values |= usage(client.jetstream().account_info())
        except (ApiError, NoRespondersError) as error:
            if js_required:
                result.problem(Level.CRITICAL, str(error))
        values |= server_values(client, result, expect)
    if "cpu" not in values and any(name in limits for each in SERVERS for _, name in each.names()):
        result.problem(Level.UNKNOWN, "only a user of the system account can ask the servers")
    result.judge(thresholds, values, limits)
    return result


def usage(account: jetsync.AccountInfo) -> dict[str, float | None]:
    """
    Return what an account uses of its limits, in percent. What has no limit is left out.
    """
    limits = account.limits
    used = {
        "store": (account.storage, limits.max_storage),
        "mem": (account.memory, limits.max_memory),
        "streams": (account.streams, limits.max_streams),
        "consumers": (account.consumers, limits.max_consumers),
    }
    return {name: 100 * count / limit for name, (count, limit) in used.items() if limit > 0}


def server_values(
    client: jetsync.Client, result: Result, expect: int | None
) -> dict[str, float | None]:
    """
    Return the values of all servers, and add what is wrong with them.
    """
    servers = ask_servers(client)
    if not servers:
        if expect is not None:
            result.problem(Level.UNKNOWN, "only a user of the system account can ask the servers")
        return {}
    if expect is not None and len(servers) != expect:
        result.problem(Level.CRITICAL, f"{len(servers)} servers answer, not {expect}")
    for problem in unhealthy(servers):
        result.problem(Level.CRITICAL, problem)
    return {
        "cpu": max(varz.cpu for varz, _ in servers),
        "conn": max(varz.connections for varz, _ in servers),
        "subs": max(varz.subscriptions for varz, _ in servers),
        "uptime": min((age(varz.now, varz.start) or 0.0) for varz, _ in servers),
    }


def read_stream(
    options: jetsync.ConnectOptions, stream: str, check: str, name: str
) -> tuple[StreamInfo, Result]:
    """
    Read a stream without its consumers, and begin the result.
    """
    monitor = Monitor(jetstream(options), streams=[stream], consumers=(), account=False)
    reading = monitor.read(timeout=options.request_timeout)
    check_of(reading)
    info = reading.streams[0].info
    assert info is not None
    return info, Result(check, name, samples=list(samples(reading)))


def fullness(info: StreamInfo) -> dict[str, float | None]:
    """
    Return how full a stream is, in percent of its nearer limit. Nothing if it has none.
    """
    limits = (
        (info.state.messages, info.config.max_msgs or 0),
        (info.state.bytes, info.config.max_bytes or 0),
    )
    shares = [100 * used / limit for used, limit in limits if limit > 0]
    return {"full": max(shares)} if shares else {}


def peers(
    result: Result, cluster: jetsync.ClusterInfo | None, expect: int | None
) -> dict[str, float | None]:
    """
    Return the values of the followers, and add what is wrong with the replicas.
    """
    followers = cluster.replicas if cluster else []
    if leader(cluster) is None:
        result.problem(Level.CRITICAL, "no leader")
    if expect is not None and len(followers) + 1 != expect:
        result.problem(Level.CRITICAL, f"{len(followers) + 1} of {expect} replicas")
    for each in followers:
        level, what = state_of(each)
        if level is not Level.OK:
            result.problem(level, f"replica {each.name or each.peer} {what}")
    if not followers:
        return {}
    seen = longest(each.active for each in followers if each.current or each.active)
    return {"peer-lag": replica_lag(cluster), "peer-seen": seen}


def state_of(follower: jetsync.PeerInfo) -> tuple[Level, str]:
    """
    Return what is wrong with a follower, and how bad it is.
    """
    seen = f", last seen {duration(round(follower.active))} ago" if follower.active else ""
    if follower.offline:
        return Level.CRITICAL, f"is offline{seen}"
    if follower.current:
        return Level.OK, ""
    if not seen:
        # Servers do not report such a replica as offline, and 0 is not the time.
        return Level.CRITICAL, "was not seen by the leader"
    # Under load, a follower may be a few operations behind for a moment.
    return Level.WARNING, "is not up to date"


def longest(times: Iterable[float | None]) -> float | None:
    """
    Return the longest of some times, and None if one of them is not known.
    """
    found = list(times)
    return None if None in found else max(filter(None, found), default=0.0)


def number_of(option: str, given: dict[str, Any], metadata: dict[str, str] | None) -> int | None:
    """
    Return a number from the command line or from the metadata.
    """
    limit: int | None = given.get(option.replace("-", "_"))
    text = (metadata or {}).get(METADATA + option, "")
    return int(text) if limit is None and text.isdecimal() else limit
