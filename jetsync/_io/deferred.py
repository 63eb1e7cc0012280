"""
Packages that are imported when their first attribute is used.

nats-py imports aiohttp if it is installed, and uses it only for its own WebSockets, which jetsync
replaces. The import of aiohttp takes as long as that of all other packages together. nats-py also
imports its JetStream client, which jetsync does not use.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Deferred(types.ModuleType):
    """
    A package whose first attribute that is used imports it.

    Threads: any thread.
    Locks: that of Python for the import.

    ``importlib.util.LazyLoader`` would do the same. But up to Python 3.11, if two threads use the
    module at the same time, the second one finds it half imported.
    """

    def __getattr__(self, name: str) -> object:
        _remove(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def deferred(*packages: str) -> Iterator[None]:
    """
    Give modules that import *packages* in this block a :class:`Deferred` of each.

    A name with a dot is a module inside a package. A package that is not installed still raises
    ImportError, and one that was imported before is used as it is. Code that runs after the block,
    or in other threads, can import the packages as usual. If it does so during the block, it may
    also get the Deferred.
    """
    placed = [Deferred(package) for package in packages if package not in sys.modules]
    try:
        for module in placed:
            is_inner = "." in module.__name__
            # A search for an inner module would import its package.
            spec = None if is_inner else importlib.util.find_spec(module.__name__)
            if spec is not None or is_inner:
                module.__spec__ = spec
                sys.modules.setdefault(module.__name__, module)
        yield
    finally:
        for module in placed:
            _remove(module)
            package, _, name = module.__name__.rpartition(".")
            if package in sys.modules and not hasattr(sys.modules[package], name):
                # An import of an inner module would have made it an attribute.
                setattr(sys.modules[package], name, module)


def _remove(module: Deferred) -> None:
    # A thread that has imported the package itself meanwhile keeps its module.
    if sys.modules.get(module.__name__) is module:
        sys.modules.pop(module.__name__, None)
