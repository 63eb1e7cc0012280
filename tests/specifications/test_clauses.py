"""
The data of the clauses, the marks of tests, the pages and `jetsync doctor` say the same.
"""

from __future__ import annotations

import pytest

import jetsync
from helpers.clauses import (
    MODULE,
    SPECIFICATIONS,
    STATUSES,
    all_clauses,
    clauses_of,
    marked,
    module,
    pages,
    with_tables,
)

COUNTS = {"AB": 51, "FI": 72, "SC": 109, "DG": 79, "TTL": 49}
"""The clauses of each specification. A new one gets the next number, and no number is reused."""


def ids_of(status):
    """
    Return the ids of the clauses with a status.
    """
    return {clause.id for clause in all_clauses() if clause.status == status}


@pytest.mark.parametrize("specification", SPECIFICATIONS)
def test_every_clause_has_a_row(specification):
    """
    The ids of a specification are numbered from 1 without a gap.
    """
    numbers = range(1, COUNTS[specification] + 1)

    assert [clause.id for clause in clauses_of(specification)] == [
        f"{specification}-{number:02}" for number in numbers
    ]


def test_rows_are_complete():
    """
    A row has a known status. One that is different or open has a reason, and no other row has one.
    """
    wrong = [
        clause.id
        for clause in all_clauses()
        if clause.status not in STATUSES
        or bool(clause.why) is not (clause.status in {"different", "open"})
        or clause.who not in {"C", "S", "C, S"}
        or not (clause.section and clause.clause and clause.since)
    ]

    assert wrong == []


def test_only_what_servers_do_is_left_to_them():
    """
    A clause that asks something of the client is not left to the server.
    """
    assert [c.id for c in all_clauses() if c.status == "server" and "C" in c.who] == []


def test_each_yes_has_a_test():
    """
    A clause that jetsync fulfils has a marked test, and one called untested or open has none.
    """
    assert ids_of("yes") - set(marked()) == set()
    assert (ids_of("untested") | ids_of("open")) & set(marked()) == set()


def test_each_mark_has_a_row():
    """
    A mark names a clause, once.
    """
    assert set(marked()) - {clause.id for clause in all_clauses()} == set()
    assert [name for name, tests in marked().items() if len(set(tests)) < len(tests)] == []


def test_the_names_are_public():
    """
    The names of a row are public names of jetsync.
    """

    def exists(name):
        first, _, attribute = name.partition(".")
        if first not in jetsync.__all__:
            return False
        value = getattr(jetsync, first)
        return not attribute or hasattr(value, attribute) or attribute in value.__annotations__

    wrong = {name for clause in all_clauses() for name in clause.names if not exists(name)}

    assert wrong == set()


@pytest.mark.parametrize(("path", "tables"), list(pages()), ids=[path.stem for path, _ in pages()])
def test_the_pages_are_current(path, tables):
    """
    The tables of a page are those of the data and the marks.

    ``python tests/specifications --write`` renews them.
    """
    text = path.read_text("utf-8")

    assert text == with_tables(text, tables)


def test_the_module_is_current():
    """
    The clauses that ``jetsync doctor`` knows are those of the data.

    ``python tests/specifications --write`` renews them.
    """
    assert MODULE.read_text("utf-8") == module()
