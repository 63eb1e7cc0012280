"""
The interpreters that are supported, and the tests that each of them runs.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from helpers import interpreters

ROOT = Path(__file__).parent.parent
NAMES = [f"py{major}{minor}" for major, minor in interpreters.SUPPORTED]


@pytest.mark.parametrize(
    ("present", "sets"),
    [
        ([10, 11, 12, 13], {10: "sensitive", 11: "threads", 12: "threads", 13: "full"}),
        ([10, 12], {10: "sensitive", 12: "full"}),
        ([11], {11: "full"}),
    ],
)
def test_each_interpreter_has_a_set(present, sets):
    """
    The newest interpreter that is present runs all tests, and the oldest more than those between.
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

    assert capsys.readouterr().out.endswith(": 3.11, 3.13\n")


def test_tox_runs_all_of_them():
    """
    Tox has an environment for each supported interpreter, and the metadata names the same ones.
    """
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    metadata = (ROOT / "setup.cfg").read_text("utf-8")
    classified = re.findall(r":: 3\.(\d+)$", metadata, re.MULTILINE)

    assert [name for name in config["tox"]["env_list"].split(", ") if name in NAMES] == NAMES
    assert [f"py3{minor}" for minor in classified] == NAMES
