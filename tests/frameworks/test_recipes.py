"""
The programs of the pages in `docs/recipes` run with the real frameworks.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import eventually

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
ORDERS = 40


@pytest.fixture
def server():
    """
    A server with only the stream of the recipes.
    """
    with DevServer() as server:
        yield server


@pytest.fixture
def orders(server):
    """
    The stream that the recipes use.
    """
    with jetsync.connect(server.url) as client:
        js = client.jetstream()
        yield js.create_stream("ORDERS", subjects=["orders.>"], allow_direct=True)


@pytest.fixture
def folder(request, tmp_path):
    """
    A copy of the programs of the recipe that the test or its parameter names.
    """
    name = request.node.get_closest_marker("recipe").args[0]
    return Path(shutil.copytree(RECIPES / name, tmp_path / name))


@pytest.fixture
def run(programs, server, orders, folder):
    """
    A function that starts a module in the folder.
    """

    def run(module, *arguments, **more):
        return programs(folder, module, *arguments, NATS_URL=server.url, **more)

    return run


@pytest.fixture
def post(port):
    """
    A function that posts an order and returns the status and the JSON of the answer.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def post(path, data, key):
        address = f"http://127.0.0.1:{port}/orders/{path}"
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        asked = urllib.request.Request(address, data.encode(), headers)
        try:
            with direct.open(asked, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return post


def post_all(post):
    """
    Post orders from several threads, one of them twice, and one to a region that is no subject.
    """
    order = '{"article": "chair"}'
    with ThreadPoolExecutor(4) as pool:
        stored = list(pool.map(lambda n: post("eu", order, f"order-{n}"), range(ORDERS)))
    assert [status for status, _ in stored] == [201] * ORDERS, stored
    sequences = [answer["sequence"] for _, answer in stored]
    assert sorted(sequences) == list(range(1, ORDERS + 1))

    status, again = post("eu", order, "order-0")
    assert (status, again) == (201, {"sequence": sequences[0], "duplicate": True})
    assert post("two%20words", order, "other")[0] == 400


WEB = [
    pytest.param(target, worker, preload, marks=pytest.mark.recipe(name))
    for name, target in [("flask", "app:app"), ("django", "wsgi:application")]
    for worker in ["sync", "gthread", "gevent"]
    for preload in [False, True]
]


@pytest.mark.parametrize(("target", "worker", "preload"), WEB)
def test_the_gunicorn_recipe_stores_orders_once_in_each_worker(
    run, post, port, ended_well, target, worker, preload
):
    """
    Each worker stores its orders once, for every kind of worker, with and without `--preload`.
    """
    options = ["--workers", 2, "--worker-class", worker, *(["--preload"] if preload else [])]
    options += ["--threads", 4] if worker == "gthread" else []
    program = run("gunicorn", target, "--bind", f"127.0.0.1:{port}", *options)
    program.wait_for("Connected", 2)
    post_all(post)

    assert program.stop() == 0, program.output
    ended_well(program)


@pytest.mark.recipe("flask")
def test_outage_of_a_web_worker(run, post, port, server, orders):
    """
    Without a server or a stream the answer is 503. The repeated request is stored once.
    """
    program = run("flask", "--app", "app", "run", "--port", port)
    program.wait_for("Running on")
    assert post("eu", "two chairs", "order-1")[0] == 201
    server.stop()
    assert post("eu", "a table", "order-2")[0] == 503
    server.start()
    assert post("eu", "a table", "order-2")[0] == 201
    assert orders.info(timeout=30).state.messages == 2
    orders.delete()
    assert post("eu", "a lamp", "order-3")[0] == 503


@pytest.mark.recipe("fastapi")
def test_the_fastapi_recipe_stores_orders_and_reads_them(run, post, port, ended_well, orders):
    """
    Endpoints in threads store orders, and a coroutine reads them.
    """
    program = run("uvicorn", "api:app", "--port", port, "--workers", 2)
    program.wait_for("Application startup complete", 2)
    post_all(post)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://127.0.0.1:{port}/orders/eu/last", timeout=60) as answer:
        assert json.load(answer) == {"article": "chair", "count": 1}

    assert program.stop() in {0, -15}, program.output
    ended_well(program)
    assert orders.info().state.messages == ORDERS


@pytest.mark.recipe("celery")
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
def test_the_celery_recipe_stores_each_order_once(run, folder, tmp_path, orders, ended_well, pool):
    """
    Each task stores its order once, in every pool.
    """
    broker = tmp_path / "broker"
    broker.mkdir()
    places = {f"data_folder_{way}": str(broker) for way in ("in", "out")}
    places["control_folder"] = str(broker)
    (folder / "celeryconfig.py").write_text(
        f"broker_url = 'filesystem://'\nbroker_transport_options = {places}\n"
    )
    (folder / "send.py").write_text(
        "from tasks import store_order\n"
        f"for number in range({ORDERS}):\n"
        "    store_order.delay('eu', str(number))\n"
    )
    worker = run(
        *("celery", "--app", "tasks", "worker", "--loglevel", "INFO", "--without-mingle"),
        *("--without-gossip", "--pool", pool, "--concurrency", 3),
    )
    worker.wait_for(" ready")
    sender = run("send")
    assert sender.wait() == 0, sender.output
    worker.wait_for(" succeeded in ", ORDERS)

    assert worker.stop() == 0, worker.output
    ended_well(worker)
    assert {int(message.data) for message in orders.scan()} == set(range(ORDERS))


@pytest.mark.recipe("multiprocessing")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_multiprocessing_recipe_stores_all_orders(run, orders, ended_well, method):
    """
    All processes of the pool store their orders, and the parent stores one.
    """
    program = run("pool", method)

    assert program.wait() == 0, program.output
    ended_well(program)
    assert orders.info().state.messages == 101
    assert orders.get_last("orders.done").data == b"100"


@pytest.mark.recipe("docker")
def test_the_container_recipe_handles_messages_until_sigterm(programs, server, orders, folder):
    """
    The command of the container handles messages until SIGTERM, and leaves none unacknowledged.

    Its exit status is the one that the unit for systemd expects.
    """
    command = re.search(r"^CMD (.*)$", (folder / "Dockerfile").read_text(), re.MULTILINE)
    assert json.loads(command[1]) == ["python", "worker.py"]
    worker = orders.create_consumer("worker")
    with jetsync.connect(server.url) as client:
        client.jetstream().publish_many((f"orders.{n}", b"...") for n in range(2000))
    program = programs(folder, "worker", NATS_URL=server.url)
    program.wait_for("handled", 3)

    assert program.stop() == 143, program.output
    assert "SuccessExitStatus=143" in (folder / "worker.service").read_text().splitlines()
    assert worker.info().num_ack_pending == 0


@pytest.fixture
def dead(server, orders):
    """
    The stream of dead letters.
    """
    with jetsync.connect(server.url) as client:
        yield client.jetstream().create_stream("DEAD", subjects=["dead.>"], allow_direct=True)


@pytest.mark.recipe("worker")
def test_the_worker_recipe_ships_orders_and_moves_dead_letters(
    run, server, orders, dead, get, port
):
    """
    The worker ships orders, moves nonsense and orders whose workers died, and tells its health.
    """
    with jetsync.connect(server.url) as client:
        js = client.jetstream()
        orders.delete()
        queue = js.create_stream("ORDERS", subjects=["orders.>"], retention="workqueue")
        js.publish("orders.eu", '{"article": "chair"}')
        # A worker takes the order and dies. The nak only saves the time of `ack_wait`.
        lost = queue.create_consumer("shipping", ack_wait=60, max_deliver=1)
        lost.next(expires=10).nak()
    program = run("worker", ATTEMPTS="1", HEALTH_PORT=str(port))
    program.wait_for("ready")
    assert json.loads(" ".join(get("")))["consuming"]
    program.wait_for("order 1 is a dead letter")
    assert program.stop() == 143, program.output
    (letter,) = dead.scan()
    assert letter.headers["Jetsync-Dead-Letter-Reason"] == "delivered 1 times, never acknowledged"

    program = run("worker", HEALTH_PORT=str(port))
    with jetsync.connect(server.url) as client:
        client.jetstream().publish("orders.eu", '{"article": "chair"}')
        client.jetstream().publish("orders.us", "nonsense")
    program.wait_for("shipped chair")
    eventually(lambda: dead.info().state.messages == 2)
    assert program.stop() == 143, program.output
    assert orders.consumer("shipping").info().num_ack_pending == 0
    assert orders.info().state.messages == 0
    assert dead.get_last("dead.orders").data == b"nonsense"


@pytest.mark.recipe("worker")
def test_the_worker_recipe_says_that_the_server_is_down(run, server, dead, get, port):
    """
    Without a server the worker is not healthy, and it recovers by itself.
    """
    program = run("worker", HEALTH_PORT=str(port))
    program.wait_for("ready")
    server.stop()
    program.wait_for("disconnected")
    with pytest.raises(urllib.error.HTTPError) as caught:
        get("")
    assert (caught.value.code, json.load(caught.value)["connected"]) == (503, False)
    server.start()
    program.wait_for("reconnected")
    assert json.loads(" ".join(get("")))["connected"]
    assert program.stop() == 143, program.output


@pytest.mark.recipe("worker")
def test_the_worker_recipe_receives_nothing_if_its_port_is_taken(run, orders, port):
    """
    A worker whose port another one has ends before it creates its consumer.
    """
    with socket.create_server(("127.0.0.1", port)):
        assert run("worker", HEALTH_PORT=str(port)).wait() == 1
    assert list(orders.consumer_names()) == []


@pytest.mark.recipe("worker")
def test_the_tests_of_the_worker_recipe_pass(programs, folder):
    """
    The tests pass.
    """
    program = programs(folder, "pytest", "-p", "no:cacheprovider")

    assert program.wait() == 0, program.output
    assert "3 passed" in program.output


@pytest.mark.recipe("asyncio")
def test_the_asyncio_recipe_publishes_beside_its_event_loop(run, ended_well):
    """
    The program publishes and consumes beside its event loop.
    """
    program = run("program")

    assert program.wait() == 0, program.output
    ended_well(program)
    assert program.output == "100 stored\n100 handled\n"


@pytest.mark.recipe("jupyter")
def test_the_jupyter_recipe_runs_in_a_kernel(tmp_path, folder, monkeypatch, server, orders):
    """
    A kernel runs the cells.
    """
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("NATS_URL", server.url)
    texts = (folder / "orders.py").read_text().split("# %%\n")[1:]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text.strip()) for text in texts]
    )
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(folder))

    results = [cell.outputs[-1].data["text/plain"] for cell in notebook.cells]
    assert results[0].startswith("<Client")
    assert results[1:2] + results[3:] == ["100", "100", "90"]
    assert "'orders.eu.2', b'2 chairs'" in results[2]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("duckdb", marks=pytest.mark.recipe("duckdb")),
        pytest.param("polars", marks=pytest.mark.recipe("polars")),
    ],
)
def test_the_recipes_for_tables_read_all_orders(run, server, folder, name):
    """
    The report has all orders of more than one page, and so has the file.
    """
    pytest.importorskip(name)
    with jetsync.connect(server.url) as client:
        client.jetstream().publish_many(
            (f"orders.{('it', 'no')[n % 2]}", b'{"total": %d.5, "article": "chair"}' % (n % 2))
            for n in range(10_000)
        )
    program = run("orders")

    assert program.wait() == 0, program.output
    lines = ["it: 5000 orders, 2500.00", "no: 5000 orders, 7500.00", "10000 orders archived"]
    assert program.output.splitlines() == lines
    assert (folder / "orders.parquet").stat().st_size > 10_000


