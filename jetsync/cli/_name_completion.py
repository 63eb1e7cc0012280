"""
Completion of the names of streams, consumers, buckets and object stores, which the server knows.

A shell asks while the user types. So a server that is missing or slow means no names and no output.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import re
from typing import TYPE_CHECKING, Any, Final

import click

from jetsync.cli._connection import FIELDS, connect, make_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import jetsync

MOST: Final = 1000
"""Names to offer at most."""

_WAIT: Final = 1.0

# Shells insert a name unquoted, and others may choose the name.
_SAFE: Final = re.compile(r"[\w=][\w=.-]*")


def named_by(
    ask: Callable[[jetsync.JetStream, dict[str, Any]], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """
    Return a function that completes names.

    Args:
        ask: Asks for all names, with the other arguments of the command line.
    """

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
            wait = float(os.environ.get("JETSYNC_COMPLETION_TIMEOUT") or _WAIT)
            given = {name: ctx.params.get(name) for name in FIELDS if name != "timeout"}
            with connect(make_options(**given, timeout=wait)) as client:
                found = (
                    name
                    for name in ask(client.jetstream(), ctx.params)
                    if name.startswith(incomplete) and _SAFE.fullmatch(name)
                )
                return sorted(itertools.islice(found, MOST))
        return []

    return complete


stream_names: Final = named_by(lambda js, _: js.stream_names())

stream_argument = click.argument("stream", shell_complete=stream_names)
stream_name_argument = click.argument("name", shell_complete=stream_names)
consumer_argument = click.argument(
    "name", shell_complete=named_by(lambda js, given: js.stream(given["stream"]).consumer_names())
)
bucket_argument = click.argument(
    "bucket", shell_complete=named_by(lambda js, _: js.key_value_names())
)
store_argument = functools.partial(
    click.argument,
    "bucket",
    shell_complete=named_by(lambda js, _: (store.bucket for store in js.object_stores())),
)
