"""
`jetsync queue` on a real server.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import jetsync
from jetsync.cli import main
from jetsync_queue.cli import queue as command

pytestmark = pytest.mark.live


@pytest.fixture
def run(nats_server, queue):
    """
    Run a command on the queue of the test; return its exit status and output.
    """

    def run(name, *args, **more):
        given = [name, "--server", nats_server.url, "--prefix", queue.prefix, *args]
        done = CliRunner().invoke(command, given, **more)
        # `jetsync` turns errors into one line.
        error = done.exception
        shown = str(error) if isinstance(error, jetsync.JetSyncError) else ""
        return done.exit_code, done.output + shown

    return run


def test_the_command_is_found(capsys, monkeypatch):
    """
    `jetsync` lists it, because its entry point is installed.
    """
    monkeypatch.setattr("sys.argv", ["jetsync", "queue", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert "retry" in capsys.readouterr().out


def test_jobs_are_put_counted_and_cancelled(run, queue):
    """
    From the command line, with the data as JSON, bytes or standard input.
    """
    assert run("put", "mail", '{"to": "x"}', "--id", "a", "--priority", "1") == (0, "a\n")
    assert run("put", "mail", "x y", "--raw", "--delay", "1h", "--id", "b") == (0, "b\n")
    assert run("put", "mail", "--header", "Shop: 1", "--id", "c", input="[1]")[0] == 0
    assert "nothing was stored" in run("put", "mail", "1", "--id", "a")[1]
    assert run("put", "mail", "{")[0] == 2
    status, text = run("stats", "mail", "--json")
    counts = {"waiting": 2, "running": 0, "scheduled": 1, "failed": 0, "dead": 0}
    assert (status, json.loads(text)) == (0, {"queue": "mail", **counts})
    assert json.loads(run("ls", "--json")[1]) == [{"queue": "mail", **counts}]
    assert "mail" in run("ls")[1]
    assert "scheduled" in run("stats", "mail")[1]
    assert run("cancel", "mail", "a", "b") == (0, "")
    assert run("cancel", "mail", "a")[0] == 1
    with queue.receive() as receiver:
        found = receiver.get(timeout=30)
        assert (found.data, found.headers) == ([1], {"Shop": "1"})
        found.ack(confirmed=True)


def test_dead_jobs_are_listed_retried_and_removed(run, queue):
    """
    With the reason.
    """
    assert run("dead", "mail") == (0, "mail has no dead jobs.\n")
    for job_id in ("a", "b", "c"):
        queue.put(b"\xff", job_id=job_id)
    with queue.receive() as receiver:
        for _ in range(3):
            receiver.get(timeout=30).reject("bad address")
        # The last answer is on its way.
        while queue.statistics().dead < 3 or queue.statistics().open:
            pass
    assert "bad address" in run("dead", "mail")[1]
    found = json.loads(run("dead", "mail", "--json", "--limit", "1")[1])
    assert (found[0]["id"], found[0]["data"], found[0]["attempts"]) == ("a", "\\xff", 1)
    assert run("retry", "mail")[0] == 2
    assert run("retry", "mail", "a") == (0, "put back 1\n")
    assert run("retry", "mail", "a")[0] == 1
    assert run("dead", "mail", "--remove", "b") == (0, "removed 1\n")
    assert run("retry", "mail", "--all") == (0, "put back 1\n")
    assert run("dead", "mail", "--remove-all") == (0, "removed 0\n")
    assert queue.statistics().waiting == 2


def test_a_prefix_without_queues_is_an_error(run, queue):
    """
    Looking creates nothing.
    """
    status, text = run("ls", "--prefix", "absent")

    assert status == 1
    assert "QUEUE_absent" in text
