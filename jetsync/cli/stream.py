"""
`jetsync stream`: list, show, add, empty and remove streams.
"""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from jetsync.cli._backups import add_backups
from jetsync.cli._connection import Group, jetstream
from jetsync.cli._name_completion import stream_name_argument
from jetsync.cli._output import (
    GOOD,
    NAME,
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
    print_table,
    say,
    size,
)
from jetsync.cli._units import age_option, number_option, size_option
from jetsync.values.codec import from_wire, to_wire
from jetsync.values.stream_config import StreamConfig

if TYPE_CHECKING:
    import jetsync

FLAGS = ("allow_direct", "allow_atomic", "allow_batched", "allow_msg_ttl", "allow_msg_counter")

allow_option: Final = functools.partial(click.option, is_flag=True, default=None)
"""An option that sets a flag, and leaves it as it is otherwise."""


@click.group(cls=Group)
def stream() -> None:
    """
    List, show, add, empty and remove streams.
    """


@stream.command("ls")
@click.option("--subject", metavar="FILTER", help="Only streams whose subjects match FILTER.")
@json_option
def list_streams(*, options: jetsync.ConnectOptions, subject: str | None, as_json: bool) -> None:
    """
    List the streams.
    """
    infos = [each.cached_info for each in jetstream(options).streams(subject)]
    print_list(
        sorted(infos, key=lambda info: info.config.name or ""),
        as_json=as_json,
        as_dict=to_wire,
        row=lambda info: {
            "stream": info.config.name,
            "subjects": ", ".join(info.config.subjects or ()),
            "messages": f"{info.state.messages:,}",
            "size": size(info.state.bytes),
            "consumers": f"{info.state.consumer_count:,}",
            "last message": moment(info.state.last_ts) or "never",
        },
        numbers=("messages", "size", "consumers"),
        nothing="There are no streams.",
    )


@stream.command("info")
@stream_name_argument
@click.option(
    "--subjects",
    "filter_",
    metavar="FILTER",
    help="Count the messages of subjects that match FILTER.",
)
@json_option
def show_stream(
    *, options: jetsync.ConnectOptions, name: str, filter_: str | None, as_json: bool
) -> None:
    """
    Show the configuration and state of the stream NAME.
    """
    info = jetstream(options).stream(name).info(subjects_filter=filter_)
    if as_json:
        print_json(to_wire(info))
        return
    config, state = info.config, info.state
    print_pairs(
        [
            ("stream", Styled(config.name, NAME)),
            ("description", config.description),
            ("subjects", ", ".join(config.subjects or ())),
            ("created", moment(info.created)),
            ("storage", config.storage and config.storage.value),
            ("replicas", config.num_replicas),
            ("leader", info.cluster and info.cluster.leader),
            ("retention", config.retention and config.retention.value),
            ("max messages", _limit(config.max_msgs)),
            ("max bytes", None if config.max_bytes is None else size(config.max_bytes)),
            ("max age", duration(config.max_age) if config.max_age else None),
            ("allows", ", ".join(flag for flag in FLAGS if getattr(config, flag))),
        ]
    )
    say()
    print_pairs(
        [
            ("messages", f"{state.messages:,}"),
            ("size", size(state.bytes)),
            ("first", f"{state.first_seq:,}  {moment(state.first_ts) or ''}"),
            ("last", f"{state.last_seq:,}  {moment(state.last_ts) or ''}"),
            ("removed between", f"{state.num_deleted:,}" if state.num_deleted else None),
            ("subjects", f"{state.num_subjects:,}"),
            ("consumers", f"{state.consumer_count:,}"),
        ]
    )
    if state.subjects:
        say()
        print_table(
            ("subject", "messages"),
            ((subject, f"{count:,}") for subject, count in sorted(state.subjects.items())),
            numbers=("messages",),
        )


