"""
`jetsync check` against real servers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import jetsync
from helpers.waiting import CLUSTER_CLIENT, eventually
from jetsync.cli._app import jetsync as app
from jetsync.devserver import DevServer

WORKER = """
import sys, jetsync
with jetsync.connect(sys.argv[1]) as client:
    for message in client.jetstream().consumer(sys.argv[2], "worker").consume():
        message.ack_sync()
        print("one", flush=True)
"""


@pytest.fixture
def check(nats_server, monkeypatch):
    """
    Run a check against the shared server: returns the exit code and the output.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", nats_server.url)

    def check(*arguments):
        result = CliRunner().invoke(app, ("check", *arguments))
        return result.exit_code, result.stdout

    return check


def line(code, output):
    """
    Return the level and the reason of a line, and check that the code fits.
    """
    level, _, rest = output.partition(" ")
    assert ("OK", "WARNING", "CRITICAL", "UNKNOWN")[code] == level
    assert output.count("\n") == 1
    return level, rest.partition(" | ")[0].partition(": ")[2].strip()


class TestConsumer:
    def test_a_worker_that_is_killed(self, check, nats_server, js, stream, worker):
        """
        The check after the worker was killed is critical, without any client that counts.
        """
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, nats_server.url, stream.name],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            js.publish(f"{stream.name}.a", b"x")
            assert process.stdout.readline() == "one\n"
            arguments = ("consumer", stream.name, "worker", "--unprocessed-critical", "500")
            assert line(*check(*arguments))[0] == "OK"
            os.kill(process.pid, signal.SIGKILL)
        js.publish_many((f"{stream.name}.a", b"x") for _ in range(1000))

        level, reason = line(*check(*arguments))

        assert (level, reason.endswith("unprocessed messages (limit 500)")) == ("CRITICAL", True)
        level, reason = line(*check("consumer", stream.name, "worker", "--oldest-warn", "1ms"))
        assert (level, "oldest unacknowledged message" in reason) == ("WARNING", True)

    def test_messages_in_flight(self, check, js, stream):
        """
        Messages without an ack, and those that were delivered again, have limits of their own.
        """
        worker = stream.create_consumer("worker", ack_wait=0.2)
        js.publish_many((f"{stream.name}.a", b"x") for _ in range(3))
        list(worker.fetch(3, expires=5))
        again = worker.next(expires=5)
        assert again.metadata.delivered == 2

        code, output = check(
            "consumer", stream.name, "worker", "--outstanding-ack-critical", "3",
            "--redelivery-warn", "1", "--json",
        )  # fmt: skip

        found = json.loads(output)
        assert (code, found["status"], found["name"]) == (2, "CRITICAL", f"{stream.name}/worker")
        assert [each["level"] for each in found["problems"]] == ["CRITICAL", "WARNING"]
        assert found["values"]["outstanding_ack"] == 3

    def test_limits_in_the_metadata(self, check, js, stream):
        """
        Limits of the consumer's metadata count, unless the command line has others.
        """
        metadata = {"io.nats.monitor.unprocessed-critical": "1", "io.nats.monitor.pinned": "false"}
        stream.create_consumer("worker", metadata=metadata)
        js.publish(f"{stream.name}.a", b"x")

        arguments = ("consumer", stream.name, "worker")
        assert line(*check(*arguments))[0] == "CRITICAL"
        assert line(*check(*arguments, "--unprocessed-critical", "2"))[0] == "OK"

    def test_pinned(self, check, stream, worker):
        """
        With `--pinned`, each priority group needs a pinned client.
        """
        stream.create_consumer("group", priority_groups=["a"], priority_policy="pinned_client")

        assert line(*check("consumer", stream.name, "worker", "--pinned")) == (
            "CRITICAL",
            "no priority groups",
        )
        assert line(*check("consumer", stream.name, "group", "--pinned")) == (
            "CRITICAL",
            "no client is pinned in a",
        )

    def test_missing(self, check, stream):
        """
        A stream or consumer that does not exist is critical.
        """
        assert line(*check("consumer", stream.name, "nope"))[0] == "CRITICAL"
        assert line(*check("consumer", "nope", "nope"))[0] == "CRITICAL"

    @pytest.mark.parametrize("name", ["w*", "a.b"])
    def test_a_pattern_is_no_name(self, check, stream, worker, name):
        """
        A check is about one stream and one consumer, so a pattern is an error.
        """
        level, reason = line(*check("consumer", stream.name, name))
        assert (level, f"invalid consumer name '{name}'" in reason) == ("UNKNOWN", True)
        level, reason = line(*check("consumer", f"{stream.name[:-1]}*", "worker"))
        assert (level, "invalid stream name" in reason) == ("UNKNOWN", True)
        level, reason = line(*check("stream", "*"))
        assert (level, "invalid stream name '*'" in reason) == ("UNKNOWN", True)

    def test_prometheus(self, check, js, stream, worker):
        """
        The text format has the status, the values, and the figures of the stream and the consumer.
        """
        js.publish(f"{stream.name}.a", b"x")
        code, output = check(
            "consumer", stream.name, "worker", "--prometheus", "--unprocessed-warn", "1"
        )

        name = f"{stream.name}/worker"
        assert code == 1
        assert f'jetsync_check_status{{check="consumer",name="{name}"}} 1.0\n' in output
        figure = f'jetsync_consumer_num_pending{{consumer="worker",stream="{stream.name}"}} 1.0\n'
        assert figure in output


