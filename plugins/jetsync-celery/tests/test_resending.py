"""
A task that is sent again after an error is stored once, and one that is applied twice, twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from celery import Celery

import jetsync
from jetsync_celery import resending
from jetsync_celery.resending import Resending
from jetsync_queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN = jetsync.PublishOutcomeUnknownError("a")


@pytest.fixture
def app(url: str) -> Iterator[Celery]:
    """
    An app with one task.
    """
    with Celery("test", broker=url, set_as_current=False) as app:

        @app.task(name="add", shared=False, ignore_result=True)
        def add(x: int, y: int) -> int:
            return x + y

        yield app


def count(app: Celery) -> int:
    """
    Return how many messages the queue has.
    """
    with app.connection() as connection:
        connection.connect()
        return int(connection.transport.work_queue("celery").statistics().open)


def lost_answers(times: int) -> Any:
    """
    Let the server store messages whose answers are lost, some times.
    """
    put = WorkQueue.put
    left = [times]

    def put_and_lose(self: WorkQueue, *args: Any, **kwargs: Any) -> Any:
        job = put(self, *args, **kwargs)
        if left[0]:
            left[0] -= 1
            raise UNKNOWN
        return job

    return mock.patch.object(WorkQueue, "put", put_and_lose)


@pytest.mark.live
@pytest.mark.parametrize("options", [{}, {"countdown": 3600}], ids=["at once", "later"])
def test_a_frozen_signature_that_is_applied_twice_is_stored_twice(
    app: Celery, options: dict[str, Any]
) -> None:
    """
    Both of its messages are equal, and both tasks run, as on other brokers.
    """
    signature = app.tasks["add"].si(1, 2).set(**options)
    signature.freeze()
    if options:
        signature.set(eta=app.now().replace(year=2100), countdown=None)
    signature.apply_async()
    signature.apply_async()

    assert count(app) == 2


@pytest.mark.live
@pytest.mark.parametrize("options", [{}, {"countdown": 3600}], ids=["at once", "later"])
def test_a_task_that_celery_sends_again_is_stored_once(
    app: Celery, options: dict[str, Any]
) -> None:
    """
    If the answer of the server is lost, Celery sends the task again.
    """
    with lost_answers(1):
        app.tasks["add"].apply_async((1, 2), **options)

    assert count(app) == 1


@pytest.mark.live
def test_a_retry_that_is_sent_twice_is_stored_once(app: Celery) -> None:
    """
    A worker that dies after it has sent a retry leaves its task to another one, which retries, too.
    """
    for countdown in (3600, 3700):
        app.send_task("add", (1, 2), task_id="a", retries=1, countdown=countdown)

    assert count(app) == 1


@pytest.mark.live
def test_a_task_that_a_program_sends_again_is_stored_once(app: Celery) -> None:
    """
    So it is if Celery gave up, and the program repeats the call with the same id. The next time,
    the task is a new one.
    """
    add = app.tasks["add"]
    with lost_answers(1), pytest.raises(add.OperationalError):
        add.apply_async((1, 2), task_id="a", retry=False)
    add.apply_async((1, 2), task_id="a", retry=False)
    assert count(app) == 1

    add.apply_async((1, 2), task_id="a", retry=False)
    assert count(app) == 2


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [(UNKNOWN, True), (KeyboardInterrupt(), True), (jetsync.DisconnectedError(), False)],
    ids=["unknown", "interrupt", "not stored"],
)
def test_only_an_unknown_outcome_keeps_the_id(error: BaseException, is_kept: bool) -> None:
    """
    A task that was certainly not stored needs no memory.
    """
    resends = Resending()
    with pytest.raises(type(error)), resends.sending("q", {"id": "a"}, b"1", 60.0) as first:
        raise error
    with resends.sending("q", {"id": "a"}, b"1", 60.0) as second:
        pass

    assert (first == second) is is_kept


def test_an_id_is_forgotten_when_the_server_has_forgotten_it() -> None:
    """
    After the window, the task gets a new id. Of many, the oldest are forgotten.
    """
    resends = Resending()
    with pytest.raises(TimeoutError), resends.sending("q", {"id": "a"}, b"1", 0.0) as first:
        raise UNKNOWN
    with resends.sending("q", {"id": "a"}, b"1", 60.0) as second:
        pass
    assert first != second

    with mock.patch.object(resending, "MAX_UNKNOWN", 2):
        ids = []
        for name in "abc":
            with (
                pytest.raises(TimeoutError),
                resends.sending("q", {"id": name}, b"", 60.0) as given,
            ):
                raise UNKNOWN
            ids.append(given)
        again = []
        for name in "cba":
            with resends.sending("q", {"id": name}, b"", 60.0) as given:
                again.append(given)
    assert again[:2] == [ids[2], ids[1]]
    assert again[2] != ids[0]
