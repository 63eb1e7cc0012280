"""
Report the clauses of the specifications by status and by server: ``tox run -e specifications``.

``python tests/specifications --write`` renews the tables in ``docs/specifications``, and what
``jetsync doctor`` reads. Run it after a change of the data or of a mark.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# Found by the line above.
from helpers.clauses import (
    MODULE,
    SPECIFICATIONS,
    STATUSES,
    VERSIONS,
    all_clauses,
    clauses_of,
    counts,
    holds_on,
    marked,
    module,
    pages,
    with_tables,
)


def main() -> int:
    """
    Print the report, or write the pages and the module.
    """
    parser = argparse.ArgumentParser(prog="tests/specifications", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew what is generated")
    if parser.parse_args().write:
        for path, tables in pages():
            text = path.read_text("utf-8")
            path.write_text(with_tables(text, tables), "utf-8")
        MODULE.write_text(module(), "utf-8")
        return 0
    report()
    return 0


def report() -> None:
    """
    Print how many clauses have each status, and which have no test or are not done.
    """
    show("clauses", *STATUSES, "tests")
    for name in SPECIFICATIONS:
        tests = {test for clause in clauses_of(name) for test in marked().get(clause.id, ())}
        show(name, *counts(clauses_of(name)).values(), len(tests))
    show("all", *counts(all_clauses()).values(), len({t for ts in marked().values() for t in ts}))
    show()
    show("server", *SPECIFICATIONS)
    for version in VERSIONS:
        show(version, *(sum(holds_on(c, version) for c in clauses_of(n)) for n in SPECIFICATIONS))
    for status in ("open", "untested"):
        found = [clause.id for clause in all_clauses() if clause.status == status]
        show()
        sys.stdout.write(f"{status}: {', '.join(found) or 'none'}\n")
    bare = [c.id for c in all_clauses() if c.status == "different" and c.id not in marked()]
    sys.stdout.write(f"different, without a test: {', '.join(bare) or 'none'}\n")


def show(*cells: object) -> None:
    """
    Print one line of a table.
    """
    sys.stdout.write("".join(f"{cell!s:<11}" for cell in cells).rstrip() + "\n")


if __name__ == "__main__":
    sys.exit(main())
