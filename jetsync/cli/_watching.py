"""
What the `watch` commands of key-value buckets and object stores share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jetsync.cli._connection import connect
from jetsync.cli._output import print_each, print_json_line, until_ctrl_c
from jetsync.cli._units import Decorator, combined, number_option
from jetsync.errors import RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import jetsync
    from jetsync.kv.watch import Watch
    from jetsync.objects.watch import ObjectWatch


def watch_options(item: str, items: str) -> Decorator:
    """
    Return a decorator that adds the options of :func:`print_changes`.

    Args:
        item: What is on a line.
        items: Several of them.
    """
    return combined(
        click.option("--updates-only", is_flag=True, help="Begin with the next change."),
        click.option("--ignore-deletes", is_flag=True, help="Leave out deletions."),
        number_option("--count", help=f"End after N {items}."),
        click.option("--no-follow", is_flag=True, help=f"End after the stored {items}."),
        click.option("--json", "as_json", is_flag=True, help=f"Print JSON, one {item} per line."),
    )


def print_changes(
    options: jetsync.ConnectOptions,
    watch: Callable[[jetsync.JetStream], Watch[bytes] | ObjectWatch],
    show: Callable[[Any], object],
    as_dict: Callable[[Any], dict[str, Any]],
    *,
    as_json: bool,
    count: int | None,
    no_follow: bool,
) -> None:
    """
    Print what a watch yields until Ctrl-C.

    Args:
        options: The connection.
        watch: Opens the watch.
        show: Prints one change as a line.
        as_dict: Returns one change for JSON.
        as_json: Whether to print JSON.
        count: End after so many.
        no_follow: End after what is stored.
    """
    with until_ctrl_c(), connect(options) as client, watch(client.jetstream()) as found:
        changes: Any = stored(client, found) if no_follow else found
        print_each(
            changes, (lambda change: print_json_line(as_dict(change))) if as_json else show, count
        )


def stored(client: jetsync.Client, found: Watch[bytes] | ObjectWatch) -> Iterator[Any]:
    """
    Yield what existed when the watch was created.

    Raises:
        DisconnectedError: No server answers in time.
    """
    while True:
        try:
            yield from found.initial(timeout=client.options.request_timeout)
        except RequestTimeoutError:
            # There may be many. Without a connection, this raises.
            client.flush()
        else:
            return
