"""
What is left of acknowledged messages after a crash, and what shows the durability of a server.

A test cannot cut the power. It can kill the server, which leaves to the operating system what the
server has written, and trace the system calls that write to the disk.
"""

from __future__ import annotations

import contextlib
import json
import threading

import pytest
from click.testing import CliRunner

import jetsync
from helpers.waiting import CLUSTER_CLIENT, eventually
from jetsync.cli._app import jetsync as app
from jetsync.devserver import DevServer

ACCOUNTS = {
    "$SYS": {"users": [{"user": "sys", "password": "s"}]},
    "APP": {"jetstream": "enabled", "users": [{"user": "app", "password": "a"}]},
}
LOGIN = {"user": "sys", "password": "s"}


def count_of(server, name, **options):
    """
    Return how many messages a stream has; 0 if it is gone.
    """
    with jetsync.connect(server.urls, **options) as client:
        try:
            return client.jetstream().stream(name).info().state.messages
        except jetsync.StreamNotFoundError:
            return 0


def kill_while_publishing(**config):
    """
    Kill a server while a client publishes, and start it again.

    Returns:
        The sequence of the last message that was acknowledged, and that of the last one stored.
    """
    acknowledged, enough = [0], threading.Event()

    def publish(js):
        with contextlib.suppress(jetsync.JetSyncError):
            while True:
                acknowledged[0] = js.publish("s", b"x").sequence
                if acknowledged[0] >= 300:
                    enough.set()

    with DevServer() as server:
        with jetsync.connect(server.url, request_timeout=2, max_reconnects=0) as client:
            js = client.jetstream()
            js.create_stream("S", subjects=["s"], **config)
            thread = threading.Thread(target=publish, args=[js])
            thread.start()
            assert enough.wait(20)
            server.kill()
            thread.join()
        server.start()
        return acknowledged[0], count_of(server, "S")


class TestKilledServer:
    """
    SIGKILL ends servers at once.
    """

    def test_files_have_all_acknowledged_messages(self):
        """
        A stream in files keeps each message that was acknowledged.
        """
        acknowledged, stored = kill_while_publishing()
        assert stored >= acknowledged

    def test_memory(self):
        """
        A stream in memory is gone.
        """
        acknowledged, stored = kill_while_publishing(storage="memory")
        assert acknowledged >= 300
        assert stored == 0

    def test_persist_mode_async_loses_acknowledged_messages(self):
        """
        With `persist_mode="async"`, the server acknowledges messages before it writes them.
        """
        # The server writes some milliseconds later, so a kill at the right moment loses nothing.
        rounds = (kill_while_publishing(persist_mode="async") for _ in range(10))
        assert any(stored < acknowledged for acknowledged, stored in rounds)

    @pytest.mark.thorough
    def test_a_cluster(self):
        """
        If all servers are killed, replicas in files keep each acknowledged message, and those in
        memory none. Replicas in memory survive the loss of one server.
        """
        with DevServer(cluster=3) as server:
            with jetsync.connect(server.urls, **CLUSTER_CLIENT) as client:
                js = client.jetstream(timeout=20)
                for storage in ("file", "memory"):
                    js.create_stream(storage, subjects=[storage], storage=storage, num_replicas=3)
                    assert js.publish_many([(storage, b"x")] * 2000).count == 2000
                server.kill(server.stream_leader("memory"))
                eventually(lambda: js.stream("memory").info().state.messages == 2000, 30)
                server.start()
                server.kill()
            server.start()
            eventually(lambda: count_of(server, "file", **CLUSTER_CLIENT) == 2000, 30)
            assert count_of(server, "memory", **CLUSTER_CLIENT) == 0


class TestSettings:
    """
    Only a user of the system account sees whether the disk has what is acknowledged.
    """

    @pytest.mark.parametrize("version", [pytest.param("2.10.26", marks=pytest.mark.versions), None])
    @pytest.mark.parametrize(
        ("interval", "always", "seconds", "shown"),
        [
            (None, False, 120.0, "every 2m"),
            ("10s", False, 10.0, "every 10s"),
            ("always", True, 120.0, "always"),
        ],
    )
    def test_the_interval(self, version, interval, always, seconds, shown):
        """
        `varz` and `jetsync doctor` show `sync_interval`.
        """
        jetstream = {} if interval is None else {"jetstream": {"sync_interval": interval}}
        with DevServer(version, config={"accounts": ACCOUNTS, **jetstream}) as server:
            with jetsync.connect(server.url, **LOGIN) as client:
                (varz,) = client.system().varz()
            words = ["doctor", server.url, "--user", "sys", "--password", "s"]
            text = CliRunner().invoke(app, words).output
            (report,) = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)["servers"]
        assert (varz.sync_always, varz.sync_interval) == (always, seconds)
        assert (report["sync_always"], report["sync_interval"]) == (always, seconds)
        assert f" ok      {shown} " in text

    def test_without_jetstream(self):
        """
        A server without JetStream has no such settings.
        """
        with (
            DevServer(jetstream=False, config={"accounts": {"$SYS": ACCOUNTS["$SYS"]}}) as server,
            jetsync.connect(server.url, **LOGIN) as client,
        ):
            (varz,) = client.system().varz()
        assert (varz.sync_always, varz.sync_interval) == (None, None)

    def test_other_users(self, nats_server):
        """
        For all other users, doctor says that it does not know.
        """
        output = CliRunner().invoke(app, ["doctor", nats_server.url]).output
        assert (
            "disk sync  not shown to this user; run doctor as a user of the system account"
            in output
        )
