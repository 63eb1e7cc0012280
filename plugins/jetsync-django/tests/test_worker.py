from __future__ import annotations

import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from jetsync.devserver import DevServer
from jetsync.testing import eventually
from jetsync_django.tasks.api import TaskResultStatus
from jetsync_django.tasks.queues import open_queue

pytestmark = pytest.mark.live

SUCCESSFUL, READY = TaskResultStatus.SUCCESSFUL, TaskResultStatus.READY


@pytest.fixture
def tasks(backend):
    """
    The module with the tasks, which can be imported once there is a backend with their queues.
    """
    import shop_tasks

    return shop_tasks


def is_done(result):
    """
    Return whether a task has ended.
    """
    result.refresh()
    return result.is_finished


@pytest.mark.parametrize(
    ("step", "runs"), [("is started", 1), ("begins", 1), ("has worked", 2), ("is finished", 2)]
)
def test_a_task_whose_worker_is_killed_runs_again(
    tasks, start_worker, run_tasks, tmp_path, step, runs
):
    """
    If a worker is killed at any step of a task, another one runs the task, soon after `ACK_WAIT`.

    The work was done twice if the first worker had done it and could not say so.
    """
    path = tmp_path / "log"
    result = tasks.dies.enqueue(str(path), step)
    other = tasks.add.enqueue(1, 2)
    worker = start_worker()
    assert worker.wait(60) == -signal.SIGKILL
    result.refresh()
    assert not result.is_finished

    def is_settled():
        run_tasks("default")
        return is_done(result) and is_done(other)

    eventually(is_settled)
    assert (result.status, result.return_value) == (SUCCESSFUL, "done")
    assert len(result.worker_ids) == 2
    assert result.worker_ids[-1] == "here"
    assert tasks.read(path) == ["works"] * runs
    assert other.return_value == 3


def test_a_signal_lets_running_tasks_end(tasks, start_worker, run_tasks, tmp_path):
    """
    After SIGTERM, a worker finishes the task that it runs, starts no further one, and exits with 0.
    """
    path = tmp_path / "log"
    running = tasks.wait_for.enqueue(str(path), 60)
    waiting = tasks.note.enqueue(str(path), "other")
    worker = start_worker("--threads", "1")
    eventually(lambda: tasks.read(path) == ["begins"])
    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.5)
    (tmp_path / "go").touch()
    assert worker.wait(60) == 0
    assert tasks.read(path) == ["begins", "ends"]
    running.refresh()
    waiting.refresh()
    assert (running.status, waiting.status) == (SUCCESSFUL, READY)

    run_tasks()
    waiting.refresh()
    assert (waiting.status, waiting.attempts) == (SUCCESSFUL, 1)


def test_tasks_that_do_not_end_are_given_to_others(tasks, start_worker, run_tasks, tmp_path):
    """
    A worker ends `--stop-timeout` seconds after the signal, and another one runs the task again.
    """
    path = tmp_path / "log"
    result = tasks.wait_for.enqueue(str(path), 60)
    worker = start_worker("--stop-timeout", "0.1")
    eventually(lambda: tasks.read(path) == ["begins"])
    worker.send_signal(signal.SIGTERM)
    output, _ = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "did not end in 0.1 seconds" in output

    (tmp_path / "go").touch()

    def is_settled():
        run_tasks("default")
        return is_done(result)

    eventually(is_settled)
    assert result.attempts == 2


def test_a_long_task_runs_once_with_two_workers(tasks, start_worker, tmp_path):
    """
    A task that takes several times `ACK_WAIT` is kept alive, and no other worker gets it.
    """
    path = tmp_path / "log"
    result = tasks.wait_for.enqueue(str(path), 4)
    start_worker()
    start_worker()

    eventually(lambda: is_done(result))
    assert tasks.read(path) == ["begins", "ends"]
    assert result.attempts == 1


def test_a_worker_goes_on_after_its_server_restarts(tmp_path, tasks, use_backend):
    """
    If the server restarts, workers finish what they run and take the next tasks.
    """
    from shop_settings import tasks_of

    with DevServer() as server:
        setting = tasks_of(server.url, "restart", STORAGE="file")
        with override_settings(TASKS=setting):
            worker = subprocess.Popen(
                [sys.executable, "-m", "django", "jetsync_worker"],
                env={
                    **os.environ,
                    "NATS_URL": server.url,
                    "SHOP_PREFIX": "restart",
                    "SHOP_STORAGE": "file",
                    "PYTHONPATH": str(Path(__file__).parent),
                },
            )
            try:
                path = tmp_path / "log"
                running = tasks.wait_for.enqueue(str(path), 60)
                eventually(lambda: tasks.read(path) == ["begins"])
                server.restart()
                (tmp_path / "go").touch()
                other = tasks.add.enqueue(1, 2)
                eventually(lambda: is_done(running) and is_done(other))
            finally:
                worker.terminate()
            assert worker.wait(60) == 0
        assert running.status == other.status == SUCCESSFUL


def test_the_command_in_this_process(tasks, backend):
    """
    `--batch` ends when there is no task, and the queues can be named.
    """
    one, other = tasks.add.enqueue(1, 2), tasks.send.enqueue("a@b.c")
    output = StringIO()
    arguments = ["--batch", "--queue-name", "mail", "--worker-id", "w1"]
    call_command("jetsync_worker", *arguments, stdout=output)
    one.refresh()
    other.refresh()

    assert (one.status, other.status, other.worker_ids) == (READY, SUCCESSFUL, ["w1"])
    assert "mail" in output.getvalue()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--backend", "other"], "other"),
        (["--queue-name", "wrong"], "QUEUES are default, mail"),
        (["--threads", "0"], "at least 1"),
        (["--stop-timeout", "-1"], "-1"),
        (["--stop-timeout", "nan"], "nan"),
    ],
)
def test_wrong_arguments_are_refused(backend, arguments, text):
    """
    A wrong argument ends the command with an error that says what is wrong.
    """
    with pytest.raises(CommandError, match=text):
        call_command("jetsync_worker", *arguments)


def test_a_worker_says_that_there_is_no_server(use_backend):
    """
    Without a server, the command ends with an error that names it.
    """
    use_backend(SERVERS="nats://127.0.0.1:1", CONNECT={"connect_timeout": 1})

    with pytest.raises(CommandError, match=r"127\.0\.0\.1:1"):
        call_command("jetsync_worker")


def test_a_worker_needs_a_backend_of_this_package():
    """
    The command refuses the backends of Django, which need no worker.
    """
    module = "django.tasks" if "django.tasks" in sys.modules else "django_tasks"
    setting = {"default": {"BACKEND": f"{module}.backends.dummy.DummyBackend"}}
    with override_settings(TASKS=setting), pytest.raises(CommandError, match="DummyBackend"):
        call_command("jetsync_worker")


def test_a_worker_fails_if_its_stream_is_deleted(tasks, backend, start_worker, js, use_backend):
    """
    A worker whose stream is deleted ends with an error, so that a supervisor restarts it.
    """
    worker = start_worker("--queue-name", "default")
    done = tasks.add.enqueue(1, 2)
    eventually(lambda: is_done(done))
    js.delete_stream(open_queue(backend.task_options, "default").stream.name)
    output, _ = worker.communicate(timeout=60)

    assert worker.returncode == 1
    assert "StreamNotFoundError" in output
