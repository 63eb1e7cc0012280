"""
Requests that are sent again: how long each attempt takes, and what ends them.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

import jetsync
from helpers.waiting import timed
from jetsync._api import repeats
from jetsync._api.repeats import answered, connected, repeated
from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch
from jetsync._io.outbox import LaneState


@pytest.fixture
def context():
    """
    A context with a connection. Its calls wait for a connection as long as they may.
    """

    def wait_open(deadline):
        waits.append(deadline)
        context.lane.outbox.state = LaneState.OPEN

    waits = []
    outbox = SimpleNamespace(state=LaneState.OPEN, wait_open=wait_open)
    connection = SimpleNamespace(closing=Latch(), check=lambda: None)
    lane = SimpleNamespace(outbox=outbox)
    context = SimpleNamespace(connection=connection, lane=lane, waits=waits)
    return context


def failing(*failures):
    """
    A call that fails in these ways and then returns its attempts.
    """
    left, attempts = [*failures], []

    def call(deadline):
        attempts.append(deadline)
        if left:
            raise left.pop(0)
        return attempts

    return call


@pytest.mark.parametrize(
    "failure",
    [
        jetsync.ConnectionLostError(),
        jetsync.DisconnectedError(timeout=1.0),
        jetsync.TemporarilyUnavailableError(),
        jetsync.RequestTimeoutError("a", 1.0),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_what_is_repeated(context, failure):
    """
    A call is repeated if its connection is lost or no server answers.
    """
    assert len(repeated(context, failing(failure, failure), Deadline.after(30))) == 3


def test_without_a_connection_a_call_waits_for_its_whole_time(context):
    """
    The wait for a connection has the whole time, and not that of one attempt.
    """
    context.lane.outbox.state = LaneState.DOWN
    deadline = Deadline.after(30)

    (attempt,) = repeated(context, failing(), deadline)

    assert context.waits == [deadline]
    assert attempt.remaining() <= 15


def test_a_forked_child_uses_its_own_lane(context):
    """
    The check of the connection may connect, which replaces the lane.
    """
    inherited, own = context.lane, SimpleNamespace(**vars(context.lane))
    inherited.outbox = SimpleNamespace(state=LaneState.CLOSED)

    def check():
        context.lane = own

    context.connection.check = check
    assert len(repeated(context, failing(), Deadline.after(30))) == 1
    assert len(context.waits) == 1


def test_a_closed_client_is_reported_before_any_wait(context):
    """
    A client that is closed, or belongs to a parent process, neither waits nor calls.
    """

    def check():
        raise jetsync.ForkedProcessError

    context.lane.outbox.state = LaneState.CLOSED
    context.connection.check = check
    with pytest.raises(jetsync.ForkedProcessError):
        repeated(context, failing(), Deadline.after(30))
    assert context.waits == []


@pytest.mark.parametrize(
    "failure",
    [
        jetsync.ConnectionClosedError(),
        jetsync.StreamNotFoundError(stream="S"),
        jetsync.WaitTimeoutError("a", 1.0),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_what_is_not_repeated(context, failure):
    """
    All other errors are those of the call.
    """
    with pytest.raises(type(failure)) as caught:
        repeated(context, failing(failure), Deadline.after(30))
    assert caught.value is failure


@pytest.mark.parametrize(
    "failure", [jetsync.ConnectionLostError(), jetsync.TemporarilyUnavailableError()], ids=repr
)
def test_a_call_ends_by_its_deadline(context, failure):
    """
    The last error is raised if no time is left for another attempt.
    """

    def call(deadline):
        raise failure

    with timed(0.1, 3.0), pytest.raises(type(failure)):
        repeated(context, call, Deadline.after(0.2))


def test_an_attempt_has_half_of_the_time_that_is_left():
    """
    The last attempt has the rest, and the error names the time of the call.
    """
    late = jetsync.RequestTimeoutError("a", 1.0)
    attempts = answered(failing(late, late), Deadline.after(30))
    assert [round(attempt.total) for attempt in attempts] == [15, 15, 15]
    with pytest.raises(jetsync.RequestTimeoutError, match="within 0 s"):
        answered(failing(late), Deadline.after(0))


def test_an_attempt_has_at_least_a_second():
    """
    Attempts do not become shorter and shorter, and none is longer than the call.
    """
    late = jetsync.RequestTimeoutError("a", 1.0)
    (attempt,) = answered(failing(), Deadline.after(1.5))
    assert attempt.total == 1.0
    deadline = Deadline.after(0.5)
    assert answered(failing(late), deadline) == [deadline, deadline]


def test_the_end_of_an_attempt_is_not_the_end_of_the_call():
    """
    The call is repeated until its own deadline, whose time the error names.
    """
    steps = []

    def silent(deadline):
        steps.append(deadline.total)
        time.sleep(deadline.remaining() + 0.01)
        raise jetsync.RequestTimeoutError("a", deadline.total)

    with pytest.raises(jetsync.RequestTimeoutError, match="within 7 s"):
        answered(silent, Deadline(time.monotonic() + 1.3, 7.0))
    assert steps == [1.0, 7.0]


def test_a_wait_for_a_connection_does_not_end_with_its_attempt():
    """
    Without a connection, a call waits for its whole time, and the error names it.
    """
    down = jetsync.DisconnectedError(timeout=1.0, last_attempt="connection refused")
    assert len(answered(failing(down, down), Deadline.after(30))) == 3
    with pytest.raises(
        jetsync.DisconnectedError, match=r"within 0 s.*connection refused"
    ) as caught:
        answered(failing(down), Deadline.after(0))
    assert caught.value.timeout == 0


def test_a_call_that_repeats_its_own_requests_has_the_whole_time(context):
    """
    Otherwise its first request would have a quarter of the time.
    """
    deadline = Deadline.after(30)
    lost = jetsync.ConnectionLostError()
    assert connected(context, failing(lost), deadline) == [deadline, deadline]
    with pytest.raises(jetsync.RequestTimeoutError):
        connected(context, failing(jetsync.RequestTimeoutError("a", 1.0)), deadline)


def test_only_a_missing_answer_is_repeated_without_a_context():
    """
    Callers of `answered` see lost connections.
    """
    with pytest.raises(jetsync.ConnectionLostError):
        answered(failing(jetsync.ConnectionLostError()), Deadline.after(30))


def test_the_end_of_the_client_ends_the_pause(context, monkeypatch):
    """
    A request whose connection was lost is repeated at once, and raises the end of the client.
    """
    monkeypatch.setattr(repeats, "RETRY_WAIT", 30.0)
    context.connection.closing.set()
    call = failing(jetsync.ConnectionLostError(), jetsync.ConnectionClosedError())
    with timed(0.0, 1.0), pytest.raises(jetsync.ConnectionClosedError):
        repeated(context, call, Deadline.after(90.0))
