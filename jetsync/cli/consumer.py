"""
`jetsync consumer`: list, show, add, edit, read, pause, reset and remove the consumers of a stream.
"""

from __future__ import annotations

import datetime as dt
import sys
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

import jetsync
from jetsync.cli._config_options import (
    config_option,
    consumer_fields,
    consumer_options,
    read_changes,
    read_config,
)
from jetsync.cli._connection import Group, connect, jetstream
from jetsync.cli._edit import Change, changed_fields, edit_options
from jetsync.cli._name_completion import consumer_argument, stream_argument, stream_names
from jetsync.cli._output import (
    NAME,
    WARNING,
    Styled,
    confirm,
    duration,
    force_option,
    json_option,
    limit,
    moment,
    optional,
    print_json,
    print_list,
    print_pairs,
    print_result,
    say,
    until_output_closes,
    warn,
)
from jetsync.cli._reports import (
    consumer_rows,
    interval_option,
    measured,
    print_consumers,
    sort_option,
)
from jetsync.cli._samples import Sampler, asked_at
from jetsync.cli._units import duration_option, later_of, number_option, since_option
from jetsync.cli.tail import show_of, show_options
from jetsync.values.codec import to_wire

if TYPE_CHECKING:
    from pathlib import Path

    from jetsync.values.consumer_config import DeliverPolicyInput

ANSWERS: Final = ("ack", "nak", "term", "none")
"""What `consumer next` may do with a message after it has printed it."""

COUNTS: Final = ("pending", "unacknowledged", "redelivered", "waiting pulls")
"""The titles of :func:`counts`."""


@click.group(cls=Group)
def consumer() -> None:
    """
    List, show, add, edit, read, pause, reset and remove consumers.
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
            ("delivers", config.deliver_policy),
            ("acknowledgement", config.ack_policy),
            ("ack wait", optional(duration, config.ack_wait or None)),
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


@consumer.command("report")
@click.argument("stream", required=False, shell_complete=stream_names)
@interval_option
@sort_option("name", "lag", "unacknowledged", "redelivered", "rate")
@json_option
def report_consumers(
    *,
    options: jetsync.ConnectOptions,
    stream: str | None,
    interval: float,
    sort: str,
    as_json: bool,
) -> None:
    """
    Show the lag and the rate of the consumers of STREAM. Without STREAM, show those of all streams.

    The lag is the number of messages that a consumer has to deliver or that wait for its
    acknowledgements. The rate of deliveries is measured during --interval.
    """
    names = () if stream is None else (stream,)
    sampler = measured(Sampler(jetstream(options), names=frozenset(names)), interval)
    print_consumers(consumer_rows(sampler, sort), stream, as_json=as_json)


@consumer.command("add")
@stream_argument
@click.argument("name")
@click.option(
    "--deliver",
    type=click.Choice(["all", "last", "new", "last_per_subject"]),
    help="Which messages to begin with.  [default: all]",
)
@number_option("--seq", help="Begin at sequence N.")
@since_option
@click.option(
    "--ack",
    "ack_policy",
    type=click.Choice(["explicit", "all", "none"]),
    help="How messages are acknowledged: each one, each together with all earlier ones, or not at"
    " all.  [default: explicit]",
)
@click.option(
    "--replay",
    "replay_policy",
    type=click.Choice(["instant", "original"]),
    help="How fast to deliver: at once, or at the pace at which messages were stored.",
)
@consumer_options
@config_option
@json_option
def add_consumer(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    name: str,
    deliver: DeliverPolicyInput | None,
    seq: int | None,
    since: dt.datetime | None,
    file: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Create the durable pull consumer NAME of STREAM.

    The command also succeeds if the consumer exists with the same configuration.
    """
    if sum(way is not None for way in (deliver, seq, since)) > 1:
        raise click.UsageError("Give one of --deliver, --seq and --since.")
    fields = consumer_fields(**given)
    if seq is not None:
        fields |= {"deliver_policy": "by_start_sequence", "opt_start_seq": seq}
    elif since is not None:
        fields |= {"deliver_policy": "by_start_time", "opt_start_time": since}
    elif deliver is not None:
        fields["deliver_policy"] = deliver
    config = attrs.evolve(
        read_config(file, jetsync.ConsumerConfig), name=None, durable_name=name, **fields
    )
    info = jetstream(options).create_consumer(stream, config).cached_info
    text = f"created the consumer {info.name} of {stream}"
    print_result(to_wire(info), text, as_json=as_json)


