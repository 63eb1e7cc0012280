"""
The interpreters that jetsync supports, and the tests that each of them runs.

As a script, it prints the supported interpreters that are missing. ``.ci/run`` ends with it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

SUPPORTED = ((3, 10), (3, 11), (3, 12), (3, 13), (3, 14), (3, 15))


@functools.cache
def present() -> set[tuple[int, int]]:
    """
    Return the supported versions that are on PATH, and the running one.
    """
    return ({sys.version_info[:2]} & set(SUPPORTED)) | set(on_path())


def on_path() -> dict[tuple[int, int], Path]:
    """
    Return the supported interpreters that are on PATH, by their versions.
    """
    found = {}
    for version in SUPPORTED:
        name = "python{}.{}".format(*version)
        # Not shutil.which: the shims of pyenv come first on PATH and refuse to run.
        for path in (Path(folder, name) for folder in os.get_exec_path()):
            if _runs(path):
                found[version] = path
                break
    return found


def _runs(path: Path) -> bool:
    if not os.access(path, os.X_OK):
        return False
    done = subprocess.run([str(path), "-c", ""], capture_output=True, check=False)
    return done.returncode == 0


def tests_for(version: tuple[int, int], versions: set[tuple[int, int]]) -> str:
    """
    Return the set of tests that one of the present interpreters runs: none, oldest or between.

    ``tox run -e tests`` and ``tox run -e thorough`` run all tests on the newest one. On the oldest
    supported one, ``tox run -e lowest`` runs the fast tests.
    """
    if version >= max(versions):
        return "none"
    return "oldest" if version == min(SUPPORTED) else "between"


def main() -> None:
    """
    Print the interpreters that are missing.
    """
    missing = ["{}.{}".format(*version) for version in SUPPORTED if version not in present()]
    sys.stdout.write(f"Interpreters missing, and so not tested: {', '.join(missing) or 'none'}\n")


if __name__ == "__main__":
    main()
