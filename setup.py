"""
Build the optional extension `jetsync._speedups`. Everything else is in setup.cfg.
"""

from __future__ import annotations

import sysconfig

from setuptools import Extension, setup

# One file serves CPython 3.10 and later. Builds without the GIL have no stable ABI before 3.15.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "jetsync._speedups",
            ["jetsync/_speedups.c"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")] if STABLE else [],
            py_limited_api=STABLE,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if STABLE else {},
)
