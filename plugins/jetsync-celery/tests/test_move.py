"""
The command of Celery that moves tasks from another broker works.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from celery import Celery
from redis_process import redis_process
from workers import HERE, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.live

redis = pytest.importorskip("redis")


@pytest.fixture
def old_url() -> Iterator[str]:
    """
    The URL of a Redis.
    """
    with redis_process() as port:
        if port is None:
            pytest.skip("needs redis-server")
        yield f"redis://127.0.0.1:{port}/0"


def test_celery_migrate_moves_tasks_from_redis(url: str, old_url: str) -> None:
    """
    Those with an ETA wait on the new server, the others run, and none stays on Redis.
    """
    with Celery("old", broker=old_url, set_as_current=False) as old:
        sent = [old.send_task("program.add", (n, n)) for n in range(3)]
        for n in range(2):
            old.send_task("program.add", (n, n), countdown=86_400)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "celery", "--app", "program", "migrate"),
            *("--ack-messages", "--timeout", "2", old_url, url),
        ],
        cwd=HERE,
        env={**os.environ, "BROKER": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    with Celery("new", broker=url, backend=url, set_as_current=False) as new:
        with WorkerProcess(url, "-P", "solo"):
            assert [new.AsyncResult(each.id).get(timeout=60) for each in sent] == [0, 2, 4]
        with new.connection() as connection:
            connection.connect()
            assert connection.transport.work_queue("celery").statistics().scheduled == 2
        new.backend.values.close()
    with redis.Redis.from_url(old_url) as client:
        assert client.llen("celery") == client.hlen("unacked") == 0
