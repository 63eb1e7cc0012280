"""
The clauses of the specifications that a server cannot do.

The clauses are in `_clauses.py`, and `docs/specifications` explains them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from jetsync.cli._clauses import CLAUSES
from jetsync.values.server_info import version_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen
class Coverage:
    """
    The part of one specification that a server can do.
    """

    title: str
    clauses: int
    """How many clauses the specification has."""

    missing: tuple[tuple[str, str], ...]
    """The servers that can do what this one cannot, and the clauses as ranges of ids."""

    @property
    def works(self) -> int:
        """
        How many clauses the server can do.
        """
        return self.clauses - sum(len(list(_ids(ranges))) for _, ranges in self.missing)

    @property
    def note(self) -> str:
        """
        The other clauses, for people. Empty if there are none.
        """
        parts = [
            f"{ranges} ({'no server' if servers == 'none' else f'server {servers}'})"
            for servers, ranges in self.missing
        ]
        return f"not {'; '.join(parts)}" if parts else ""

    def as_json(self) -> dict[str, object]:
        """
        Return it as `--json` prints it.
        """
        return {
            "specification": self.title,
            "clauses": self.clauses,
            "works": self.works,
            "missing": [
                {
                    "clauses": list(_ids(ranges)),
                    "needs": None if servers == "none" else f"nats-server {servers}",
                }
                for servers, ranges in self.missing
            ],
        }


def coverage(version: str) -> tuple[Coverage, ...]:
    """
    Return for each specification what a server of this version can do.
    """
    number = version_numbers(version)
    return tuple(
        Coverage(
            title,
            count,
            tuple(group for group in groups.items() if not _includes(group[0], number)),
        )
        for title, (count, groups) in CLAUSES.items()
    )


def _includes(servers: str, number: tuple[int, ...]) -> bool:
    """Return whether a version is one of *servers*, such as ``2.12.0``, ``2.10, 2.11 only``."""
    if servers == "none":
        return False
    versions = [version_numbers(each) for each in servers.removesuffix(" only").split(", ")]
    if servers.endswith(" only"):
        return any(number[: len(each)] == each for each in versions)
    return number >= versions[0]


def _ids(ranges: str) -> Iterator[str]:
    """Yield each id of a text such as ``AB-01 to AB-07, AB-09``."""
    for part in ranges.split(", "):
        first, _, last = part.partition(" to ")
        prefix, _, start = first.partition("-")
        for number in range(int(start), int((last or first).partition("-")[2]) + 1):
            yield f"{prefix}-{number:02}"
