"""
`jetsync queue`: list queues, count, put and cancel jobs, and show, retry and remove dead ones.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import attrs
import click

from jetsync.cli import commands
from jetsync_queue.names import check_prefix, stream_name
from jetsync_queue.queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    import jetsync
    from jetsync_queue.dead import DeadJob


@commands.group()
def queue() -> None:
    """
    List work queues, put and cancel jobs, and look after dead ones.

    QUEUE is the name of a queue. Its jobs are in the stream QUEUE_PREFIX.
    """


prefix_option = click.option(
    "--prefix", default="app", show_default=True, help="The prefix of the queues."
)
name_argument = click.argument("name", metavar="QUEUE")


@contextlib.contextmanager
def opened(
    options: jetsync.ConnectOptions, name: str, prefix: str, *, make: bool = False
) -> Iterator[WorkQueue]:
    """
    Open a queue, which has to exist unless *make* is true.
    """
    with commands.connect(options) as client:
        js = client.jetstream()
        if not make:
            js.stream(stream_name(check_prefix(prefix)))
        yield WorkQueue.open(js, name, prefix=prefix)


def counts_of(found: WorkQueue) -> dict[str, int]:
    """
    Return the counts of a queue by name.
    """
    return attrs.asdict(found.statistics())


@queue.command("ls")
@prefix_option
@commands.json_option
def list_queues(*, options: jetsync.ConnectOptions, prefix: str, as_json: bool) -> None:
    """
    List the queues with their jobs.
    """
    with commands.connect(options) as client:
        js = client.jetstream()
        found = {
            name: counts_of(WorkQueue.open(js, name, prefix=prefix))
            for name in WorkQueue.names(js, prefix=prefix)
        }
    if as_json:
        commands.print_json([{"queue": name, **counts} for name, counts in found.items()])
    elif found:
        columns = list(next(iter(found.values())))
        rows = [[name, *map("{:,}".format, counts.values())] for name, counts in found.items()]
        commands.print_table(["queue", *columns], rows, numbers=columns)
    else:
        commands.say(f"{stream_name(prefix)} has no queues.")


@queue.command("stats")
@name_argument
@prefix_option
@commands.json_option
def show_statistics(
    *, options: jetsync.ConnectOptions, name: str, prefix: str, as_json: bool
) -> None:
    """
    Count the jobs of QUEUE by their states.
    """
    with opened(options, name, prefix) as found:
        counts = counts_of(found)
    if as_json:
        commands.print_json({"queue": name, **counts})
    else:
        commands.print_pairs([(key, f"{value:,}") for key, value in counts.items()])


@queue.command("put")
@name_argument
@click.argument("data", required=False)
@prefix_option
@click.option("--priority", type=click.IntRange(0, 9), default=0, help="0 to 9; higher is sooner.")
@click.option(
    "--delay", type=commands.positive_seconds_of, metavar="TIME", help="Available after TIME."
)
@click.option(
    "--expires", type=commands.positive_seconds_of, metavar="TIME", help="Not started after TIME."
)
@click.option("--id", "job_id", metavar="ID", help="The id of the job. Default: a random one.")
@click.option("--raw", is_flag=True, help="DATA is bytes. Default: it is a JSON document.")
@click.option(
    "--header", "headers", multiple=True, type=commands.header_of, metavar="'NAME: VALUE'"
)
@commands.json_option
def put_job(
    *,
    options: jetsync.ConnectOptions,
    name: str,
    data: str | None,
    prefix: str,
    headers: tuple[tuple[str, str], ...],
    raw: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """
    Put a job with DATA, or with what standard input has, into QUEUE.
    """
    given = commands.read_input(data, "the data of the job")
    value: Any = given.encode() if isinstance(given, str) else given
    if not raw:
        try:
            value = json.loads(value)
        except ValueError as error:
            raise click.UsageError(f"DATA is no JSON document: {error}. Use --raw.") from error
    with opened(options, name, prefix, make=True) as found:
        job = found.put(value, headers=dict(headers) or None, **how)
    if as_json:
        commands.print_json({"id": job.id, "sequence": job.sequence, "duplicate": job.duplicate})
    elif job.duplicate:
        commands.warn(f"nothing was stored: the queue has or had a job with the id {job.id}")
    else:
        commands.say(job.id)


@queue.command("cancel")
@name_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@prefix_option
def cancel_jobs(
    *, options: jetsync.ConnectOptions, name: str, ids: tuple[str, ...], prefix: str
) -> None:
    """
    Remove jobs of QUEUE that no worker has started.

    The exit status is 1 if one of them was not found.
    """
    with opened(options, name, prefix) as found:
        missing = [job_id for job_id in ids if not found.cancel(job_id)]
    for job_id in missing:
        commands.warn(f"{name} has no open job with the id {job_id}")
    if missing:
        raise click.exceptions.Exit(1)


@queue.command("dead")
@name_argument
@prefix_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N, oldest first.")
@click.option("--remove", metavar="ID", help="Remove the dead jobs with this id for good.")
@click.option("--remove-all", is_flag=True, help="Remove all dead jobs for good.")
@commands.json_option
def dead_jobs(
    *,
    options: jetsync.ConnectOptions,
    name: str,
    prefix: str,
    limit: int | None,
    remove: str | None,
    remove_all: bool,
    as_json: bool,
) -> None:
    """
    List the dead jobs of QUEUE, with the reason why each was given up.
    """
    with opened(options, name, prefix) as found:
        if remove is not None or remove_all:
            commands.say(f"removed {found.delete_dead(None if remove_all else remove):,}")
            return
        jobs = found.dead(limit=limit)
    if as_json:
        commands.print_json([as_fields(job) for job in jobs])
    elif jobs:
        columns = ["id", "died", "attempts", "reason"]
        rows = [
            [job.id, f"{job.died:%Y-%m-%d %H:%M:%S} UTC", job.attempts, job.reason] for job in jobs
        ]
        commands.print_table(columns, rows, numbers=["attempts"])
    else:
        commands.say(f"{name} has no dead jobs.")


def as_fields(job: DeadJob) -> dict[str, Any]:
    """
    Return a dead job as `--json` prints it.
    """
    fields = attrs.asdict(job)
    fields["died"] = job.died.astimezone(dt.timezone.utc).isoformat()
    if isinstance(job.data, bytes):
        fields["data"] = job.data.decode("utf-8", "backslashreplace")
    return fields


@queue.command("retry")
@name_argument
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--all", "every", is_flag=True, help="All dead jobs.")
@prefix_option
def retry_jobs(
    *,
    options: jetsync.ConnectOptions,
    name: str,
    ids: tuple[str, ...],
    every: bool,
    prefix: str,
) -> None:
    """
    Put dead jobs of QUEUE back. Their attempts begin at 1.
    """
    if bool(ids) == every:
        raise click.UsageError("Give one or more IDs, or --all.")
    with opened(options, name, prefix) as found:
        wanted: list[str | None] = [None] if every else list(ids)
        moved = sum(found.retry_dead(job_id) for job_id in wanted)
    commands.say(f"put back {moved:,}")
    if ids and moved < len(ids):
        commands.warn("some ids have no dead job")
        raise click.exceptions.Exit(1)
