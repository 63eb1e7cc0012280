"""
How many jobs a queue has.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

import jetsync
from jetsync_queue.names import KINDS, MOST_PRIORITIES

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
    # The server counts 1 million subjects in about 1 second.
    subjects = core.stream.info(subjects_filter=names.all_jobs).state.subjects or {}
    stored: Counter[str] = Counter()
    for subject, number in subjects.items():
        stored[subject.partition(".")[0]] += number
    available, scheduled, failed, dead = (stored[kind] for kind in KINDS)
    return QueueStatistics(max(available - running, 0), running, scheduled, failed, dead)
