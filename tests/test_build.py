"""
The build of the optional extension, and of jetsync without it.
"""

from __future__ import annotations

import os
import sysconfig
import tarfile
import time
import zipfile

import pytest

from helpers.builds import ROOT, build, copy_of, lacks_for_extension, python

# They build distributions.
pytestmark = pytest.mark.thorough

if not (ROOT / "setup.py").exists():
    pytest.skip("needs the files of the repository", allow_module_level=True)
pytest.importorskip("setuptools", minversion="77", reason="needs setuptools 77 or newer")

NO_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
PURE = "-py3-none-any.whl"

needs_compiler = pytest.mark.skipif(bool(lacks_for_extension()), reason=lacks_for_extension())
needs_cc = pytest.mark.skipif(os.name == "nt", reason="Windows does not look at CC")

# Hides the headers of Python from the build.
NO_HEADERS = """
import sys
import setuptools
from distutils import sysconfig
sysconfig.get_python_inc = lambda *args, **options: "nowhere"
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1]))
"""


@pytest.fixture
def clone(tmp_path):
    """
    A copy of what a build needs.
    """
    return copy_of(ROOT, tmp_path / "clone")


def contents(wheel):
    """
    Return the compiled modules and C files of a wheel, and the lines of its WHEEL file.
    """
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (about,) = [name for name in names if name.endswith(".dist-info/WHEEL")]
        lines = opened.read(about).decode().splitlines()
    return [name for name in names if name.endswith((".so", ".pyd", ".c", ".h"))], lines


@needs_compiler
class TestWithCompiler:
    def test_the_wheel_has_the_extension_and_a_tag_of_the_platform(self, clone):
        """
        The wheel has the extension and no C file. Its tag says abi3, or the version without a GIL.
        """
        wheel, log = build("build_wheel", clone, JETSYNC_BUILD="compiled")
        found, lines = contents(wheel)

        assert len(found) == 1
        assert found[0].startswith("jetsync/_speedups.")
        assert found[0].endswith((".so", ".pyd"))
        assert ("abi3" in found[0]) is (os.name != "nt" and not NO_GIL)
        abi = wheel.name.split("-")[2:4]
        assert abi == (["cp310", "abi3"] if not NO_GIL else abi)
        assert not wheel.name.endswith(PURE)
        assert "Root-Is-Purelib: false" in lines
        assert "without its compiled core" not in log

    def test_pure_leaves_it_out(self, clone):
        """
        JETSYNC_BUILD=pure gives a wheel for any system, also where the extension could be built.
        """
        wheel, log = build("build_wheel", clone, JETSYNC_BUILD="pure")

        assert wheel.name.endswith(PURE)
        assert contents(wheel)[0] == []
        assert "without its compiled core" not in log

    @needs_cc
    def test_an_extension_of_an_earlier_build_is_not_used(self, clone):
        """
        If the extension cannot be built again, a wheel does not get the old one.
        """
        build("build_wheel", clone)
        # So that it is newer than what was built.
        later = time.time() + 1000
        os.utime(clone / "jetsync" / "_speedups.c", (later, later))
        wheel, log = build("build_wheel", clone, CC="false")

        assert "without its compiled core" in log
        assert wheel.name.endswith(PURE)
        assert contents(wheel)[0] == []


@needs_cc
class TestWithoutCompiler:
    @pytest.mark.parametrize(
        ("compiler", "reason"),
        [
            # Without the headers, they are what is missing.
            pytest.param("false", "the C compiler failed", marks=needs_compiler),
            ("no-such-cc", "no-such-cc is missing"),
        ],
    )
    def test_the_wheel_is_pure_and_the_log_says_why(self, clone, compiler, reason):
        """
        Without a compiler the wheel is for any system. The log says what is missing, and that
        jetsync works.
        """
        wheel, log = build("build_wheel", clone, CC=compiler)
        found, lines = contents(wheel)

        assert wheel.name.endswith(PURE)
        assert found == []
        assert {"Root-Is-Purelib: true", "Tag: py3-none-any"} <= set(lines)
        assert f"without its compiled core: {'the C compiler ' * (compiler != 'false')}" in log
        assert reason in log
        assert "jetsync works without it" in log

    @needs_compiler
    def test_missing_headers_are_named(self, clone, tmp_path):
        """
        Without the headers of Python the wheel is for any system, and the log names the header.
        """
        output, log = python("-c", NO_HEADERS, tmp_path, folder=clone)

        assert output.split()[-1].endswith(PURE)
        assert "without its compiled core: Python.h of Python" in log

    def test_a_release_needs_the_extension(self, clone):
        """
        With JETSYNC_BUILD=compiled, a failure of the compiler is an error.
        """
        with pytest.raises(AssertionError, match=r"error: .*false"):
            build("build_wheel", clone, CC="false", JETSYNC_BUILD="compiled")

    def test_an_unknown_kind_of_build_is_refused(self, clone):
        """
        Another value of JETSYNC_BUILD is an error that names the known ones.
        """
        with pytest.raises(AssertionError, match="has to be 'compiled', 'pure' or empty"):
            build("build_wheel", clone, JETSYNC_BUILD="yes")


def test_the_sdist_has_what_the_extension_is_built_from(clone):
    """
    The sdist has the C file and setup.py, also if it comes from a build without the extension.
    """
    file, _ = build("build_sdist", clone, JETSYNC_BUILD="pure")
    with tarfile.open(file) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert {"setup.py", "jetsync/_speedups.c"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyd"))]
