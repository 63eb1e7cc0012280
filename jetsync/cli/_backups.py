"""
The commands `backup` and `restore` of streams, buckets and object stores.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import jetsync
from jetsync.cli._connection import jetstream
from jetsync.cli._output import (
    counted,
    json_option,
    print_result,
    progress,
    readable_files,
    shown_file,
    size,
)
from jetsync.cli._units import number_option

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER: Final = click.Path(path_type=Path)
"""The folder of a backup."""


def add_backups(
    group: click.Group,
    argument: Callable[[Any], Any],
    open_: Callable[[jetsync.JetStream, str], Any],
    what: str,
    prefix: str = "",
) -> None:
    """
    Add the commands to a group.

    Args:
        group: The group.
        argument: The argument of the name, with its completion.
        open_: Returns the handle that makes the backup, from a name.
        what: What the group is about, and its argument.
        prefix: The beginning of the names of its streams.
    """
    kind = what.rpartition(" ")[0]

    @group.command("backup", help=f"Write a backup of the {what} into the new folder DIR.")
    @argument
    @click.argument("folder", metavar="DIR", type=FOLDER)
    @click.option("--no-consumers", is_flag=True, help="Leave out the consumers.")
    @click.option(
        "--check",
        is_flag=True,
        help="Verify all messages first. Servers from 2.15 on always verify them.",
    )
    @json_option
    def backup(
        *,
        options: jetsync.ConnectOptions,
        folder: Path,
        no_consumers: bool,
        check: bool,
        as_json: bool,
        **given: str,
    ) -> None:
        (name,) = given.values()
        if not folder.parent.is_dir():
            raise click.ClickException(f"the folder {str(folder.parent)!r} does not exist")
        handle = open_(jetstream(options), name)
        with readable_files(folder), progress("backup", None, in_bytes=True) as show:
            made = handle.backup(
                folder,
                consumers=not no_consumers,
                check=check,
                on_progress=lambda done, total: show(completed=done, total=total),
            )
        what = f"{counted(made.state.messages, 'message')}, {size(made.size)}"
        text = f"wrote a backup of {name} to {shown_file(folder)}, {what}"
        print_result(backup_dict(made), text, as_json=as_json)

    def restore(
        *,
        options: jetsync.ConnectOptions,
        folder: Path,
        no_verify: bool,
        as_json: bool,
        name: str | None = None,
        **fields: Any,
    ) -> None:
        with readable_files(folder), progress("verify", None, in_bytes=True) as show:
            found = jetsync.read_backup(
                folder,
                verify=not no_verify,
                on_progress=lambda done, total: show(completed=done, total=total),
            )
        if not (found.config.name or "").startswith(prefix):
            raise click.ClickException(
                f"{shown_file(folder)} is a backup of the stream {found.config.name}, which is no"
                f" {kind}: use `jetsync stream restore`."
            )
        fields = {key: value for key, value in fields.items() if value is not None}
        js = jetstream(options)
        with readable_files(folder), progress("restore", found.size, in_bytes=True) as show:
            made = js.restore_stream(
                folder,
                name,
                verify=False,
                on_progress=lambda done, _: show(completed=done),
                **fields,
            )
        count = counted(made.cached_info.state.messages, "message")
        text = f"restored {made.name.removeprefix(prefix)}, {count}"
        print_result(backup_dict(found) | {"stream": made.name}, text, as_json=as_json)

    about = f"Restore the {kind} of the backup in the folder DIR. It must not exist."
    name = click.option("--name", metavar="NAME", help="Restore under another name.")
    replicas = number_option("--replicas", "num_replicas", help="Number of copies in a cluster.")
    no_verify = click.option(
        "--no-verify", is_flag=True, help="Do not compare the files with their digests first."
    )
    command: Any = replicas(no_verify(json_option(restore)))
    if not prefix:
        # The messages of a bucket have its name in their subjects.
        command = name(command)
    command = click.argument("folder", metavar="DIR", type=FOLDER)(command)
    group.command("restore", help=about)(command)


def backup_dict(made: jetsync.StreamBackup) -> dict[str, Any]:
    """
    Return the description of a backup for JSON.
    """
    return {
        "stream": made.config.name,
        "path": str(made.path),
        "messages": made.state.messages,
        "last_sequence": made.state.last_seq,
        "consumers": made.state.consumer_count,
        "size": made.size,
        "format": made.format,
        "sha256": made.digest,
    }
