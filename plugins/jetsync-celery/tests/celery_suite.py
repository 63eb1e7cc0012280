"""
Run Celery's own integration tests of tasks and canvases on this broker and backend.

    python tests/celery_suite.py FOLDER [--redis] [ARGUMENT ...]

FOLDER has Celery's folder ``t``, which `fetch_source.py` gets. It is not part of this project.
``--redis`` runs the tests on Redis instead. The other arguments are those of pytest. Both need the
command ``redis-server``, because the tests count in Redis whatever the broker is.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

import celery.app.backends
import pytest
from redis_process import redis_process

import jetsync_celery  # noqa: F401 - adds the scheme of the broker.
from jetsync.devserver import DevServer

FILES: Final = ("test_tasks.py", "test_canvas.py")

BACKEND: Final = "redis-jetstream"
"""A scheme for the backend. Most tests of canvases are skipped unless it begins with ``redis``."""

SLOW: Final = "its tasks take longer than its limit of 20 s if the worker has one process"

RACE: Final = "it sets a variable after it has sent the task, which may have run by then"

EXPECTED: Final[dict[str, str]] = {
    "test_task_replacement::test_replaced_task_nesting_level_0": RACE,
    "test_tasks::test_revoked_by_headers_complex_canvas": SLOW,
    "test_task_redis_result_backend::test_asyncresult_forget_cancels_subscription": (
        "it asks Redis for its channels"
    ),
    "test_task_redis_result_backend::test_asyncresult_get_cancels_subscription": (
        "it asks Redis for its channels"
    ),
    "test_chain::test_chord_header_id_duplicated_on_rabbitmq_msg_duplication[redis-group-ids]": (
        "it sends a property that cannot be encoded, and that only AMQP drops; "
        "test_resending.py shows that both tasks run"
    ),
    "test_chord::test_chord_on_error": "it reads the keys of a chord in Redis",
    "test_chord::test_error_propagates_from_chord": (
        "a group waits for its own tasks only, not for the task before it (celery #6437)"
    ),
}
"""The tests that fail on JetStream, each with the reason."""

EXPECTED_ON_REDIS: Final[dict[str, str]] = {
    "test_task_replacement::test_replaced_task_nesting_level_0": RACE,
    "test_tasks::test_revoked_by_headers_complex_canvas": SLOW,
}
"""The tests that fail on Redis, beside those that Celery expects to fail there."""


class Expectations:
    """
    A plugin of pytest that expects some tests to fail.
    """

    def __init__(self, reasons: dict[str, str]) -> None:
        self._reasons = reasons

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            name = item.nodeid.partition("::")[2]
            if name in self._reasons:
                # A test whose subtests fail passes itself, and two depend on the load.
                strict = "subtests" not in item.fixturenames and self._reasons[name] != RACE
                item.add_marker(pytest.mark.xfail(reason=self._reasons[name], strict=strict))


def main() -> int:
    """
    Run the tests, and return the exit status.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("folder", type=Path)
    given, arguments = parser.parse_known_args()
    # Also for the processes of the worker's pool.
    os.chdir(given.folder)
    sys.path.insert(0, str(Path.cwd()))
    celery.app.backends.BACKEND_ALIASES[BACKEND] = "jetsync_celery.results:JetStreamBackend"
    with redis_process() as port, DevServer() as server:
        if port is None:
            sys.exit("Celery's tests need the command redis-server (apt install redis-server)")
        os.environ.update(REDIS_HOST="127.0.0.1", REDIS_PORT=str(port))
        if given.redis:
            broker = backend = f"redis://127.0.0.1:{port}"
        else:
            broker = server.url.replace("nats://", "jetstream://")
            backend = server.url.replace("nats://", f"{BACKEND}://")
        # Some tests look for records of the worker in the log.
        os.environ.update(TEST_BROKER=broker, TEST_BACKEND=backend, WORKER_LOGLEVEL="INFO")
        return pytest.main(
            [
                # Without the settings of the folders above it.
                *("-c", os.devnull, "--rootdir", ".", "-p", "celery.contrib.pytest", "-ra"),
                *("--override-ini", "python_classes=test_*"),
                *([] if any(".py" in each for each in arguments) else _files()),
                *arguments,
            ],
            plugins=[Expectations(EXPECTED_ON_REDIS if given.redis else EXPECTED)],
        )


def _files() -> list[str]:
    return [f"t/integration/{name}" for name in FILES]


if __name__ == "__main__":
    sys.exit(main())
