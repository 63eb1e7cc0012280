"""
The check of the lowest versions that the metadata allows, and the environment that it runs in.
"""

from __future__ import annotations

import configparser
import importlib.metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from helpers import interpreters, lowest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def tox():
    """
    The environment in tox.ini.
    """
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini", "utf-8")
    return config


def check(monkeypatch, *texts):
    """
    Check an environment in which jetsync has these requirements.
    """
    monkeypatch.setattr(lowest, "distributions", lambda: ["jetsync"])
    monkeypatch.setattr(lowest, "requirements", lambda _: [Requirement(text) for text in texts])
    lowest.main()


def test_a_version_above_the_bound_fails(monkeypatch):
    """
    The check names a package whose version is higher than it could be.
    """
    version = importlib.metadata.version("attrs")

    with pytest.raises(SystemExit, match=f"^attrs {version} is not the lowest: 1.0$"):
        check(monkeypatch, "attrs>=1.0,<1000")


def test_the_lowest_version_passes(monkeypatch, capsys):
    """
    A version passes if it has the digits of the bound. Without a bound, every version passes.
    """
    version = importlib.metadata.version("attrs")

    check(monkeypatch, f"attrs>={version}", "pluggy", f"attrs>={version.partition('.')[0]}")
    assert f"jetsync: attrs {version}\n" in capsys.readouterr().out


def test_a_missing_package_fails(monkeypatch):
    """
    A requirement that is not installed fails, so the environment installs every extra.
    """
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        check(monkeypatch, "no-such-package>=1")


def test_extras_for_users():
    """
    The check covers the requirements and the extras for users, not those for developers.
    """
    names = {requirement.name for requirement in lowest.requirements("jetsync")}

    assert {"nats-py", "attrs", "aiohttp", "nkeys", "pyarrow", "click"} <= names
    assert names & {"pytest", "ruff", "sphinx", "mypy", "tox"} == set()


def test_the_packages_of_a_distribution_are_found_by_its_files():
    """
    The packages of a distribution are found by its files, not by its name.
    """
    assert lowest.packages("attrs") == ["attr", "attrs"]
    assert lowest.packages("nats-py") == ["nats"]


def test_tox_runs_it(tox):
    """
    `.ci/run` includes the environment, which uses the oldest interpreter and has all plugins.
    """
    environment = tox["testenv:lowest"]
    oldest = "py{}{}".format(*min(interpreters.SUPPORTED))

    assert ", lowest, " in tox["tox"]["labels"]
    assert environment["base_python"] == oldest
    for plugin in lowest.distributions()[1:]:
        assert f"./plugins/{plugin}[" in environment["commands_pre"]
        assert f"plugins/{plugin}/tests" in environment["commands"]
