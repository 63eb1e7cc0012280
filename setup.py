"""
Build the optional extension `jetsync._speedups`. Everything else is in setup.cfg.

Without a C compiler or the headers of Python, the build says so and gives the version in pure
Python, as a wheel for any system. The environment variable ``JETSYNC_BUILD`` is for releases:
``compiled`` makes a failure of the compiler an error, and ``pure`` leaves the extension out.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

BUILD = os.environ.get("JETSYNC_BUILD", "")
if BUILD not in {"", "compiled", "pure"}:
    sys.exit(f"JETSYNC_BUILD is {BUILD!r}. It has to be 'compiled', 'pure' or empty.")

# One file serves CPython 3.10 and later. Builds without the GIL have wheels of their own, because
# those before 3.15 have no stable ABI.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

WITHOUT = """\
{line}
jetsync is built without its compiled core: {reason}.
jetsync works without it, with the same functions. Reads and publish_many need more CPU time.
To get the compiled core, install a C compiler and the headers of Python, and then jetsync again.
(Debian and Ubuntu: gcc and python3-dev. Fedora: gcc and python3-devel.)
{line}"""


class BuildIfPossible(build_ext):
    """
    Build the extension. If that fails, say why and continue without it.
    """

    def run(self) -> None:
        """
        Build, unless the compiler fails and the extension is optional.
        """
        inplace = self.inplace
        try:
            super().run()
        except (BaseError, CCompilerError) as error:
            if BUILD == "compiled":
                raise
            self.leave_out({False, bool(inplace)})
            reason = self.reason(error)
            logging.getLogger().warning(WITHOUT.format(line="*" * 100, reason=reason))

    def reason(self, error: Exception) -> str:
        """
        Return why the build failed, for the log.
        """
        # The compiler of Windows has no such attribute. Its error says what is missing.
        command = getattr(self.compiler, "compiler_so", None)
        if command and shutil.which(command[0]) is None:
            return f"the C compiler {command[0]} is missing"
        if not any(Path(folder, "Python.h").exists() for folder in self.include_dirs):
            return f"Python.h of Python {platform.python_version()} is missing"
        failed = isinstance(error, CCompilerError)
        return "the C compiler failed, see its output above" if failed else str(error)

    def leave_out(self, inplace: set[bool]) -> None:
        """
        Make the distribution one of pure Python, also if an earlier build left the extension here.
        """
        for extension in self.extensions:
            for self.inplace in inplace:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        self.extensions = self.distribution.ext_modules = []
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel is not None:
            # The tag of the file depends on it. It was set when there still was an extension.
            wheel.root_is_pure = True


setup(
    cmdclass={"build_ext": BuildIfPossible},
    ext_modules=[
        Extension(
            "jetsync._speedups",
            ["jetsync/_speedups.c"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")] if STABLE else [],
            py_limited_api=STABLE,
        )
    ]
    # The C API of other implementations is slower than their Python.
    if BUILD != "pure" and platform.python_implementation() == "CPython"
    else [],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if STABLE else {},
)
