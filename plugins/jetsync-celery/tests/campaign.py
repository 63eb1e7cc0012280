"""
What a campaign did to workers and servers, what the tasks did, and why tasks ran twice.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

SENDING: Final = 0.1
"""Seconds before a worker's death in which an acknowledgement may not have left the worker."""

STORING: Final = 0.5
"""Seconds before a server's death in which it may not have stored what it has confirmed."""

AFTERWARDS: Final = 10.0
"""Seconds after an outage in which a worker may still have tasks from before it."""

AGE: Final = 3 / 8
"""The share of the ack wait after which progress is reported, so that this much may have passed."""

ROUNDING: Final = 2.0
"""Seconds by which a server that starts again may end an ack wait too early. It stores the times of
deliveries in whole seconds."""


@attrs.define(eq=False)
class Run:
    """
    A start of a task in a worker, and what followed.
    """

    group: int
    """The process group of the worker."""

    started: float
    is_redelivered: bool
    """Whether the server knew of an earlier delivery."""

    ended: float | None = None
    acked: float | None = None
    """When the server had confirmed the acknowledgement."""


@attrs.define
class Outage:
    """
    When a server was killed, and when it answered again.
    """

    since: float
    until: float


@attrs.frozen
class Repeat:
    """
    A task that ran again.
    """

    name: str
    reason: str | None
    first: Run
    second: Run

    def __str__(self) -> str:
        return f"{self.name}: {self.reason or 'UNEXPLAINED'}: {self.first}, {self.second}"


@attrs.define
class Campaign:
    """
    The deaths, and the runs of all tasks, which are read from a log that workers write.
    """

    log: Path
    ack_wait: float
    servers: int
    kills: dict[int, float] = attrs.field(factory=dict)
    """The process groups that were killed, and when."""

    outages: list[Outage] = attrs.field(factory=list)
    runs: dict[str, list[Run]] = attrs.field(factory=lambda: defaultdict(list))
    ended: set[str] = attrs.field(factory=set)
    """The tasks that were done at least once."""

    _place: int = 0

    def read(self) -> None:
        """Read what was added to the log."""
        with self.log.open() as file:
            file.seek(self._place)
            text = file.read()
        whole = text.rpartition("\n")[0]
        self._place += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            what, moment, group, name, redelivered = line.split()
            runs = self.runs[name]
            if what == "start":
                runs.append(Run(int(group), float(moment), redelivered == "True"))
                continue
            of_group = [each for each in runs if each.group == int(group)]
            if what == "end":
                next(each for each in of_group if each.ended is None).ended = float(moment)
                self.ended.add(name)
            elif of_group:
                of_group[-1].acked = float(moment)

    def repeats(self) -> Iterator[Repeat]:
        """Yield each run of a task after its first one, with its reason."""
        for name, runs in self.runs.items():
            runs.sort(key=lambda run: run.started)
            for first, second in itertools.pairwise(runs):
                yield Repeat(name, self._reason(first, second), first, second)

    def _reason(self, first: Run, second: Run) -> str | None:
        killed = self.kills.get(first.group)
        acked = float("inf") if first.acked is None else first.acked
        if killed is not None and killed <= second.started and acked >= killed - SENDING:
            return "its worker was killed before the server had the acknowledgement"
        for outage in self.outages:
            if second.started < outage.since or first.started > outage.until + AFTERWARDS:
                continue
            if outage.since - STORING <= acked <= outage.since:
                return "the server was killed before it stored the acknowledgement"
            if acked < outage.since or first.group == second.group:
                continue
            if not second.is_redelivered:
                return "the server was killed before it stored the delivery"
            if outage.until - outage.since >= self.ack_wait * (1 - AGE) - ROUNDING:
                return "the server or the leader was away for too long for the ack wait"
            if self.servers > 1:
                # Seen with server 2.15.1: 2 of 15,000 tasks with an ack wait of 20 s.
                return "a new leader delivered it before its ack wait was over"
        return None
