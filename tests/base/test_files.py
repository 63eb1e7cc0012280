"""
Files that replace others, with the permissions and links of the old ones.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import sys

import pytest

from jetsync._base import files
from jetsync._base.files import new_folder, replaceable, replacing, synced

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs the files of POSIX systems")


def write(path, data=b"new"):
    """
    Replace a file.
    """
    with replacing(path) as file:
        file.write(data)


def mode_of(path):
    """
    Return the permissions of a file.
    """
    return stat.S_IMODE(path.stat().st_mode)


@posix
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_respects_the_umask(tmp_path, mask, mode):
    """
    A file that did not exist gets the permissions that the umask allows.
    """
    before = os.umask(mask)
    try:
        write(tmp_path / "new")
    finally:
        os.umask(before)

    assert mode_of(tmp_path / "new") == mode


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666, 0o755])
def test_a_file_keeps_its_permissions(tmp_path, mode):
    """
    The new file has the permissions of the old one, and at no time more.
    """
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)

    with replacing(path) as file:
        file.write(b"new")
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        assert path.read_bytes() == b"old"

    assert path.read_bytes() == b"new"
    assert mode_of(path) == mode
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_new_content_does_not_run_as_the_owner_of_the_file(tmp_path):
    """
    The bits that run a program as its owner or group are not kept.
    """
    path = tmp_path / "program"
    path.write_bytes(b"old")
    path.chmod(0o6755)

    write(path)

    assert mode_of(path) == 0o755


@posix
def test_owner_and_group_are_kept_where_the_system_allows_it(tmp_path, monkeypatch):
    """
    The file keeps its owner and group. If the group is refused, another group gets no more rights.
    """
    asked = []

    def refuse(_, user, group):
        asked.append((user, group))
        raise PermissionError

    monkeypatch.setattr(files.os, "fchown", refuse)
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o664)
    old = path.stat()
    fields = list(old)
    fields[stat.ST_UID], fields[stat.ST_GID] = old.st_uid + 1, old.st_gid + 1
    monkeypatch.setattr(files, "replaceable", lambda _: (path, os.stat_result(fields)))

    write(path)

    assert asked == [(old.st_uid + 1, -1), (-1, old.st_gid + 1)]
    assert mode_of(path) == 0o644


@posix
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, exists):
    """
    A symbolic link is followed, also one whose target does not exist yet.
    """
    folder = tmp_path / "folder"
    folder.mkdir()
    target = folder / "target"
    link = tmp_path / "link"
    link.symlink_to("folder/target")
    if exists:
        target.write_bytes(b"old")
        target.chmod(0o600)

    write(link)

    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert list(folder.iterdir()) == [target]
    assert not exists or mode_of(target) == 0o600


def special(kind, path):
    """
    Make something that is not a file.
    """
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    else:
        path.symlink_to(os.devnull)


@posix
@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "device"])
def test_what_is_not_a_file_is_refused(tmp_path, monkeypatch, kind):
    """
    A folder, a pipe, a socket and a device stay as they are, and the error names them.
    """
    monkeypatch.chdir(tmp_path)
    path = tmp_path / kind
    special(kind, path)
    before = path.lstat()

    with pytest.raises(OSError, match=f"not a regular file: {re.escape(repr(str(path)))}"):
        write(path)

    assert path.lstat() == before
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_a_loop_of_links_is_refused(tmp_path):
    """
    A link that leads to itself has no file.
    """
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(OSError, match="loop"):
        replaceable(tmp_path / "loop")


def test_an_error_names_the_file_of_the_caller(tmp_path):
    """
    If the folder does not exist, the error has the path that was given, not the temporary one.
    """
    path = tmp_path / "missing" / "new"
    with pytest.raises(FileNotFoundError) as caught:
        write(path)
    assert caught.value.filename == str(path)


def test_a_failed_block_changes_nothing(tmp_path):
    """
    If the block raises, the old file stays and no other one is left.
    """
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted():
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


class TestNewFolder:
    @pytest.mark.parametrize("exists", [False, True])
    def test_a_folder_appears_with_its_files(self, tmp_path, exists):
        """
        The folder gets its name at the end, also in place of an empty one.
        """
        path = tmp_path / "folder"
        if exists:
            path.mkdir()

        def fill(made):
            with (made / "file").open("xb") as file:
                file.write(b"data")
                synced(file)
            assert not path.is_dir() or not any(path.iterdir())
            return "done"

        assert new_folder(path, fill) == "done"
        assert [each.name for each in tmp_path.iterdir()] == ["folder"]
        assert (path / "file").read_bytes() == b"data"

    @pytest.mark.parametrize("exists", [False, True])
    def test_a_failure_leaves_nothing(self, tmp_path, exists):
        """
        If filling it fails, also by Ctrl-C, everything is as before.
        """
        path = tmp_path / "folder"
        if exists:
            path.mkdir()

        def fail(made):
            (made / "file").touch()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            new_folder(path, fail)
        assert [each.name for each in tmp_path.iterdir()] == (["folder"] if exists else [])
        assert not exists or not any(path.iterdir())

    def test_what_exists_is_refused(self, tmp_path):
        """
        A file, or a folder with content, stays as it is.
        """
        (tmp_path / "file").write_bytes(b"old")
        for path in (tmp_path, tmp_path / "file"):
            with pytest.raises(FileExistsError, match=re.escape(str(path))):
                new_folder(path, pytest.fail)
        path = tmp_path / "missing" / "folder"
        with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
            new_folder(path, pytest.fail)
        assert (tmp_path / "file").read_bytes() == b"old"

    @posix
    def test_its_content_is_on_the_disk_before_it_appears(self, tmp_path, monkeypatch):
        """
        The file and its folder are synchronized before the path exists, and the parent after that.
        """
        path, seen = tmp_path / "folder", []
        monkeypatch.setattr(
            os, "fsync", lambda number: seen.append((os.fstat(number), path.exists()))
        )

        def fill(folder):
            with (folder / "file").open("xb") as file:
                file.write(b"data")
                synced(file)

        new_folder(path, fill)
        found = [(status.st_ino, exists) for status, exists in seen]
        assert found == [
            ((path / "file").stat().st_ino, False),
            (path.stat().st_ino, False),
            (tmp_path.stat().st_ino, True),
        ]

    def test_a_folder_that_cannot_be_replaced_is_refused_at_once(self, tmp_path, monkeypatch):
        """
        The current folder and a mount point stay, and nothing is written for them before.
        """
        monkeypatch.chdir(tmp_path)
        for path in (".", tmp_path):
            with pytest.raises(OSError, match="current folder or a mount point"):
                new_folder(path, pytest.fail)
        mounted = tmp_path / "mounted"
        mounted.mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: path == mounted)
        with pytest.raises(OSError, match=re.escape(str(mounted))):
            new_folder(mounted, pytest.fail)
        assert [each.name for each in tmp_path.iterdir()] == ["mounted"]

    @posix
    def test_it_is_private(self, tmp_path):
        """
        Others may not look into the folder, because messages may be private.
        """
        new_folder(tmp_path / "folder", lambda _: None)
        assert mode_of(tmp_path / "folder") == 0o700
