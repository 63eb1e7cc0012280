"""
Sphinx configuration. `tox run -e docs` builds with every warning as an error.
"""

from __future__ import annotations

import importlib.metadata

project = "jetsync"
author = "The jetsync authors"
copyright = "The jetsync authors"  # noqa: A001 - the name that Sphinx reads
release = importlib.metadata.version("jetsync")
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "jetsync"

# Headings can be linked to from other pages: [text](page.md#heading).
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

# In docstrings `x` is code. Cross references are written out where they help.
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# The build does not reach out to other sites, so that names of the standard library and of the
# packages below us resolve to nothing. Ours must all resolve.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!jetsync).*"),
]
