"""
The tables of `jetsync stream report` and `jetsync consumer report`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from jetsync.cli._output import WARNING, Styled, print_list, size
from jetsync.cli._samples import (
    Sampler,
    consumer_dict,
    slowest,
    stream_dict,
)
from jetsync.cli._units import age_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

interval_option = age_option(
    "--interval",
    default="1s",
    show_default=True,
    help="How long to measure rates; with 0, the command measures none.",
)


def sort_option(*ways: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Return the option for the order of the rows. It begins with the largest number.
    """
    return click.option(
        "--sort",
        type=click.Choice(ways),
        default="name",
        show_default=True,
        help="Sort by name, or begin with the largest number.",
    )


def measured(sampler: Sampler, interval: float) -> Sampler:
    """
    Take two samples with an interval between them, or one if there is no interval.
    """
    sampler.round()
    if interval:
        time.sleep(interval)
        sampler.round()
    return sampler


def stream_rows(sampler: Sampler, sort: str) -> list[dict[str, Any]]:
    """
    Return the streams of a sampler as `--json` prints them, sorted.
    """
    lags = slowest(sampler.consumers)
    return in_order((stream_dict(sample, lags) for sample in sampler.streams.values()), sort)


def consumer_rows(sampler: Sampler, sort: str) -> list[dict[str, Any]]:
    """
    Return the consumers of a sampler as `--json` prints them, sorted.
    """
    samples = (sample for found in sampler.consumers.values() for sample in found.values())
    return in_order(map(consumer_dict, samples), sort)


def print_streams(rows: list[dict[str, Any]], *, as_json: bool = False) -> None:
    """
    Print a table of streams.
    """
    replicated = any((row["replicas"] or 1) > 1 for row in rows)

    def cells(row: dict[str, Any]) -> dict[str, object]:
        return {
            "stream": row["stream"],
            "messages": f"{row['messages']:,}",
            "size": size(row["bytes"]),
            "msgs/s": rate(row["messages_per_second"]),
            "consumers": f"{row['consumers']:,}",
            "lag": f"{row['lag']:,}" if row["consumers"] else "",
            **({"replicas": copies(row)} if replicated else {}),
            "idle": ago(row["idle_seconds"]),
        }

    print_list(
        rows,
        as_json=as_json,
        as_dict=dict,
        row=cells,
        numbers=("messages", "size", "msgs/s", "consumers", "lag", "replicas", "idle"),
        nothing="There are no streams.",
    )


def print_consumers(
    rows: list[dict[str, Any]], stream: str | None = None, *, as_json: bool = False
) -> None:
    """
    Print a table of consumers, of a stream or of several.
    """

    def cells(row: dict[str, Any]) -> dict[str, object]:
        return {
            "consumer": row["consumer"],
            **({"stream": row["stream"]} if stream is None else {}),
            "lag": f"{row['lag']:,}",
            "unacked": f"{row['unacknowledged']:,}",
            "redelivered": f"{row['redelivered']:,}",
            "pulls": f"{row['waiting_pulls']:,}",
            "msgs/s": rate(row["messages_per_second"]),
            "last ack": last_ack(row),
        }

    print_list(
        rows,
        as_json=as_json,
        as_dict=dict,
        row=cells,
        numbers=("lag", "unacked", "redelivered", "pulls", "msgs/s", "last ack"),
        nothing="There are no consumers." if stream is None else f"{stream} has no consumers.",
    )


def in_order(rows: Iterable[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """
    Return rows by name, or with the largest number of a column first.
    """
    found = sorted(rows, key=lambda row: (row["stream"], row.get("consumer", "")))
    if by != "name":
        field = {"size": "bytes", "rate": "messages_per_second"}.get(by, by)
        found.sort(key=lambda row: row[field] or 0, reverse=True)
    return found


def copies(row: dict[str, Any]) -> str | Styled:
    """
    Return the number of copies of a stream, and how many are not up to date.
    """
    late = row["replicas_behind"]
    return Styled(f"{row['replicas']}, {late} behind", WARNING) if late else f"{row['replicas']}"


def last_ack(row: dict[str, Any]) -> str | Styled:
    """
    Return how long ago a consumer got its last acknowledgement, or that it is paused.
    """
    return Styled("paused", WARNING) if row["paused"] else ago(row["last_ack_seconds"])


def rate(per_second: float | None) -> str:
    """
    Return a rate as people read it.
    """
    if per_second is None:
        return ""
    return f"{per_second:,.1f}" if 0 < per_second < 10 else f"{per_second:,.0f}"


def ago(seconds: float | None) -> str:
    """
    Return how long ago something was, in its largest unit.
    """
    if seconds is None:
        return "never"
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