@pytest.mark.recipe("dlt")
def test_the_dlt_recipe_loads_new_orders(programs, server, orders, folder):
    """
    Each run loads the orders that were stored since the last one, once.
    """
    pytest.importorskip("dlt")
    settings = {"DLT_DATA_DIR": str(folder), "RUNTIME__DLTHUB_TELEMETRY": "false"}
    for total in (10_000, 12_000, 12_000):
        missing = total - orders.info().state.messages
        with jetsync.connect(server.url) as client:
            client.jetstream().publish_many(
                (f"orders.{('it', 'no')[n % 2]}", b'{"total": %d.5}' % (n % 2))
                for n in range(missing)
            )
        program = programs(folder, "orders", NATS_URL=server.url, **settings)
        assert program.wait(120) == 0, program.output
        assert f"{total} orders, {total}.00\n" in program.output


@pytest.mark.recipe("pytest")
def test_the_tests_of_the_pytest_recipe_pass(run):
    """
    The tests pass.
    """
    program = run("pytest", "-p", "no:cacheprovider")

    assert program.wait() == 0, program.output
    assert "3 passed" in program.output


@pytest.fixture
def restart(run, server, orders):
    """
    A function that runs a module, restarts the server meanwhile, and returns the output.
    """

    def restart(module):
        orders.create_consumer("worker")
        with jetsync.connect(server.url) as client:
            client.jetstream().publish("orders.eu", b"two chairs")
        program = run(module)
        program.wait_for("handled 1")
        server.restart()
        program.wait_for("reconnected")
        assert program.stop() == 143, program.output
        return program.output

    return restart


