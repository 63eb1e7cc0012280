"""
Wheels that are built from a copy of the repository, as pip builds them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]

_BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""

_LEFT_OUT = shutil.ignore_patterns(
    ".*",
    "*.egg-info",
    "_speedups*.so",
    "_speedups*.pyd",
    "build",
    "dist",
    "plugins",
    "docs",
    "tests",
)


def copy_of(source: Path, clone: Path) -> Path:
    """
    Copy what a build needs, and nothing that an earlier build left.
    """
    shutil.copytree(source, clone, ignore=_LEFT_OUT)
    return clone


def build(kind: str, clone: Path, **environment: str) -> tuple[Path, str]:
    """
    Build a wheel, an editable one or an sdist; return the file and the log of the build.

    *kind* is the name of the hook: build_wheel, build_editable or build_sdist.
    """
    target = clone.parent / kind
    target.mkdir(exist_ok=True)
    output, log = python("-c", _BUILD, kind, target, folder=clone, **environment)
    return target / output.split()[-1], output + log


def python(*arguments: object, folder: Path, **environment: str) -> tuple[str, str]:
    """
    Return what Python with these arguments prints, which runs in *folder*.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "JETSYNC_BUILD"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout, done.stderr


def lacks_for_extension() -> str:
    """
    Return what is missing here to build the extension, or nothing.
    """
    if sys.implementation.name != "cpython":
        return "the extension is only for CPython"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the headers of Python are missing"
    command = os.environ.get("CC") or sysconfig.get_config_var("CC")
    # Where there is no such variable, on Windows, setuptools looks for the compiler elsewhere.
    if command and shutil.which(command.split()[0]) is None:
        return "there is no C compiler"
    return "" if command else "no C compiler is known"
