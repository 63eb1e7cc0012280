"""
Check the types of the code that readers copy with mypy and pyright.

The recipes and the examples pass both checkers as strict programs do. In the README, the first
steps and the how-to pages, annotations of the pages' own functions may be missing, and mypy checks
the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "getting-started.md"]

OPTIONS = [
    *("--strict", "--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls"),
    "--allow-untyped-decorators",
    # The blocks of a page use some names again.
    *("--allow-redefinition-new", "--local-partial-types"),
]

# The frameworks are not installed where types are checked, so their names are Any.
PROGRAM_OPTIONS = [
    *("--strict", "--ignore-missing-imports", "--allow-subclassing-any"),
    *("--allow-untyped-decorators", "--no-warn-return-any"),
    # Of the package and the plugins, whose comments name the errors that are turned off above.
    "--no-warn-unused-ignores",
]
# Plugins are not installed there, either.
PATHS = [str(ROOT), *map(str, sorted((ROOT / "plugins").glob("jetsync-*")))]
PYRIGHT = {
    "include": ["."],
    "pythonVersion": "3.10",
    "typeCheckingMode": "standard",
    "reportMissingImports": False,
    "reportMissingModuleSource": False,
    "extraPaths": PATHS,
}

# A notebook shows the values of its cells, as no program does.
NOTEBOOK = ROOT / "docs" / "recipes" / "jupyter" / "orders.py"


def programs() -> list[Path]:
    """
    Return the files of the recipes and the examples, without the tests among them, and the file
    that uses the plugins.
    """
    found = [*(ROOT / "docs" / "recipes").glob("*/*.py"), *(ROOT / "examples").glob("*.py")]
    found.append(Path(__file__).with_name("typed_plugins.py"))
    return sorted(path for path in found if path != NOTEBOOK and path.stem[:5] != "test_")


def check_programs(folder: Path) -> bool:
    """
    Check the programs in one run of each checker; return whether both accept them.
    """
    for path in programs():
        # Many recipes have files with the same names.
        shutil.copy(path, folder / f"{path.parent.name}_{path.stem.replace('.', '_')}.py")
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT), "utf-8")
    return all(
        [
            is_right("mypy", *PROGRAM_OPTIONS, str(folder)),
            is_right("pyright", "--project", str(folder), "--pythonpath", sys.executable),
        ]
    )


def check_pages(folder: Path) -> bool:
    """
    Write the blocks of each page to a file and check all of them; return whether mypy accepts them.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.doc_pages import script_of

    for page in [*PAGES, *sorted((ROOT / "docs" / "howto").glob("*.md"))]:
        # The numbers of the lines are those of the page.
        name = page.stem.replace("-", "_").lower()
        (folder / f"{name}.py").write_text(script_of(page), "utf-8")
    return is_right("mypy", *OPTIONS, str(folder))


def is_right(module: str, *arguments: str) -> bool:
    """
    Run a type checker, and return whether it found no error.
    """
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(PATHS)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> int:
    """
    Check all of the code, and return the exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        right = []
        for check in (check_pages, check_programs):
            own = Path(folder, check.__name__)
            own.mkdir()
            right.append(check(own))
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
