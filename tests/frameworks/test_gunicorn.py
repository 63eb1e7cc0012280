from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.waiting import eventually

REQUESTS = 60
WORKERS = ["sync", "gthread", "gevent"]


@pytest.fixture
def serve(start, port):
    """
    A function that starts gunicorn with two workers of a kind.
    """

    def serve(worker, *options, **variables):
        bind = f"127.0.0.1:{port}"
        options = ["--workers", 2, "--worker-class", worker, *options]
        options += ["--threads", 4] if worker == "gthread" else []
        program = start("gunicorn", "web:application", "--bind", bind, *options, **variables)
        program.wait_for("Worker ready", 2)
        return program

    return serve


@pytest.mark.parametrize("preload", [False, True], ids=["load", "preload"])
@pytest.mark.parametrize("worker", WORKERS)
def test_all_workers_of_gunicorn_store_and_end_without_a_crash(
    serve, get, stream, ended_well, worker, preload
):
    """
    All workers store the messages of their requests, are replaced, and end without a crash.

    With `--preload`, the process that forks the workers has a client of its own.
    """
    options = ["--max-requests", 15, *(["--preload"] if preload else [])]
    program = serve(worker, *options, **({"CONNECT_AT_IMPORT": "1"} if preload else {}))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(get, map(str, range(REQUESTS))))
    first = {process for process, _ in answers}

    def replaced():
        answers.append(get("again"))
        return len({process for process, _ in answers} - first) > 1 or len(first) > 3

    eventually(replaced, 30)
    # gunicorn may lose a signal while a worker starts.
    eventually(
        lambda: program.output.count("Worker ready") == program.output.count("Booting worker"), 30
    )

    assert program.stop() == 0, program.output
    ended_well(program)
    assert sorted(int(sequence) for _, sequence in answers) == list(range(1, len(answers) + 1))
    assert stream.info().state.messages == len(answers)


@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_workers_reconnect(serve, get, stream, ended_well, worker):
    """
    With `after_fork="reconnect"`, the workers use the client of the preloaded application.
    """
    program = serve(worker, "--preload", SHARE="1", CONNECT_ONLY_AT_IMPORT="1")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(get, map(str, range(REQUESTS))))

    assert program.stop() == 0, program.output
    ended_well(program)
    assert sorted(int(sequence) for _, sequence in answers) == list(range(1, REQUESTS + 1))
    assert stream.info().state.messages == REQUESTS


@pytest.mark.parametrize("worker", WORKERS)
def test_workers_without_a_client(serve, get, ended_well, worker):
    """
    Workers whose parent process has a client, and which have none, end without a crash.
    """
    program = serve(worker, "--preload", CONNECT_AT_IMPORT="1", CONNECT_ONLY_AT_IMPORT="1")
    assert get("nothing") == ["no", "client"]

    assert program.stop() == 0, program.output
    ended_well(program)
