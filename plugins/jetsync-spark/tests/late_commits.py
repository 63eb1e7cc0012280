"""
A plugin of jetsync that delays one commit: that of the second chunk of the first run of partition
0. Other partitions commit nothing before it.

It writes notes to the folder in the variable ``JETSYNC_TEST_LATE_COMMITS``:

- ``held``: the run whose commit is delayed until a file ``wake`` exists;
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
"""Variable with the path of the folder; without it, nothing is delayed or noted."""

NAME = "late-commits"
"""The plugin's name."""


def install(folder):
    """
    Install the plugin for processes that have *folder* in their module path.
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
        """Note a commit, and delay it if it is the chosen one."""
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
            # However fast the others are, none commits before this one is delayed.
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
        """Return whether no other commit is delayed, and choose this one."""
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
