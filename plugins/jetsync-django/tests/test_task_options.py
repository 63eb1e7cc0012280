from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

import jetsync
from jetsync_django.cache import JetStreamCache
from jetsync_django.connections import connect_options, shared_client
from jetsync_django.tasks import running
from jetsync_django.tasks.api import TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from jetsync_django.tasks.queues import open_queue

pytestmark = pytest.mark.live

READY, FAILED = TaskResultStatus.READY, TaskResultStatus.FAILED


def test_a_task_over_its_time_fails(use_backend, run_tasks):
    """
    After `TIMEOUT` seconds, the task gets a JobTimeoutError.
    """
    use_backend(TIMEOUT=0.2)
    import shop_tasks as tasks

    result = tasks.spin.enqueue()
    run_tasks("default")
    result.refresh()

    assert result.status == FAILED
    assert result.errors[0].exception_class_path == "jetsync_queue.errors.JobTimeoutError"


def test_results_are_kept_as_long_as_the_option_says(use_backend, run_tasks):
    """
    `RESULT_TTL` begins again with each change of a result.
    """
    backend = use_backend(RESULT_TTL=500)
    import shop_tasks as tasks

    result = tasks.add.enqueue(1, 2)
    bucket = open_queue(backend.task_options, "default").bucket
    (key,) = bucket.keys("default.>")
    assert round(bucket.get(key).ttl) == 500
    run_tasks("default")
    result.refresh()
    assert result.is_finished
    assert round(bucket.get(key).ttl) == 500


def test_only_transactions_of_the_database_count(use_backend):
    """
    With `DATABASE`, a task waits for the commit of a transaction of that database.
    """
    backend = use_backend(DATABASE="archive")
    import shop_tasks as tasks

    with transaction.atomic():
        now = tasks.add.enqueue(1, 2)
        assert backend.get_result(now.id).status == READY
        transaction.set_rollback(True)
    with transaction.atomic(using="archive"):
        later = tasks.add.enqueue(3, 4)
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(later.id)
    assert backend.get_result(later.id).status == READY


def test_the_signal_comes_after_the_task_is_stored(backend):
    """
    A receiver of `task_enqueued` can look at the result on the server.
    """
    import shop_tasks as tasks

    found = []

    def look(task_result, **_):
        stored = backend.get_result(task_result.id)
        found.append((stored.status, task_result.enqueued_at is None))

    task_enqueued.connect(look)
    try:
        tasks.add.enqueue(1, 2)
    finally:
        task_enqueued.disconnect(look)
    assert found == [(READY, False)]


@pytest.mark.parametrize(("name", "args"), [("add", [1, 2]), ("fail", ["x"]), ("exit_with", [3])])
def test_connections_are_checked_before_and_after_a_task(
    backend, run_tasks, monkeypatch, name, args
):
    """
    Old connections to the database are closed, whatever the task does.
    """
    import shop_tasks as tasks

    steps = []
    call = running.TaskRunner._call

    def note(runner, result):
        steps.append("task")
        return call(runner, result)

    monkeypatch.setattr(running, "close_old_connections", lambda: steps.append("close"))
    monkeypatch.setattr(running.TaskRunner, "_call", note)
    getattr(tasks, name).enqueue(*args)
    run_tasks("default", threads=1)

    assert steps == ["close", "task", "close"]


def test_connections_that_lost_the_race_are_closed(nats_server, monkeypatch):
    """
    If threads connect at the same time, they share one client, and the others are closed.
    """
    options = connect_options(nats_server.url, {"name": uuid.uuid4().hex}, "test")
    connect, made, all_connected = jetsync.connect, [], threading.Barrier(4)

    def connect_together(**given):
        client = connect(**given)
        made.append(client)
        all_connected.wait(30)
        return client

    monkeypatch.setattr(jetsync, "connect", connect_together)
    with ThreadPoolExecutor(4) as pool:
        clients = {*pool.map(lambda _: shared_client(options), range(4))}
    (client,) = clients
    assert [each for each in made if not each.is_closed] == [client]
    client.close()


@pytest.mark.parametrize(
    ("servers", "connect"),
    [
        ("nats://127.0.0.1:1", {"password": "sesame", "servers": "nats://u:sesame@h"}),
        ("nats://127.0.0.1:1", "sesame"),
        ("nats://127.0.0.1:1", {"password": "sesame", "connect_timeout": -1}),
        ("http://u:sesame@h", None),
    ],
)
def test_errors_of_settings_have_no_passwords(use_backend, servers, connect):
    """
    Neither the checks of Django nor the errors of a cache show a login.
    """
    backend = use_backend(SERVERS=servers, CONNECT=connect)
    (found,) = backend.check()
    assert "sesame" not in found.msg
    with pytest.raises(ImproperlyConfigured) as caught:
        JetStreamCache(servers, {"OPTIONS": {"CONNECT": connect}})
    assert "sesame" not in str(caught.value)


def test_checked_options_show_no_passwords(use_backend):
    """
    Their text can be logged.
    """
    backend = use_backend(CONNECT={"user": "shop", "password": "sesame"})

    assert "shop" in repr(backend.task_options)
    assert "sesame" not in repr(backend.task_options)
