"""
`jetsync consumer`: list, show, add, read and remove the consumers of a stream.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

import jetsync
from jetsync.cli._connection import Group, connect, jetstream
from jetsync.cli._name_completion import consumer_argument, stream_argument
from jetsync.cli._output import (
    GOOD,
    NAME,
    WARNING,
    Styled,
    confirm,
    duration,
    force_option,
    json_option,
    limit,
    moment,
    print_json,
    print_list,
    print_pairs,
    say,
    until_output_closes,
    warn,
)
from jetsync.cli._units import duration_option, durations_of, number_option, since_option
from jetsync.cli.tail import show_of, show_options
from jetsync.values.codec import to_wire

if TYPE_CHECKING:
    import datetime as dt

    from jetsync.values.consumer_config import AckPolicyInput, DeliverPolicyInput

ANSWERS: Final = ("ack", "nak", "term", "none")
"""What `consumer next` may do with a message after it has printed it."""

COUNTS: Final = ("pending", "unacknowledged", "redelivered", "waiting pulls")
"""The titles of :func:`counts`."""


@click.group(cls=Group)
def consumer() -> None:
    """
    List, show, add, read and remove consumers.
    """


@consumer.command("ls")
@stream_argument
@json_option
def list_consumers(*, options: jetsync.ConnectOptions, stream: str, as_json: bool) -> None:
    """
    List the consumers of STREAM.
    """
    infos = [each.cached_info for each in jetstream(options).stream(stream).consumers()]
    print_list(
        sorted(infos, key=lambda info: info.name),
        as_json=as_json,
        as_dict=to_wire,
        row=lambda info: {
            "consumer": info.name,
            **counts(info),
            "last ack": moment(info.ack_floor.last_active) or "never",
        },
        numbers=COUNTS,
        nothing=f"{stream} has no consumers.",
    )


def counts(info: jetsync.ConsumerInfo) -> dict[str, str]:
    """
    Return the numbers of messages and pulls that wait.
    """
    found = (info.num_pending, info.num_ack_pending, info.num_redelivered, info.num_waiting)
    return {name: f"{count:,}" for name, count in zip(COUNTS, found, strict=True)}


@consumer.command("info")
@stream_argument
@consumer_argument
@json_option
def show_consumer(
    *, options: jetsync.ConnectOptions, stream: str, name: str, as_json: bool
) -> None:
    """
    Show the configuration and state of the consumer NAME of STREAM.
    """
    info = jetstream(options).consumer(stream, name).info()
    if as_json:
        print_json(to_wire(info))
        return
    config = info.config
    filters = config.filter_subjects or ([config.filter_subject] if config.filter_subject else ())
    print_pairs(
        [
            ("consumer", Styled(info.name, NAME)),
            ("stream", info.stream_name),
            ("description", config.description),
            ("created", moment(info.created)),
            ("durable", "yes" if config.durable_name else "no"),
            ("filters", ", ".join(filters)),
            ("delivers", config.deliver_policy and config.deliver_policy.value),
            ("acknowledgement", config.ack_policy and config.ack_policy.value),
            ("ack wait", duration(config.ack_wait) if config.ack_wait else None),
            ("backoff", ", ".join(map(duration, config.backoff or ()))),
            ("max deliver", config.max_deliver and limit(config.max_deliver)),
            ("max ack pending", config.max_ack_pending and limit(config.max_ack_pending)),
            ("leader", info.cluster and info.cluster.leader),
            (
                "paused",
                Styled(f"until {moment(config.pause_until)}", WARNING) if info.paused else None,
            ),
        ]
    )
    say()
    print_pairs(
        [
            *counts(info).items(),
            ("delivered up to", f"{info.delivered.stream_seq:,} of the stream"),
            ("acknowledged up to", f"{info.ack_floor.stream_seq:,} of the stream"),
        ]
    )


@consumer.command("add")
@stream_argument
@click.argument("name")
@click.option("--description", metavar="TEXT", help="Description of the consumer.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="FILTER",
    help="Deliver only messages whose subject matches FILTER. May be repeated.",
)
@click.option(
    "--deliver",
    type=click.Choice(["all", "last", "new", "last_per_subject"]),
    help="Which messages to begin with.  [default: all]",
)
@number_option("--seq", help="Begin at sequence N.")
@since_option
@click.option(
    "--ack",
    type=click.Choice(["explicit", "all", "none"]),
    help="How messages are acknowledged: each one, each together with all earlier ones, or not at"
    " all.  [default: explicit]",
)
@duration_option(
    "--ack-wait",
    help="Redeliver a message that is not acknowledged within this time.  [default: 30s]",
)
@click.option(
    "--backoff",
    type=durations_of,
    metavar="DURATION,...",
    help="How long to wait before each redelivery, instead of --ack-wait: 1s,10s,1m.",
)
@number_option(
    "--max-deliver",
    type=click.IntRange(-1),
    help="Deliver a message at most N times, -1 for no limit.",
)
@number_option(
    "--max-ack-pending",
    type=click.IntRange(-1),
    help="Deliver at most N messages without acknowledgement, -1 for no limit.  [default: 1000]",
)
@duration_option(
    "--inactive-threshold",
    help="Remove the consumer when it has not been used for this time.  [default: never]",
)
@json_option
def add_consumer(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    name: str,
    filters: tuple[str, ...],
    deliver: DeliverPolicyInput | None,
    seq: int | None,
    since: dt.datetime | None,
    ack: AckPolicyInput | None,
    backoff: list[float] | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """
    Create the durable pull consumer NAME of STREAM.

    The command also succeeds if the consumer exists with the same configuration.
    """
    if sum(way is not None for way in (deliver, seq, since)) > 1:
        raise click.UsageError("Give one of --deliver, --seq and --since.")
    if backoff is not None and fields["ack_wait"] is not None:
        raise click.UsageError("Give one of --ack-wait and --backoff.")
    if seq is not None:
        deliver = "by_start_sequence"
    elif since is not None:
        deliver = "by_start_time"
    config = jetsync.ConsumerConfig(
        durable_name=name,
        deliver_policy=deliver,
        opt_start_seq=seq,
        opt_start_time=since,
        ack_policy=ack,
        backoff=backoff,
        filter_subject=filters[0] if len(filters) == 1 else None,
        filter_subjects=list(filters) if len(filters) > 1 else None,
        **fields,
    )
    info = jetstream(options).create_consumer(stream, config).cached_info
    if as_json:
        print_json(to_wire(info))
    else:
        say(f"created the consumer {info.name} of {stream}", style=GOOD)


@consumer.command("next")
@stream_argument
@consumer_argument
@number_option("--count", default=1, help="Take up to N messages.  [default: 1]")
@duration_option("--wait", default="5s", help="How long to wait for them.  [default: 5s]")
@click.option(
    "--ack",
    type=click.Choice(ANSWERS),
    help="ack: acknowledge. nak: redeliver. term: never redeliver. none: send nothing, so they are"
    " redelivered after the ack wait.  [default: ack]",
)
@duration_option("--delay", help="With --ack nak: how long to wait before the redelivery.")
@show_options
def next_messages(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    name: str,
    count: int,
    wait: float,
    ack: str | None,
    delay: float | None,
    headers: bool,
    raw: bool,
    as_json: bool,
) -> None:
    """
    Print and acknowledge the next messages.

    The command takes them from the consumer NAME of STREAM. It acknowledges each message after
    printing it, and waits for the server's confirmation. The exit status is 1 if no message
    arrives, and after Ctrl-C.
    """
    if delay is not None and ack != "nak":
        raise click.UsageError("--delay needs --ack nak.")
    show = show_of(headers=headers, raw=raw, as_json=as_json)
    taken, refused = 0, []
    with until_output_closes(), connect(options) as client:
        found = client.jetstream().consumer(stream, name)
        if found.cached_info.config.ack_policy == jetsync.AckPolicy.NONE:
            if ack not in {None, "none"}:
                raise click.ClickException(
                    f"messages of consumer {name} cannot be acknowledged: its ack policy is none"
                )
            ack = "none"
        for message in found.fetch(count, expires=wait):
            show(message)
            sys.stdout.flush()
            taken += 1
            if ack == "nak":
                # At the end, or this fetch would get them again.
                refused.append(message)
            elif ack == "term":
                message.term()
            elif ack != "none":
                message.ack_sync()
        for message in refused:
            message.nak(delay)
        client.flush()
        if not taken:
            raise click.ClickException(f"consumer {name} had no message within {duration(wait)}")
        if taken < count:
            warn(f"{taken:,} of {count:,} messages arrived within {duration(wait)}")


@consumer.command("rm")
@stream_argument
@consumer_argument
@force_option
def remove_consumer(
    *, options: jetsync.ConnectOptions, stream: str, name: str, force: bool
) -> None:
    """
    Remove the consumer NAME of STREAM. Its messages stay in the stream.
    """
    found = jetstream(options).consumer(stream, name)
    confirm(f"Remove the consumer {name} of {stream}?", force=force)
    found.delete()
    say(f"removed the consumer {name} of {stream}")
