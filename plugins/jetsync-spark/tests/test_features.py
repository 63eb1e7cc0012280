"""
The tables of features and of the options of other connectors name tests and options that exist.
"""

import ast
import itertools
import re
from pathlib import Path

import pytest

from jetsync_spark.common.options import ConnectSettings, option_names
from jetsync_spark.read.options import ReadOptions
from jetsync_spark.read.tables import STREAM_COLUMNS
from jetsync_spark.write.columns import OPTIONAL
from jetsync_spark.write.options import WriteOptions

HERE = Path(__file__).parent
PAGES = HERE.parents[2] / "docs" / "plugins" / "spark"

if not PAGES.is_dir():
    pytest.skip("only in the repository", allow_module_level=True)


def names_in(path):
    """
    Return the tests of a file, such as ``TestA::test_b``.
    """
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if hasattr(each, "name")}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def table_of(part):
    """
    Return the rows of all tables in a part of a page, without their heads.
    """
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line, after in itertools.pairwise([*lines, ""])
        if not line.startswith("|--") and not after.startswith("|--")
    ]


PAGE = (PAGES / "features.md").read_text("utf-8").partition("\n## What a query reads\n")[2]
FEATURES, TESTS = map(table_of, PAGE.split("\n## Tests\n"))


def test_each_yes_has_a_test():
    """
    The features that this package has are those of the table of tests, in the same order.
    """
    ours = {name: mine for name, mine, *_ in FEATURES}

    assert len(ours) == len(FEATURES)
    assert set(ours.values()) == {"yes", "no"}
    assert [name for name, mine in ours.items() if mine == "yes"] == [name for name, _ in TESTS]


@pytest.mark.parametrize("test", [test for _, test in TESTS])
def test_each_test_exists(test):
    """
    The test of a feature exists.
    """
    file, _, name = test.strip("`").partition("::")

    assert name.startswith("test_") or "::test_" in name
    assert name in names_in(HERE / file)


def test_cells_are_short():
    """
    The columns of connectors fit a phone, because details are below the tables.
    """
    assert {len(row) for row in FEATURES} == {6}
    assert max(len(cell) for row in FEATURES for cell in row[1:]) <= len("not tried")


@pytest.mark.parametrize(
    ("page", "first"),
    [("migrating.md", "Reading"), ("other-connectors.md", "From the Scala connectors")],
)
def test_options_of_others_lead_to_ours(page, first):
    """
    The pages about other connectors name only options and columns that this package has.
    """
    known = {*option_names(ConnectSettings, ReadOptions, WriteOptions)}
    known |= {*OPTIONAL, *STREAM_COLUMNS, "subject", "data", "msg_id"}
    values = {"atomic", "exactlyonce", "nats://…", "tls://…", "orders.{key}"}
    text = (PAGES / page).read_text("utf-8").partition(f"\n## {first}\n")[2]

    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    named = {each for row in rows for each in re.findall(r"`([^`]+)`", row[2])}

    assert len(named) > 20
    assert named - values <= known
