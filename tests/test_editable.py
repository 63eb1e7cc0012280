"""
An editable install, as ``python -m pip install -e .`` makes it, from a copy of the repository.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from helpers.builds import ROOT, build, copy_of, lacks_for_extension, python

# They build distributions.
pytestmark = pytest.mark.thorough

# Runs without other installed packages, of which jetsync may be one.
FIND = """
import importlib.util
import sys
sys.path.append(sys.argv[1])
print(importlib.util.find_spec("jetsync").origin)
"""

SPARK = ROOT / "plugins" / "jetsync-spark"

# As Spark does it.
LISTED = """
import pkgutil
import sys
sys.path.append(sys.argv[1])
print(*(each.name for each in pkgutil.iter_modules() if each.name.startswith("pyspark_")))
"""

VARIANT = "from jetsync._base import speedups; print(speedups.VARIANT)"


def paths_of(source, clone, **environment):
    """
    Copy *source* to *clone*; return the paths that its editable install adds, and its import hooks.
    """
    wheel, _ = build("build_editable", copy_of(source, clone), **environment)
    installed = clone.parent / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    lines = [line for file in installed.glob("*.pth") for line in file.read_text().splitlines()]
    return lines, [file.name for file in installed.glob("*.py")]


@pytest.fixture(autouse=True)
def _builder():
    pytest.importorskip("setuptools", minversion="77", reason="needs setuptools 77 or newer")


class TestEditableInstall:
    @pytest.mark.parametrize(
        ("environment", "variant"),
        [
            pytest.param(
                {"JETSYNC_BUILD": "compiled"},
                "compiled",
                marks=pytest.mark.skipif(bool(lacks_for_extension()), reason=lacks_for_extension()),
            ),
            ({"JETSYNC_BUILD": "pure"}, "Python (not compiled)"),
        ],
        ids=["compiled", "pure"],
    )
    def test_next_to_a_clone_the_package_is_found_and_not_the_folder(
        self, environment, variant, tmp_path
    ):
        """
        In the folder that holds a clone, ``import jetsync`` finds the package, not the clone, and
        with the extension if that was built.
        """
        clone = tmp_path / "jetsync"
        lines, hooks = paths_of(ROOT, clone, **environment)
        assert (lines, hooks) == ([str(clone)], [])
        found, _ = python("-S", "-c", FIND, *lines, folder=tmp_path)
        assert Path(found.strip()) == clone / "jetsync" / "__init__.py"
        runs, _ = python("-c", VARIANT, folder=tmp_path, PYTHONPATH=lines[0], JETSYNC_SPEEDUPS="")
        assert runs.strip() == variant

    @pytest.mark.skipif(bool(lacks_for_extension()), reason=lacks_for_extension())
    def test_an_extension_that_cannot_be_built_again_is_removed(self, tmp_path):
        """
        An editable install without a compiler works, and leaves no extension of an earlier one.
        """
        clone = tmp_path / "jetsync"
        paths_of(ROOT, clone)
        (built,) = (clone / "jetsync").glob("_speedups.*[do]")
        _, log = build("build_editable", clone, CC="false")
        assert "without its compiled core" in log
        assert not built.exists()

    @pytest.mark.parametrize(
        "folder", sorted(ROOT.glob("plugins/*/pyproject.toml")), ids=lambda file: file.parent.name
    )
    def test_a_plugin_is_on_a_path_that_tools_can_list(self, folder, tmp_path):
        """
        An editable plugin adds its folder to the path, where Spark and type checkers look.
        """
        clone = tmp_path / "clone"
        assert paths_of(folder.parent, clone) == ([str(clone)], [])

    @pytest.mark.skipif(not SPARK.exists(), reason="the sdist has no plugins")
    def test_spark_discovers_an_editable_plugin(self, tmp_path):
        """
        Spark lists the top-level modules to find data sources, and the editable plugin is in the
        list.
        """
        clone = tmp_path / "clone"
        (path,), _ = paths_of(SPARK, clone)
        listed, _ = python("-S", "-c", LISTED, path, folder=tmp_path)

        assert listed.split() == ["pyspark_jetsync"]
