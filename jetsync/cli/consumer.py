"""
`jetsync consumer`: list, show and remove the consumers of a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jetsync.cli._connection import connect, connection_options
from jetsync.cli._output import (
    confirm,
    json_option,
    limit,
    moment,
    print_json,
    print_pairs,
    print_table,
    say,
)
from jetsync.values.codec import to_wire

if TYPE_CHECKING:
    import jetsync


@click.group()
def consumer() -> None:
    """
    Consumers of a stream: list, show, remove.
    """


@consumer.command("ls")
@click.argument("stream")
@json_option
@connection_options
def list_consumers(*, options: jetsync.ConnectOptions, stream: str, as_json: bool) -> None:
    """
    List the consumers of STREAM.
    """
    with connect(options) as client:
        infos = sorted(
            (each.cached_info for each in client.jetstream().stream(stream).consumers()),
            key=lambda info: info.name,
        )
    if as_json:
        print_json([to_wire(info) for info in infos])
    elif not infos:
        say(f"{stream} has no consumers.")
    else:
        print_table(
            ("consumer", "pending", "unacknowledged", "redelivered", "waiting pulls", "last ack"),
            (
                (
                    info.name,
                    f"{info.num_pending:,}",
                    f"{info.num_ack_pending:,}",
                    f"{info.num_redelivered:,}",
                    f"{info.num_waiting:,}",
                    moment(info.ack_floor.last_active) or "never",
                )
                for info in infos
            ),
            numbers=("pending", "unacknowledged", "redelivered", "waiting pulls"),
        )


@consumer.command("info")
@click.argument("stream")
@click.argument("name")
@json_option
@connection_options
def show_consumer(
    *, options: jetsync.ConnectOptions, stream: str, name: str, as_json: bool
) -> None:
    """
    Show the configuration and state of the consumer NAME of STREAM.
    """
    with connect(options) as client:
        info = client.jetstream().consumer(stream, name).info()
    if as_json:
        print_json(to_wire(info))
        return
    config = info.config
    filters = config.filter_subjects or ([config.filter_subject] if config.filter_subject else ())
    print_pairs(
        [
            ("consumer", info.name),
            ("stream", info.stream_name),
            ("description", config.description),
            ("created", moment(info.created)),
            ("durable", "yes" if config.durable_name else "no"),
            ("filters", ", ".join(filters)),
            ("delivers", config.deliver_policy and config.deliver_policy.value),
            ("acknowledgement", config.ack_policy and config.ack_policy.value),
            ("ack wait", f"{config.ack_wait:g} s" if config.ack_wait else None),
            ("max deliver", config.max_deliver and limit(config.max_deliver)),
            ("leader", info.cluster and info.cluster.leader),
            ("paused", f"until {moment(config.pause_until)}" if info.paused else None),
        ]
    )
    say()
    print_pairs(
        [
            ("pending", f"{info.num_pending:,}"),
            ("unacknowledged", f"{info.num_ack_pending:,}"),
            ("redelivered", f"{info.num_redelivered:,}"),
            ("waiting pulls", f"{info.num_waiting:,}"),
            ("delivered up to", f"{info.delivered.stream_seq:,} of the stream"),
            ("acknowledged up to", f"{info.ack_floor.stream_seq:,} of the stream"),
        ]
    )


@consumer.command("rm")
@click.argument("stream")
@click.argument("name")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@connection_options
def remove_consumer(
    *, options: jetsync.ConnectOptions, stream: str, name: str, force: bool
) -> None:
    """
    Remove the consumer NAME of STREAM. Its messages stay in the stream.
    """
    with connect(options) as client:
        found = client.jetstream().consumer(stream, name)
        if not force:
            confirm(f"Remove the consumer {name} of {stream}?")
        found.delete()
    say(f"removed the consumer {name} of {stream}")
