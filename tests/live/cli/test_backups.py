"""
The commands `backup` and `restore` against a real server.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import jetsync
from helpers.backups import FIXTURES
from jetsync.cli._app import jetsync as app
from jetsync.devserver import DevServer


@pytest.fixture
def run(monkeypatch, tmp_path):
    """
    Run commands with a server of their own, in a folder of their own.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.chdir(tmp_path)
    with DevServer() as server:
        monkeypatch.setenv("NATS_URL", server.url)

        def run(text, fails=0):
            done = CliRunner().invoke(app, text.split())
            assert done.exit_code == fails, done.output
            return done.output

        yield run


def test_a_stream(run):
    """
    A stream is written to a folder and restored, also under another name and as JSON.
    """
    run("stream add A --subjects a.>")
    run("pub a.1 one")
    assert run("stream backup A copy").startswith("wrote a backup of A to copy, 1 message, ")
    assert "the folder 'none' does not exist" in run("stream backup A none/copy", fails=1)
    assert "'copy': File exists" in run("stream backup A copy", fails=1)
    assert "already in use" in run("stream restore copy", fails=1)
    run("stream rm A --force")
    assert run("stream restore copy --replicas 1") == "restored A, 1 message\n"
    run("stream rm A --force")
    found = json.loads(run("stream restore copy --name B --no-verify --json"))
    assert (found["stream"], found["messages"], found["format"]) == ("B", 1, "archive")
    assert json.loads(run("stream backup B b --no-consumers --check --json"))["stream"] == "B"


def test_buckets_and_object_stores(run, tmp_path):
    """
    Buckets and object stores have the same commands, which refuse each other's backups.
    """
    run("kv add users")
    run("kv put users a 1")
    run("object add files")
    (tmp_path / "file").write_text("data")
    run("object put files file")
    run("kv backup users k")
    run("object backup files o")
    run("kv rm users --force")
    run("object rm files --force")
    assert "stream OBJ_files, which is no bucket" in run("kv restore o", fails=1)
    assert "which is no object store" in run("object restore k", fails=1)
    assert run("kv restore k") == "restored users, 1 message\n"
    assert run("object restore o") == "restored files, 2 messages\n"
    assert run("kv get users a --raw") == "1"


def test_a_backup_of_the_nats_command_line(run):
    """
    The command restores a backup of the `nats` command line.
    """
    assert run(f"stream restore {FIXTURES / 'nats-tar'}") == "restored ORDERS, 9 messages\n"


def test_an_option_that_is_not_given_changes_nothing(run, monkeypatch):
    """
    Without `--replicas`, the stream keeps the number of the backup: no field is given.
    """
    given, restore = [], jetsync.JetStream.restore_stream

    def recorded(*arguments, **options):
        given.append(options.keys())
        return restore(*arguments, **options)

    monkeypatch.setattr(jetsync.JetStream, "restore_stream", recorded)
    run(f"stream restore {FIXTURES / 'nats-tar'}")
    assert given == [{"verify", "on_progress"}]


def test_a_damaged_backup(run, tmp_path):
    """
    A damaged backup is an error before anything is sent.
    """
    run("stream add A --subjects a.>")
    run("stream backup A copy")
    (tmp_path / "copy" / "stream.tar.s2").write_bytes(b"other")
    assert "Error: the backup in 'copy' is damaged" in run("stream restore copy", fails=1)
