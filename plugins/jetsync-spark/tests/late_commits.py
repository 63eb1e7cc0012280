"""
A plugin of jetsync that holds back one commit: that of the second chunk of the first run of
partition 0. Other partitions commit nothing before.

Notes of that are in a folder, which the variable ``JETSYNC_TEST_LATE_COMMITS`` names:

- ``held``: the run whose commit is held back, until there is a file ``wake``;
- ``ended``: a line for each commit that has ended, with the error if it was refused.
"""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path

from waiting import eventually

import jetsync
from jetsync_spark.common.task import this_task

FOLDER = "JETSYNC_TEST_LATE_COMMITS"
"""Variable with the path of the folder; without, nothing is held back or noted."""

NAME = "late-commits"
"""What the plugin is known by."""


def install(folder):
    """
    Make the plugin one that is installed, for whoever has *folder* in the path of modules.
    """
    made = folder / "late_commits-1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: late-commits\nVersion: 1\n")
    (made / "entry_points.txt").write_text(f"[jetsync]\n{NAME} = {__name__}:LateCommits\n")


def noted(folder, name):
    """
    Return the notes of a name.
    """
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class LateCommits:
    """
    The plugin, in each worker.
    """

    name = NAME

    def __init__(self):
        self._folder = Path(os.environ[FOLDER]) if FOLDER in os.environ else None
        self._commits = collections.Counter()

    @jetsync.hookimpl(wrapper=True)
    def jetsync_batch_commit(self):
        """Note a commit, and hold it back if it is the one."""
        if self._folder is None:
            return (yield)
        task = this_task()
        run = {
            "partition": task.partition,
            "attempt": task.attempt,
            "task_attempt": task.task_attempt,
            "batch": task.batch,
            "pid": os.getpid(),
        }
        self._commits[task.task_attempt] += 1
        if (task.partition, task.attempt) != (0, 0):
            # Whatever is faster today: nothing overtakes the one before it is held back.
            eventually((self._folder / "held").exists, 600)
        elif self._commits[task.task_attempt] == 2 and self._is_first(run):
            eventually((self._folder / "wake").exists, 1200)
        try:
            ack = yield
        except jetsync.JetSyncError as error:
            code = getattr(error, "err_code", None)
            self._note_end({**run, "error": type(error).__name__, "err_code": code})
            raise
        self._note_end({**run, "error": None, "err_code": None})
        return ack

    def _is_first(self, run):
        """Return whether no other commit was held back; this one is, then."""
        try:
            file = (self._folder / "held").open("x")
        except FileExistsError:
            return False
        with file:
            file.write(json.dumps(run) + "\n")
        return True

    def _note_end(self, run):
        # One write in append mode: workers do not mix their lines.
        with (self._folder / "ended").open("a") as file:
            file.write(json.dumps(run) + "\n")
