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
from typing import TYPE_CHECKING, Final

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


def names(
    ctx: click.Context, incomplete: str, ask: Callable[[jetsync.JetStream], Iterable[str]]
) -> list[str]:
    """
    Ask the server that the command line names. Return the names that begin as the incomplete one.
    """
    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        wait = float(os.environ.get("JETSYNC_COMPLETION_TIMEOUT") or _WAIT)
        given = {name: ctx.params.get(name) for name in FIELDS if name != "timeout"}
        with connect(make_options(**given, timeout=wait)) as client:
            found = (
                name
                for name in ask(client.jetstream())
                if name.startswith(incomplete) and _SAFE.fullmatch(name)
            )
            return sorted(itertools.islice(found, MOST))
    return []


def stream_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """
    Return the names of streams.
    """
    return names(ctx, incomplete, lambda js: js.stream_names())


def consumer_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """
    Return the names of the consumers of the stream before.
    """
    return names(ctx, incomplete, lambda js: js.stream(ctx.params["stream"]).consumer_names())


def bucket_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """
    Return the names of buckets.
    """
    return names(ctx, incomplete, lambda js: js.key_value_names())


def store_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """
    Return the names of object stores.
    """
    return names(ctx, incomplete, lambda js: (store.bucket for store in js.object_stores()))


stream_argument = click.argument("stream", shell_complete=stream_names)
stream_name_argument = click.argument("name", shell_complete=stream_names)
consumer_argument = click.argument("name", shell_complete=consumer_names)
bucket_argument = click.argument("bucket", shell_complete=bucket_names)
store_argument = functools.partial(click.argument, "bucket", shell_complete=store_names)