@pytest.mark.recipe("dataframes")
def test_the_dataframes_recipe_writes_and_reads_tables(programs, server, folder):
    """
    Each library writes a table into the object store and reads it.
    """
    program = programs(folder, "tables", NATS_URL=server.url)
    assert program.wait(120) == 0, program.output

    assert program.output.count("article  count") == 2
    assert "count: [[2,1,3]]" in program.output
    assert "shape: (3, 1)" in program.output
    assert "[(12,)]" in program.output
    with jetsync.connect(server.url) as client:
        found = {info.name for info in client.jetstream().object_store("tables").list()}
    assert {"orders.csv.gz", "polars.parquet", "doubled.parquet"} <= found
    assert {name.partition("/")[0] for name in found} >= {"by-article", "dask"}


@pytest.mark.recipe("logging")
def test_the_logging_recipe_writes_a_line_for_each_event(restart):
    """
    Events of a reconnect are lines of the standard logging.
    """
    output = restart("with_logging")

    assert re.search(r"^INFO jetsync\.connection disconnected server='", output, re.MULTILINE)


@pytest.mark.recipe("logging")
def test_the_structlog_recipe_writes_json_for_each_event(restart):
    """
    Events of a reconnect are lines of JSON.
    """
    output = restart("with_structlog")

    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert {event["event"] for event in events} >= {"disconnected", "reconnected"}
    assert all(event["logger"].startswith("jetsync") for event in events)


