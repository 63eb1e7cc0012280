"""
The workflow for public continuous integration, which runs on another machine.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from helpers.interpreters import SUPPORTED

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
FILE = ROOT / ".github" / "workflows" / "tests.yml"

if not FILE.exists():
    pytest.skip("the sdist has no workflows", allow_module_level=True)


@pytest.fixture(scope="module")
def jobs():
    """The jobs by name."""
    return yaml.safe_load(FILE.read_text("utf-8"))["jobs"]


def test_every_system_runs_every_interpreter(jobs):
    """Linux, macOS and Windows run the tests with each supported interpreter."""
    systems = jobs["systems"]["strategy"]["matrix"]

    assert jobs["linux"]["runs-on"] == "ubuntu-latest"
    assert systems["system"] == ["macos-latest", "windows-latest"]
    assert jobs["linux"]["strategy"]["matrix"]["python"] == systems["python"]
    assert {f"{major}.{minor}" for major, minor in SUPPORTED} <= set(systems["python"])


def test_nothing_runs_before_it_is_switched_on(jobs):
    """A job runs if a maintainer has set the variable or started it by hand."""
    for job in jobs.values():
        assert "github.event_name == 'workflow_dispatch' || (vars.PUBLIC_CI == 'on'" in job["if"]


def test_each_named_environment_exists(jobs):
    """The environments of tox that the jobs run exist."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    text = " ".join(config.sections()) + config["tox"]["env_list"]
    named = ",".join(jobs["checks"]["strategy"]["matrix"]["environment"])

    for name in [*named.split(","), "system", "release", "natspy"]:
        assert name in text


def test_wheels_are_built_for_every_system(jobs):
    """A job builds and tests compiled wheels on Linux (two processors), macOS and Windows."""
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 or newer")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["cibuildwheel"]
    systems = jobs["wheels"]["strategy"]["matrix"]["system"]

    assert systems == ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "windows-latest"]
    assert any("python -m cibuildwheel" in step.get("run", "") for step in jobs["wheels"]["steps"])
    oldest, newest = ("cp{}{}-*".format(*SUPPORTED[place]) for place in (0, -1))
    assert {oldest, newest, newest.replace("-", "t-")} <= set(settings["build"])
    assert settings["environment"] == {"JETSYNC_BUILD": "compiled"}
    for command in settings["test-command"]:
        for file in re.findall(r"{project}/(\S+)", command):
            assert (ROOT / file).exists()


def test_the_weekly_job(jobs):
    """Once a week, the main branch of nats-py is tested, and nothing else."""
    weekly = [name for name, job in jobs.items() if "event_name == 'schedule'" in job["if"]]

    assert weekly == ["nats-main"]
