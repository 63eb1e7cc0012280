from __future__ import annotations

import asyncio
import datetime as dt
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone

import jetsync
from jetsync.testing import eventually
from jetsync_django.connections import shared_client
from jetsync_django.tasks.api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from jetsync_django.tasks.priorities import DEFAULT_BOUNDS, bounds_of, step_of
from jetsync_django.tasks.queues import open_queue

pytestmark = pytest.mark.live

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED


@pytest.fixture
def tasks(backend):
    """
    The module with the tasks, which can be imported once there is a backend with their queues.
    """
    import shop_tasks

    return shop_tasks


@pytest.fixture
def waiting(backend):
    """
    A function that returns how many tasks of a queue are stored.
    """

    def count(name="default"):
        found = open_queue(backend.task_options, name).statistics()
        return found.waiting + found.scheduled

    return count


@pytest.fixture
def seen():
    """
    The signals of tasks, as names and copies of what the results were.
    """
    found = []

    def receiver_of(name):
        def receive(task_result, **_):
            found.append((name, task_result.task.name, task_result.status))

        return receive

    receivers = {
        signal: receiver_of(name)
        for name, signal in (
            ("enqueued", task_enqueued),
            ("started", task_started),
            ("finished", task_finished),
        )
    }
    for signal, receiver in receivers.items():
        signal.connect(receiver)
    yield found
    for signal, receiver in receivers.items():
        signal.disconnect(receiver)


def test_a_task_waits_runs_and_has_a_result(tasks, backend, run_tasks, seen):
    """
    The result of a task is first ready, and after a worker has run it, it has the value.
    """
    result = tasks.add.enqueue(1, b=2)
    assert (result.status, result.is_finished, result.attempts) == (READY, False, 0)
    assert result.enqueued_at is not None
    with pytest.raises(ValueError, match="not finished"):
        result.return_value  # noqa: B018

    stored = tasks.add.get_result(result.id)
    assert (stored.status, stored.args, stored.kwargs) == (READY, [1], {"b": 2})
    assert stored.task == tasks.add

    run_tasks()
    result.refresh()
    assert (result.status, result.return_value, result.worker_ids) == (SUCCESSFUL, 3, ["here"])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert result.errors == []
    assert seen == [
        ("enqueued", "add", READY),
        ("started", "add", RUNNING),
        ("finished", "add", SUCCESSFUL),
    ]


def test_a_task_that_fails_keeps_its_error(tasks, run_tasks, seen):
    """
    The result of a task that raised has the class and the traceback of its exception.
    """
    result = tasks.fail.enqueue("no stock")
    run_tasks()
    result.refresh()

    (error,) = result.errors
    assert (result.status, result.attempts) == (FAILED, 1)
    assert error.exception_class is ValueError
    assert "no stock" in error.traceback
    assert "shop_tasks.py" in error.traceback
    assert ("finished", "fail", FAILED) in seen


@pytest.mark.parametrize(("name", "args", "kind"), [("unserializable", [], TypeError)])
def test_a_value_that_json_does_not_have_fails_the_task(tasks, run_tasks, name, args, kind):
    """
    A task that returns something other than JSON fails, and runs once.
    """
    result = getattr(tasks, name).enqueue(*args)
    run_tasks()
    result.refresh()

    assert result.status == FAILED
    assert [error.exception_class for error in result.errors] == [kind]


def test_a_task_cannot_end_its_worker(tasks, run_tasks):
    """
    A task that raises SystemExit fails, and the worker runs the next one.
    """
    ends, other = tasks.exit_with.enqueue(3), tasks.add.enqueue(1, 1)
    run_tasks(threads=1)
    ends.refresh()
    other.refresh()

    assert (ends.status, other.status) == (FAILED, SUCCESSFUL)
    assert "SystemExit" in ends.errors[0].traceback


def test_a_task_gets_further_attempts(use_backend, run_tasks, seen):
    """
    With `RETRIES`, a task that fails is ready again, and its context counts the attempts.
    """
    use_backend(RETRIES=2, RETRY_WAIT=0)
    import shop_tasks as tasks

    result = tasks.tell.enqueue()
    run_tasks()
    result.refresh()

    assert (result.status, result.return_value) == (SUCCESSFUL, [3, "RUNNING"])
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert result.attempts == 3
    assert [name for name, *_ in seen] == ["enqueued", "started", "started", "started", "finished"]


