"""
Run tox in a clone that has only Python 3.10 or newer: ``python3 tests/run.py [arguments of tox]``.

Without arguments, tox runs the tests. tox gets a virtual environment of its own in ``.tox``, so
that nothing is installed into your Python. Neither pip nor venv is needed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".tox" / "run"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
PINNED = ("--constraint", ROOT / "tests" / "constraints.txt")
TOX = ("tox>=4.20", *PINNED)

# A tag of the repository, which is a version of virtualenv.
VIRTUALENV = ("--branch", "21.7.4", "https://github.com/pypa/get-virtualenv")

ADVICE = """\
This Python can neither make a virtual environment nor install packages. On Debian and Ubuntu,
install the package python3-venv; on other systems, pip."""


def runs(*command: object, hidden: bool = True) -> bool:
    """
    Run a command in this Python, and return whether it succeeded.
    """
    output = subprocess.DEVNULL if hidden else None
    done = subprocess.run(list(map(str, command)), stdout=output, stderr=output, check=False)
    return done.returncode == 0


def make_environment() -> bool:
    """
    Make a virtual environment that has pip, and return whether that succeeded.
    """
    shutil.rmtree(VENV, ignore_errors=True)
    if runs(sys.executable, "-m", "venv", VENV):
        return True
    # Debian's Python has no ensurepip. virtualenv needs none.
    shutil.rmtree(VENV, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        if runs(sys.executable, "-m", "pip", "--version"):
            # `--target` leaves a Python alone that another package manager owns.
            command = ("-m", "pip", "install", "--quiet", "--target", folder, "virtualenv", *PINNED)
            start = f"import sys; sys.path.insert(0, {folder!r}); import virtualenv.__main__ as v"
            make = ("-c", f"{start}; v.run()", "--quiet", VENV)
            return runs(sys.executable, *command, hidden=False) and runs(sys.executable, *make)
        # Nor has it pip. This repository holds virtualenv as one file.
        command = ("clone", "--quiet", "--depth", "1", *VIRTUALENV, folder)
        make = (f"{folder}/public/virtualenv.pyz", "--quiet", VENV)
        return runs("git", *command, hidden=False) and runs(sys.executable, *make, hidden=False)


def add_interpreters() -> None:
    """
    Add the interpreters of pyenv to PATH. Its shims refuse versions that are not selected.
    """
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [str(folder) for folder in sorted(root.glob("versions/*/bin"))]
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *found])


def without_the_newest(arguments: list) -> list:
    """
    Return the arguments of tox without the environment of the newest interpreter, if a label is
    run: `tests` and `thorough` run all tests on it, and it would be made for nothing.
    """
    from helpers.interpreters import present

    newest = max(present(), default=())
    if "-m" not in arguments or not newest:
        return arguments
    return [*arguments, "--skip-env", "^py{}{}$".format(*newest)]


def main() -> int:
    """
    Run tox, and return its exit code.
    """
    if sys.version_info < (3, 10):  # noqa: UP036 - the reason for this script's simple code.
        sys.exit("jetsync needs Python 3.10 or newer, and this is " + sys.version.split()[0])
    if not (PYTHON.exists() and runs(PYTHON, "-m", "tox", "--version")):
        sys.stderr.write("Installing tox into .tox/run ...\n")
        if not make_environment():
            sys.exit(ADVICE)
        if not runs(PYTHON, "-m", "pip", "install", "--quiet", *TOX, hidden=False):
            return 1
    add_interpreters()
    os.chdir(ROOT)
    command = [str(PYTHON), "-m", "tox", "run", *without_the_newest(sys.argv[1:])]
    if os.name != "nt":
        # tox takes the place of this process, so that signals reach it.
        os.execv(command[0], command)
    return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main())
