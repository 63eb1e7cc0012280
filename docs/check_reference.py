"""
Check that the built reference has every public name and member, and nothing else.

    python docs/check_reference.py docs/_build/html/objects.inv
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from sphinx.ext.autodoc.mock import mock
from sphinx.util.inventory import InventoryFile

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), *map(str, HERE.parent.glob("plugins/*"))]

from api_pages import INTERNAL, MOCKED, MODULES, public_members  # noqa: E402 - found by the line above


def public() -> set[str]:
    """
    Return the full names of all public objects and of their own members.
    """
    found = set()
    for module in MODULES:
        home = importlib.import_module(module)
        for name in home.__all__:
            if name != "__version__":
                found.add(f"{module}.{name}")
            found.update(f"{module}.{name}.{member}" for member in members(getattr(home, name)))
    return found


def members(value: Any) -> list[str]:
    """
    Return the names that a class defines itself. Inherited names are listed with their class.
    """
    if not inspect.isclass(value):
        return []
    if issubclass(value, BaseException):
        own = {*vars(value), *inspect.get_annotations(value)}
        return [name for name in public_members(value) if name in own]
    return public_members(value)


def documented(inventory: Path) -> set[str]:
    """
    Return the full names of all Python objects in an inventory.
    """
    loaded = InventoryFile.loads(inventory.read_bytes(), uri="")
    return {name for kind, names in loaded.data.items() if kind.startswith("py:") for name in names}


def is_public(name: str) -> bool:
    """
    Return whether a documented name is a public object or one of its members.

    Attributes that only instances have are found in the source, not in the class.
    """
    module = max(filter(name.startswith, MODULES), key=len, default="")
    first, *rest = name.removeprefix(module).strip(".").split(".")
    names = importlib.import_module(module).__all__ if module else []
    internal = f"{first}.{'.'.join(rest)}" in INTERNAL
    return first in names and not internal and not any(part.startswith("_") for part in rest)


def main() -> None:
    """
    Print the differences, and exit with 1 if there are any.
    """
    there = documented(Path(sys.argv[1])) - set(MODULES)
    with mock(MOCKED):
        lines = [f"missing in the reference: {name}" for name in sorted(public() - there)]
        lines += [
            f"not public, but in the reference: {name}"
            for name in sorted(there)
            if not is_public(name)
        ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
