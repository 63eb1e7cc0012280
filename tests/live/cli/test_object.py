"""
`jetsync object` against a real server.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

import pytest
from click.testing import CliRunner

import jetsync
from jetsync.cli._app import jetsync as app

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs the files of POSIX systems")


@pytest.fixture
def store(nats_server, js, monkeypatch, unique):
    """
    An object store for the commands, deleted after the test.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    yield js.create_object_store(unique, storage="memory")
    with suppress(jetsync.ObjectStoreNotFoundError):
        js.delete_object_store(unique)


@pytest.fixture
def run(store, unique, tmp_path, monkeypatch):
    """
    Run a command about the object store in a folder of its own; a function from arguments.
    """
    monkeypatch.chdir(tmp_path)

    def run(command, *arguments, fails=0, **options):
        done = CliRunner().invoke(app, ("object", command, unique, *arguments), **options)
        assert done.exit_code == fails, done.output
        return done.output

    return run


class TestObjects:
    def test_a_file_is_stored_and_written_again(self, run, store, tmp_path):
        """
        `put` stores a file under a name, and `get` writes it to the last part of the name.
        """
        data = bytes(range(256)) * 2000
        (tmp_path / "in").write_bytes(data)
        shown = run("put", "a/weights.bin", "in", "--description", "w", "--chunk-size", "100KB")
        assert shown == f"stored a/weights.bin in {store.bucket}, 500 KiB\n"
        info = store.info("a/weights.bin")
        assert (info.description, info.chunks) == ("w", 5)
        assert run("get", "a/weights.bin") == "wrote weights.bin, 500 KiB\n"
        assert (tmp_path / "weights.bin").read_bytes() == data
        assert "exists already: use --force" in run("get", "a/weights.bin", fails=1)
        assert run("get", "a/weights.bin", "weights.bin", "--force")

    def test_the_name_is_the_default_of_the_file(self, run, store, tmp_path):
        """
        `put` with a name alone stores the file of that name.
        """
        (tmp_path / "notes.txt").write_text("text")
        found = json.loads(run("put", "notes.txt", "--json"))
        assert (found["name"], found["size"], found["chunks"]) == ("notes.txt", 4, 1)
        assert store.get_bytes("notes.txt") == b"text"

    @posix
    @pytest.mark.parametrize("force", [(), ("--force",)])
    def test_a_pipe_is_not_replaced(self, run, store, tmp_path, force):
        """
        `get` refuses what is not a file, also with --force.
        """
        store.put("a", b"data")
        os.mkfifo(tmp_path / "pipe")

        shown = run("get", "a", "pipe", *force, fails=1)

        assert shown == "Error: 'pipe': not a regular file\n"
        assert (tmp_path / "pipe").is_fifo()

    @posix
    def test_force_keeps_permissions_and_links(self, run, store, tmp_path):
        """
        `get --force` keeps the permissions of the file, follows a link, and says where it leads.
        """
        store.put("a", b"data")
        secret = tmp_path / "secret"
        secret.write_bytes(b"old")
        secret.chmod(0o600)
        (tmp_path / "link").symlink_to("secret")

        shown = run("get", "a", "link", "--force")

        assert shown == f"wrote link, a link to {os.path.realpath(secret)}, 4 B\n"
        assert (tmp_path / "link").is_symlink()
        assert secret.read_bytes() == b"data"
        assert secret.stat().st_mode & 0o777 == 0o600

    @posix
    def test_a_link_without_a_target_needs_force(self, run, store, tmp_path):
        """
        `get` asks for --force before it writes through a link, even if its target is missing.
        """
        store.put("a", b"data")
        (tmp_path / "link").symlink_to("missing")

        assert "exists already: use --force" in run("get", "a", "link", fails=1)
        assert not (tmp_path / "missing").exists()

    def test_pipes(self, run, store):
        """
        `-` is standard input for `put` and standard output for `get`.
        """
        run("put", "piped", "-", input=b"one\x00two")
        assert run("get", "piped", "-") == "one\x00two"

    def test_a_terminal_shows_control_characters(self, run, store, monkeypatch):
        """
        `get` to a terminal escapes what the terminal would act on.
        """
        store.put("a", b"one\x1btwo\n")
        monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
        assert run("get", "a", "-") == "one\\x1btwo\n"

    def test_mistakes_are_one_line(self, run, store):
        """
        A missing file or object, a taken name and a name without a file name are refused.
        """
        assert run("put", "missing", fails=1) == "Error: 'missing': No such file or directory\n"
        assert "object 'nope' not found" in run("get", "nope", fails=1)
        store.put("a/", b"x")
        assert "give FILE" in run("get", "a/", fails=2)
        assert "exists already in object store" in run("put", "a/", "-", "--new", fails=1)
        assert "No such file or directory" in run("get", "a/", "no/folder", fails=1)
        assert store.get_bytes("a/") == b"x"

    def test_objects_are_listed_and_shown(self, run, store):
        """
        `ls` and `info` show objects as a table, as pairs and as JSON.
        """
        assert run("ls") == "There are no objects.\n"
        assert json.loads(run("ls", "--json")) == []
        store.put("b\x1b", b"12", description="two", headers={"H": "v"}, metadata={"k": "w"})
        store.put("a", b"")
        names = [line.split()[0] for line in run("ls").splitlines()]
        assert names == ["name", "a", "b\\x1b"]
        assert [each["name"] for each in json.loads(run("ls", "--json"))] == ["a", "b\x1b"]
        shown = run("info", "b\x1b")
        for line in ("description  two", "size         2 B", "header H     v", "metadata k   w"):
            assert line in shown
        found = json.loads(run("info", "b\x1b", "--json"))
        assert (found["headers"], found["metadata"]) == ({"H": ["v"]}, {"k": "w"})
        assert (found["link"], found["is_deleted"]) == (None, False)

    def test_an_object_is_removed(self, run, store):
        """
        `rm` asks before it removes an object.
        """
        store.put("a", b"x")
        assert "no terminal to ask" in run("rm", "a", fails=1)
        assert run("rm", "a", "--force") == f"removed a from {store.bucket}\n"
        assert "not found" in run("rm", "a", "--force", fails=1)
        assert store.list() == []

    def test_changes_are_watched(self, run, store):
        """
        `watch` prints the stored objects and each change, as lines or as JSON.
        """
        store.put("a", b"12")
        store.add_link("b\x1b", "a")
        store.put("c", b"")
        store.delete("c")

        def shown(*arguments):
            lines = run("watch", *arguments).splitlines()
            return [tuple(line.split()[3:]) for line in lines]

        link = ("b\\x1b", "->", f"{store.bucket}/a")
        assert shown("--no-follow") == [("a", "2", "B"), link, ("c", "[DEL]")]
        assert shown("--no-follow", "--ignore-deletes") == [("a", "2", "B"), link]
        assert shown("--count", "1") == [("a", "2", "B")]
        (line,) = run("watch", "c", "--no-follow", "--json").splitlines()
        assert json.loads(line)["is_deleted"]

    def test_garbage_is_removed(self, run, js, store):
        """
        `gc` removes the data of unfinished puts that is older than a limit.
        """
        js.publish(f"$O.{store.bucket}.C.unfinished", b"data")
        assert run("gc") == "removed the data of 0 unfinished puts\n"
        assert run("gc", "--older-than", "0") == "removed the data of 1 unfinished put\n"


class TestStores:
    def test_stores_are_created_listed_shown_and_removed(self, run, js, store, unique):
        """
        The commands create, list, show and remove an object store.
        """
        js.delete_object_store(unique)
        made = run("add", "--ttl", "1h", "--description", "models", "--storage", "memory")
        assert made == f"created the object store {unique}\n"
        status = json.loads(run("info", "--json"))
        assert (status["ttl"], status["storage"]) == (3600, "memory")
        assert "description  models" in run("info")
        done = CliRunner().invoke(app, ("object", "ls"))
        assert any(line.split()[:1] == [unique] for line in done.output.splitlines())
        listed = json.loads(CliRunner().invoke(app, ("object", "ls", "--json")).output)
        assert unique in [each["bucket"] for each in listed]
        assert run("rm", "--force") == f"removed the object store {unique}\n"
        assert f"object store '{unique}' not found" in run("info", fails=1)