def test_a_task_can_give_up(use_backend, run_tasks, seen):
    """
    A task that raises `DeadLetter` fails at once, and the signal says so.
    """
    use_backend(RETRIES=2, RETRY_WAIT=0)
    import shop_tasks as tasks

    result = tasks.give_up.enqueue("no such customer")
    run_tasks()
    result.refresh()

    assert (result.status, result.attempts) == (FAILED, 1)
    assert ("finished", "give_up", FAILED) in seen


def test_a_task_can_ask_for_another_attempt(tasks, run_tasks, tmp_path):
    """
    A task that raises `Retry` gets another attempt without `RETRIES`.
    """
    result = tasks.ask_again.enqueue(str(tmp_path / "log"))
    run_tasks()
    result.refresh()

    assert (result.return_value, result.attempts) == ("done", 2)


def test_a_task_waits_for_the_commit(tasks, backend, waiting):
    """
    In a transaction, a task is stored when it commits, and its result exists from then on.
    """
    with transaction.atomic():
        result = tasks.add.enqueue(1, 2)
        assert waiting() == 0
        assert result.enqueued_at is None
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(result.id)
    assert waiting() == 1
    assert result.enqueued_at is not None
    assert backend.get_result(result.id).status == READY


def test_wrong_arguments_are_refused_before_the_commit(tasks, waiting):
    """
    The call raises, so that the transaction is rolled back.
    """
    with pytest.raises((TypeError, ValueError)), transaction.atomic():
        tasks.add.enqueue(object(), 2)

    assert waiting() == 0


def test_arguments_are_those_of_the_call(tasks, run_tasks):
    """
    A list that is changed before the commit is stored as it was.
    """
    given = [1]
    with transaction.atomic():
        result = tasks.send.enqueue(given)
        given.append(2)
    run_tasks()

    assert tasks.send.get_result(result.id).return_value == [1]


def test_a_rolled_back_transaction_stores_no_task(tasks, waiting):
    """
    A task of a transaction that is rolled back is never stored.
    """
    with transaction.atomic():
        tasks.add.enqueue(1, 2)
        transaction.set_rollback(True)

    assert waiting() == 0


def test_tasks_can_be_stored_within_a_transaction(use_backend):
    """
    With `ENQUEUE_ON_COMMIT` off, the server has the task when the call returns.
    """
    backend = use_backend(ENQUEUE_ON_COMMIT=False)
    import shop_tasks as tasks

    with transaction.atomic():
        result = tasks.add.enqueue(1, 2)
        assert backend.get_result(result.id).status == READY
        transaction.set_rollback(True)
    assert backend.get_result(result.id).status == READY


def test_a_deferred_task_waits_on_the_server(tasks, run_tasks, waiting):
    """
    A task with `run_after` is run after that time, and not before.
    """
    at = timezone.now() + dt.timedelta(seconds=1.5)
    late = tasks.add.using(run_after=at).enqueue(1, 2)
    past = tasks.add.using(run_after=at - dt.timedelta(days=1)).enqueue(3, 4)
    run_tasks()
    late.refresh()
    past.refresh()
    assert (late.status, past.status) == (READY, SUCCESSFUL)

    def is_done():
        run_tasks()
        late.refresh()
        return late.is_finished

    eventually(is_done)
    assert late.started_at >= at
    assert late.task.run_after == tasks.add.get_result(late.id).task.run_after


def test_higher_priorities_run_first(tasks, run_tasks, tmp_path):
    """
    A worker takes tasks in the order of their priorities, and equal ones as they were enqueued.
    """
    path = str(tmp_path / "log")
    for priority in (-100, 0, 10, -10, 100, 50, 0):
        tasks.note.using(priority=priority).enqueue(path, str(priority))
    run_tasks("default", threads=1)

    # A worker holds one task of each step, so the first may be any.
    found = [int(line) for line in tasks.read(path)]
    assert sorted(found) == [-100, -10, 0, 0, 10, 50, 100]
    assert found[1:] == sorted(found[1:], reverse=True)