class TestStream:
    def test_size(self, check, js, stream):
        """
        Too few messages, too many subjects and a full stream are problems.
        """
        stream.update(max_msgs=4)
        for number in range(3):
            js.publish(f"{stream.name}.{number}", b"x")

        def reason(*arguments):
            return line(*check("stream", stream.name, *arguments))

        assert reason("--msgs-warn", "3", "--full-critical", "80")[0] == "OK"
        assert reason("--msgs-warn", "4") == ("WARNING", "3 messages (below 4)")
        assert reason("--subjects-critical", "3") == ("CRITICAL", "3 subjects (limit 3)")
        assert reason("--full-warn", "75")[1] == (
            "75 % of the limit of messages or bytes used (limit 75 %)"
        )

    def test_sources(self, check, js, stream, unique):
        """
        The number of sources, and what is not copied yet, have limits.
        """
        assert line(*check("stream", stream.name, "--min-sources", "1"))[0] == "CRITICAL"
        copy = js.create_stream(f"{unique}-copy", sources=[jetsync.StreamSource(name=stream.name)])
        js.publish(f"{stream.name}.a", b"x")
        eventually(lambda: copy.info().state.messages == 1)

        arguments = ("stream", copy.name, "--min-sources", "1", "--lag-critical", "1")
        eventually(lambda: line(*check(*arguments, "--seen-critical", "1m"))[0] == "OK")
        assert line(*check("stream", copy.name, "--max-sources", "0"))[0] == "CRITICAL"

    @pytest.mark.cluster
    @pytest.mark.thorough
    def test_replicas(self, check):
        """
        A replica that is gone is critical, and so is another number of replicas.
        """
        with (
            DevServer(cluster=3, name="c") as servers,
            jetsync.connect(servers.url, **CLUSTER_CLIENT) as client,
        ):
            stream = client.jetstream().create_stream("R3", subjects=["r3.>"], num_replicas=3)
            where = ("--server", ",".join(servers.urls), "--timeout", "20s")
            eventually(
                lambda: line(*check("stream", "R3", *where, "--peer-expect", "3"))[0] == "OK",
                timeout=60,
            )
            expected = ("CRITICAL", "3 of 5 replicas")
            assert line(*check("stream", "R3", *where, "--peer-expect", "5")) == expected
            follower = stream.info().cluster.replicas[0].name
            servers.kill(int(follower.removeprefix("c-")))

            def gone():
                level, reason = line(*check("stream", "R3", *where))
                # It depends on whether the follower answered this leader before.
                return level == "CRITICAL" and re.search("is offline|not seen|last seen", reason)

            eventually(gone, timeout=60)


class TestBucket:
    def test_values_and_a_key(self, check, make_bucket):
        """
        The number of values has limits, and a key has to exist.
        """
        bucket = make_bucket()
        bucket.put("a", b"1")

        arguments = ("bucket", bucket.bucket, "--key")
        assert line(*check(*arguments, "a", "--values-critical", "2"))[0] == "OK"
        assert line(*check(*arguments, "b")) == ("CRITICAL", "key b has no value")
        bucket.delete("a")
        assert line(*check(*arguments, "a"))[0] == "CRITICAL"
        assert line(*check("bucket", "nope"))[0] == "CRITICAL"


class TestServer:
    def test_a_user_of_an_account(self, check):
        """
        The connection and the account are checked, and the servers only by the system account.
        """
        assert line(*check("server", "--js-required"))[0] == "OK"
        assert line(*check("server", "--tls-required")) == (
            "CRITICAL",
            "the connection does not use TLS",
        )
        assert line(*check("server", "--auth-required"))[0] == "CRITICAL"
        assert line(*check("server", "--rtt-critical", "0", "--rtt-warn", "0"))[0] == "CRITICAL"
        assert line(*check("server", "--expect", "1"))[0] == "UNKNOWN"
        assert line(*check("server", "--cpu-warn", "50"))[0] == "UNKNOWN"

    def test_limits_of_the_account_and_the_system_account(self, check):
        """
        What the account uses is compared in percent, and all servers have to be healthy.
        """
        limits = {"max_mem": 1000, "max_file": 1000, "max_streams": 2, "max_consumers": 10}
        config = {
            "accounts": {
                "$SYS": {"users": [{"user": "sys", "password": "x"}]},
                "APP": {"jetstream": limits, "users": [{"user": "app", "password": "x"}]},
            },
            "no_auth_user": "app",
        }
        with DevServer(config=config) as server, jetsync.connect(server.url) as client:
            client.jetstream().create_stream("S", subjects=["s"], max_bytes=500)
            where = ("server", "--server", server.url, "--password", "x", "--user")
            assert line(*check(*where, "app"))[0] == "OK"
            assert line(*check(*where, "app", "--streams-critical", "50")) == (
                "CRITICAL",
                "50 % of the limit of streams used (limit 50 %)",
            )
            assert line(*check(*where, "sys", "--expect", "1", "--conn-critical", "100"))[0] == "OK"
            assert line(*check(*where, "sys", "--expect", "3"))[0] == "CRITICAL"
            assert line(*check(*where, "sys", "--uptime-warn", "1d"))[0] == "WARNING"
            level, reason = line(*check(*where, "sys", "--js-required"))
            assert level == "CRITICAL", reason
