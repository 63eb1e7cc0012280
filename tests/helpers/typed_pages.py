"""
Check the types of the code in the README, the first steps and the how-to pages with mypy.

It is what readers copy into programs that are checked with `mypy --strict`. Only annotations of the
pages' own functions may be missing.
"""

from __future__ import annotations

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


def main() -> int:
    """
    Write the blocks of each page to a file and check all of them; return the exit code.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.doc_pages import script_of

    pages = [*PAGES, *sorted((ROOT / "docs" / "howto").glob("*.md"))]
    with tempfile.TemporaryDirectory() as folder:
        for page in pages:
            # The numbers of the lines are those of the page.
            name = page.stem.replace("-", "_").lower()
            Path(folder, f"{name}.py").write_text(script_of(page), "utf-8")
        command = [sys.executable, "-m", "mypy", *OPTIONS, folder]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