def test_queues_have_workers_of_their_own(tasks, run_tasks):
    """
    A worker runs the tasks of its queues only.
    """
    one, other = tasks.add.enqueue(1, 2), tasks.send.enqueue("a@b.c")
    run_tasks("mail")
    one.refresh()
    other.refresh()

    assert (one.status, other.status) == (READY, SUCCESSFUL)
    assert tasks.send.get_result(other.id).task.priority == 10


def test_async_tasks_and_calls(tasks, run_tasks):
    """
    A coroutine is a task, and the async methods of tasks and results work.
    """

    async def enqueue():
        return await tasks.later.aenqueue("value")

    async def read(result):
        await result.arefresh()
        return await tasks.later.aget_result(result.id)

    result = asyncio.run(enqueue())
    run_tasks()

    assert asyncio.run(read(result)).return_value == result.return_value == "value"


def test_many_threads_enqueue(tasks, run_tasks):
    """
    Threads enqueue tasks at the same time, each of which runs once.
    """
    with ThreadPoolExecutor(8) as pool:
        results = [*pool.map(lambda n: tasks.add.enqueue(n, n), range(40))]
    run_tasks(threads=4)
    for result in results:
        result.refresh()

    assert [result.return_value for result in results] == [2 * n for n in range(40)]
    assert {result.attempts for result in results} == {1}