@consumer.command("edit")
@stream_argument
@consumer_argument
@consumer_options
@config_option
@edit_options
@json_option
def edit_consumer(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    name: str,
    file: Path | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Change the consumer NAME of STREAM. The command shows what changes, and asks.

    Options and fields of the file that you do not give stay as they are.
    """
    config, cleared = read_changes(file, jetsync.ConsumerConfig)
    fields = cleared | consumer_fields(**given)
    js = jetstream(options)
    now = js.consumer(stream, name).cached_info.config
    Change(f"the consumer {name} of {stream}", now, changed_fields(now, config, fields)).run(
        lambda fields: js.update_consumer(stream, name, **fields),
        force=force,
        dry_run=dry_run,
        as_json=as_json,
    )


@consumer.command("pause")
@stream_argument
@consumer_argument
@click.argument("until", type=later_of)
@json_option
def pause_consumer(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    name: str,
    until: dt.datetime | dt.timedelta,
    as_json: bool,
) -> None:
    """
    Stop the deliveries of the consumer NAME of STREAM until a time.

    UNTIL is a time such as 2026-08-06T18:00, or a duration such as 1h30m. Messages stay in the
    stream meanwhile, and the messages that are delivered can be acknowledged.
    """
    js = jetstream(options)
    if isinstance(until, dt.timedelta):
        # The server compares the time with its own clock.
        until = asked_at(js.consumer(stream, name).cached_info) + until
    state = js.stream(stream, lookup=False).pause_consumer(name, until)
    if not state.paused:
        raise click.ClickException(f"consumer {name} is not paused: {moment(until)} is over")
    text = f"paused the consumer {name} of {stream} until {moment(state.pause_until)}"
    print_result(to_wire(state), text, as_json=as_json)


@consumer.command("resume")
@stream_argument
@consumer_argument
@json_option
def resume_consumer(
    *, options: jetsync.ConnectOptions, stream: str, name: str, as_json: bool
) -> None:
    """
    End the pause of the consumer NAME of STREAM.
    """
    state = jetstream(options).stream(stream, lookup=False).resume_consumer(name)
    text = f"the consumer {name} of {stream} delivers messages"
    print_result(to_wire(state), text, as_json=as_json)


@consumer.command("reset")
@stream_argument
@consumer_argument
@number_option("--seq", help="Continue at sequence N.  [default: the first unacknowledged message]")
@force_option
@json_option
def reset_consumer(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    name: str,
    seq: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """
    Move the consumer NAME of STREAM, to read messages again or to skip some.

    Needs server 2.14 or later. Messages that are delivered and not acknowledged are delivered
    again.
    """
    js = jetstream(options)
    info = js.consumer(stream, name).cached_info
    where = f"sequence {seq:,}" if seq is not None else "the first unacknowledged message"
    confirm(
        f"Move the consumer {name} of {stream} from sequence {info.delivered.stream_seq:,} to "
        f"{where}?",
        force=force,
        as_json=as_json,
    )
    done = js.stream(stream, lookup=False).reset_consumer(name, seq)
    print_result(
        {"reset_seq": done.reset_seq, "consumer": to_wire(done.info)},
        f"the consumer {name} of {stream} continues at {done.reset_seq:,}",
        as_json=as_json,
    )


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
        info = found.cached_info
        if info.config.ack_policy == jetsync.AckPolicy.NONE:
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
            why = f": it is paused until {moment(info.config.pause_until)}" if info.paused else ""
            raise click.ClickException(
                f"consumer {name} had no message within {duration(wait)}{why}"
            )
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
