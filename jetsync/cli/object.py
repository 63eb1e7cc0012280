"""
`jetsync object`: object stores and their objects.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import jetsync
from jetsync.cli._backups import add_backups
from jetsync.cli._config_options import bucket_options
from jetsync.cli._connection import Group, jetstream
from jetsync.cli._name_completion import store_argument
from jetsync.cli._output import (
    GOOD,
    NAME,
    WARNING,
    Styled,
    attributes,
    check_output,
    confirm,
    counted,
    duration,
    force_option,
    json_option,
    moment,
    open_input,
    optional,
    print_json,
    print_list,
    print_pairs,
    print_result,
    progress,
    readable_files,
    say,
    show_line,
    shown_file,
    size,
    until_output_closes,
    write_raw,
)
from jetsync.cli._units import age_option, size_option
from jetsync.cli._watching import print_changes, watch_options

if TYPE_CHECKING:
    from collections.abc import Callable

LINE: Final = 1 << 16
"""The longest part of a line that is read at once to be shown on a terminal, in bytes."""


@click.group("object", cls=Group)
def object() -> None:  # noqa: A001 - the name of the command
    """
    Create object stores, and put, get, list, remove and watch objects.
    """


@object.command()
@click.argument("bucket")
@bucket_options("object store")
@age_option("--ttl", help="How long to keep objects, such as 7d.")
def add(*, options: jetsync.ConnectOptions, bucket: str, **fields: Any) -> None:
    """
    Create the object store BUCKET.
    """
    config = jetsync.ObjectStoreConfig(bucket=bucket, **fields)
    made = jetstream(options).create_object_store(config)
    say(f"created the object store {made.bucket}", style=GOOD)


add_backups(
    object, store_argument(), lambda js, name: js.object_store(name), "object store BUCKET", "OBJ_"
)


@object.command("ls")
@store_argument(required=False)
@json_option
def list_objects(*, options: jetsync.ConnectOptions, bucket: str | None, as_json: bool) -> None:
    """
    List the objects in BUCKET. Without BUCKET, list the object stores.
    """
    js = jetstream(options)
    if bucket is None:
        found = sorted((each.status() for each in js.object_stores()), key=lambda it: it.bucket)
        _list_stores(found, as_json=as_json)
        return
    print_list(
        js.object_store(bucket).list(),
        as_json=as_json,
        as_dict=info_dict,
        row=lambda info: {
            "name": info.name,
            "size": _target(info) or size(info.size),
            "modified": moment(info.modified),
            "description": info.description or "",
        },
        numbers=("size",),
        nothing="There are no objects.",
    )


def _list_stores(found: list[jetsync.ObjectStoreStatus], *, as_json: bool) -> None:
    print_list(
        found,
        as_json=as_json,
        as_dict=status_dict,
        row=lambda status: {
            "bucket": status.bucket,
            "size": size(status.bytes),
            "ttl": "none" if status.ttl is None else duration(status.ttl),
            "description": status.description or "",
        },
        numbers=("size",),
        nothing="There are no object stores.",
    )


@object.command()
@store_argument()
@click.argument("name", required=False)
@json_option
def info(*, options: jetsync.ConnectOptions, bucket: str, name: str | None, as_json: bool) -> None:
    """
    Show the description of the object NAME in BUCKET. Without NAME, show that of BUCKET.
    """
    store = jetstream(options).object_store(bucket)
    if name is None:
        _show_status(store.status(), as_json=as_json)
    else:
        _show_info(store.info(name), as_json=as_json)


def _show_info(found: jetsync.ObjectInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(info_dict(found))
        return
    print_pairs(
        [
            ("bucket", found.bucket),
            ("name", Styled(found.name, NAME)),
            ("description", found.description),
            ("link to", _target(found)),
            ("size", None if found.link else size(found.size)),
            ("chunks", None if found.link else f"{found.chunks:,}"),
            ("modified", moment(found.modified)),
            ("revision", f"{found.revision:,}"),
            ("digest", found.digest),
            *((f"header {key}", value) for key, value in found.headers.items()),
            *((f"metadata {key}", value) for key, value in found.metadata.items()),
        ]
    )


def _show_status(found: jetsync.ObjectStoreStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(status_dict(found))
        return
    print_pairs(
        [
            ("bucket", Styled(found.bucket, NAME)),
            ("description", found.description),
            ("size", size(found.bytes)),
            ("ttl", optional(duration, found.ttl)),
            ("sealed", "yes" if found.is_sealed else "no"),
            ("compressed", "yes" if found.is_compressed else "no"),
            ("storage", found.storage),
            ("replicas", found.num_replicas),
            *((f"metadata {key}", value) for key, value in found.metadata.items()),
        ]
    )


@object.command()
@store_argument()
@click.argument("name")
@click.argument("file", required=False)
@click.option("--description", metavar="TEXT", help="Description of the object.")
@click.option("--new", is_flag=True, help="Store the object only if the name is free.")
@size_option("--chunk-size", help="Size of a chunk.")
@json_option
def put(
    *,
    options: jetsync.ConnectOptions,
    bucket: str,
    name: str,
    file: str | None,
    new: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """
    Store FILE as the object NAME in BUCKET.

    The default of FILE is NAME. If it is `-`, standard input is stored.
    """
    path = None if file == "-" else Path(name if file is None else file)
    store = jetstream(options).object_store(bucket)
    with readable_files(path):
        total = None if path is None else path.stat().st_size
        with progress("put", total, in_bytes=True) as show_progress:

            def report(done: int, _: int | None) -> None:
                show_progress(completed=done)

            fields |= {"expect": "new" if new else None, "on_progress": report}
            if path is None:
                found = store.put(name, open_input("the data"), **fields)
            else:
                found = store.put_file(name, path, **fields)
    text = f"stored {found.name} in {found.bucket}, {size(found.size)}"
    print_result(info_dict(found), text, as_json=as_json)


@object.command()
@store_argument()
@click.argument("name")
@click.argument("file", required=False)
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--no-verify", is_flag=True, help="Do not check the digest.")
def get(
    *,
    options: jetsync.ConnectOptions,
    bucket: str,
    name: str,
    file: str | None,
    force: bool,
    no_verify: bool,
) -> None:
    """
    Write the object NAME of BUCKET into FILE.

    The default of FILE is the last part of NAME. If it is `-`, the data is written to standard
    output. FILE appears when all data is read and checked.
    """
    part = name.rpartition("/")[2]
    # On Windows, a name may also lead to another folder by a backslash or a drive.
    if file is None and (part in {"", ".."} or Path(part).name != part):
        raise click.UsageError("NAME does not end with the name of a file: give FILE.")
    path = None if file == "-" else Path(part if file is None else file)
    if path is not None:
        check_output(path, force=force)
    store = jetstream(options).object_store(bucket)
    if path is None:
        with store.get(name, verify=not no_verify) as reader:
            _write_out(reader)
        return
    with readable_files(path), progress("get", None, in_bytes=True) as show_progress:

        def report(done: int, total: int) -> None:
            show_progress(completed=done, total=total)

        found = store.get_file(name, path, verify=not no_verify, on_progress=report)
    say(f"wrote {shown_file(path)}, {size(found.size)}", style=GOOD)


def _write_out(reader: jetsync.ObjectReader) -> None:
    """
    Write an object to standard output.
    """
    # A chunk may end in the middle of a character.
    on_terminal = sys.stdout.isatty()
    read: Callable[[], bytes] = (lambda: reader.readline(LINE)) if on_terminal else reader.read1
    with until_output_closes():
        while data := read():
            write_raw(data)


@object.command("rm")
@store_argument()
@click.argument("name", required=False)
@force_option
def remove(*, options: jetsync.ConnectOptions, bucket: str, name: str | None, force: bool) -> None:
    """
    Remove the object NAME of BUCKET. Without NAME, remove BUCKET with all its objects.
    """
    js = jetstream(options)
    store = js.object_store(bucket)
    if name is None:
        confirm(f"Remove the object store {bucket} with all its objects?", force=force)
        js.delete_object_store(bucket)
        say(f"removed the object store {bucket}")
        return
    store.info(name)
    confirm(f"Remove the object {name} of {bucket}?", force=force)
    store.delete(name)
    say(f"removed {name} from {bucket}")


@object.command()
@store_argument()
@click.argument("names", nargs=-1)
@watch_options("object", "objects")
def watch(
    *,
    options: jetsync.ConnectOptions,
    bucket: str,
    names: tuple[str, ...],
    count: int | None,
    no_follow: bool,
    as_json: bool,
    **start: Any,
) -> None:
    """
    Print the objects of BUCKET and their changes until Ctrl-C.

    Without NAMES, the command prints those of all objects.
    """
    print_changes(
        options,
        lambda js: js.object_store(bucket).watch(*names, **start),
        _show,
        info_dict,
        as_json=as_json,
        count=count,
        no_follow=no_follow,
    )


def _show(info: jetsync.ObjectInfo) -> None:
    """
    Print an object as one line.
    """
    what: str | Styled = _target(info) or size(info.size)
    if info.is_deleted:
        what = Styled("[DEL]", WARNING)
    show_line(info.revision, info.modified, info.name, what)


@object.command()
@store_argument()
@age_option(
    "--older-than",
    default="1h",
    show_default=True,
    help="Remove data that was stored at least this long ago. With less than 2m, an object that is"
    " stored meanwhile may lose its data.",
)
def gc(*, options: jetsync.ConnectOptions, bucket: str, older_than: float) -> None:
    """
    Remove data in BUCKET that belongs to no object.

    A put leaves such data if its process is killed or loses its connection for long.
    """
    count = jetstream(options).object_store(bucket).collect_garbage(older_than)
    say(f"removed the data of {counted(count, 'unfinished put')}")


def _target(info: jetsync.ObjectInfo) -> str | None:
    """
    Return where a link leads.
    """
    if info.link is None:
        return None
    return f"-> {info.link.bucket}" + (f"/{info.link.name}" if info.link.name else "")


def info_dict(info: jetsync.ObjectInfo) -> dict[str, Any]:
    """
    Return the description of an object for JSON.
    """
    link = None if info.link is None else {"bucket": info.link.bucket, "name": info.link.name}
    return {
        **attributes(info, "bucket", "name", "description", "size", "chunks"),
        "modified": info.modified.isoformat(),
        **attributes(info, "revision", "nuid", "digest"),
        "headers": info.headers.to_dict(),
        "metadata": info.metadata,
        "link": link,
        "is_deleted": info.is_deleted,
    }


def status_dict(found: jetsync.ObjectStoreStatus) -> dict[str, Any]:
    """
    Return the status of an object store for JSON.
    """
    return {
        **attributes(found, "bucket", "description", "bytes", "ttl"),
        "storage": found.storage,
        **attributes(found, "num_replicas", "is_sealed", "is_compressed", "metadata"),
    }
