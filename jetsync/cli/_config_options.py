"""
Options that set the fields of configurations: of streams and consumers, and what buckets share.

An option has the name of its field as the name of its argument. So errors about a field name the
option, and commands pass what was given on as it is.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import click

import jetsync
from jetsync.cli._units import (
    Decorator,
    age_option,
    combined,
    duration_option,
    durations_of,
    number_option,
    size_option,
)
from jetsync.values.codec import from_wire

if TYPE_CHECKING:
    from jetsync.values.codec import ConfigModel

C = TypeVar("C", bound="ConfigModel")

limit_option: Final = functools.partial(number_option, type=click.IntRange(-1))
"""An option whose value is a number, or -1 for no limit."""

flag_option: Final = functools.partial(click.option, is_flag=True, default=None)
"""An option that turns a field on, or off with its second name, and leaves it alone otherwise."""


def names_of(text: str) -> list[str]:
    """
    Parse names that are separated by commas.
    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise click.BadParameter("give one or more, separated by commas")
    return found


def source_of(text: str) -> jetsync.StreamSource:
    """
    Parse the name of a stream to copy messages from.
    """
    return jetsync.StreamSource(name=text)


def pair_of(text: str) -> tuple[str, str]:
    """
    Parse a pair such as `team=billing`.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE")
    return key, value


def _all_or_none(_ctx: click.Context, _: click.Parameter, given: tuple[Any, ...]) -> Any:
    return list(given) or None


def _joined_or_none(
    _ctx: click.Context, _: click.Parameter, given: tuple[list[str], ...]
) -> list[str] | None:
    return [name for names in given for name in names] or None


def _pairs_or_none(
    _ctx: click.Context, _: click.Parameter, given: tuple[tuple[str, str], ...]
) -> dict[str, str] | None:
    return dict(given) or None


repeated_option: Final = functools.partial(click.option, multiple=True, callback=_all_or_none)
"""An option that may be repeated. Its value is a list, or None."""

config_option: Final = click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with fields of the configuration in the server's JSON format. Options take"
    " precedence.",
)
description_option: Final = functools.partial(click.option, "--description", metavar="TEXT")
storage_option: Final = functools.partial(
    click.option, "--storage", type=click.Choice(["file", "memory"])
)
replicas_option: Final = number_option(
    "--replicas", "num_replicas", help="Number of copies in a cluster."
)
metadata_option: Final = click.option(
    "--metadata",
    multiple=True,
    type=pair_of,
    callback=_pairs_or_none,
    metavar="KEY=VALUE",
    help="Metadata. May be repeated.",
)

stream_options: Final = combined(
    click.option(
        "--subjects",
        multiple=True,
        type=names_of,
        callback=_joined_or_none,
        metavar="A,B",
        help="Subjects, separated by commas. May be repeated. The list replaces an earlier one.",
    ),
    description_option(help="Description of the stream."),
    storage_option(help="Where to store the messages."),
    replicas_option,
    click.option(
        "--retention",
        type=click.Choice(["limits", "interest", "workqueue"]),
        help="When messages are removed: only at the limits, when all consumers have acknowledged"
        " them, or when one has.",
    ),
    limit_option("--max-msgs", help="Maximum number of messages, -1 for no limit."),
    limit_option(
        "--max-msgs-per-subject", help="Maximum number of messages of a subject, -1 for no limit."
    ),
    size_option("--max-bytes", help="Maximum size, such as 1GB, or -1 for no limit."),
    size_option("--max-msg-size", help="Maximum size of a message, or -1 for no limit."),
    age_option("--max-age", help="How long to keep messages, such as 7d, or 0 for no limit."),
    limit_option("--max-consumers", help="Maximum number of consumers, -1 for no limit."),
    click.option(
        "--discard",
        type=click.Choice(["old", "new"]),
        help="What a limit does: remove the oldest messages, or refuse new ones.",
    ),
    flag_option(
        "--discard-per-subject/--no-discard-per-subject",
        "discard_new_per_subject",
        help="With --discard new: also refuse messages beyond --max-msgs-per-subject.",
    ),
    age_option(
        "--duplicate-window",
        help="How long the stream remembers message IDs.  [default: 2m, or --max-age if shorter]",
    ),
    flag_option("--direct/--no-direct", "allow_direct", help="Allow direct reads."),
    flag_option("--atomic/--no-atomic", "allow_atomic", help="Allow atomic batches."),
    flag_option("--batched/--no-batched", "allow_batched", help="Allow fast ingest."),
    flag_option("--ttl", "allow_msg_ttl", help="Allow messages with a time-to-live."),
    age_option(
        "--marker-ttl",
        "subject_delete_marker_ttl",
        help="Store a marker for this time when the last message of a subject expires.",
    ),
    flag_option("--counters", "allow_msg_counter", help="Make each subject a counter."),
    flag_option("--schedules", "allow_msg_schedules", help="Allow messages that are sent later."),
    flag_option(
        "--rollup/--no-rollup",
        "allow_rollup_hdrs",
        help="Allow messages that replace earlier ones.",
    ),
    flag_option("--deny-delete", help="Forbid deleting single messages, for ever."),
    flag_option("--deny-purge", help="Forbid purging the stream, for ever."),
    flag_option("--no-ack/--acks", "no_ack", help="Do not acknowledge publishes."),
    click.option(
        "--compression", type=click.Choice(["none", "s2"]), help="How to compress the files."
    ),
    click.option(
        "--persist",
        "persist_mode",
        type=click.Choice(["default", "async"]),
        help="async: acknowledge messages before they are written to disk.",
    ),
    number_option("--first-seq", help="Sequence of the first message."),
    click.option(
        "--mirror", type=source_of, metavar="STREAM", help="Make the stream a copy of STREAM."
    ),
    flag_option(
        "--mirror-direct/--no-mirror-direct", help="Let a mirror answer direct reads of its origin."
    ),
    repeated_option(
        "--source",
        "sources",
        type=source_of,
        metavar="STREAM",
        help="Also store the messages of STREAM. May be repeated.",
    ),
    click.option("--placement-cluster", metavar="NAME", help="Cluster that stores the stream."),
    repeated_option(
        "--placement-tag",
        "placement_tags",
        metavar="TAG",
        help="Store the stream only on servers with TAG. May be repeated.",
    ),
    metadata_option,
)
"""The options for fields of streams. :func:`stream_fields` takes their values."""

consumer_options: Final = combined(
    description_option(help="Description of the consumer."),
    repeated_option(
        "--filter",
        "filters",
        metavar="FILTER",
        help="Deliver only messages whose subject matches FILTER. May be repeated.",
    ),
    duration_option(
        "--ack-wait",
        help="Redeliver a message that is not acknowledged within this time.  [default: 30s]",
    ),
    click.option(
        "--backoff",
        type=durations_of,
        metavar="DURATION,...",
        help="How long to wait before each redelivery, instead of --ack-wait: 1s,10s,1m.",
    ),
    limit_option("--max-deliver", help="Deliver a message at most N times, -1 for no limit."),
    limit_option(
        "--max-ack-pending",
        help="Deliver at most N messages without acknowledgement, -1 for no limit."
        "  [default: 1000]",
    ),
    number_option("--max-waiting", help="Let at most N pulls wait.  [default: 512]"),
    number_option("--max-batch", help="Maximum number of messages of a pull."),
    size_option("--max-bytes", help="Maximum size of the messages of a pull."),
    duration_option("--max-expires", help="Longest time that a pull may wait."),
    flag_option(
        "--headers-only/--payloads", "headers_only", help="Deliver headers without payloads."
    ),
    duration_option(
        "--inactive-threshold",
        help="Remove the consumer when it has not been used for this time.  [default: never]",
    ),
    number_option(
        "--replicas",
        "num_replicas",
        type=click.IntRange(min=0),
        help="Number of copies of its state in a cluster, 0 for as many as the stream has.",
    ),
    flag_option(
        "--memory/--no-memory",
        "mem_storage",
        help="Keep its state in memory, even if the stream is on disk.",
    ),
    click.option(
        "--sample",
        "sample_freq",
        metavar="PERCENT",
        help="Publish an event for this share of acknowledgements, such as 50%.",
    ),
    repeated_option(
        "--group",
        "priority_groups",
        metavar="NAME",
        help="Priority group that pulls have to name. May be repeated.",
    ),
    click.option(
        "--priority",
        "priority_policy",
        type=click.Choice(["none", "overflow", "pinned_client", "prioritized"]),
        help="How the pulls of a priority group share the messages.",
    ),
    duration_option(
        "--pin-timeout",
        "priority_timeout",
        help="With pinned_client: choose another client after this time without a pull.",
    ),
    metadata_option,
)
"""The options for fields of consumers. :func:`consumer_fields` takes their values."""


def bucket_options(what: str) -> Decorator:
    """
    Return a decorator that adds the options of key-value buckets and object stores.

    Args:
        what: What is created.
    """
    return combined(
        description_option(help=f"Description of the {what}."),
        size_option("--max-bytes", help=f"Maximum size of the {what}, such as 1GB."),
        storage_option(help=f"Where to store the {what}."),
        replicas_option,
        click.option("--compression", is_flag=True, default=None, help="Compress the files."),
    )


def stream_fields(
    *, placement_cluster: str | None, placement_tags: list[str] | None, **given: Any
) -> dict[str, Any]:
    """
    Return the fields of a stream that were given as options.
    """
    if placement_cluster is not None or placement_tags is not None:
        given["placement"] = jetsync.Placement(cluster=placement_cluster, tags=placement_tags)
    return _without_none(given)


def consumer_fields(*, filters: list[str] | None, **given: Any) -> dict[str, Any]:
    """
    Return the fields of a consumer that were given as options.
    """
    if given["backoff"] is not None and given["ack_wait"] is not None:
        raise click.UsageError("Give one of --ack-wait and --backoff.")
    fields = _without_none(given)
    if filters is not None:
        # A consumer cannot have both, so an edit has to clear the other one.
        fields["filter_subject"] = filters[0] if len(filters) == 1 else None
        fields["filter_subjects"] = filters if len(filters) > 1 else None
    return fields


def read_config(path: Path | None, kind: type[C]) -> C:
    """
    Read a configuration in the server's JSON format, which has nanoseconds.

    Without a file, the configuration is empty.
    """
    return read_changes(path, kind)[0]


def read_changes(path: Path | None, kind: type[C]) -> tuple[C, dict[str, None]]:
    """
    Read a configuration, and the fields that are null in the file, which an edit removes.

    The file is read once, because it may be a pipe.
    """
    if path is None:
        return kind(), {}
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{path} is not JSON: {error}") from error
    # `stream info --json` has the configuration below this key.
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        content = content["config"]
    config = from_wire(kind, content)
    names = (field.name for field in attrs.fields(kind) if field.eq and field.name != "extra")
    return config, {name: None for name in names if content.get(name, ...) is None}


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
