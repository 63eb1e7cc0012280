"""
The script that installs tox and runs it: ``tests/run.py``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import interpreters

FILE = Path(__file__).parent / "run.py"

# Stands for tox. It notes how it was called.
TOX = """
import json, os, sys
if "--version" not in sys.argv:
    note = {"arguments": sys.argv[1:], "folder": os.getcwd(), "path": os.environ["PATH"]}
    with open(os.environ["TOX_NOTE"], "w") as file:
        json.dump(note, file)
    sys.exit(3)
"""


@pytest.fixture
def script(monkeypatch, tmp_path):
    """
    The script as a module, for an environment in a temporary folder that has not been made.
    """
    spec = importlib.util.spec_from_file_location("run_tox", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / "run")
    monkeypatch.setattr(module, "PYTHON", tmp_path / "run" / "python")
    monkeypatch.setattr(sys, "argv", ["run.py"])
    monkeypatch.chdir(tmp_path)
    return module


@pytest.fixture
def commands(script, monkeypatch):
    """
    The commands of the script, which are not run, and the words of those that fail.
    """
    made, failing = [], []

    def runs(*command, hidden=True):
        text = " ".join(map(str, command))
        made.append(text)
        return not any(word in text for word in failing)

    monkeypatch.setattr(script, "runs", runs)
    return made, failing


def test_runs_tox_in_the_repository_with_the_interpreters_of_pyenv(script, monkeypatch, tmp_path):
    """
    The script runs tox in the repository with its own arguments and with the interpreters of pyenv
    at the end of PATH, and returns the exit code of tox.
    """
    (tmp_path / "tox").mkdir()
    (tmp_path / "tox" / "__init__.py").touch()
    (tmp_path / "tox" / "__main__.py").write_text(TOX)
    interpreters = tmp_path / "pyenv" / "versions" / "3.11.7" / "bin"
    interpreters.mkdir(parents=True)
    first = os.environ["PATH"]
    monkeypatch.setenv("PATH", first)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TOX_NOTE", str(tmp_path / "note.json"))
    monkeypatch.setattr(script, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(sys, "argv", ["run.py", "-e", "lint"])
    # It would take the place of the process that runs the tests.
    monkeypatch.setattr(os, "execv", lambda _, command: sys.exit(subprocess.call(command)))
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 3
    note = json.loads((tmp_path / "note.json").read_text())
    assert note["arguments"] == ["run", "-e", "lint"]
    assert Path(note["folder"]) == FILE.parent.parent
    assert note["path"] == os.pathsep.join([first, str(interpreters)])


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        (["-m", "rest"], ["--skip-env", "^py313$"]),
        (["-e", "py313"], []),
        ([], []),
    ],
)
def test_skips_the_environment_of_the_newest_interpreter(script, monkeypatch, arguments, added):
    """
    A label skips the newest interpreter, whose tests `tests` and `thorough` run; a name does not.
    """
    monkeypatch.setattr(interpreters, "present", lambda: {(3, 9), (3, 10), (3, 13)})
    assert script.without_the_newest(arguments) == [*arguments, *added]


@pytest.mark.parametrize(
    ("missing", "makes"),
    [
        ([], "-m venv"),
        ([" -m venv"], "virtualenv"),
        ([" -m venv", " -m pip --v"], "virtualenv.pyz"),
    ],
    ids=["with venv", "with pip alone", "with neither"],
)
def test_makes_an_environment_with_what_there_is(script, commands, missing, makes, capsys):
    """
    Without tox, the script makes an environment by venv, else by virtualenv, and installs tox into
    it, each in a version that is given. If that fails, it returns an error.
    """
    made, failing = commands
    failing += [*missing, "tox>="]
    assert script.main() == 1
    *_, environment, install = made
    assert makes in environment
    assert environment.endswith(str(script.VENV))
    assert install.startswith(f"{script.PYTHON} -m pip install")
    downloads = [each for each in made if "pip install" in each or "git clone" in each]
    assert all("constraints.txt" in each or "--branch" in each for each in downloads)
    assert "Installing tox" in capsys.readouterr().err


def test_says_what_to_install_if_it_can_make_no_environment(script, commands):
    """
    If there is no way to make an environment, the script ends with advice.
    """
    commands[1].append("")
    with pytest.raises(SystemExit, match="python3-venv"):
        script.main()


def test_refuses_an_old_python(script, commands, monkeypatch):
    """
    A Python that jetsync does not support gets a message instead of an error of pip.
    """
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    with pytest.raises(SystemExit, match="needs Python"):
        script.main()
