"""
The result backend: no result is overwritten, large ones are kept, and parts count once.
"""

from __future__ import annotations

from unittest import mock

import pytest
from celery import Celery, Signature
from celery.app.task import Context
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, GroupResult

import jetsync
from jetsync_celery import waiting
from jetsync_celery.chords import Parts, part_of
from jetsync_celery.results import JetStreamBackend

pytestmark = pytest.mark.live


@pytest.fixture
def app(url):
    """
    An app with results.
    """
    with Celery("test", broker=url, backend=url, set_as_current=False) as app:
        yield app
        app.backend.values.close()


@pytest.fixture
def backend(app):
    """
    A result backend.
    """
    return app.backend


def test_a_url_chooses_the_backend(backend):
    """
    Celery finds the backend by the scheme of the URL.
    """
    assert isinstance(backend, JetStreamBackend)


def test_a_success_is_never_replaced(backend):
    """
    The failure of a worker that was thought dead does not replace the success of another.
    """
    backend.store_result("a", 1, "SUCCESS")
    backend.store_result("a", ValueError("late"), "FAILURE")

    assert backend.get_task_meta("a", cache=False)["result"] == 1


def test_other_states_are_replaced(backend):
    """
    A task that has started, or is retried, gets its later states.
    """
    backend.store_result("a", None, "STARTED")
    backend.store_result("a", ValueError("first"), "RETRY")
    backend.store_result("a", 3, "SUCCESS")

    assert backend.get_state("a") == "SUCCESS"


def test_results_of_any_size_and_ids_of_any_text(backend):
    """
    Results above the size of a message are kept, and ids may have characters that keys have not.
    """
    large = "x" * 3_000_000
    backend.store_result("größer als: 1 MB", large, "SUCCESS")

    assert backend.get_result("größer als: 1 MB") == large


def test_forgotten_results_are_gone(backend):
    """
    `forget` removes a result.
    """
    backend.store_result("a", 1, "SUCCESS")
    backend.forget("a")

    assert backend.get_state("a") == "PENDING"


def test_a_part_of_a_chord_that_ran_twice_counts_once(backend):
    """
    A part counts once however often it runs, and its body is started once.
    """
    key = backend.get_key_for_chord("group")
    for _ in range(3):
        Parts.add(backend.values, key, part_of("a", 0))
    parts = Parts.add(backend.values, key, part_of("b", 1))

    assert len(parts.done) == 2
    assert not parts.is_closed

    Parts.close(backend.values, key)
    assert Parts.add(backend.values, key, part_of("b", 1)).is_closed


def test_a_chord_raises_the_error_of_its_part(backend):
    """
    Not the error that the body has because of that, as with Celery's other backends.
    """
    app = backend.app
    part = app.AsyncResult("part")
    body = app.AsyncResult("body", parent=app.GroupResult("header", [part]))

    watch = backend.values.watch

    def watch_and_fail(keys):
        found = watch(keys)
        backend.store_result("part", KeyError("part"), "FAILURE")
        backend.store_result("body", ValueError("body"), "FAILURE")
        return found

    with (
        mock.patch.object(backend.values, "watch", watch_and_fail),
        pytest.raises(KeyError),
    ):
        body.get(timeout=20)


def failing_watch(backend, times):
    """
    Let the server give no answer to some attempts to watch.
    """
    watch, left = backend.values.watch, [times]

    def watch_or_fail(keys):
        if left[0]:
            left[0] -= 1
            raise jetsync.RequestTimeoutError("CONSUMER.CREATE", 5.0)
        return watch(keys)

    return mock.patch.object(backend.values, "watch", watch_or_fail)


def test_a_wait_for_a_result_outlives_a_change_of_leader(backend):
    """
    It goes on until its own timeout.
    """
    backend.store_result("a", 1, "SUCCESS")
    with failing_watch(backend, 2):
        assert backend.app.AsyncResult("a").get(timeout=20) == 1
    with failing_watch(backend, 100), pytest.raises(CeleryTimeoutError):
        backend.app.AsyncResult("b").get(timeout=0.5)


def test_a_chord_waits_for_parts_that_were_added(backend):
    """
    A part may add another one; the body gets the values in the order of the parts, and once.
    """
    bodies = []

    @backend.app.task
    def body(values):
        """Take the values."""

    backend.apply_chord(("header", [backend.app.AsyncResult(name) for name in "ab"]), None)
    backend.set_chord_size("header", 2)
    backend.add_to_chord("header", None)
    returned = [("b", 1), ("a", 0), ("b", 1), ("c", None)]
    with mock.patch.object(Signature, "delay", lambda _, values: bodies.append(values)):
        for name, index in [*returned, *returned]:
            request = Context(id=name, group="header", group_index=index, chord=body.s())
            backend.on_chord_part_return(request, "SUCCESS", name)

    assert bodies == [["a", "b", "c"]]


def test_many_results_are_waited_for_in_parts(app, monkeypatch):
    """
    A server takes long to compare the keys of a large watch, and they may not fit into a message.
    """
    monkeypatch.setattr(waiting, "MOST_KEYS", 2)
    ids = [f"many-{number}" for number in range(7)]
    result = GroupResult("many", [AsyncResult(each, app=app) for each in ids], app=app)
    app.backend.store_result(ids[3], 3, "SUCCESS")
    watch = app.backend.values.watch
    sizes = []

    def watched(keys):
        sizes.append(len(keys))
        # The others come while the first ones are waited for, the first ones last.
        for number in (6, 5, 4, 2, 1, 0):
            app.backend.store_result(ids[number], number, "SUCCESS")
        return watch(keys)

    monkeypatch.setattr(app.backend.values, "watch", watched)

    assert result.join_native(timeout=30) == list(range(7))
    assert sizes == [2, 2, 2]
