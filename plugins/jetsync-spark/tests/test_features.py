"""
The tables of features and of Kafka's options name tests and options that exist.
"""

import ast
import re
from pathlib import Path

import pytest

from jetsync_spark.common.options import ConnectSettings, option_names
from jetsync_spark.read.options import ReadOptions
from jetsync_spark.write.columns import OPTIONAL
from jetsync_spark.write.options import WriteOptions

HERE = Path(__file__).parent
PAGES = HERE.parents[2] / "docs" / "plugins" / "spark"

if not PAGES.is_dir():
    pytest.skip("only in the repository", allow_module_level=True)

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (PAGES / "features.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| |")
]


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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_yes_names_a_test(row):
    """
    A feature that this package has names a test that exists. Others name none.
    """
    _, _, _, ours, test = row
    file, _, name = test.strip("`").partition("::")

    if not ours.startswith("yes"):
        assert ours.startswith("no")
        assert not test
        return
    assert name.startswith("test_") or "::test_" in name
    assert name in names_in(HERE / file)


def test_kafkas_options_lead_to_ours():
    """
    The page about Kafka names only options and columns that this package has.
    """
    known = {*option_names(ConnectSettings, ReadOptions, WriteOptions), "data", "msg_id"}
    known |= {*OPTIONAL, "subject"}
    values = {"atomic", "exactlyonce", "tls://…", "orders.{key}"}
    text = (PAGES / "migrating.md").read_text("utf-8").partition("## Reading")[2]

    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    named = {each for row in rows for each in re.findall(r"`([^`]+)`", row[2])}

    assert len(named) > 20
    assert named - values <= known
