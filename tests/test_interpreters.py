"""
The interpreters that are supported, and the tests that each of them runs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import interpreters

ROOT = Path(__file__).parent.parent
NAMES = [f"py{major}{minor}" for major, minor in interpreters.SUPPORTED]


@pytest.mark.parametrize(
    ("present", "sets"),
    [
        ([10, 11, 12, 13], {10: "oldest", 11: "between", 12: "between", 13: "none"}),
        ([10, 12], {10: "oldest", 12: "none"}),
        ([11, 12], {11: "between", 12: "none"}),
        ([10], {10: "none"}),
    ],
)
def test_each_interpreter_has_a_set(present, sets):
    """
    Older interpreters run the tests that depend on them, the oldest one without those that `lowest`
    runs, and the newest one runs none a second time.
    """
    versions = {(3, minor) for minor in present}

    assert {minor: interpreters.tests_for((3, minor), versions) for minor in present} == sets


def test_the_running_one_is_present():
    """
    The interpreter that runs the tests is one of those that are found.
    """
    assert interpreters.present() <= set(interpreters.SUPPORTED)
    assert interpreters.present()


def test_missing_ones_are_named(monkeypatch, capsys):
    """
    The last line of a run names the interpreters that are missing.
    """
    monkeypatch.setattr(interpreters, "present", lambda: {(3, 10), (3, 12)})

    interpreters.main()

    assert capsys.readouterr().out.endswith(": 3.11, 3.13, 3.14, 3.15\n")


def test_tox_runs_all_of_them():
    """
    Tox has an environment for each supported interpreter, and the metadata names the same ones.
    """
    tox = (ROOT / "tox.ini").read_text("utf-8")
    rest = re.search(r"^    rest = (.*)$", tox, re.MULTILINE)[1]
    newest_first = re.search(r"^base_python = (py.*, .*)$", tox, re.MULTILINE)[1]
    metadata = (ROOT / "setup.cfg").read_text("utf-8")
    classified = re.findall(r":: 3\.(\d+)$", metadata, re.MULTILINE)

    assert [name for name in rest.split(", ") if name in NAMES] == NAMES
    assert newest_first.split(", ") == NAMES[::-1]
    assert [f"py3{minor}" for minor in classified] == NAMES
