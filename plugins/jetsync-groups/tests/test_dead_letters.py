"""
Dead letters of groups.
"""

from __future__ import annotations

import pytest
from conftest import until

import jetsync
from jetsync_groups.dead_letters import reason_of

pytestmark = pytest.mark.live


@pytest.fixture
def dead(js, orders):
    """
    A stream for dead letters, and its subject.
    """
    name = f"{orders.name}_DEAD"
    return js.create_stream(name, subjects=[f"{name}.x"], storage="memory", allow_direct=True)


def consume(group, dead, handler, member="a", **options):
    """
    Consume with dead letters.
    """
    joined = group.join(member, ack_wait=2, max_ack_pending=1)
    return joined.consume(handler, dead_letter=f"{dead.name}.x", **options)


def letters(dead):
    """
    List the dead letters.
    """
    return list(dead.scan())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_message_that_fails_too_often(js, orders, group, dead, handler):
    """
    After `max_deliver` deliveries, a copy is stored and the message is removed from the group.
    """
    group.add_members("g-a")
    handler.error = ValueError("no\r\nprice")
    js.publish(f"{orders.name}.k", b"42", headers={"A": "1"}, msg_id="m")
    with consume(group, dead, handler, member="g-a", max_deliver=2) as consumption:
        until(lambda: letters(dead))
        (letter,) = letters(dead)
        until(lambda: js.stream(group.buffer_name).info().state.messages == 0)
        assert consumption.statistics().dead_letters == 1
    assert len(handler.messages) == 2
    found = {
        name.removeprefix("Jetsync-Dead-Letter-"): value
        for name, value in letter.headers.items()
        if name.startswith("Jetsync-")
    }
    assert found == {
        "Header-Nats-Msg-Id": "m",
        "Stream": orders.name,
        "Sequence": "1",
        "Subject": f"{orders.name}.k",
        "Deliveries": "2",
        "Consumer": "g-g-a",
        "Reason": "ValueError: no price",
    }
    assert letter.data == b"42"
    assert letter.headers["A"] == "1"


def test_a_dead_letter_is_put_back(js, orders, group, dead, handler):
    """
    `jetsync.replay` publishes it to the original subject, and the group gets it again.
    """
    group.add_members("a")
    handler.error = jetsync.DeadLetter("later")
    js.publish(f"{orders.name}.k", b"42")
    with consume(group, dead, handler):
        until(lambda: letters(dead))
        handler.error = None
        again = jetsync.replay(letters(dead)[0])
        assert again.subject == f"{orders.name}.k"
        js.publish(again.subject, again.data, headers=again.headers, msg_id=again.msg_id)
        assert handler.wait_count(2) == ["42", "42"]
    assert len(letters(dead)) == 1
    assert letters(dead)[0].headers["Jetsync-Dead-Letter-Reason"] == "later"


def test_a_message_whose_workers_died(js, orders, group, dead, handler):
    """
    A message that was delivered `max_deliver` times and never acknowledged does not reach the
    handler again.
    """
    group.add_members("a")
    config = {"ack_wait": 2, "max_ack_pending": 1}
    with group.join("a", **config).consume(handler) as consumption:
        until(lambda: consumption.is_active)
    js.publish(f"{orders.name}.k", b"killer")
    consumer = js.stream(group.buffer_name).consumer("a")
    message = consumer.next(group="PCG", expires=5)  # As a worker that dies.
    assert message.data == b"killer"
    js.publish(f"{orders.name}.k", b"good")
    with consume(group, dead, handler, max_deliver=1):
        assert handler.wait_count(1) == ["good"]
    assert len(handler.messages) == 1
    (letter,) = letters(dead)
    reason = letter.headers["Jetsync-Dead-Letter-Reason"]
    assert reason == "delivered 1 times, never acknowledged"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_message_is_kept_if_its_letter_is_not_stored(js, orders, group, dead, handler):
    """
    Without a stream for dead letters, the message is delivered again until there is one.
    """
    group.add_members("a")
    handler.error = jetsync.DeadLetter("x")
    with consume(group, dead, handler):
        config = dead.config
        dead.delete()
        js.publish(f"{orders.name}.k", b"42")
        handler.wait_count(2)
        js.create_stream(config)
        until(lambda: letters(js.stream(config.name)))
        until(lambda: js.stream(group.buffer_name).info().state.messages == 0)


def test_targets_are_checked(js, orders, group, dead, handler):
    """
    Letters need a stream that is not the group's own, and `max_deliver` needs a subject.
    """
    member = group.join("a")
    with pytest.raises(jetsync.NoStreamResponseError):
        member.consume(handler, dead_letter="nowhere.x")
    with pytest.raises(jetsync.InvalidArgumentError, match="another stream"):
        member.consume(handler, dead_letter=f"{orders.name}.dead")
    with pytest.raises(jetsync.InvalidArgumentError, match="needs dead_letter"):
        member.consume(handler, max_deliver=3)
    with pytest.raises(jetsync.InvalidArgumentError):
        member.consume(handler, dead_letter=f"{dead.name}.x", max_deliver=0)


def test_the_reason_of_an_error_without_text():
    """
    The class of an error is its reason if it says nothing.
    """
    assert reason_of(KeyError()) == "KeyError"
    assert reason_of(jetsync.DeadLetter()) == "DeadLetter"
