"""
An editable install, as ``python -m pip install -e .`` makes it, from a copy of the repository.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

BUILD = """
import sys
from setuptools import build_meta
print(build_meta.build_editable(sys.argv[1]))
"""

# Runs without other installed packages, of which jetsync may be one.
FIND = """
import importlib.util
import sys
sys.path.append(sys.argv[1])
print(importlib.util.find_spec("jetsync").origin)
"""


def run(*arguments, folder):
    """
    Return the output of Python with these arguments, which runs in *folder*.
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def paths_of(source, clone):
    """
    Copy *source* to *clone*; return the paths that its editable install adds, and its import hooks.
    """
    hidden = shutil.ignore_patterns(".*", "*.egg-info", "build", "plugins", "docs", "tests")
    shutil.copytree(source, clone, ignore=hidden)
    wheels, installed = clone.parent / "wheels", clone.parent / "installed"
    wheels.mkdir()
    name = run("-c", BUILD, wheels, folder=clone).split()[-1]
    zipfile.ZipFile(wheels / name).extractall(installed)
    lines = [line for file in installed.glob("*.pth") for line in file.read_text().splitlines()]
    return lines, [file.name for file in installed.glob("*.py")]


@pytest.fixture(autouse=True)
def _builder():
    pytest.importorskip("setuptools", minversion="77", reason="needs setuptools 77 or newer")


class TestEditableInstall:
    def test_next_to_a_clone_the_package_is_found_and_not_the_folder(self, tmp_path):
        """
        In the folder that holds a clone, ``import jetsync`` finds the package, not the clone.
        """
        clone = tmp_path / "jetsync"
        lines, hooks = paths_of(ROOT, clone)
        assert (lines, hooks) == ([str(clone)], [])
        found = run("-S", "-c", FIND, *lines, folder=tmp_path)
        assert Path(found.strip()) == clone / "jetsync" / "__init__.py"

    @pytest.mark.parametrize(
        "folder", sorted(ROOT.glob("plugins/*/pyproject.toml")), ids=lambda file: file.parent.name
    )
    def test_a_plugin_is_on_a_path_that_tools_can_list(self, folder, tmp_path):
        """
        An editable plugin adds its folder to the path, where Spark and type checkers look.
        """
        clone = tmp_path / "clone"
        assert paths_of(folder.parent, clone) == ([str(clone)], [])
