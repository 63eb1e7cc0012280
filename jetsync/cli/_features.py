"""
The features of JetStream that each server version supports.

A table of feature, API level and version. The server reports its API level. If servers of one level
differ, the version decides. `docs/features.md` has the same table in words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

Version = tuple[int, int, int]


@attrs.frozen
class Feature:
    """
    One feature and the servers that have it.
    """

    name: str
    """A short name, as `--require` takes it."""

    title: str
    """What it is, in a few words."""

    level: int
    """The API level from which it works; 0 for every server that has JetStream."""

    version: Version
    """The nats-server version from which it works."""

    caution: Version | None = None
    """Versions below this one have the feature, with serious faults."""

    fault: str = ""
    """Which faults."""


FEATURES: Final = (
    Feature("direct_get", "direct get of single messages", 0, (2, 10, 0)),
    Feature("direct_batch", "direct get of many messages, or from a time", 1, (2, 11, 0)),
    Feature("direct_multi", "direct get of many subjects, as a consistent snapshot", 1, (2, 11, 0)),
    Feature("message_ttl", "time to live per message", 1, (2, 11, 0)),
    Feature(
        "limit_markers",
        "limit markers (subject_delete_marker_ttl)",
        1,
        (2, 11, 0),
        caution=(2, 11, 11),
        fault="no markers on streams in memory",
    ),
    Feature("pause", "pausing a consumer", 1, (2, 11, 0)),
    Feature("priority_groups", "priority groups: overflow, pinned_client", 1, (2, 11, 0)),
    Feature("prioritized", "priority groups: prioritized", 2, (2, 12, 0)),
    Feature(
        "atomic_batch",
        "atomic batches",
        2,
        (2, 12, 0),
        caution=(2, 12, 5),
        fault="the server checks some expectations within a batch incorrectly",
    ),
    Feature("batch_message_ids", "message ids within an atomic batch", 2, (2, 12, 1)),
    Feature("counters", "counters", 2, (2, 12, 0)),
    Feature("schedules", "message schedules", 2, (2, 12, 0)),
    Feature("batch_eob", "ending an atomic batch without a last message", 4, (2, 14, 0)),
    Feature("fast_ingest", "fast ingest", 4, (2, 14, 0)),
    Feature("reset", "resetting a consumer", 4, (2, 14, 0)),
)

NAMES: Final = tuple(feature.name for feature in FEATURES)


@attrs.frozen
class Verdict:
    """
    Whether one feature works on one server.
    """

    feature: Feature
    works: bool
    why: str = ""
    """What is missing, or a caveat. Empty if the feature works."""

    def as_json(self) -> dict[str, object]:
        """
        Return it as `--json` prints it.
        """
        return {
            "feature": self.feature.name,
            "works": self.works,
            "needs": f"nats-server {_text(self.feature.version)}",
            "why": self.why or None,
        }


def verdicts(version: str, level: int, *, jetstream: str | None = None) -> tuple[Verdict, ...]:
    """
    Return for each feature whether it works on a server.

    Args:
        version: The version that the server reports.

        level: The API level of the server that answers JetStream requests, 0 if it reports none.

        jetstream: Why JetStream is not available, or `None` if it is.
    """
    if jetstream is not None:
        return tuple(Verdict(feature, works=False, why=jetstream) for feature in FEATURES)
    return tuple(_judge(feature, version, level) for feature in FEATURES)


def missing(found: Iterable[Verdict], required: Iterable[str]) -> tuple[str, ...]:
    """
    Return the required features that do not work.
    """
    wanted = set(required)
    return tuple(
        verdict.feature.name
        for verdict in found
        if verdict.feature.name in wanted and not verdict.works
    )


def parse_version(version: str) -> Version:
    """
    Return the first three numbers of a version, without the suffix of a pre-release.
    """
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        return (0, 0, 0)
    major, minor, patch = found.groups(default="0")
    return (int(major), int(minor), int(patch))


def _judge(feature: Feature, version: str, level: int) -> Verdict:
    number = parse_version(version)
    if level < feature.level or number < feature.version:
        need = f"nats-server {_text(feature.version)}"
        if feature.level:
            need += f" (API level {feature.level})"
        return Verdict(
            feature, works=False, why=f"needs {need}, this is {version} (API level {level})"
        )
    if feature.caution is not None and number < feature.caution:
        return Verdict(feature, works=True, why=f"before {_text(feature.caution)}: {feature.fault}")
    return Verdict(feature, works=True)


def _text(version: Version) -> str:
    major, minor, patch = version
    return f"{major}.{minor}" if patch == 0 else f"{major}.{minor}.{patch}"
