"""
How many jobs a queue has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

import jetsync
from jetsync_queue.names import MOST_PRIORITIES

if TYPE_CHECKING:
    from jetsync_queue.core import Core

__all__ = ["QueueStatistics"]


@attrs.frozen
class QueueStatistics:
    """
    How many jobs of a queue there are in each state.
    """

    waiting: int
    """Jobs that are available, and that no worker has had."""

    running: int
    """
    Jobs that a worker has: it runs them, or has fetched them ahead. The server also counts jobs
    that were given back, until another worker takes them.
    """

    scheduled: int
    """Jobs with a delay."""

    failed: int
    """Jobs whose last attempt failed, and that wait for the next one."""

    dead: int
    """Jobs that were given up."""

    @property
    def open(self) -> int:
        """All jobs except dead ones."""
        return self.waiting + self.running + self.scheduled + self.failed


def count_jobs(core: Core) -> QueueStatistics:
    """
    Count the jobs of a queue.
    """
    names = core.names
    running = 0
    for priority in range(MOST_PRIORITIES):
        try:
            running += core.stream.consumer(names.consumer(priority)).cached_info.num_ack_pending
        except jetsync.ConsumerNotFoundError:
            continue
    stored, scheduled, failed, dead = (
        _count(core, subject)
        for subject in (
            names.all_waiting,
            names.scheduled("*"),
            names.retrying("*"),
            names.dead("*"),
        )
    )
    return QueueStatistics(max(stored - running, 0), running, scheduled, failed, dead)


def _count(core: Core, subject: str) -> int:
    """Count the messages of a wildcard. The server counts 1 million subjects in about 1 second."""
    found = core.stream.info(subjects_filter=subject).state.subjects or {}
    return sum(found.values())
