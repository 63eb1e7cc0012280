from __future__ import annotations

import pytest

from helpers.waiting import eventually

TASKS = 60


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
def test_each_task_of_celery_stores_its_message_once(start, tmp_path, stream, ended_well, pool):
    """
    Each task stores its message once. The worker ends without a crash, and so do its processes.
    """
    broker = tmp_path / "broker"
    broker.mkdir()
    options = ["--pool", pool, "--concurrency", 3]
    options += ["--max-tasks-per-child", 10] if pool == "prefork" else []
    worker = start(
        "celery",
        *("--app", "tasks", "worker", "--loglevel", "INFO", "--without-mingle", "--without-gossip"),
        *options,
        BROKER=str(broker),
    )
    worker.wait_for(" ready")
    sender = start("send_tasks", TASKS, BROKER=str(broker))
    assert sender.wait() == 0, sender.output
    eventually(lambda: stream.info().state.messages == TASKS, 60)

    assert worker.stop() == 0, worker.output
    ended_well(worker)
    found = {bytes(stream.get_message(number).data) for number in range(1, TASKS + 1)}
    assert found == {b"%d" % number for number in range(TASKS)}
