"""
Sphinx configuration. `tox run -e docs` builds with every warning as an error.
"""

from __future__ import annotations

import builtins
import collections.abc
import enum
import importlib
import importlib.metadata
import os
import re
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from sphinx.ext.autodoc.mock import mock

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# The compiled core has no source that autodoc can read.
os.environ["JETSYNC_SPEEDUPS"] = "0"

HERE = Path(__file__).parent
# The plugins are read from the source, and jetsync-spark without Spark.
sys.path[:0] = [str(HERE / "_ext"), *map(str, HERE.parent.glob("plugins/*"))]

import inventories  # noqa: E402 - found by the line above
from api_pages import MOCKED, MODULES, analyze  # noqa: E402

project = "jetsync"
author = "The jetsync authors"
copyright = "The jetsync authors"  # noqa: A001 - the name that Sphinx reads
release = importlib.metadata.version("jetsync")
version = release

autodoc_mock_imports = MOCKED
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "api_pages",
    "exchange",
]
# The tables of a page lead to texts on the same page.
autosummary_generate = False
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "jetsync"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = "logo.svg"
html_favicon = "logo.svg"
# Pages at former addresses, which lead to the present ones, and the map for coding assistants.
html_extra_path = ["_moved", "llms.txt"]
html_theme_options = {"sidebar_hide_name": False}

# Headings can be linked to from other pages: [text](page.md#heading).
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

# In docstrings `x` is code. Cross references are written out where they help.
default_role = "code"

autodoc_default_options = {
    "members": True,
    # What a class inherits from jetsync's own classes, and nothing of these.
    "inherited-members": "Exception, dict, enum.StrEnum, object, str, tuple",
}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# The build opens no connection, so the names of other projects are listed in `_ext/inventories.py`.
intersphinx_mapping = inventories.write(HERE / "_build" / "inventories")

# Further names of other projects resolve to nothing. Ours must all resolve, private base classes
# aside.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!jetsync).*"),
    (r"py:class", r"jetsync\.(.*\.)?_.*"),
    # Public classes of these folders name `jetsync` as their module. The others are internal.
    (r"py:class", r"jetsync\.(values|publish|consume|read|kv)\..*"),
    (r"py:class", r"jetsync_django\.tasks\.options\..*"),
]
# Fields named `bytes` make every mention of the built-in type ambiguous.
suppress_warnings = ["ref.python"]


def show_as_public(module: str) -> None:
    """
    Let Sphinx show the public names of a module as names of this module, with the texts of fields.

    Sphinx looks for the strings below fields in the file that `__module__` names, so this file gets
    those of all files.
    """
    analyze(module)
    home = importlib.import_module(module)
    for name in home.__all__:
        value = getattr(home, name)
        if getattr(value, "__module__", "").startswith(module):
            value.__module__ = module


def shield_first_line(_app: Sphinx, what: str, *arguments: object) -> None:
    """
    Keep napoleon from reading "Time-to-live: seconds or never" as a field of type "Time-to-live".

    It looks for a type in the first line of a field's text only. This puts a line of escaped spaces
    before it. They disappear, and the tables of a page still show the text.
    """
    lines = arguments[-1]
    assert isinstance(lines, list)
    if what in {"attribute", "data", "property"} and lines and ":" in lines[0]:
        # One backslash alone would be the line above a heading.
        lines[:0] = ["\\ \\"]


def hide_internal_signature(
    _app: Sphinx, what: str, name: str, value: object, _options: object, text: str, result: str
) -> tuple[str, str] | None:
    """
    Hide the arguments of classes that users get from a call and do not make themselves.

    An argument of such a class has a type that is not public. Enumerations hide theirs, too.
    """
    module = name.rpartition(".")[0]
    if what != "class" or module not in MODULES:
        return None
    if attrs.has(value):
        # Converters accept Any. The fields below the class show what is meant.
        return ("", "") if ": Any = " in text or "NOTHING" in text else None
    known = {*sys.modules[module].__all__, *dir(builtins), *dir(collections.abc), *dir(typing)}
    types = re.findall(r"\b[A-Z]\w+", text or "")
    if issubclass(value, enum.Enum) or not known.issuperset(types):
        return ("", "")
    return (text, result)


def drop_notes(_app: Sphinx, _name: str, source: list[str]) -> None:
    """
    Drop the notes for people who read a page on GitHub, which runs no directives.
    """
    source[0] = re.sub(r"^> On GitHub, .*$", "", source[0], flags=re.MULTILINE)


def setup(app: Sphinx) -> None:
    """
    Run before napoleon, whose priority is 500.
    """
    with mock(MOCKED):
        for module in MODULES:
            show_as_public(module)
    app.connect("source-read", drop_notes)
    app.connect("autodoc-process-signature", hide_internal_signature)
    app.connect("autodoc-process-docstring", shield_first_line, priority=400)
