"""
Acknowledgements are sent until the server has confirmed them.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import jetsync
from jetsync_celery import answers as module
from jetsync_celery.answers import THREADS, Answers
from jetsync_celery.sources import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def client() -> Any:
    """
    A client that is connected.
    """
    return SimpleNamespace(is_connected=True, is_closed=False)


@pytest.fixture
def answers(client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """
    What sends, whose threads end soon after they have nothing to do.
    """
    monkeypatch.setattr(module, "IDLE", 0.2)
    monkeypatch.setattr(module, "PAUSE", 0.01)
    yield Answers(client)
    for thread in threading.enumerate():
        if thread.name == "jetsync-celery-answers":
            thread.join(10.0)
            assert not thread.is_alive()


def never() -> None:
    """
    Fail.
    """
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        jetsync.NoRespondersError("$JS.ACK"),
        jetsync.RequestTimeoutError("$JS.ACK", 1.0),
        jetsync.DisconnectedError(timeout=1.0),
        jetsync.ConnectionLostError(sent=True),
    ],
)
def test_an_answer_is_sent_again_until_it_is_confirmed(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, error: jetsync.JetSyncError
) -> None:
    """
    Whatever has prevented the confirmation. The first attempts are short.
    """
    outcomes = iter([error, error, None])
    is_done = threading.Event()

    timeouts: list[float | None] = []
    monkeypatch.setattr(module, "ATTEMPTS", 2)

    def send(timeout: float | None) -> None:
        timeouts.append(timeout)
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome
        is_done.set()

    answers.send(send, never)

    assert is_done.wait(30.0)
    assert timeouts == [module.SOON, module.SOON, None]


def test_an_answer_that_cannot_be_sent_is_given_up(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    At once if it is refused, and after a while if the consumer does not exist any more.
    """
    monkeypatch.setattr(module, "GIVE_UP", 0.1)
    for error in (
        jetsync.PermissionDeniedError("x", "publish"),
        jetsync.NoRespondersError("x"),
        ValueError(),
    ):
        is_given_up = threading.Event()

        def send(_: float | None, error: Exception = error) -> None:
            raise error

        answers.send(send, is_given_up.set)

        assert is_given_up.wait(30.0)


def test_an_answer_that_waits_does_not_hold_up_the_others(answers: Answers) -> None:
    """
    Several threads send.
    """
    go, done = threading.Event(), threading.Event()
    answers.send(lambda _: go.wait(30.0), never)
    answers.send(lambda _: done.set(), never)

    assert done.wait(30.0)
    go.set()


def test_finishing_waits_for_all_answers(answers: Answers) -> None:
    """
    Also for those that wait for a thread.
    """
    sent: list[int] = []
    for number in range(5 * THREADS):
        answers.send(lambda _, number=number: sent.append(number), never)  # type: ignore[misc]
    answers.finish(30.0)

    assert sorted(sent) == list(range(5 * THREADS))


def test_finishing_does_not_wait_without_a_connection(answers: Answers, client: Any) -> None:
    """
    The server delivers the tasks again.
    """
    go = threading.Event()
    answers.send(lambda _: go.wait(30.0), never)
    client.is_connected = False
    answers.finish(30.0)
    go.set()


def test_without_a_connection_a_message_is_left_to_the_server(
    answers: Answers, client: Any
) -> None:
    """
    If it was given back later, another worker that has it then would lose it.
    """
    client.is_connected = False
    forgotten: list[Any] = []
    delivery = SimpleNamespace(is_settled=False, requeue=never)
    receiver: Any = SimpleNamespace(forget=forgotten.append)
    StoredMessage(delivery, answers, receiver, keep_dead=False).requeue()  # type: ignore[arg-type]

    assert forgotten == [delivery]
