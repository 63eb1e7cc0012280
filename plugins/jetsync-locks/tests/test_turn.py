"""
Turns without a server: what follows from each answer.
"""

from __future__ import annotations

import datetime as dt
import json
from types import SimpleNamespace

import pytest

import jetsync
from jetsync_locks._clock import now
from jetsync_locks._turn import Turn

MINE = "lock.a.mine"
NO_ANSWER = jetsync.RequestTimeoutError("$JS.API", 1.0)


def stored(key: str, revision: int, *, has_ended: bool = False, **fields: object):
    """
    Return the message of a ticket, or its marker.
    """
    data = b"" if has_ended else json.dumps({"lease": 10, **fields}).encode()
    time = dt.datetime.now(dt.timezone.utc)
    return jetsync.StoredMessage("KV_b", f"$KV.b.{key}", revision, time, data=data)


class Stream:
    """
    A stream with a leader and a replica that may differ.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.lists: list[list[str]] = []
        self.has_leader = True
        self.leader: dict[str, jetsync.StoredMessage] = {}
        self.replica: dict[str, jetsync.StoredMessage] | Exception = {}

    def info(self, *, subjects_filter, timeout):
        self.calls.append("list")
        assert subjects_filter == "$KV.b.lock.a.*"
        keys = self.lists.pop(0)
        return SimpleNamespace(
            cluster=SimpleNamespace(leader="n1" if self.has_leader else None),
            state=SimpleNamespace(subjects={f"$KV.b.{key}": 1 for key in keys}),
        )

    def get_last_for(self, subjects, *, reread, timeout):
        self.calls.append("replica")
        if isinstance(self.replica, Exception):
            raise self.replica
        keys = [subject.removeprefix("$KV.b.") for subject in subjects]
        return [self.replica[key] for key in keys if key in self.replica]

    def get_last(self, subject, *, direct, timeout):
        assert direct is False
        key = subject.removeprefix("$KV.b.")
        self.calls.append(f"leader {key[-1]}")
        if key not in self.leader:
            raise jetsync.MessageNotFoundError
        return self.leader[key]


@pytest.fixture
def stream():
    """
    An empty stream.
    """
    return Stream()


@pytest.fixture
def turn(stream):
    """
    The turn of ticket 10.
    """
    ticket = SimpleNamespace(key=MINE, number=10, is_valid=True)
    return Turn(SimpleNamespace(stream=stream, bucket="b"), "lock.a.*", ticket, 1)


def read(turn: Turn) -> list[int] | None:
    """
    Return the numbers of the lower tickets that are left.
    """
    lower = turn._read(now() + 10)
    return None if lower is None else [rival.number for rival in lower]


def test_a_lock_without_other_keys_is_free(turn, stream):
    """
    If the leader lists no other key, it is the turn of the ticket, and no value is read.
    """
    stream.lists = [[MINE]]
    assert turn.wait(now() + 10)
    assert stream.calls == ["list"]


def test_a_list_without_the_ticket_proves_nothing(turn, stream):
    """
    A server that does not have the ticket yet, or has no leader, may lack earlier ones.
    """
    stream.lists = [[], ["lock.a.1"], [MINE]]
    assert [read(turn), read(turn)] == [None, None]
    stream.has_leader = False
    assert read(turn) is None


def test_a_key_that_is_listed_is_left_until_a_marker_is_seen(turn, stream):
    """
    The leader is asked for a key that the replica does not have. A key that neither has is unknown.
    """
    stream.lists = [[MINE, "lock.a.1"]] * 4
    assert read(turn) is None
    stream.leader["lock.a.1"] = stored("lock.a.1", 5)
    assert read(turn) == [5]
    stream.leader["lock.a.1"] = stored("lock.a.1", 12, has_ended=True)
    assert read(turn) == []
    assert stream.calls == ["list", "replica", "leader 1"] * 3


def test_a_replica_that_does_not_answer_is_passed_over(turn, stream):
    """
    The leader is asked for all keys.
    """
    stream.lists, stream.replica = [[MINE, "lock.a.1", "lock.a.2"]], NO_ANSWER
    stream.leader = {key: stored(key, int(key[-1])) for key in ("lock.a.1", "lock.a.2")}
    assert read(turn) == [1, 2]


def test_tickets_that_only_a_replica_has_are_not_waited_for(turn, stream):
    """
    A replica that was down keeps tickets that have ended meanwhile. The leader does not list them.
    """
    stream.lists = [[MINE, "lock.a.1"], [MINE]]
    stream.replica = {"lock.a.1": stored("lock.a.1", 5)}
    assert [read(turn), read(turn)] == [[5], []]


def test_a_ticket_that_was_renewed_keeps_its_number(turn, stream):
    """
    The first revision of a key orders tickets, not the one that is read.
    """
    stream.lists = [[MINE, "lock.a.1"]]
    stream.replica = {"lock.a.1": stored("lock.a.1", 50, ticket=5)}
    assert read(turn) == [5]


def test_later_tickets_do_not_count_and_are_not_read_again(turn, stream):
    """
    Higher numbers come after the ticket, and no lower one can appear.
    """
    stream.lists = [[MINE, "lock.a.1", "lock.a.2"], [MINE, "lock.a.2", "lock.a.3"]]
    stream.replica = {"lock.a.1": stored("lock.a.1", 5), "lock.a.2": stored("lock.a.2", 11)}
    assert [read(turn), read(turn)] == [[5], []]
    assert stream.calls == ["list", "replica", "list"]


def test_the_leader_is_asked_after_a_watch_that_said_nothing(turn, stream):
    """
    If no change of a ticket arrives for longer than its lease, a replica is not believed.
    """
    stream.lists = [[MINE, "lock.a.1"]] * 3
    stream.replica = {"lock.a.1": stored("lock.a.1", 5)}
    stream.leader = {"lock.a.1": stored("lock.a.1", 20, has_ended=True)}
    assert read(turn) == [5]
    watch = SimpleNamespace(initial=lambda timeout: iter([]), close=lambda: None)
    turn._bucket.watch = lambda *keys, timeout: watch
    assert turn._watch(sorted(turn._lower.values()), now() + 10) is False
    assert read(turn) == []
    assert stream.calls[-2:] == ["list", "leader 1"]


def test_a_deleted_bucket_ends_the_wait(turn, stream):
    """
    The error says that the bucket does not exist.
    """

    def fail(**_):
        raise jetsync.StreamNotFoundError

    stream.info = fail
    with pytest.raises(jetsync.BucketNotFoundError):
        turn.wait(now() + 10)
