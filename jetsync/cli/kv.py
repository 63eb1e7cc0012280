"""
`jetsync kv`: key-value buckets, their keys and their changes.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import click

import jetsync
from jetsync.cli._backups import add_backups
from jetsync.cli._config_options import bucket_options
from jetsync.cli._connection import Group, jetstream
from jetsync.cli._name_completion import bucket_argument
from jetsync.cli._output import (
    GOOD,
    NAME,
    WARNING,
    Styled,
    attributes,
    check_form,
    confirm,
    counted,
    duration,
    force_option,
    json_option,
    moment,
    optional,
    payload,
    print_item,
    print_json,
    print_list,
    print_pairs,
    read_input,
    say,
    show_line,
    size,
    text_or_base64,
)
from jetsync.cli._units import age_option, number_option, size_option, ttl_option
from jetsync.cli._watching import print_changes, watch_options

last_option: Final = number_option(
    "--last", type=click.IntRange(min=0), help="Change the key only if it is at revision N."
)

SHORT: Final = 60
"""Characters of a value that a question shows."""


@click.group(cls=Group)
def kv() -> None:
    """
    Create, list, read, change and watch key-value buckets.
    """


add_backups(kv, bucket_argument, lambda js, name: js.key_value(name), "bucket BUCKET", "KV_")


@kv.command("ls")
@json_option
def list_buckets(*, options: jetsync.ConnectOptions, as_json: bool) -> None:
    """
    List the buckets.
    """
    js = jetstream(options)
    found = []
    for name in sorted(js.key_value_names()):
        # A stream with such a name need not be a bucket, and a bucket may be deleted meanwhile.
        with contextlib.suppress(jetsync.InvalidBucketError, jetsync.BucketNotFoundError):
            found.append(js.key_value(name).status())
    print_list(
        found,
        as_json=as_json,
        as_dict=status_dict,
        row=lambda status: {
            "bucket": status.bucket,
            "revisions": f"{status.values:,}",
            "size": size(status.bytes),
            "history": status.history,
            "ttl": "none" if status.ttl is None else duration(status.ttl),
        },
        numbers=("revisions", "size", "history"),
        nothing="There are no buckets.",
    )


@kv.command()
@click.argument("bucket")
@bucket_options("bucket")
@number_option(
    "--history",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Revisions to keep per key.",
)
@age_option("--ttl", help="How long to keep revisions, such as 7d, or 0 for no limit.")
@age_option(
    "--limit-marker-ttl",
    help="Allow a time-to-live per key, and keep the markers of expired keys for this time.",
)
@size_option("--max-value-size", help="Maximum size of a value, such as 64KB.")
@click.option("--mirror", metavar="BUCKET", help="Make the bucket a copy of another one.")
@click.option("--atomic", is_flag=True, default=None, help="Allow transactions.")
def add(*, options: jetsync.ConnectOptions, bucket: str, **fields: Any) -> None:
    """
    Create the bucket BUCKET.
    """
    config = jetsync.KeyValueConfig(bucket=bucket, **fields)
    made = jetstream(options).create_key_value(config)
    say(f"created the bucket {made.bucket}", style=GOOD)


@kv.command("rm")
@bucket_argument
@force_option
def remove(*, options: jetsync.ConnectOptions, bucket: str, force: bool) -> None:
    """
    Remove the bucket BUCKET with all its keys.
    """
    js = jetstream(options)
    js.key_value(bucket)
    confirm(f"Remove the bucket {bucket} with all its keys?", force=force)
    js.delete_key_value(bucket)
    say(f"removed the bucket {bucket}")


@kv.command()
@bucket_argument
@json_option
def status(*, options: jetsync.ConnectOptions, bucket: str, as_json: bool) -> None:
    """
    Show the configuration and the size of BUCKET.
    """
    found = jetstream(options).key_value(bucket).status()
    if as_json:
        print_json(status_dict(found))
        return
    config = found.stream_info.config
    print_pairs(
        [
            ("bucket", Styled(found.bucket, NAME)),
            ("description", config.description),
            ("mirror of", config.mirror and config.mirror.name),
            ("revisions", f"{found.values:,}"),
            ("last revision", f"{found.last_revision:,}"),
            ("size", size(found.bytes)),
            ("history", found.history),
            ("ttl", optional(duration, found.ttl)),
            ("limit markers", optional(duration, found.limit_marker_ttl)),
            ("transactions", "yes" if found.allows_atomic else "no"),
            ("compressed", "yes" if found.is_compressed else "no"),
            ("storage", config.storage),
            ("replicas", config.num_replicas),
        ]
    )


@kv.command()
@bucket_argument
@click.argument("key")
@number_option("--revision", help="Show the value at revision N.")
@click.option("--raw", is_flag=True, help="Print only the bytes of the value.")
@json_option
def get(
    *,
    options: jetsync.ConnectOptions,
    bucket: str,
    key: str,
    revision: int | None,
    raw: bool,
    as_json: bool,
) -> None:
    """
    Show the value of KEY in BUCKET.
    """
    check_form("value", raw=raw, as_json=as_json)
    entry = jetstream(options).key_value(bucket).get(key, revision)
    pairs = [
        ("bucket", entry.bucket),
        ("key", entry.key),
        ("revision", entry.revision),
        ("time", moment(entry.created)),
        ("ttl", duration(entry.ttl) if isinstance(entry.ttl, float) else entry.ttl),
    ]
    print_item(pairs, entry.value, entry_dict(entry), raw=raw, as_json=as_json)


@kv.command()
@bucket_argument
@click.argument("key")
@click.argument("value", required=False)
@ttl_option
@last_option
def put(
    *,
    options: jetsync.ConnectOptions,
    bucket: str,
    key: str,
    value: str | None,
    last: int | None,
    **how: Any,
) -> None:
    """
    Set the value of KEY in BUCKET, and print the revision.

    If VALUE is left out or is `-`, the value is read from standard input.
    """
    data = read_input(value, "the value")
    found = jetstream(options).key_value(bucket)
    if last is None:
        say(found.put(key, data, **how))
    else:
        say(found.update(key, data, last=last, **how))


@kv.command()
@bucket_argument
@click.argument("key")
@click.argument("value", required=False)
@ttl_option
def create(
    *, options: jetsync.ConnectOptions, bucket: str, key: str, value: str | None, **how: Any
) -> None:
    """
    Set the value of KEY in BUCKET if it has none.

    The command prints the revision.

    If VALUE is left out or is `-`, the value is read from standard input.
    """
    data = read_input(value, "the value")
    say(jetstream(options).key_value(bucket).create(key, data, **how))


@kv.command()
@bucket_argument
@click.argument("key")
@last_option
def delete(*, options: jetsync.ConnectOptions, bucket: str, key: str, **how: Any) -> None:
    """
    Delete KEY in BUCKET. Its history stays.
    """
    say(jetstream(options).key_value(bucket).delete(key, **how))


@kv.command()
@bucket_argument
@click.argument("key")
@ttl_option
@last_option
def purge(*, options: jetsync.ConnectOptions, bucket: str, key: str, **how: Any) -> None:
    """
    Delete KEY in BUCKET with its history. With --ttl, its marker is removed after that time.
    """
    say(jetstream(options).key_value(bucket).purge(key, **how))


@kv.command()
@bucket_argument
@click.argument("key")
@click.argument("revision", type=click.IntRange(min=1))
@ttl_option
@force_option
def revert(
    *,
    options: jetsync.ConnectOptions,
    bucket: str,
    key: str,
    revision: int,
    force: bool,
    **how: Any,
) -> None:
    """
    Set KEY in BUCKET to the value that it had at REVISION, and print the new revision.

    The command fails if the key changes meanwhile. `history` shows the revisions that BUCKET keeps.
    """
    found = jetstream(options).key_value(bucket)
    entry = found.get(key, revision)
    now = found.history(key)[-1]
    if now.revision == revision:
        raise click.ClickException(f"key {key!r} is at revision {revision} already")
    value = f"[{now.operation.value}]" if now.is_deleted else payload(now.value)
    confirm(f"Replace {short(value)!r} by {short(payload(entry.value))!r} in {key}?", force=force)
    say(found.update(key, entry.value, last=now.revision, **how))


def short(text: str) -> str:
    """
    Return the beginning of a text for a question.
    """
    return text if len(text) <= SHORT else text[:SHORT] + "..."


@kv.command()
@bucket_argument
@age_option(
    "--older-than",
    default="30m",
    show_default=True,
    help="Remove markers of deletions that are at least this old. Watchers need the younger ones.",
)
@force_option
def compact(
    *, options: jetsync.ConnectOptions, bucket: str, older_than: float, force: bool
) -> None:
    """
    Remove the history and the old markers of deleted keys in BUCKET.
    """
    found = jetstream(options).key_value(bucket)
    confirm(f"Remove what is left of deleted keys in {bucket}?", force=force)
    count = found.purge_deletes(older_than)
    say(f"removed what was left of {counted(count, 'deleted key')}")


@kv.command()
@bucket_argument
@click.argument("patterns", nargs=-1)
@json_option
def keys(
    *, options: jetsync.ConnectOptions, bucket: str, patterns: tuple[str, ...], as_json: bool
) -> None:
    """
    List the keys in BUCKET that match one of PATTERNS. The default is all keys.
    """
    found = sorted(jetstream(options).key_value(bucket).keys(*patterns))
    if as_json:
        print_json(found)
    else:
        for key in found:
            say(key)


@kv.command()
@bucket_argument
@click.argument("key")
@json_option
def history(*, options: jetsync.ConnectOptions, bucket: str, key: str, as_json: bool) -> None:
    """
    Show the stored revisions of KEY in BUCKET, oldest first.
    """
    found = jetstream(options).key_value(bucket).history(key)
    if as_json:
        print_json([entry_dict(entry) for entry in found])
    else:
        for entry in found:
            show(entry)


@kv.command()
@bucket_argument
@click.argument("patterns", nargs=-1)
@click.option("--history", "include_history", is_flag=True, help="Begin with all revisions.")
@number_option("--from-revision", help="Begin with revision N.")
@watch_options("entry", "entries")
def watch(
    *,
    options: jetsync.ConnectOptions,
    bucket: str,
    patterns: tuple[str, ...],
    count: int | None,
    no_follow: bool,
    as_json: bool,
    **start: Any,
) -> None:
    """
    Print the changes of BUCKET until Ctrl-C.

    Without PATTERNS, the command prints the changes of all keys.
    """
    if start["updates_only"] and (start["include_history"] or start["from_revision"]):
        raise click.UsageError("--updates-only excludes --history and --from-revision.")
    print_changes(
        options,
        lambda js: js.key_value(bucket).watch(*patterns, **start),
        show,
        entry_dict,
        as_json=as_json,
        count=count,
        no_follow=no_follow,
    )


def show(entry: jetsync.Entry) -> None:
    """
    Print an entry as one line.
    """
    what: str | Styled = payload(entry.value)
    if entry.is_deleted:
        reason = entry.operation if entry.marker is None else entry.marker
        what = Styled(f"[{reason.value}]", WARNING)
    show_line(entry.revision, entry.created, entry.key, what)


def entry_dict(entry: jetsync.Entry) -> dict[str, Any]:
    """
    Return an entry for JSON. The value is text if it is UTF-8, and base64 otherwise.
    """
    return {
        **attributes(entry, "bucket", "key", "revision"),
        "time": entry.created.isoformat(),
        "operation": entry.operation.value,
        "marker": None if entry.marker is None else entry.marker.value,
        "ttl": entry.ttl,
        **text_or_base64("value", entry.value),
    }


def status_dict(found: jetsync.KeyValueStatus) -> dict[str, Any]:
    """
    Return the status of a bucket for JSON.
    """
    sizes = ("values", "bytes", "last_revision", "history", "ttl", "limit_marker_ttl")
    return attributes(found, "bucket", *sizes, "is_compressed", "allows_ttl", "allows_atomic")
