"""
`jetsync stream`: list, find, show, add, edit, empty and remove streams.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from jetsync.cli._backups import add_backups
from jetsync.cli._config_options import (
    config_option,
    read_changes,
    read_config,
    stream_fields,
    stream_options,
)
from jetsync.cli._connection import Group, jetstream
from jetsync.cli._edit import Change, changed_fields, edit_options
from jetsync.cli._name_completion import stream_argument, stream_name_argument
from jetsync.cli._output import (
    NAME,
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
    print_table,
    say,
    size,
    warn,
)
from jetsync.cli._reports import (
    interval_option,
    measured,
    print_streams,
    sort_option,
    stream_rows,
)
from jetsync.cli._samples import Sampler, asked_at
from jetsync.cli._units import age_option, number_option
from jetsync.values.codec import to_wire
from jetsync.values.stream_config import DiscardPolicy, StreamConfig
from jetsync.values.subjects import validate_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import jetsync

FLAGS: Final = (
    *("allow_direct", "allow_atomic", "allow_batched", "allow_msg_ttl", "allow_msg_counter"),
    *("allow_msg_schedules", "allow_rollup_hdrs"),
)
DENIALS: Final = ("deny_delete", "deny_purge", "no_ack", "sealed")

subject_option = click.option(
    "--subject", metavar="FILTER", help="Only streams whose subjects match FILTER."
)


@click.group(cls=Group)
def stream() -> None:
    """
    List, find, show, add, edit, empty and remove streams.
    """


@stream.command("ls")
@subject_option
@json_option
def list_streams(*, options: jetsync.ConnectOptions, subject: str | None, as_json: bool) -> None:
    """
    List the streams.
    """
    infos = [each.cached_info for each in jetstream(options).streams(subject)]
    _print_streams(infos, as_json=as_json, nothing="There are no streams.")


def _print_streams(infos: Iterable[jetsync.StreamInfo], *, as_json: bool, nothing: str) -> None:
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
        nothing=nothing,
    )


@stream.command("find")
@subject_option
@click.option("--empty", is_flag=True, help="Only streams without messages.")
@age_option("--idle", help="Only streams that have stored no message for this time, such as 7d.")
@age_option("--older-than", help="Only streams that were created at least this long ago.")
@click.option("--unused", is_flag=True, help="Only streams without consumers.")
@click.option("--leader", metavar="SERVER", help="Only streams whose leader is SERVER.")
@number_option("--replicas", help="Only streams with N copies.")
@click.option("--behind", is_flag=True, help="Only streams with a copy that is not up to date.")
@click.option(
    "--retention",
    type=click.Choice(["limits", "interest", "workqueue"]),
    help="Only streams with this retention.",
)
@click.option(
    "--storage", type=click.Choice(["file", "memory"]), help="Only streams with this storage."
)
@click.option("--mirrors", is_flag=True, help="Only streams that copy another one.")
@click.option("--invert", is_flag=True, help="The streams that do not match.")
@click.option("--names", is_flag=True, help="Print only the names.")
@json_option
def find_streams(
    *,
    options: jetsync.ConnectOptions,
    subject: str | None,
    invert: bool,
    names: bool,
    as_json: bool,
    **wanted: Any,
) -> None:
    """
    List the streams that match all of the options.
    """
    if names and as_json:
        raise click.UsageError("--names prints only names: leave out --json.")
    js = jetstream(options)
    found = [each for each in js.streams(subject) if matches(each.cached_info, wanted)]
    if invert:
        # Also streams of other subjects.
        matching = {each.name for each in found}
        found = [each for each in js.streams() if each.name not in matching]
    if names:
        for name in sorted(each.name for each in found):
            say(name)
    else:
        infos = [each.cached_info for each in found]
        _print_streams(infos, as_json=as_json, nothing="No stream matches.")


def _seconds_since(time: dt.datetime | None, info: jetsync.StreamInfo) -> float:
    answered = asked_at(info)
    return (answered - (time or answered)).total_seconds()


def _is_behind(info: jetsync.StreamInfo) -> bool:
    copies = [] if info.cluster is None else info.cluster.replicas
    return any(each.offline or not each.current for each in copies)


CONDITIONS: Final[Mapping[str, Callable[[jetsync.StreamInfo, Any], object]]] = {
    "empty": lambda info, _: not info.state.messages,
    "idle": lambda info, least: _seconds_since(info.state.last_ts or info.created, info) >= least,
    "older_than": lambda info, least: _seconds_since(info.created, info) >= least,
    "unused": lambda info, _: not info.state.consumer_count,
    "leader": lambda info, name: info.cluster is not None and info.cluster.leader == name,
    "replicas": lambda info, count: info.config.num_replicas == count,
    "behind": lambda info, _: _is_behind(info),
    "retention": lambda info, kind: info.config.retention == kind,
    "storage": lambda info, kind: info.config.storage == kind,
    "mirrors": lambda info, _: info.config.mirror is not None or info.config.sources,
}
"""Whether a stream matches an option of `stream find` with a value."""


def matches(info: jetsync.StreamInfo, wanted: Mapping[str, Any]) -> bool:
    """
    Return whether a stream matches all conditions that are given.
    """
    return all(
        CONDITIONS[name](info, value)
        for name, value in wanted.items()
        if value not in {None, False}
    )


@stream.command("report")
@subject_option
@interval_option
@sort_option("name", "messages", "size", "rate", "lag")
@json_option
def report_streams(
    *,
    options: jetsync.ConnectOptions,
    subject: str | None,
    interval: float,
    sort: str,
    as_json: bool,
) -> None:
    """
    Show sizes, rates and the lag of consumers for each stream.

    The lag is that of the slowest consumer: messages that it has to deliver or that wait for its
    acknowledgements. The rate is measured during --interval.
    """
    sampler = measured(Sampler(jetstream(options), subject), interval)
    print_streams(stream_rows(sampler, sort), as_json=as_json)


@stream.command("subjects")
@stream_argument
@click.argument("filter_", metavar="[FILTER]", default=">")
@click.option(
    "--sort",
    type=click.Choice(["subject", "messages"]),
    default="subject",
    show_default=True,
    help="Sort by subject, or begin with the most messages.",
)
@number_option("--limit", help="Show at most N subjects.")
@json_option
def show_subjects(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    filter_: str,
    sort: str,
    limit: int | None,
    as_json: bool,
) -> None:
    """
    Count the messages of each subject of STREAM. FILTER selects subjects.
    """
    info = jetstream(options).stream(stream).info(subjects_filter=filter_)
    counts = sorted(info.state.subjects.items())
    if sort == "messages":
        counts.sort(key=lambda each: -each[1])
    shown = counts[:limit]
    if as_json:
        print_json(dict(shown))
        return
    if not counts:
        say(f"{stream} has no messages of {filter_}.")
        return
    _print_subjects(shown)
    if len(shown) < len(counts):
        warn(f"{len(counts) - len(shown):,} more subjects are not shown")


def _print_subjects(counts: Iterable[tuple[str, int]]) -> None:
    print_table(
        ("subject", "messages"),
        ((subject, f"{count:,}") for subject, count in counts),
        numbers=("messages",),
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
            ("storage", config.storage),
            ("persist mode", config.persist_mode),
            ("replicas", config.num_replicas),
            ("leader", info.cluster and info.cluster.leader),
            ("followers", ", ".join(map(_follower, info.cluster.replicas if info.cluster else ()))),
            ("retention", config.retention),
            ("max messages", optional(limit, config.max_msgs)),
            ("max per subject", optional(limit, config.max_msgs_per_subject)),
            ("max bytes", optional(size, config.max_bytes)),
            ("max message size", optional(size, config.max_msg_size)),
            ("max age", optional(duration, config.max_age or None)),
            ("max consumers", optional(limit, config.max_consumers)),
            ("discard", config.discard),
            ("compression", config.compression),
            ("duplicate window", optional(duration, config.duplicate_window or None)),
            ("allows", set_in(config, FLAGS)),
            ("denies", set_in(config, DENIALS)),
            ("mirror of", info.mirror and _copied(info.mirror)),
            ("sources", "; ".join(map(_copied, info.sources or ()))),
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
        _print_subjects(sorted(state.subjects.items()))


@stream.command("add")
@click.argument("name")
@stream_options
@config_option
@json_option
def create_stream(
    *,
    options: jetsync.ConnectOptions,
    name: str,
    file: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Create the stream NAME. It stores NAME.> unless you give --subjects.

    The command also succeeds if the stream exists with the same configuration.
    """
    wanted = attrs.evolve(read_config(file, StreamConfig), name=name, **stream_fields(**given))
    if not (wanted.subjects or wanted.mirror or wanted.sources):
        wanted = attrs.evolve(wanted, subjects=[f"{validate_name('stream', name)}.>"])
    info = jetstream(options).create_stream(wanted).cached_info
    subjects = f" for {', '.join(info.config.subjects)}" if info.config.subjects else ""
    print_result(to_wire(info), f"created {info.config.name}{subjects}", as_json=as_json)


