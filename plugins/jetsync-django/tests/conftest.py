"""
Fixtures in addition to those of jetsync: caches, a task backend, and workers.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["DJANGO_SETTINGS_MODULE"] = "shop_settings"

import django
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetsync.devserver import DevServer
    from jetsync_django import JetStreamBackend
    from jetsync_django.cache import JetStreamCache

django.setup()

HERE = Path(__file__).parent


@pytest.fixture
def make_cache(nats_server: DevServer) -> Callable[..., JetStreamCache]:
    """
    A function that makes a cache with a bucket of its own, which takes settings and options.
    """
    from jetsync_django.cache import JetStreamCache

    name = f"cache-{uuid.uuid4().hex[:12]}"

    def make(settings: dict[str, object] | None = None, **options: object) -> JetStreamCache:
        return JetStreamCache(
            nats_server.url, {**(settings or {}), "OPTIONS": {"BUCKET": name, **options}}
        )

    make.name = name
    return make


@pytest.fixture
def use_backend(nats_server: DevServer) -> Iterator[Callable[..., JetStreamBackend]]:
    """
    A function that sets `TASKS` to one backend of this plugin, and takes options.
    """
    from django.test import override_settings
    from shop_settings import tasks_of

    from jetsync_django.tasks.api import task_backends

    prefix = uuid.uuid4().hex[:12]
    with contextlib.ExitStack() as stack:

        def use(**options: object) -> JetStreamBackend:
            tasks = tasks_of(nats_server.url, prefix, **options)
            stack.enter_context(override_settings(TASKS=tasks))
            return task_backends["default"]

        use.prefix = prefix
        yield use


@pytest.fixture
def backend(use_backend: Callable[..., JetStreamBackend]) -> JetStreamBackend:
    """
    The only task backend.
    """
    return use_backend()


@pytest.fixture
def run_tasks(use_backend: Callable[..., JetStreamBackend]) -> Callable[..., None]:
    """
    A function that runs all waiting tasks of the queues in this process.
    """
    from jetsync_django.tasks.api import task_backends
    from jetsync_django.tasks.workers import Workers

    def run(*names: str, threads: int = 2) -> None:
        workers = Workers(task_backends["default"], names or ["default", "mail"], threads, "here")
        workers.run(stop_timeout=30, batch=True)

    return run


@pytest.fixture
def start_worker(
    nats_server: DevServer, use_backend: Callable[..., JetStreamBackend]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """
    A function that starts `jetsync_worker` in a process of its own.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-m", "django", "jetsync_worker", *arguments],
            cwd=HERE,
            env={
                **os.environ,
                "NATS_URL": nats_server.url,
                "SHOP_PREFIX": use_backend.prefix,
                "PYTHONPATH": str(HERE),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(worker)
        return worker

    yield start
    for worker in started:
        if worker.poll() is None:
            worker.kill()
        worker.communicate()
