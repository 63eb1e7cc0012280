"""
`jetsync services`: find services, and call them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

import jetsync
from jetsync.cli import commands
from jetsync_services import calling
from jetsync_services.documents import ServicePing, as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MILLION = 1_000_000

stall_option = click.option(
    "--stall",
    type=commands.positive_seconds_of,
    default="300ms",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the answer of another instance.",
)


@commands.group()
def services() -> None:
    """
    Find and call services (ADR-32), in any language.
    """


@services.command()
@stall_option
@commands.json_option
def ls(*, options: jetsync.ConnectOptions, stall: float, as_json: bool) -> None:
    """
    List the services, with the number of their instances.
    """
    with commands.connect(options) as client:
        found = calling.discover(client, stall=stall)
    if as_json:
        commands.print_json([_listed(each) for each in found])
    elif not found:
        commands.say("No services answered.")
    else:
        commands.print_table(
            ("service", "versions", "instances", "endpoints", "description"),
            (
                (
                    each.name,
                    ", ".join(each.versions),
                    len(each.instances),
                    len(each.endpoints),
                    each.description,
                )
                for each in found
            ),
            numbers=("instances", "endpoints"),
        )


@services.command()
@click.argument("name")
@click.argument("id", required=False)
@stall_option
@commands.json_option
def info(
    *,
    options: jetsync.ConnectOptions,
    name: str,
    id: str | None,  # noqa: A002 - the argument.
    stall: float,
    as_json: bool,
) -> None:
    """
    Show the endpoints of the service NAME, or of its instance ID.
    """
    found = _instances(options, calling.info, name, id, stall)
    if as_json:
        _print_documents(found)
        return
    for each in found:
        commands.print_pairs(
            [
                ("service", f"{each.name} {each.version}"),
                ("instance", each.id),
                ("description", each.description),
                *each.metadata.items(),
            ]
        )
        if each.endpoints:
            commands.print_table(
                ("endpoint", "subject", "queue group", "metadata"),
                (
                    (
                        endpoint.name,
                        endpoint.subject,
                        endpoint.queue_group,
                        ", ".join(f"{key}={value}" for key, value in endpoint.metadata.items()),
                    )
                    for endpoint in each.endpoints
                ),
            )
        commands.say()


@services.command()
@click.argument("name", required=False)
@click.argument("id", required=False)
@stall_option
@commands.json_option
def stats(
    *,
    options: jetsync.ConnectOptions,
    name: str | None,
    id: str | None,  # noqa: A002 - the argument.
    stall: float,
    as_json: bool,
) -> None:
    """
    Show the requests and errors of all services, of the service NAME, or of its instance ID.
    """
    found = _instances(options, calling.stats, name, id, stall)
    if as_json:
        _print_documents(found)
        return
    commands.print_table(
        ("service", "instance", "endpoint", "requests", "errors", "average ms", "last error"),
        (
            (
                each.name,
                each.id,
                endpoint.name,
                f"{endpoint.num_requests:,}",
                f"{endpoint.num_errors:,}",
                f"{endpoint.average_processing_time / MILLION:.3f}",
                endpoint.last_error,
            )
            for each in found
            for endpoint in each.endpoints
        ),
        numbers=("requests", "errors", "average ms"),
    )


@services.command()
@click.argument("subject")
@click.argument("data", required=False)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    type=commands.header_of,
    metavar="'NAME: VALUE'",
    help="Add a header. May be repeated.",
)
@commands.json_option
def call(
    *,
    options: jetsync.ConnectOptions,
    subject: str,
    data: str | None,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """
    Call the endpoint at SUBJECT, and print its answer.

    If DATA is left out or is `-`, the payload is read from standard input. If the service answers
    with an error, the exit status is 1.
    """
    named = jetsync.Headers()
    for name, value in headers:
        named.add(name, value)
    payload = commands.read_input(data, "the payload")
    with commands.connect(options) as client:
        answer = calling.call(client, subject, payload, headers=named if headers else None)
    text = answer.data.decode("utf-8", "backslashreplace")
    if as_json:
        commands.print_json({"headers": dict(answer.headers.items()), "data": text})
    else:
        commands.say(text, lines=True)


def _instances(
    options: jetsync.ConnectOptions,
    ask: Callable[..., Sequence[Any]],
    name: str | None,
    id: str | None,  # noqa: A002 - the argument.
    stall: float,
) -> Sequence[Any]:
    with commands.connect(options) as client:
        found = ask(client, name, id, stall=stall)
    if not found:
        what = "no service answered" if name is None else f"no instance of {name!r} answered"
        raise click.ClickException(
            what if id is None else f"no instance {id!r} of {name!r} answered"
        )
    return found


def _print_documents(found: Sequence[ServicePing]) -> None:
    commands.print_json([as_json(each) for each in found])


def _listed(found: calling.DiscoveredService) -> dict[str, Any]:
    return {each.name: as_json(getattr(found, each.name)) for each in attrs.fields(type(found))}
