"""
The features of JetStream that each server version supports.

A table of features and versions. A feature works if the server has that version, and reports the
API level of that version or a later one. `docs/features.md` has the same table in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from jetsync.values.server_info import version_numbers
from jetsync.values.server_versions import level_of_version

if TYPE_CHECKING:
    from collections.abc import Iterable


@attrs.frozen
class Feature:
    """
    One feature and the servers that have it.
    """

    name: str
    """A short name, as `--require` takes it."""

    title: str
    """What it is, in a few words."""

    version: str
    """The nats-server version from which it works."""

    caution: str = ""
    """Versions below this one have the feature, with serious faults."""

    fault: str = ""
    """What goes wrong on those versions."""


FEATURES: Final = (
    Feature("direct_get", "direct get of single messages", "2.10"),
    Feature("direct_batch", "direct get of many messages, or from a time", "2.11"),
    Feature("direct_multi", "direct get of many subjects, as a consistent snapshot", "2.11"),
    Feature("message_ttl", "time to live per message", "2.11"),
    Feature(
        "limit_markers",
        "limit markers (subject_delete_marker_ttl)",
        "2.11",
        caution="2.11.11",
        fault="no markers on streams in memory",
    ),
    Feature("pause", "pausing a consumer", "2.11"),
    Feature("priority_groups", "priority groups: overflow, pinned_client", "2.11"),
    Feature("prioritized", "priority groups: prioritized", "2.12"),
    Feature(
        "atomic_batch",
        "atomic batches",
        "2.12",
        caution="2.12.5",
        fault="the server checks some expectations within a batch incorrectly",
    ),
    Feature("batch_message_ids", "message ids within an atomic batch", "2.12.1"),
    Feature("counters", "counters", "2.12"),
    Feature("schedules", "message schedules", "2.12"),
    Feature("batch_eob", "ending an atomic batch without a last message", "2.14"),
    Feature("fast_ingest", "fast ingest", "2.14"),
    Feature("reset", "resetting a consumer", "2.14"),
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
            "needs": f"nats-server {self.feature.version}",
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


def _judge(feature: Feature, version: str, level: int) -> Verdict:
    number, needed = version_numbers(version), level_of_version(feature.version)
    if level < needed or number < version_numbers(feature.version):
        need = f"nats-server {feature.version}"
        if needed:
            need += f" (API level {needed})"
        return Verdict(
            feature, works=False, why=f"needs {need}, this is {version} (API level {level})"
        )
    if number < version_numbers(feature.caution):
        return Verdict(feature, works=True, why=f"before {feature.caution}: {feature.fault}")
    return Verdict(feature, works=True)
