"""
A Spark cluster of two hosts on one machine, and the processes of sessions.

The hosts are two loopback addresses, of which Linux has many. Spark runs a copy of a slow task only
on another host, and distinguishes hosts by their names.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pyspark
from waiting import eventually

__all__ = ["Standalone", "end_session", "kill", "processes_of", "runs_of", "speculating"]

HOSTS = ("127.0.0.1", "127.0.0.2")


def kill(pid):
    """
    Kill a process, unless it has ended.
    """
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def processes_of(leader, *words):
    """
    Return the processes of a session whose command line contains all these words.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
            session = (entry / "stat").read_text().rpartition(")")[2].split()[3]
        except OSError:
            continue
        if int(session) == leader and all(word in line for word in words):
            found.append(int(entry.name))
    return found


def end_session(leader, timeout=30):
    """
    Kill a process that leads a session and everything that it started, and wait for their end.
    """
    for pid in processes_of(leader.pid):
        kill(pid)
    leader.wait(timeout)
    eventually(lambda: not processes_of(leader.pid), timeout)


def speculating(events):
    """
    Return the settings of a session on the cluster that runs slow tasks twice, without killing
    either.

    Args:
        events: A folder for Spark's event log.
    """
    return {
        "spark__cores__max": str(len(HOSTS)),
        "spark__scheduler__minRegisteredResourcesRatio": "1.0",
        "spark__speculation": "true",
        "spark__speculation__interval": "50ms",
        "spark__speculation__quantile": "0.5",
        "spark__speculation__multiplier": "1.1",
        # The Python of the abandoned copy would otherwise usually be killed after two seconds.
        "spark__python__task__killTimeout": "30min",
        "spark__eventLog__enabled": "true",
        "spark__eventLog__dir": events.as_uri(),
        "spark__eventLog__compress": "false",
        "spark__eventLog__rolling__enabled": "false",
    }


def runs_of(events, number):
    """
    Return all runs of the task to which a run number belongs, in the order of their start.
    """
    (log,) = events.iterdir()
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    started = [each for each in notes if each["Event"] == "SparkListenerTaskStart"]
    (mine,) = (each for each in started if each["Task Info"]["Task ID"] == number)
    return [
        each["Task Info"]
        for each in started
        if each["Stage ID"] == mine["Stage ID"]
        and each["Task Info"]["Index"] == mine["Task Info"]["Index"]
    ]


class Standalone:
    """
    A master and two workers with one core each; a context manager.
    """

    def __init__(self, folder):
        self._folder = folder
        self._started = []
        self.url = None

    def __enter__(self):
        try:
            log = self._start("master.Master", HOSTS[0])
            said = eventually(lambda: re.search(r"spark://127\.0\.0\.1:\d+", log.read_text()), 120)
            self.url = said.group()
            size = ["-c", "1", "-m", "1g", "-d", str(self._folder)]
            logs = [self._start("worker.Worker", host, *size, self.url) for host in HOSTS]
            for each in logs:
                eventually(lambda log=each: "registered with master" in log.read_text(), 120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self._started):
            # Executors and their Pythons belong to the worker's session.
            end_session(process)
        self._started.clear()

    def _start(self, kind, host, *arguments):
        """Start a master or a worker; return its log."""
        home = Path(pyspark.__file__).parent
        log = self._folder / f"{kind}-{host}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{kind}",
                    *("--host", host, "--port", "0", "--webui-port", "0"),
                    *arguments,
                ],
                # Otherwise other machines could open its pages.
                env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._started.append(process)
        return log
