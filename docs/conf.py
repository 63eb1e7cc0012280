"""
Sphinx configuration. `tox run -e docs` builds with every warning as an error.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.pycode import ModuleAnalyzer

import jetsync

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "jetsync"
author = "The jetsync authors"
copyright = "The jetsync authors"  # noqa: A001 - the name that Sphinx reads
release = importlib.metadata.version("jetsync")
version = release

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "pull_statuses"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "jetsync"

# Headings can be linked to from other pages: [text](page.md#heading).
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

# In docstrings `x` is code. Cross references are written out where they help.
default_role = "code"

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# The build does not reach out to other sites, so that names of the standard library and of the
# packages below us resolve to nothing. Ours must all resolve, private base classes aside.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!jetsync).*"),
    (r"py:class", r"jetsync\.(.*\.)?_.*"),
    # Public classes of these folders name `jetsync` as their module. The others are internal.
    (r"py:class", r"jetsync\.(values|publish|consume|read|kv)\..*"),
]
# Fields named `bytes` make every mention of the built-in type ambiguous.
suppress_warnings = ["ref.python"]


def merge_field_docs() -> None:
    """
    Let Sphinx find the strings below fields.

    It looks for them in the file that `__module__` names. For all that is on the facade that is
    `jetsync/__init__.py`, so what the other files say is added to what it says.
    """
    facade = ModuleAnalyzer.for_module("jetsync")
    facade.analyze()
    for module in pkgutil.walk_packages(jetsync.__path__, "jetsync."):
        if not module.name.startswith(("jetsync.cli", "jetsync.testing", "jetsync.__main__")):
            importlib.import_module(module.name)
            analyzer = ModuleAnalyzer.for_module(module.name)
            analyzer.analyze()
            facade.attr_docs.update(analyzer.attr_docs)
            facade.tagorder.update(analyzer.tagorder)


def shield_first_line(_app: Sphinx, what: str, *arguments: object) -> None:
    """
    Keep napoleon from reading "Time-to-live: seconds or never" as a field of type "Time-to-live".

    It looks for a type in the first line of a field's text only; this makes that an empty comment.
    """
    lines = arguments[-1]
    assert isinstance(lines, list)
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]


def setup(app: Sphinx) -> None:
    """
    Run before napoleon, whose priority is 500.
    """
    merge_field_docs()
    app.connect("autodoc-process-docstring", shield_first_line, priority=400)
