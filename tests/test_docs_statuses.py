"""
The table of pull statuses in the docs, which is generated from the code.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from jetsync import errors
from jetsync._proto.status import STATUS_RULES, Effect

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def extension():
    """
    The module that makes the table.
    """
    spec = importlib.util.spec_from_file_location(
        "pull_statuses", DOCS / "_ext" / "pull_statuses.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(extension):
    """
    The cells of each line below the head.
    """
    lines = extension.table().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_rule_has_a_row(extension, rows):
    """
    The rows are the rules in order, and two rows for unknown statuses.
    """
    assert len(rows) == len(STATUS_RULES) + 2
    assert {len(row) for row in rows} == {len(extension.COLUMNS)}
    for rule, row in zip(STATUS_RULES, rows, strict=False):
        assert row[0].startswith(f"`{rule.code}")
        assert rule.text.strip() in row[0]
        assert row[1] == rule.meaning
        assert row[2] == ("no" if rule.effect is Effect.ALIVE else "yes")


def test_errors_of_statuses(rows):
    """
    An error status names its error for fetch, and for consume if it ends a consumption.
    """
    for rule, row in zip(STATUS_RULES, rows, strict=False):
        if rule.effect is Effect.FAULT:
            assert row[3] == f"raises `{rule.error.__name__}` after the messages that arrived"
            assert row[4].startswith("ends with") is rule.final
    assert errors.UnknownStatusError.__name__ in rows[-2][3]


def test_a_page_shows_it(extension):
    """
    The page has the table that the code gives.
    """
    assert extension.table() in (DOCS / "howto" / "errors.md").read_text("utf-8")
