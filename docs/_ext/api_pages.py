"""
The tables of public names on the reference pages.

    <!-- names of jetsync -->

    | name | |
    |---|---|
    | `connect` | ... |

    <!-- end of names -->

The names of the first table say what is documented there. `docs/write_code.py` writes the second
column, and a table of members for each class that has many, so that the pages can be read on a code
host. Sphinx replaces them all by its own tables and the whole text of each name. The kind of each
name (class, function, error, constant) comes from the code.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import TYPE_CHECKING, Any

from sphinx.ext.autodoc.mock import mock
from sphinx.pycode import ModuleAnalyzer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

MODULES = (
    "jetsync",
    "jetsync.cli.commands",
    "jetsync.devserver",
    "jetsync.monitoring",
    "jetsync.testing",
    "jetsync_celery",
    "jetsync_django",
    "jetsync_django.cache",
    "jetsync_groups",
    "jetsync_locks",
    "jetsync_otel",
    "jetsync_queue",
    "jetsync_retry",
    "jetsync_schema",
    "jetsync_services",
    "jetsync_services.testing",
    "jetsync_spark",
)
"""The modules that users import from. Their `__all__` is what is public."""

INTERNAL = {
    "AtomicBatch.begin_finish",
    "AtomicBatch.finish",
    "ConnectOptions.nkey_text",
    "ConnectOptions.server_list",
    "Expect.pairs",
    "FastPublisher.begin_finish",
    "FastPublisher.finish",
    "KeyValueConfig.stream_fields",
    "Lost.announce",
    "Lost.lead",
    "OrderedConsumption.take",
    "PublishFuture.listen",
    "PublishFuture.report",
    "Publisher.begin_finish",
    "Publisher.finish",
    "StoredMessage.from_direct",
    "StreamConfig.lacks",
}
"""Methods that only jetsync itself calls."""

MOCKED = ["asgiref", "django", "django_tasks", "pandas", "pyarrow", "pyspark"]
"""
What jetsync-django and jetsync-spark need, and what is not installed to build the documentation.
"""

BLOCK = re.compile(
    r"^<!-- names of ([\w.]+) -->\n\n(.*?)\n\n(?:.*?)^<!-- end of names -->$",
    re.MULTILINE | re.DOTALL,
)
"""A module, and the table of its names."""

MANY = 6
"""A class with this many methods and properties gets a table of them."""


def expand(text: str) -> str:
    """
    Return the text of a page with each block of names replaced by directives of Sphinx.
    """
    return BLOCK.sub(lambda block: "\n".join(directives(block[1], names_of(block[2]))), text)


def analyze(module: str) -> ModuleAnalyzer:
    """
    Return what Sphinx reads from the source of a module, with the texts of fields of all its files.
    """
    facade = ModuleAnalyzer.for_module(module)
    facade.analyze()
    home = importlib.import_module(module)
    # A module that is no package has no path.
    for found in pkgutil.walk_packages(getattr(home, "__path__", ()), f"{module}."):
        # The compiled core has no source.
        if not found.name.endswith(("__main__", "_speedups")):
            analyzer = ModuleAnalyzer.for_module(found.name)
            analyzer.analyze()
            facade.attr_docs.update(analyzer.attr_docs)
            facade.tagorder.update(analyzer.tagorder)
    return facade


def names_of(table: str) -> list[str]:
    """
    Return the names in the first column of a table.
    """
    return re.findall(r"^\| `([\w.]+)`", table, re.MULTILINE)


def directives(module: str, names: list[str]) -> Iterator[str]:
    """
    Yield the lines that document these names of a module.
    """
    yield from ("```{eval-rst}", f".. currentmodule:: {module}", "", *table(names))
    home = importlib.import_module(module)
    for name in names:
        value = getattr(home, name)
        yield from ("", f".. {kind(value)}:: {name}")
        if kind(value) == "autoexception":
            # The attributes of each of them are those of the base class.
            yield from ("   :show-inheritance:", "   :no-inherited-members:")
        yield ""
        if calls := many_calls(value):
            yield from table([f"~{name}.{call}" for call in calls], "   ")
    yield "```"


def many_calls(value: Any) -> list[str]:
    """
    Return the methods and properties of a class that has many of them, else nothing.
    """
    if kind(value) != "autoclass":
        return []
    calls = [
        member
        for member in public_members(value)
        if inspect.isroutine(getattr(value, member)) or isinstance(getattr(value, member), property)
    ]
    return calls if len(calls) >= MANY else []


def table(names: list[str], indent: str = "") -> Iterator[str]:
    """
    Yield the lines of a table of names and the first sentences about them.
    """
    yield from (f"{indent}.. autosummary::", f"{indent}   :nosignatures:", "")
    yield from (f"{indent}   {name}" for name in names)
    yield ""


def kind(value: Any) -> str:
    """
    Return the directive that documents a value.
    """
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


def public_members(cls: type) -> list[str]:
    """
    Return the names of the members that the class or a public base of it defines.

    Fields that the docstring of the class describes as arguments are left out, because they have no
    entry of their own. The names are in the order of the source, and those of the class come first.
    """
    # `show_as_public` in conf.py sets this module for all public classes.
    ours = [base for base in cls.__mro__ if base.__module__ == cls.__module__]
    names = [name for base in ours for name in (*inspect.get_annotations(base), *vars(base))]
    arguments = re.findall(r"^ +(\w+): ", cls.__doc__ or "", re.MULTILINE)
    return [
        name
        for name in dict.fromkeys(names)
        if name[0] != "_"
        and hasattr(cls, name)
        and name not in arguments
        and f"{cls.__name__}.{name}" not in INTERNAL
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    """
    Expand the blocks when Sphinx reads a page.
    """

    def on_read(app: Sphinx, _page: str, source: list[str]) -> None:
        with mock(app.config.autodoc_mock_imports):
            source[0] = expand(source[0])

    def on_member(
        _app: Sphinx, _what: str, _name: str, value: object, _skip: object, _options: object
    ) -> bool | None:
        """Leave out internal methods."""
        return True if getattr(value, "__qualname__", "") in INTERNAL else None

    app.connect("source-read", on_read)
    app.connect("autodoc-skip-member", on_member)
    return {"parallel_read_safe": True}
