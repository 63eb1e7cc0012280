"""
The command `jetsync services`.
"""

from __future__ import annotations

import json

import pytest

pytest.importorskip("click")

from click.testing import CliRunner

from jetsync_services import ServiceError
from jetsync_services.command import services

pytestmark = pytest.mark.live


@pytest.fixture
def run(nats_server, monkeypatch):
    """
    Run a command; a function from arguments.
    """
    monkeypatch.setenv("NATS_URL", nats_server.url)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments, **options):
        return CliRunner().invoke(services, arguments, **options)

    return run


@pytest.fixture
def orders(service):
    """
    A service with two endpoints.
    """

    @service.endpoint("price", subject=f"{service.name}.price", metadata={"unit": "EUR"})
    def price(request):
        if not request.data:
            raise ServiceError(400, "which item?")
        return [request.data.decode(), request.headers.get("X-User")]

    return service.start()


def test_ls(run, orders):
    """
    The list has each service once.
    """
    lines = [line.split() for line in run("ls").output.splitlines()]
    (listed,) = [
        each for each in json.loads(run("ls", "--json").output) if each["name"] == orders.name
    ]

    assert [orders.name, "1.2.0", "1", "1", "Prices"] in lines
    assert [each["id"] for each in listed["instances"]] == [orders.id]


def test_info(run, orders):
    """
    The information has the instance, its metadata and its endpoints.
    """
    text = run("info", orders.name).output
    (document,) = json.loads(run("info", orders.name, orders.id, "--json").output)

    for part in (orders.id, "team", "shop", f"{orders.name}.price", "unit=EUR"):
        assert part in text
    assert document["type"] == "io.nats.micro.v1.info_response"


def test_call_and_stats(run, orders):
    """
    A call prints the answer or the error, and the statistics count both.
    """
    called = run("call", f"{orders.name}.price", "chair", "-H", "X-User: ann")
    as_json = run("call", f"{orders.name}.price", "--json", input="table")
    failed = run("call", f"{orders.name}.price", "")

    assert called.output == '["chair","ann"]\n'
    assert json.loads(json.loads(as_json.output)["data"]) == ["table", None]
    assert isinstance(failed.exception, ServiceError)
    (row,) = [
        line.split() for line in run("stats").output.splitlines() if line.startswith(orders.name)
    ]
    assert row[2:5] == ["price", "3", "1"]
    (document,) = json.loads(run("stats", orders.name, "--json").output)
    assert document["endpoints"][0]["num_requests"] == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("info", "absent"), "no instance of 'absent' answered"),
        (("stats", "absent", "x"), "no instance 'x' of 'absent' answered"),
    ],
)
def test_nothing_answers(run, arguments, text):
    """
    If nothing answers, the exit status is 1 and the error names what was looked for.
    """
    result = run(*arguments)

    assert (result.exit_code, result.output) == (1, f"Error: {text}\n")
