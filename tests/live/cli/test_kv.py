"""
`jetsync kv` against a real server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from click.testing import CliRunner

import jetsync
from jetsync.cli._app import jetsync as app


@pytest.fixture
def kv(nats_server, js, monkeypatch, unique):
    """
    Run a command about a bucket, which is removed after the test; a function from arguments.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", nats_server.url)

    def kv(command, *arguments, fails=0, **options):
        done = CliRunner().invoke(app, ("kv", command, unique, *arguments), **options)
        assert done.exit_code == fails, done.output
        return done.output

    kv("add", "--history", "3", "--storage", "memory", "--limit-marker-ttl", "60")
    yield kv
    with suppress(jetsync.BucketNotFoundError):
        js.delete_key_value(unique)


def lines(output):
    """
    The revision, key and value of each line that shows an entry.
    """
    return [(line.split()[0], *line.split()[3:]) for line in output.splitlines()]


class TestKeys:
    def test_put_and_get(self, kv, unique):
        """
        A value is shown as text, as bytes and as JSON.
        """
        assert kv("put", "a", "one") == "1\n"
        assert kv("put", "a", input=b"two\x1b") == "2\n"
        shown = kv("get", "a")
        assert f"bucket    {unique}" in shown
        assert shown.endswith("\ntwo\\x1b\n")
        assert kv("get", "a", "--raw") == "two\x1b"
        assert kv("get", "a", "--revision", "1", "--raw") == "one"
        found = json.loads(kv("get", "a", "--json"))
        assert (found["key"], found["revision"], found["value"]) == ("a", 2, "two\x1b")
        assert (found["operation"], found["marker"], found["ttl"]) == ("PUT", None, None)

    def test_a_change_whose_expectation_fails_is_refused_in_one_line(self, kv):
        """
        A change whose expectation fails is refused in one line.
        """
        assert kv("create", "a", "one", "--ttl", "60") == "1\n"
        assert "already has a value at revision 1" in kv("create", "a", "x", fails=1)
        assert "is not at revision 7: it is at 1" in kv("put", "a", "x", "--last", "7", fails=1)
        assert kv("put", "a", "two", "--last", "1") == "2\n"
        assert kv("delete", "a", "--last", "2") == "3\n"
        assert "Error: key 'a' not found" in kv("get", "a", fails=1)
        assert kv("purge", "a", "--ttl", "60") == "4\n"
        assert "Error: invalid key" in kv("get", "a..b", fails=1)

    def test_the_commands_list_keys_history_and_changes(self, kv):
        """
        The commands list the keys, the history and the changes of a bucket.
        """
        for key in ("a.1", "a.2", "b"):
            kv("put", key, f"of {key}")
        kv("delete", "a.2")
        assert kv("keys").split() == ["a.1", "b"]
        assert kv("keys", "a.*").split() == ["a.1"]
        assert json.loads(kv("keys", "--json")) == ["a.1", "b"]
        assert lines(kv("history", "a.2")) == [("2", "a.2", "of", "a.2"), ("4", "a.2", "[DEL]")]
        assert [each["operation"] for each in json.loads(kv("history", "a.2", "--json"))] == [
            "PUT",
            "DEL",
        ]
        assert [line[:2] for line in lines(kv("watch", "--no-follow"))] == [
            ("1", "a.1"),
            ("3", "b"),
            ("4", "a.2"),
        ]
        assert len(kv("watch", "a.>", "--history", "--count", "2").splitlines()) == 2
        found = kv("watch", "--no-follow", "--json", "--ignore-deletes", "--from-revision", "2")
        assert [json.loads(line)["key"] for line in found.splitlines()] == ["a.2", "b"]

    def test_watch_until_interrupted(self, nats_server, kv, js, unique):
        """
        A watch shows each change at once, and Ctrl-C ends it silently.
        """
        kv("put", "a", "1")
        watch = subprocess.Popen(
            [sys.executable, "-m", "jetsync", "kv", "watch", unique, "-s", nats_server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert lines(watch.stdout.readline()) == [("1", "a", "1")]
            js.key_value(unique).put("a", b"2")
            assert lines(watch.stdout.readline()) == [("2", "a", "2")]
            watch.send_signal(signal.SIGINT)
            rest = watch.communicate(timeout=30)
        finally:
            watch.kill()
            watch.wait()
        assert (watch.returncode, *rest) == (0, "", "")


class TestBuckets:
    def test_the_commands_create_list_show_and_remove_a_bucket(self, kv, unique, terminal):
        """
        The commands create, list, show and remove a bucket.
        """
        kv("put", "a", "1")
        status = json.loads(kv("status", "--json"))
        assert (status["history"], status["limit_marker_ttl"], status["values"]) == (3, 60, 1)
        shown = kv("status")
        assert "limit markers  1m" in shown
        assert "transactions   no" in shown
        listed = CliRunner().invoke(app, ("kv", "ls"))
        assert any(line.split()[:2] == [unique, "1"] for line in listed.output.splitlines())
        listed = json.loads(CliRunner().invoke(app, ("kv", "ls", "--json")).output)
        assert status in listed
        refused = kv("add", "--history", "4", fails=1)
        assert "already in use" in refused
        assert "`nats kv edit`" in refused
        assert "Aborted" in kv("rm", input="n\n", fails=1)
        assert kv("rm", "--force") == f"removed the bucket {unique}\n"
        assert f"bucket '{unique}' not found" in kv("status", fails=1)
