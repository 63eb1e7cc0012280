"""
A blocking, thread-based client for NATS JetStream.

:func:`connect` returns a :class:`Client`, and ``client.jetstream()`` returns a :class:`JetStream`.
It gives you streams, consumers, publishers and key-value buckets. Import every name from
``jetsync``, except the tools in ``jetsync.devserver`` and ``jetsync.testing``.

Ask for help on one class or one call: ``help(jetsync.JetStream)`` or ``help(jetsync.connect)``. The
help on the whole package describes every class and every error.
"""

# The folders of the package are its layers. tests/test_layers.py lists them from top to bottom.

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetsync._facade import *  # noqa: F403 - all names of the package.

__version__ = "0.1.0"


if not TYPE_CHECKING:  # Type checkers would accept every name.

    def __getattr__(name: str) -> object:
        """
        Import all names when the first one is used.

        So `jetsync --version` and the completion of a shell need a fifth of the time.
        """
        if not name.isidentifier() or (name[0] == "_" and name != "__all__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = f"{__name__}.{name}"
        try:
            # `from jetsync import errors` asks for an attribute before it imports the module.
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
        facade = importlib.import_module("jetsync._facade")
        for each in facade.__all__:
            # A test may have replaced a name before.
            globals().setdefault(each, getattr(facade, each))
        globals()["__all__"] = sorted([*facade.__all__, "__version__"])
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return __getattr__("__all__")
