"""
The tasks of the project that the tests use.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import jetsync
from jetsync_django.tasks.api import task_finished, task_started
from jetsync_queue import Retry

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def add(a, b):
    """Return the sum."""
    return a + b


@task(queue_name="mail", priority=10)
def send(to):
    """Return the address."""
    return to


@task
def fail(text):
    """Raise an error."""
    raise ValueError(text)


@task
def exit_with(code):
    """Ask for the end of the program."""
    raise SystemExit(code)


@task
def unserializable():
    """Return what JSON does not have."""
    return object()


@task
def spin():
    """Run without an end."""
    while True:
        time.sleep(0.005)


@task(takes_context=True)
def tell(context):
    """Fail twice, and return what the context says in the third attempt."""
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")
    return [context.attempt, context.task_result.status]


@task
def ask_again(path):
    """Ask for one more attempt, although no retries are configured."""
    write(path, "ran")
    if read(path) == ["ran"]:
        raise Retry(delay=0)
    return "done"


@task
def give_up(text):
    """Give up, although there may be retries left."""
    raise jetsync.DeadLetter(text)


@task
def measure_again(path, text):
    """Fail once, and return the length of the text."""
    write(path, "ran")
    if read(path) == ["ran"]:
        raise ValueError("the first attempt fails")
    return len(text)


@task
async def later(value):
    """Return the value, a moment later."""
    await asyncio.sleep(0.01)
    return value


@task
def note(path, text):
    """Write a line."""
    write(path, text)


@task
def wait_for(path, seconds):
    """Write when it begins and ends; end early once the file `go` is beside the path."""
    write(path, "begins")
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and not Path(path).with_name("go").exists():
        time.sleep(0.02)
    write(path, "ends")


@task
def dies(path, step):
    """Have the worker killed, once, at a step of this task."""
    kill_once(path, step, "begins")
    write(path, "works")
    kill_once(path, step, "has worked")
    return "done"


def kill_once(path, wanted, step):
    """
    Kill this process if that is the step, and it was not killed before.
    """
    mark = Path(path).with_suffix(".killed")
    if wanted == step and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def on_started(task_result, **_):
    """Die at the start, if the task says so."""
    if task_result.task.name == "dies":
        kill_once(*task_result.args, "is started")


def on_finished(task_result, **_):
    """Die at the end, if the task says so."""
    if task_result.task.name == "dies":
        kill_once(*task_result.args, "is finished")


task_started.connect(on_started)
task_finished.connect(on_finished)


def write(path, text):
    """
    Append a line to a file.
    """
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def read(path):
    """
    Return the lines of a file; none if there is no file.
    """
    return Path(path).read_text("utf-8").split() if Path(path).exists() else []
