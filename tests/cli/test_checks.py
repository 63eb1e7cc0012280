"""
Results of `jetsync check`, without a server.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import jetsync
from jetsync.cli import check as module
from jetsync.cli._app import jetsync as app
from jetsync.cli._checks import Level, Result, Threshold, level_of, limits_of

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "monitoring.md"
NO_SERVER = "nats://127.0.0.1:1"
COUNT = Threshold("msgs", "messages")
LEAST = Threshold("least", "messages", below=True)
AGE = Threshold("age", "age", "s", defaults={"warn": 1.0})
SHARE = Threshold("full", "used", "%")
ALL = (COUNT, LEAST, AGE, SHARE)


def run(*arguments):
    """
    Run `jetsync check`.
    """
    return CliRunner().invoke(app, ("check", *arguments))


def judged(values, limits):
    """
    Return the result of values with limits.
    """
    result = Result("stream", "S")
    result.judge(ALL, values, limits)
    return result


@pytest.mark.parametrize(
    ("values", "limits", "level", "line"),
    [
        ({"msgs": 1000}, {}, "OK", "OK stream S: 1,000 messages | msgs=1000"),
        (
            {"msgs": 5},
            {"msgs-warn": 5, "msgs-critical": 6},
            "WARNING",
            "WARNING stream S: 5 messages (limit 5) | msgs=5;5;6",
        ),
        (
            {"msgs": 7},
            {"msgs-warn": 5, "msgs-critical": 6},
            "CRITICAL",
            "CRITICAL stream S: 7 messages (limit 6) | msgs=7;5;6",
        ),
        ({"least": 5}, {"least-critical": 5}, "OK", "OK stream S: 5 messages | least=5;;5:"),
        (
            {"least": 4},
            {"least-critical": 5},
            "CRITICAL",
            "CRITICAL stream S: 4 messages (below 5) | least=4;;5:",
        ),
        (
            {"age": 90.25, "full": 12.5},
            {"age-warn": 60},
            "WARNING",
            "WARNING stream S: age 1m30s (limit 1m) | age=90.25s;60 full=12.5%",
        ),
        ({"age": None}, {}, "OK", "OK stream S: it answers"),
        ({"age": None}, {"age-warn": 60}, "UNKNOWN", "UNKNOWN stream S: age is not known"),
        (
            {"age": None, "msgs": 9},
            {"age-warn": 60, "msgs-warn": 1},
            "UNKNOWN",
            "UNKNOWN stream S: age is not known; 9 messages (limit 1) | msgs=9;1",
        ),
        (
            {"age": None, "msgs": 9},
            {"age-warn": 60, "msgs-critical": 1},
            "CRITICAL",
            "CRITICAL stream S: 9 messages (limit 1); age is not known | msgs=9;;1",
        ),
    ],
)
def test_lines(values, limits, level, line):
    """
    The line begins with the worst level and its reason, and ends with the values and limits.
    """
    result = judged(values, limits)

    assert (result.level.name, result.line()) == (level, line)


def test_names_cannot_change_the_line():
    """
    A bar, a line end or a control character in a name is not printed as such.
    """
    result = Result("stream", "a|b\n\x1b[31m")
    result.judge(ALL, {"msgs": 1}, {})

    assert result.line() == "OK stream a/b\\n\\x1b[31m: 1 messages | msgs=1"


def test_where_limits_come_from():
    """
    The command line takes precedence over the metadata, and the metadata over the default.
    """
    metadata = {"io.nats.monitor.age-warn": "1m30s", "io.nats.monitor.msgs-critical": "7"}

    assert limits_of(ALL, {}) == {"age-warn": 1.0}
    assert limits_of(ALL, {}, metadata) == {"age-warn": 90.0, "msgs-critical": 7}
    assert limits_of(ALL, {"age_warn": 2.0}, metadata)["age-warn"] == 2.0
    with pytest.raises(jetsync.ConfigurationError, match=r"io\.nats\.monitor\.msgs-warn: '1.5' is"):
        limits_of(ALL, {}, {"io.nats.monitor.msgs-warn": "1.5"})


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "nan", "1e30", ""])
def test_wrong_limits(text):
    """
    A limit that is not a number is refused.
    """
    with pytest.raises(click.BadParameter):
        COUNT.parse(text)


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (jetsync.RequestTimeoutError("x", 1.0), Level.CRITICAL),
        (jetsync.StreamNotFoundError(description="x"), Level.CRITICAL),
        (jetsync.ConfigurationError("x"), Level.UNKNOWN),
        (jetsync.InvalidNameError("stream", "x", "y"), Level.UNKNOWN),
        (KeyboardInterrupt(), Level.UNKNOWN),
        (jetsync.PermissionDeniedError("a", "publish"), Level.UNKNOWN),
        (ZeroDivisionError(), Level.UNKNOWN),
    ],
)
def test_levels_of_errors(error, level):
    """
    The server's errors are critical, those of the call are not.
    """
    assert level_of(error) is level


class TestExitCodes:
    def test_no_server(self):
        """
        A server that cannot be reached is CRITICAL, in one line on standard output.
        """
        result = run("stream", "S", "--server", NO_SERVER)

        assert result.exit_code == 2
        assert re.fullmatch(r"CRITICAL stream S: connection refused .*\n", result.stdout)

    @pytest.mark.parametrize(
        "arguments",
        [
            ("consumer", "S"),
            ("stream", "S", "--lag-critical", "x"),
            ("nothing",),
            ("stream", "S", "--bad"),
            ("stream", "S", "--json", "--prometheus"),
        ],
    )
    def test_wrong_arguments(self, arguments):
        """
        Wrong arguments are UNKNOWN, because the usual exit code for them is that of CRITICAL.
        """
        result = run(*arguments)

        assert result.exit_code == 3
        assert "UNKNOWN" in result.stdout.splitlines()[0] or arguments[-1] == "--prometheus"

    @pytest.mark.parametrize("name", ["a b", "a.b"])
    def test_a_name_that_is_not_valid(self, name, monkeypatch):
        """
        An invalid name is UNKNOWN.
        """
        monkeypatch.setattr(module, "jetstream", lambda options: None)

        result = run("consumer", name, "worker")

        assert (result.exit_code, result.stdout[:16]) == (3, "UNKNOWN consumer")

    @pytest.mark.parametrize("error", [ZeroDivisionError("0"), KeyboardInterrupt()])
    def test_a_defect_or_ctrl_c_is_no_warning(self, error, monkeypatch):
        """
        Python's own exit code for an exception is that of WARNING, so it is not used.
        """

        def fail(options):
            raise error

        monkeypatch.setattr(module, "jetstream", fail)

        result = run("consumer", "S", "worker", "--json")

        assert result.exit_code == 3
        assert json.loads(result.stdout)["status"] == "UNKNOWN"


def test_each_option_of_a_threshold_is_in_the_help():
    """
    Thresholds have the options `--NAME-warn` and `--NAME-critical`, and the page lists all names.
    """
    page = PAGE.read_text("utf-8")
    for command, thresholds in (
        ("stream", module.STREAM),
        ("consumer", module.CONSUMER),
        ("bucket", module.BUCKET),
        ("server", (*module.CONNECTION, *module.ACCOUNT, *module.SERVERS)),
    ):
        text = run(command, "--help").output
        for each in thresholds:
            assert f"--{each.option}-warn" in text
            assert f"--{each.option}-critical" in text
            assert f"`{each.option}`" in page


def test_the_number_of_replicas_includes_the_leader():
    """
    Another number than the expected one is critical.
    """
    follower = jetsync.PeerInfo(name="n2", current=True, active=0.1)
    cluster = jetsync.ClusterInfo(leader="n1", replicas=[follower])
    as_expected, fewer = Result("stream", "S"), Result("stream", "S")

    module.peers(as_expected, cluster, 2)
    module.peers(fewer, cluster, 3)

    assert as_expected.problems == []
    assert fewer.problems == [(Level.CRITICAL, "2 of 3 replicas")]
