"""
A Spark cluster and a JetStream cluster on three hosts, which are network namespaces.

Each host runs a server. The first one also runs Spark's master, and the others run a worker each.
The hosts share a file system, but not a network: all packets between them pass a bridge.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pyspark
from standalone import end_session
from waiting import eventually

import jetsync
from helpers.namespaces import add_host, add_hub, run
from jetsync.devserver import find_server

HOSTS = range(3)
MASTER = HOSTS[0]
WORKERS = HOSTS[1:]
PORT = 4222
LOST = {
    "to servers": [f"out tcp dport {PORT}"],
    "from servers": [f"in tcp sport {PORT}"],
    "both ways": [f"out tcp dport {PORT}", f"in tcp sport {PORT}"],
}
"""
The packets that a partition drops: those of the host's clients, also to the server of the host.

The server itself stays in the cluster, and serves the other hosts.
"""


def address(host):
    """
    Return the address of a host.
    """
    return f"10.78.0.{10 + host}"


def make_hosts():
    """
    Make the hosts, of which this thread sees all.
    """
    add_hub("10.78.0.1/24")
    for host in HOSTS:
        add_host(f"h{host}", f"{address(host)}/24")
        run("nft add table ip jetsync", f"h{host}")
        for chain, hook in {"in": "input", "out": "output"}.items():
            rule = f"nft add chain ip jetsync {chain} {{ type filter hook {hook} priority 0; }}"
            run(rule, f"h{host}")


def cut(host, direction):
    """
    Drop the packets between the clients of a host and all servers.
    """
    for packets in LOST[direction]:
        run(f"nft add rule ip jetsync {packets} counter drop", f"h{host}")


def heal(host):
    """
    End a partition, and return the number of packets that it dropped.
    """
    dropped = re.findall(r"counter packets (\d+)", run("nft list table ip jetsync", f"h{host}"))
    run("nft flush table ip jetsync", f"h{host}")
    return sum(map(int, dropped))


class ThreeHosts:
    """
    The servers, Spark's master and its workers, and one driver; a context manager.
    """

    def __init__(self, folder):
        self._folder = folder
        self._started = []
        self._home = Path(pyspark.__file__).parent
        self.master = f"spark://{address(MASTER)}:7077"
        self.urls = [f"nats://{address(host)}:{PORT}" for host in HOSTS]

    def __enter__(self):
        try:
            for host in HOSTS:
                self._start_server(host)
            log = self._start_spark("master.Master", MASTER, "--port", "7077")
            eventually(lambda: "I have been elected leader" in log.read_text(), 300)
            logs = []
            for host in WORKERS:
                work = ["-c", "1", "-m", "1g", "-d", str(self._folder / f"work{host}"), self.master]
                logs.append(self._start_spark("worker.Worker", host, *work))
            for log in logs:
                eventually(lambda log=log: "registered with master" in log.read_text(), 300)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self._started):
            self.end(process)
        self._started.clear()

    def connect(self):
        """
        Connect to the servers, which may have to elect a leader first.
        """

        def ready():
            try:
                client = jetsync.connect(self.urls, connect_timeout=2)
            except jetsync.JetSyncError:
                return None
            try:
                client.jetstream().account_info()
            except jetsync.JetSyncError:
                client.close()
                return None
            return client

        return eventually(ready, 120)

    def submit(self, host, folder, arguments, **environment):
        """
        Start a driver on a host, in a folder, and return its process. Its log is ``driver.log``.
        """
        settings = {
            "spark.driver.host": address(host),
            "spark.driver.bindAddress": address(host),
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            # A task that starts on a host without servers fails as often as it is started there.
            "spark.task.maxFailures": "1000",
            "spark.ui.enabled": "false",
        }
        chosen = [word for each in settings.items() for word in ("--conf", "=".join(each))]
        program = str(self._home / "bin" / "spark-submit")
        command = [program, "--master", self.master, *chosen, *arguments]
        return self._start(host, command, folder / "driver.log", cwd=folder, **environment)

    def end(self, process):
        """
        Kill a process and everything that it started, and wait for it.
        """
        end_session(process, 60)

    def _start_server(self, host):
        """Start the server of a host."""
        config = {
            "server_name": f"h{host}",
            "listen": f"{address(host)}:{PORT}",
            "jetstream": {"store_dir": str(self._folder / f"store{host}")},
            "cluster": {
                "name": "three",
                "listen": f"{address(host)}:6222",
                "routes": [f"nats://{address(each)}:6222" for each in HOSTS],
            },
        }
        file = self._folder / f"server{host}.conf"
        file.write_text("\n".join(f"{key}: {json.dumps(each)}" for key, each in config.items()))
        command = [str(find_server().path), "--config", str(file)]
        self._start(host, command, self._folder / f"server{host}.log")

    def _start_spark(self, kind, host, *arguments):
        """Start a master or a worker; return its log."""
        log = self._folder / f"{kind}{host}.log"
        program = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        where = ["--host", address(host), "--webui-port", "0"]
        self._start(host, [*program, *where, *arguments], log)
        return log

    def _start(self, host, command, log, cwd=None, **environment):
        """Start a process on a host."""
        # The tests give their own modules to workers. These must come with the job.
        kept = {
            name: value
            for name, value in os.environ.items()
            if name != "PYTHONPATH" and not name.startswith("PYSPARK_")
        }
        with log.open("ab") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", f"h{host}", *command],
                cwd=cwd,
                env={
                    **kept,
                    "SPARK_HOME": str(self._home),
                    "SPARK_LOCAL_IP": address(host),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._started.append(process)
        return process