# The name in earlier versions.
_create = copy.copy(create_stream)
_create.hidden = True
stream.add_command(_create, "create")


add_backups(stream, stream_name_argument, lambda js, name: js.stream(name), "stream NAME")


@stream.command("edit")
@stream_name_argument
@stream_options
@click.option(
    "--seal", "sealed", is_flag=True, default=None, help="Refuse all further changes, for ever."
)
@click.option(
    "--no-mirror",
    is_flag=True,
    help="Make a mirror an ordinary stream, which may have --subjects. Needs server 2.12.",
)
@config_option
@edit_options
@json_option
def edit_stream(
    *,
    options: jetsync.ConnectOptions,
    name: str,
    file: Path | None,
    sealed: bool | None,
    no_mirror: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """
    Change the stream NAME. The command shows what changes, and asks.

    Options and fields of the file that you do not give stay as they are.
    """
    fields = stream_fields(sealed=sealed, **given)
    if no_mirror:
        if "mirror" in fields:
            raise click.UsageError("Give one of --mirror and --no-mirror.")
        fields["mirror"] = None
    config, cleared = read_changes(file, StreamConfig)
    fields = cleared | fields
    found = jetstream(options).stream(name)
    info = found.cached_info
    fields = changed_fields(info.config, config, fields)
    Change(f"the stream {name}", info.config, fields, tuple(losses(info, fields))).run(
        lambda fields: found.update(**fields), force=force, dry_run=dry_run, as_json=as_json
    )


def losses(info: jetsync.StreamInfo, fields: Mapping[str, Any]) -> Iterable[str]:
    """
    Yield what new limits of a stream remove at once.
    """
    state = info.state
    age = fields.get("max_age") or 0
    if age and state.first_ts and (asked_at(info) - state.first_ts).total_seconds() > age:
        yield f"the first message is from {moment(state.first_ts)}: old ones are removed at once"
    each, before = fields.get("max_msgs_per_subject", 0), info.config.max_msgs_per_subject or 0
    # The most that one subject can have.
    if 0 < each < state.messages - (state.num_subjects or 1) + 1 and not 0 < before <= each:
        # Earlier servers keep them for now if there was no limit before.
        when = "at once, or before server 2.15 with their next message"
        yield f"subjects with more than {each:,} messages lose the oldest: {when}"
    if fields.get("discard", info.config.discard) == DiscardPolicy.NEW:
        return
    if 0 < fields.get("max_msgs", 0) < state.messages:
        yield f"the stream has {state.messages:,} messages: the oldest are removed at once"
    if 0 < fields.get("max_bytes", 0) < state.bytes:
        yield f"the stream has {size(state.bytes)}: the oldest messages are removed at once"


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
    confirm(f"Remove {purged(subject, keep, sequence)} from {name}?", force=force)
    count = found.purge(subject=subject, sequence=sequence, keep=keep)
    say(f"removed {count:,} messages from {name}")


def purged(subject: str | None, keep: int | None, sequence: int | None) -> str:
    """
    Return which messages a purge removes, for a question.
    """
    what = "all messages" if subject is None else f"all messages of {subject}"
    if keep:
        return f"{what} but the newest {keep:,}"
    return what if sequence is None else f"{what} before sequence {sequence:,}"


def set_in(config: StreamConfig, flags: Iterable[str]) -> str:
    """
    Return those of some flags that are set.
    """
    return ", ".join(flag for flag in flags if getattr(config, flag))


def _follower(peer: jetsync.PeerInfo) -> str:
    """
    Name a follower, and say whether it has what the leader has.
    """
    if peer.offline:
        state = "offline"
    else:
        state = "current" if peer.current else f"{peer.lag:,} operations behind"
    return f"{peer.name} ({state})"


def _copied(source: jetsync.StreamSourceInfo) -> str:
    """
    Name a mirror's origin or a source, and say how far the stream has copied it.
    """
    where = f" of {source.external.api}" if source.external and source.external.api else ""
    seen = "never" if source.active is None else f"{duration(round(source.active))} ago"
    said = f"{source.name}{where}, {source.lag:,} messages behind, last heard {seen}"
    return f"{said}: {source.error.get('description')}" if source.error else said
