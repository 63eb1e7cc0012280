"""
Tickets without a server: what follows from each answer.
"""

from __future__ import annotations

import datetime as dt
import threading

import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_locks._clock import now
from jetsync_locks._settings import Settings
from jetsync_locks._ticket import Ticket

UNKNOWN = jetsync.PublishOutcomeUnknownError("$KV.b.k")
LATE = jetsync.RequestTimeoutError("$KV.b.k", 1.0)


def refused(revision: int | None) -> jetsync.WrongLastRevisionError:
    """
    Return the error if the key has another revision.
    """
    return jetsync.WrongLastRevisionError("b", "k", expected=0, last_sequence=revision)


class Script:
    """
    A bucket whose answers are given. An answer is an error, a revision, or a function.
    """

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.calls: list[str] = []
        self.value = b""

    def _answer(self, call: str):
        self.calls.append(call)
        answer = self.answers.pop(0)
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def update(self, key, value, *, last, ttl, timeout):
        self.value = value
        return self._answer(f"update {last}")

    def get(self, key, *, default, direct, timeout):
        assert direct is False
        revision = self._answer("get")
        if not revision:
            return default
        return jetsync.Entry("b", key, self.value, revision, dt.datetime.now(dt.timezone.utc))

    def purge(self, key, *, ttl, last, timeout):
        return self._answer(f"purge {last}")


def started(script: Script, *, margin: float = 1.0, lease: int = 10) -> Ticket:
    """
    Return a ticket whose thread runs.
    """
    settings = Settings(lease=lease, margin=margin, on_lost=None)
    ticket = Ticket(script, "lock.a", "a", settings, limit=1)
    ticket.start()
    return ticket


@pytest.mark.parametrize(
    ("answers", "calls", "number"),
    [
        ([5], ["update 0"], 5),
        # The answer was lost, and the ticket is stored.
        ([UNKNOWN, refused(7), 7], ["update 0", "update 0", "get"], 7),
        # The answer was lost, and the ticket was not stored.
        ([UNKNOWN, 5], ["update 0", "update 0"], 5),
        # The leader does not say whether it is stored.
        (
            [UNKNOWN, refused(7), LATE, refused(7), 7],
            ["update 0", "update 0", "get", "update 0", "get"],
            7,
        ),
    ],
)
def test_the_first_write_is_repeated_until_it_is_known(answers, calls, number):
    """
    A ticket has the revision at which it was stored, whichever answers were lost.
    """
    script = Script(*answers, number + 1)
    ticket = started(script)
    assert ticket.wait_stored(20)
    assert (ticket.number, script.calls) == (number, calls)
    ticket.end()
    assert ticket.wait_over(20)
    assert script.calls[-1] == f"purge {number}"


def test_a_ticket_that_expires_before_it_is_known_is_given_up():
    """
    If the key has a marker, an earlier attempt was stored and has expired. The key is not used
    again.
    """
    script = Script(UNKNOWN, *[refused(7), 0] * 100)
    ticket = started(script, lease=1)
    assert ticket.wait_stored(20) is False
    ticket.end()
    assert script.calls[:5] == ["update 0", "update 0", "get", "update 0", "get"]


def test_a_ticket_that_may_be_stored_later_is_kept_from_it():
    """
    If the first write has no answer and the key has no value, a marker is written: a write that
    arrives after it is refused.
    """
    script = Script(LATE, LATE, 0, 8)
    ticket = started(script)
    eventually(lambda: script.calls)
    ticket.end()
    assert ticket.wait_over(20)
    assert script.calls[-2:] == ["get", "purge 0"]


def test_an_event_stays_set_after_a_release():
    """
    If a release is the first to notice that the lease is lost, the event stays set, and `on_lost`
    is called.
    """
    lost = []
    settings = Settings(lease=10, margin=0.0, on_lost=lost.append)
    ticket = Ticket(Script(5, 6), "lock.a", "a", settings, limit=1)
    ticket.start()
    assert ticket.wait_stored(20)
    ticket.hold(renew=False)
    # As after a stop of the process: the thread has not run yet.
    ticket._valid_until = 0.0
    assert not ticket.is_valid
    ticket.end()
    assert ticket.wait_over(20)
    assert ticket.lost.is_set()
    assert len(lost) == 1