@pytest.fixture
def imported(server):
    """
    The stream of the importing recipe. It refuses long lines.
    """
    with jetsync.connect(server.url) as client:
        yield client.jetstream().create_stream(
            "IMPORT",
            subjects=["import.>"],
            allow_direct=True,
            storage="memory",
            max_msg_size=1000,
        )


@pytest.mark.recipe("importing")
def test_the_importing_recipe_stores_each_line_once(programs, server, folder, imported):
    """
    However often the import is interrupted or killed, the next run continues it.
    """
    source = folder / "orders.csv"
    lines = [f"{number},{'x' * (number % 50)}" for number in range(12_000)]
    source.write_text("\n".join(lines))
    stops = itertools.cycle([signal.SIGINT, signal.SIGKILL])
    stored, runs = 0, 0
    while True:
        runs += 1
        program = programs(folder, "importing", source, NATS_URL=server.url, BLOCK="3000")
        wanted = stored + 2_000
        eventually(
            lambda: (
                imported.info().state.messages >= wanted  # noqa: B023
                or "complete" in program.output  # noqa: B023
            ),
            timeout=120,
        )
        if "complete" in program.output:
            break
        program.stop(next(stops))
        stored = imported.info().state.messages
    assert program.wait() == 0, program.output
    assert runs > 3
    found = [message.data.decode() for message in imported.scan()]
    assert len(found) == len(lines)
    assert sorted(found) == sorted(lines)


@pytest.mark.recipe("importing")
def test_the_importing_recipe_stores_other_files_and_corrected_lines(
    programs, server, folder, imported
):
    """
    A second file, a corrected line and a file without its checkpoint add exactly their lines.
    """

    def run(name, lines):
        source = folder / name
        source.write_text("\n".join(lines))
        program = programs(folder, "importing", source, NATS_URL=server.url, BLOCK="500")
        return program.wait(), program.output

    def stored():
        return sorted(message.data.decode() for message in imported.scan())

    first, second = ([f"{name} {number:04}" for number in range(1200)] for name in "ab")
    assert run("orders.csv", first)[0] == 0
    refused = [*second[:700], "x" * 2000, *second[701:]]
    status, output = run("orders.txt", refused)
    assert (status, "1 of 500 messages were not acknowledged" in output) == (1, True), output
    assert run("orders.txt", second)[0] == 0
    assert stored() == sorted(first + second)

    imported.purge()
    (folder / "orders.csv.checkpoint").unlink()
    assert run("orders.csv", first)[0] == 0
    assert stored() == first
