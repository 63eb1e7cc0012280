"""
Replace a file by one with new content, or make a folder, once the content is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def replaceable(path: str | os.PathLike[str]) -> tuple[Path, os.stat_result | None]:
    """
    Return the file that a path leads to, and its status. The status is None if there is no file.

    Raises:
        OSError: The path leads to a folder, a device, a pipe or a socket.
    """
    given = Path(path)
    target = Path(os.path.realpath(given))
    try:
        found = given.stat()
    except FileNotFoundError:
        return target, None
    if not stat.S_ISREG(found.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(number, "not a regular file", str(given))
    return target, found


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """
    Open a new file that replaces the file of this path when the block ends.

    The file keeps its permissions and, where the system allows it, its owner and group. If *path*
    is a symbolic link, the link stays and its target is replaced. If the block fails, nothing
    changes.

    Raises:
        OSError: The path leads to something else than a file, or the file cannot be written.
    """
    target, old = replaceable(path)
    # File systems limit the length of names.
    part = target.with_name(f"{target.name[:50]}.{secrets.token_hex(4)}.part")

    def create(name: str, flags: int) -> int:
        # The old file may be private, and so is the new one from its first byte on.
        return os.open(name, flags, 0o666 if old is None else 0o600)

    try:
        with open(part, "xb", opener=create) as file:
            yield file
            if old is not None and sys.platform != "win32":
                _keep_access(file.fileno(), old)
        part.replace(target)
    except BaseException as error:
        # Also after Ctrl-C, no part of the new file is left.
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename == str(part):
            # The caller does not know the temporary name.
            error.filename = os.fspath(path)
        raise


def new_folder(path: str | os.PathLike[str], fill: Callable[[Path], T]) -> T:
    """
    Call *fill* with a new, private folder that gets this path afterwards; return the result.

    The files in it, which :func:`synced` has written, are then on the disk. If *fill* fails, the
    folder is removed with its files. This is no context manager, because Ctrl-C at its beginning
    would leave the folder.

    Raises:
        OSError: There is something at the path that is not an empty folder, the empty folder cannot
            be replaced, or the folder cannot be made. Nothing changes.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir() and not any(target.iterdir()):
        if os.path.ismount(target) or target.samefile(os.curdir):
            # Systems replace no mount point, and a shell would stay in the old folder.
            reason = "it is the current folder or a mount point, so use a new folder in it"
            raise OSError(errno.EBUSY, reason, os.fspath(path))
        replaces = True
    elif os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
    else:
        replaces = False
    part = target.with_name(f"{target.name[:50]}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(mode=0o700)
        result = fill(part)
        _sync_folder(part)
        if replaces and sys.platform == "win32":
            # Other systems replace an empty folder in one step.
            target.rmdir()
        part.rename(target)
        _sync_folder(target.parent)
        return result
    except BaseException as error:
        with contextlib.suppress(OSError):
            for file in part.iterdir():
                file.unlink()
            part.rmdir()
        if isinstance(error, OSError) and error.filename == str(part):
            # The caller does not know the temporary name.
            error.filename = os.fspath(path)
        raise


def synced(file: BinaryIO) -> None:
    """
    Write what is buffered, and wait until it is on the disk.
    """
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """
    Wait until the names in a folder are on the disk, where the system allows it.
    """
    if sys.platform != "win32":
        # Some file systems cannot.
        with contextlib.suppress(OSError):
            number = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


if sys.platform != "win32":

    def _keep_access(file: int, old: os.stat_result) -> None:
        """
        Give a new file the owner, the group and the permissions of an old one.
        """
        # New content must not run as the owner of the file.
        mode = stat.S_IMODE(old.st_mode) & 0o777
        made = os.fstat(file)
        if made.st_uid != old.st_uid:
            # Only root may do this.
            with contextlib.suppress(OSError):
                os.fchown(file, old.st_uid, -1)
        if made.st_gid != old.st_gid:
            try:
                os.fchown(file, -1, old.st_gid)
            except OSError:
                # Another group than that of the old file may do what all may do.
                mode = mode & 0o707 | (mode & 0o007) << 3
        os.fchmod(file, mode)