def test_a_forked_child_enqueues(tasks, backend, waiting):
    """
    After a fork, as of gunicorn with `preload_app`, parent and child enqueue tasks.
    """
    tasks.add.enqueue(1, 1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            tasks.add.enqueue(2, 2)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    tasks.add.enqueue(3, 3)

    assert os.waitstatus_to_exitcode(status) == 0
    assert waiting() == 3


def test_a_stream_that_is_gone_is_made_again(tasks, backend, js, use_backend, waiting):
    """
    If the stream and the bucket were deleted, the next task makes them again.
    """
    tasks.add.enqueue(1, 1)
    js.delete_stream(f"QUEUE_{use_backend.prefix}")
    js.delete_key_value(f"QUEUE_{use_backend.prefix}")
    tasks.add.enqueue(2, 2)

    assert waiting() == 1


def test_large_arguments_go_to_the_task(tasks, run_tasks):
    """
    Arguments and values that are larger than a message of the server are stored.
    """
    text = "x" * 1_500_000
    result = tasks.send.enqueue(text)
    run_tasks()

    assert tasks.send.get_result(result.id).return_value == text


def test_large_arguments_go_to_further_attempts(use_backend, run_tasks, tmp_path):
    """
    A record has no large arguments, and a task that is tried again gets them nevertheless.
    """
    use_backend(RETRIES=1, RETRY_WAIT=0)
    import shop_tasks as tasks

    result = tasks.measure_again.enqueue(str(tmp_path / "log"), text="x" * 1_500_000)
    run_tasks()
    result.refresh()

    assert (result.return_value, result.attempts) == (1_500_000, 2)


def test_tasks_are_stored_after_other_code_closed_the_client(tasks, backend, waiting):
    """
    The next call opens a connection again.
    """
    tasks.add.enqueue(1, 1)
    shared_client(backend.task_options.connect).close()
    result = tasks.add.enqueue(2, 2)

    assert backend.get_result(result.id).status == READY
    assert waiting() == 2


def test_results_that_do_not_exist(tasks, backend):
    """
    Ids of no task of this backend raise TaskResultDoesNotExist.
    """
    for wrong in (
        "",
        "x",
        "x-",
        "x-default",
        "x-other",
        f"{'a' * 32}-default",
        "x-=FF",
        "é-default",
    ):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(wrong)


def test_a_result_of_another_task_does_not_match(tasks):
    """
    A task does not return the result of another task.
    """
    result = tasks.add.enqueue(1, 2)
    with pytest.raises(Exception, match="does not match"):
        tasks.fail.get_result(result.id)


@pytest.mark.parametrize("args", [(object(),), ({1, 2},), (b"\xff",)])
def test_arguments_must_be_json(tasks, waiting, args):
    """
    Other arguments raise TypeError or ValueError, and nothing is stored.
    """
    with pytest.raises((TypeError, ValueError)):
        tasks.send.enqueue(*args)

    assert waiting("mail") == 0


def test_invalid_tasks_are_refused(tasks, backend):
    """
    A wrong queue, priority or time, and a task that workers cannot import, raise InvalidTask.
    """
    for changes in (
        {"queue_name": "other"},
        {"priority": 101},
        {"priority": -101},
        {"run_after": dt.datetime(2030, 1, 1)},  # noqa: DTZ001 - that is what is wrong
    ):
        with pytest.raises(InvalidTask):
            tasks.add.using(**changes).enqueue(1, 2)
    renamed = tasks.task(tasks.read)
    with pytest.raises(InvalidTask, match=r"shop_tasks\.read"):
        renamed.enqueue("path")


def test_an_unknown_outcome_is_repeated_and_stored_once(tasks, backend, run_tasks, monkeypatch):
    """
    If the answer of the server is lost, the task is put again under its id, and runs once.
    """
    put = jetsync.JetStream.publish
    calls = []

    def lose(self, subject, *args, **kwargs):
        ack = put(self, subject, *args, **kwargs)
        calls.append(subject)
        if len(calls) == 1:
            raise jetsync.PublishOutcomeUnknownError(subject, timeout=1.0)
        return ack

    monkeypatch.setattr(jetsync.JetStream, "publish", lose)
    result = tasks.add.enqueue(1, 2)
    monkeypatch.undo()
    run_tasks()
    result.refresh()

    assert len(calls) == 2
    assert (result.return_value, result.attempts) == (3, 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"SERVER": "x"}, "SERVER"),
        ({"PREFIX": "a.b"}, "PREFIX"),
        ({"ACK_WAIT": 0.5}, "ACK_WAIT"),
        ({"RESULT_TTL": "day"}, "RESULT_TTL"),
        ({"RETRIES": -1}, "RETRIES"),
        ({"RETRY_WAIT": [1, "x"]}, "RETRY_WAIT"),
        ({"TIMEOUT": 0}, "TIMEOUT"),
        ({"ENQUEUE_ON_COMMIT": 1}, "ENQUEUE_ON_COMMIT"),
        ({"DATABASE": "other"}, "DATABASE"),
        ({"STORAGE": "tape"}, "STORAGE"),
        ({"NUM_REPLICAS": 0}, "NUM_REPLICAS"),
        ({"PRIORITIES": [0, 100]}, "PRIORITIES"),
        ({"CONNECT": {"usr": 1}}, "usr"),
        ({"SERVERS": "http://x"}, "http"),
    ],
)
def test_wrong_options_are_found_by_the_checks(use_backend, options, text):
    """
    `manage.py check` reports an unknown or invalid option, and enqueuing raises it.
    """
    backend = use_backend(**options)

    (found,) = backend.check()
    assert found.id == "jetsync_django.E001"
    assert text in found.msg
    with pytest.raises(ImproperlyConfigured, match=text):
        backend.task_options  # noqa: B018


def test_the_checks_miss_the_app(backend, settings_without_app):
    """
    A warning says that the command is missing if the app is not installed.
    """
    with settings_without_app:
        assert [found.id for found in backend.check()] == ["jetsync_django.W001"]
    assert backend.check() == []


@pytest.fixture
def settings_without_app():
    """
    Settings without the app.
    """
    from django.test import override_settings

    return override_settings(INSTALLED_APPS=[])


def test_each_priority_has_a_step():
    """
    Steps rise with the priorities, and round priorities have a step of their own.
    """
    steps = [step_of(priority, DEFAULT_BOUNDS) for priority in range(-100, 101)]

    assert steps == sorted(steps)
    assert set(steps) == set(range(10))
    common = (-100, -50, -10, 0, 1, 10, 25, 50, 75, 100)
    assert len({step_of(priority, DEFAULT_BOUNDS) for priority in common}) == len(common)
    assert step_of(100, bounds_of([-100], "x")) == 0