def test_an_error_that_lasts_is_raised():
    """
    An error that another attempt cannot mend ends the ticket.
    """
    script = Script(jetsync.BucketNotFoundError("b"))
    ticket = started(script)
    with pytest.raises(jetsync.BucketNotFoundError):
        ticket.wait_stored(20)
    assert ticket.wait_over(20)


def test_a_lease_counts_from_before_the_write_was_sent():
    """
    The server may have stored the ticket long before its answer arrives.
    """

    def answer() -> int:
        threading.Event().wait(0.3)
        return 5

    script = Script(answer, answer, 7)
    ticket = started(script)
    assert ticket.wait_stored(20)
    assert ticket.remaining <= 8.7
    before = ticket._valid_until
    ticket.hold(renew=True)
    eventually(lambda: ticket._valid_until > before)
    assert ticket.remaining <= 8.7
    ticket.end()
    assert ticket.wait_over(20)


def test_an_answer_after_the_end_of_the_lease_does_not_revive_it():
    """
    If the answer to a renewal arrives too late, the lease stays lost, and the ticket is withdrawn.
    """
    late = threading.Event()

    def answer() -> int:
        assert late.wait(20)
        return 6

    script = Script(5, answer, 7)
    ticket = started(script, margin=8.5)
    assert ticket.wait_stored(20)
    ticket.hold(renew=True)
    until = ticket._valid_until
    # No property is read, because that would note the end.
    eventually(lambda: now() >= until)
    late.set()
    assert ticket.wait_over(20)
    assert ticket._valid_until == until
    assert not ticket.is_valid
    assert ticket.remaining == 0
    assert script.calls == ["update 0", "update 5", "purge 6"]


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ([UNKNOWN, refused(6), 6, 7], ["update 5", "update 5", "get", "purge 6"]),
        ([refused(5), 5, 6, 7], ["update 5", "get", "update 5", "purge 6"]),
        ([refused(6), LATE, refused(6), 6, 7], ["update 5", "get", "update 5", "get", "purge 6"]),
    ],
)
def test_a_renewal_is_repeated_until_it_is_known(answers, calls):
    """
    A renewal whose answer was lost is recognised by its value.
    """
    script = Script(5, *answers)
    ticket = started(script)
    assert ticket.wait_stored(20)
    ticket.hold(renew=True)
    eventually(lambda: len(script.calls) == len(calls))
    ticket.end()
    assert ticket.wait_over(20)
    assert script.calls[1:] == calls


def test_a_ticket_that_the_server_removed_is_lost():
    """
    If a renewal is refused and the key has no value, the lease is lost, and nothing is withdrawn.
    """
    script = Script(5, refused(9), 0)
    ticket = started(script)
    assert ticket.wait_stored(20)
    ticket.hold(renew=True)
    eventually(ticket.lost.is_set)
    assert ticket.wait_over(20)
    assert ticket.reason == "the server has removed it"
    assert script.calls == ["update 0", "update 5", "get"]


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ([UNKNOWN, 0], ["purge 5", "get"]),
        ([UNKNOWN, 5, 6], ["purge 5", "get", "purge 5"]),
        ([refused(9), 0], ["purge 5", "get"]),
        ([UNKNOWN, LATE, 5, 6], ["purge 5", "get", "get", "purge 5"]),
    ],
)
def test_a_release_is_repeated_until_it_is_known(answers, calls):
    """
    A release is confirmed if the key has no value, or that of another ticket.
    """
    script = Script(5, *answers)
    ticket = started(script)
    assert ticket.wait_stored(20)
    ticket.end()
    assert ticket.wait_over(20)
    assert script.calls[1:] == calls


def test_a_release_without_an_answer_ends_with_the_lease():
    """
    If the server never answers, the thread gives up when the server must have removed the ticket.
    """
    script = Script(5, jetsync.ConnectionClosedError())
    ticket = started(script)
    assert ticket.wait_stored(20)
    ticket.end()
    assert ticket.wait_over(20) is False