@stream.command("add")
@click.argument("name")
@click.option(
    "--subjects", metavar="A,B", help="Subjects, separated by commas. The default is NAME.>."
)
@click.option(
    "--storage", type=click.Choice(["file", "memory"]), help="Where to store the messages."
)
@number_option("--replicas", "num_replicas", help="Number of copies in a cluster.")
@click.option(
    "--retention",
    type=click.Choice(["limits", "interest", "workqueue"]),
    help="When messages are removed: only at the limits, when all consumers have acknowledged them,"
    " or when one has.",
)
@number_option(
    "--max-msgs", type=click.IntRange(-1), help="Maximum number of messages, -1 for no limit."
)
@size_option("--max-bytes", help="Maximum size, such as 1GB, or -1 for no limit.")
@age_option("--max-age", help="How long to keep messages, such as 7d, or 0 for no limit.")
@allow_option("--direct", "allow_direct", help="Allow direct reads.")
@allow_option("--atomic", "allow_atomic", help="Allow atomic batches.")
@allow_option("--batched", "allow_batched", help="Allow fast ingest.")
@allow_option("--ttl", "allow_msg_ttl", help="Allow messages with a time-to-live.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the configuration in the server's JSON format. Options take precedence.",
)
@json_option
def create_stream(
    *,
    options: jetsync.ConnectOptions,
    name: str,
    subjects: str | None,
    config: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Create the stream NAME.

    The command also succeeds if the stream exists with the same configuration.
    """
    if subjects is not None and not _split(subjects):
        raise click.UsageError("--subjects needs a subject.")
    wanted = StreamConfig() if config is None else read_config(config)
    fields = {"name": name, **{key: value for key, value in given.items() if value is not None}}
    if subjects is not None:
        fields["subjects"] = _split(subjects)
    elif not wanted.subjects:
        fields["subjects"] = [f"{name}.>"]
    info = jetstream(options).create_stream(attrs.evolve(wanted, **fields)).cached_info
    if as_json:
        print_json(to_wire(info))
    else:
        say(f"created {info.config.name} for {', '.join(info.config.subjects or ())}", style=GOOD)


# The name in earlier versions.
_create = copy.copy(create_stream)
_create.hidden = True
stream.add_command(_create, "create")


add_backups(stream, stream_name_argument, lambda js, name: js.stream(name), "stream NAME")


@stream.command("rm")
@stream_name_argument
@force_option
def remove_stream(*, options: jetsync.ConnectOptions, name: str, force: bool) -> None:
    """
    Remove the stream NAME with all its messages and consumers.
    """
    found = jetstream(options).stream(name)
    count = found.cached_info.state.messages
    confirm(f"Remove {name} with {count:,} messages?", force=force)
    found.delete()
    say(f"removed {name} with {count:,} messages")


@stream.command("purge")
@stream_name_argument
@click.option(
    "--subject", metavar="FILTER", help="Remove only messages whose subject matches FILTER."
)
@number_option("--keep", type=click.IntRange(0), help="Keep the newest N messages.")
@number_option("--sequence", help="Remove only messages before sequence N.")
@force_option
def purge_stream(
    *,
    options: jetsync.ConnectOptions,
    name: str,
    subject: str | None,
    keep: int | None,
    sequence: int | None,
    force: bool,
) -> None:
    """
    Remove messages from the stream NAME. Without options, the command removes all of them.
    """
    if keep is not None and sequence is not None:
        raise click.UsageError("Give one of --keep and --sequence.")
    found = jetstream(options).stream(name)
    what = "all messages" if subject is None else f"messages of {subject}"
    confirm(f"Remove {what} from {name}?", force=force)
    count = found.purge(subject=subject, sequence=sequence, keep=keep)
    say(f"removed {count:,} messages from {name}")


def read_config(path: Path) -> StreamConfig:
    """
    Read a configuration in the server's JSON format, which has nanoseconds.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{path} is not JSON: {error}") from error
    # `stream info --json` has the configuration below this key.
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        content = content["config"]
    return from_wire(StreamConfig, content)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _limit(count: int | None) -> str | None:
    return None if count is None else limit(count)
