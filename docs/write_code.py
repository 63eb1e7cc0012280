"""
Write what comes from code into the pages of the documentation: tables of names and statuses, and
the files of recipes. So a code host, which does not run Sphinx, shows complete pages.

    python docs/write_code.py            # after a change of names, of docstrings or of a recipe
    python docs/write_code.py --check    # only say which pages are out of date, and exit with 1

Run it in the environment that builds the documentation.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.ext.autodoc.mock import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

# The compiled core has no source with texts.
os.environ["JETSYNC_SPEEDUPS"] = "0"

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), *map(str, HERE.parent.glob("plugins/*"))]

import pull_statuses  # noqa: E402 - found by the line above
from api_pages import BLOCK, MOCKED, analyze, many_calls, names_of  # noqa: E402

STATUSES = re.compile(r"(<!-- statuses of pulls -->\n).*?(<!-- end of statuses -->)", re.DOTALL)
FILE = re.compile(r"(<!-- file (\S+): ([^\n]+) -->\n).*?(<!-- end of file -->)", re.DOTALL)
"""A file beside the page, and the line above it."""

LANGUAGES = {".py": "python", ".yaml": "yaml", ".service": "ini", "": "dockerfile"}


def renewed(page: str, folder: Path) -> str:
    """
    Return the text of a page of *folder* with its tables and files made again.
    """
    page = BLOCK.sub(lambda block: "\n".join(block_of(block[1], names_of(block[2]))), page)
    page = STATUSES.sub(lambda found: f"{found[1]}\n{pull_statuses.table()}\n\n{found[2]}", page)
    return FILE.sub(
        lambda found: f"{found[1]}{code_of(folder / found[2], found[3])}{found[4]}", page
    )


def code_of(file: Path, caption: str) -> str:
    """
    Return the code of a file as Markdown.
    """
    language = LANGUAGES.get(file.suffix, "")
    return f"{caption}:\n\n```{language}\n{file.read_text('utf-8').strip()}\n```\n\n"


def block_of(module: str, names: list[str]) -> Iterator[str]:
    """
    Yield the lines of a block of names, from its first comment to its last.
    """
    home = importlib.import_module(module)
    texts = analyze(module).attr_docs
    yield from (f"<!-- names of {module} -->", "", *table("name", module, "", names, texts), "")
    for name in names:
        if calls := many_calls(getattr(home, name)):
            yield from (*table(f"`{name}`", module, name, calls, texts), "")
    yield "<!-- end of names -->"


def table(
    title: str, module: str, owner: str, names: list[str], texts: dict[tuple[str, str], list[str]]
) -> Iterator[str]:
    """
    Yield the lines of a table of names of a module, or of the class *owner* in it.
    """
    home = importlib.import_module(module)
    holder: Any = getattr(home, owner) if owner else home
    yield from (f"| {title} | |", "|---|---|")
    for name in names:
        value = getattr(holder, name)
        lines = texts.get((owner, name))
        text = "\n".join(lines) if lines else inspect.getdoc(value) or ""
        yield f"| `{name}` | {first_sentence(text)} |"


def first_sentence(text: str) -> str:
    """
    Return the first sentence of a docstring as Markdown that fits into a cell.
    """
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    paragraph = re.sub(r":(?:py:)?\w+:`~?(?:[\w.]+\.)?([^`]+)`", r"`\1`", paragraph)
    sentence = re.split(r"(?<=[.!?:])\s+(?=[A-Z`])", paragraph.replace("``", "`"))[0]
    return sentence.removesuffix(":").replace("|", r"\|")


def main() -> None:
    """
    Write the pages that differ, or name them.
    """
    check = "--check" in sys.argv[1:]
    stale = []
    with mock(MOCKED):
        for page in sorted(HERE.rglob("*.md")):
            old = page.read_text("utf-8")
            new = renewed(old, page.parent)
            if new != old:
                stale.append(page)
                if not check:
                    page.write_text(new, "utf-8")
    for page in stale:
        sys.stdout.write(f"{'out of date' if check else 'written'}: {page.relative_to(HERE)}\n")
    sys.exit(check and bool(stale))


if __name__ == "__main__":
    main()
