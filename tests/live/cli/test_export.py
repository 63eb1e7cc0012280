"""
`jetsync export` against real servers.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import jetsync
from helpers.commands import running
from helpers.waiting import eventually, timed
from jetsync.cli._app import jetsync as app
from jetsync.cli.export import Source
from jetsync.devserver import DevServer
from jetsync.monitoring import Monitor

RULES = Path(__file__).parents[3] / "docs" / "howto" / "monitoring" / "alerts.yml"
WORKER = """
import sys, jetsync
with jetsync.connect(sys.argv[1]) as client:
    for message in client.jetstream().consumer(sys.argv[2], "worker").consume():
        message.ack_sync()
        print("one", flush=True)
"""


def scrape(url):
    """
    Return the values of one scrape, by name and labels as they are printed.
    """
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(number) for name, _, number in lines}


@contextmanager
def exporting(url, *arguments):
    """
    Run the command, and return the address of its figures.
    """
    with running(
        "export", "--server", url, "--listen", "127.0.0.1:0", "--interval", "0", *arguments
    ) as process:
        yield process, process.stdout.readline().strip()


def alerts(name, figures):
    """
    Return the labels for which an alert rule of the form `METRIC + METRIC > NUMBER` fires.
    """
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    (rule,) = [rule for rule in group["rules"] if rule["alert"] == name]
    assert "for" not in rule
    metrics, limit = rule["expr"].split(" > ")
    sums = Counter()
    for series, value in figures.items():
        metric, brace, labels = series.partition("{")
        if metric in metrics.split(" + "):
            sums[brace + labels] += value
    return [labels for labels, value in sums.items() if value > float(limit)]


def test_a_worker_that_is_killed(nats_server, js, stream, worker):
    """
    The alert about a backlog fires with the first scrape after the worker was killed.
    """
    labels = f'{{consumer="worker",stream="{stream.name}"}}'
    with (
        exporting(nats_server.url, "--stream", stream.name) as (_, url),
        subprocess.Popen(
            [sys.executable, "-c", WORKER, nats_server.url, stream.name],
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        js.publish(f"{stream.name}.a", b"x")
        assert process.stdout.readline() == "one\n"
        assert alerts("JetStreamBacklog", scrape(url)) == []
        process.kill()
        process.wait()
        js.publish_many((f"{stream.name}.a", b"x") for _ in range(1000))

        figures = scrape(url)

    assert alerts("JetStreamBacklog", figures) == [labels]
    pending = figures[f"jetsync_consumer_num_pending{labels}"]
    assert pending + figures[f"jetsync_consumer_num_ack_pending{labels}"] == 1000
    assert 0 < figures[f"jetsync_consumer_oldest_age_seconds{labels}"] < 60


def test_a_worker_that_had_received_half_of_the_messages(nats_server, js, stream, worker):
    """
    Messages that a dead worker did not acknowledge are part of the backlog.
    """
    js.publish_many((f"{stream.name}.a", b"x") for _ in range(1000))
    list(worker.fetch(500, expires=5))

    with exporting(nats_server.url, "--stream", stream.name) as (_, url):
        figures = scrape(url)

    labels = f'{{consumer="worker",stream="{stream.name}"}}'
    assert figures[f"jetsync_consumer_num_pending{labels}"] == 500
    assert alerts("JetStreamBacklog", figures) == [labels]


def test_a_server_that_is_paused_or_gone():
    """
    The command starts without a server, a scrape ends within the time-out, and later ones recover.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with exporting(f"nats://127.0.0.1:{port}", "--timeout", "1s") as (process, url):
        assert scrape(url) == {"jetsync_up": 0.0}
        with DevServer(port=port) as server:
            assert eventually(lambda: scrape(url)["jetsync_up"] == 1)
            server.pause()
            with timed(0, 1.5):
                assert scrape(url) == {"jetsync_up": 0.0}
            # Scrapes at the same time share a reading.
            found = []
            threads = [threading.Thread(target=lambda: found.append(scrape(url))) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [{"jetsync_up": 0.0}] * 3
            server.resume()
            eventually(lambda: scrape(url)["jetsync_up"] == 1)
        assert eventually(lambda: scrape(url) == {"jetsync_up": 0.0})
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors.count("no figures: ") >= 2
    assert "the server answers again" in errors


def test_what_is_exported(nats_server, js, stream, worker):
    """
    Patterns choose streams and consumers, and the figures of the account can be left out.
    """
    stream.create_consumer("other")
    arguments = ("--stream", f"{stream.name[:-1]}*", "--consumer", "w*", "--no-account")
    with exporting(nats_server.url, *arguments) as (process, url):
        figures = scrape(url)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    text = "\n".join(figures)
    assert set(re.findall(r'consumer="([^"]*)"', text)) == {"worker"}
    assert stream.name in text
    assert "jetsync_account" not in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--listen", "9100"), "'9100' is not an address such as 127.0.0.1:9100"),
        (("--listen", "127.0.0.1:99999"), "is not an address"),
        (("--stream", "a b"), "invalid stream name 'a b'"),
        (("--lookups", "-1"), "--lookups"),
    ],
)
def test_wrong_arguments(arguments, text):
    """
    A wrong argument is an error before anything listens.
    """
    result = CliRunner().invoke(app, ("export", *arguments))

    assert result.exit_code in {1, 2}
    assert text in result.output


def test_a_port_that_is_in_use():
    """
    An address in use is an error of one line.
    """
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = CliRunner().invoke(app, ("export", "--listen", f"127.0.0.1:{port}"))

    assert result.exit_code == 1
    assert result.output == f"Error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_login_that_is_refused():
    """
    The scrape says 0, and the command says why.
    """
    config = {"authorization": {"user": "a", "password": "b"}}
    with (
        DevServer(config=config) as server,
        exporting(server.url, "--user", "a", "--password", "x") as (process, url),
    ):
        assert scrape(url) == {"jetsync_up": 0.0}
        process.terminate()
        assert "no figures: authorization violation" in process.communicate(timeout=30)[1].lower()


def test_a_connection_that_was_closed_for_good(nats_server, stream):
    """
    If the connection is closed, for example after a login was refused twice, the next scrape
    connects again.
    """
    options = jetsync.ConnectOptions(servers=nats_server.url)
    source = Source(options, lambda js: Monitor(js, streams=stream.name), interval=0)

    def up():
        return next(each.samples[0].value for each in source.collect() if each.name == "jetsync_up")

    assert up() == 1
    first = source._client
    first.close()
    assert up() == 1
    assert source._client is not first
    source.close()
    assert source._client is None


def test_without_the_library(monkeypatch):
    """
    Without prometheus_client, the command names the extra.
    """
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    result = CliRunner().invoke(app, ("export",))

    assert result.exit_code == 1
    assert "python -m pip install 'jetsync[export]'" in result.output
