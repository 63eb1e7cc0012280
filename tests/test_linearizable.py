"""
The check of histories accepts what a bucket may do and rejects everything else.
"""

from __future__ import annotations

import itertools
import random

import attrs
import pytest

from helpers.linearizable import Change, Operation, Slot, State, components, refutation, step


def put(begin, end, key, value, revision=None, **expected):
    """
    Return a change of one key that was stored.
    """
    change = Change(key, value, **expected)
    return Operation(begin, end, "done", (change,), (revision,))


def lost(begin, key, value, **expected):
    """
    Return a change of one key without an answer.
    """
    return Operation(begin, begin + 1, "unknown", (Change(key, value, **expected),))


def refused(begin, end, key, revision=None, **expected):
    """
    Return a change of one key that was refused.
    """
    change = Change(key, b"refused", **expected)
    return Operation(begin, end, "refused", (change,), (revision,))


def get(begin, end, key, value, revision=None):
    """
    Return a read.
    """
    return Operation(begin, end, "read", (Change(key, value),), (revision,))


def both(begin, end, first, second, revision=None):
    """
    Return a transaction that puts the keys "a" and "b"; it has no answer if *end* is None.
    """
    changes = (Change("a", first), Change("b", second))
    if end is None:
        return Operation(begin, begin + 1, "unknown", changes)
    revisions = (None, None) if revision is None else (revision, revision + 1)
    return Operation(begin, end, "done", changes, revisions)


CORRECT = {
    "nothing": [],
    "one after the other": [put(0, 1, "a", b"1", 1), get(2, 3, "a", b"1", 1)],
    "a read during a change has the old value": [
        put(0, 1, "a", b"1", 1),
        put(2, 9, "a", b"2", 2),
        get(3, 4, "a", b"1", 1),
        get(5, 6, "a", b"2", 2),
    ],
    "changes at the same time in either order": [
        put(0, 9, "a", b"1"),
        put(0, 9, "a", b"2"),
        get(10, 11, "a", b"1"),
    ],
    "an unknown change that was never made": [
        put(0, 1, "a", b"1", 1),
        lost(2, "a", b"2"),
        get(4, 5, "a", b"1", 1),
    ],
    "an unknown change that was made late": [
        put(0, 1, "a", b"1", 1),
        lost(2, "a", b"2"),
        get(4, 5, "a", b"1", 1),
        put(6, 7, "a", b"3", 2),
        get(8, 9, "a", b"2", 3),
    ],
    "an unknown change explains a refusal": [
        put(0, 1, "a", b"1", 1),
        lost(2, "a", b"2"),
        refused(4, 5, "a", 2, last=1),
    ],
    "an unknown delete lets a key be created": [
        put(0, 1, "a", b"1", 1),
        lost(2, "a", None),
        put(4, 5, "a", b"2", 3, creates=True),
    ],
    "two unknown changes, one of which needs the other": [
        put(0, 1, "a", b"1", 1),
        lost(2, "a", None),
        lost(4, "a", b"2", creates=True),
        get(6, 7, "a", b"2", 3),
    ],
    "a transaction": [
        both(0, 1, b"1", b"2", 1),
        get(2, 3, "a", b"1", 1),
        get(4, 5, "b", b"2", 2),
    ],
    "an unknown transaction that was made": [
        both(0, None, b"1", b"2"),
        get(2, 3, "a", None, 0),
        get(4, 5, "b", b"2", 2),
        get(6, 7, "a", b"1", 1),
    ],
    "other keys are apart": [put(0, 1, "a", b"1", 2), put(2, 3, "b", b"1", 1)],
}
WRONG = {
    "a stale read": [
        put(0, 1, "a", b"1", 1),
        put(2, 3, "a", b"2", 2),
        get(4, 5, "a", b"1", 1),
    ],
    "a read that goes back": [
        put(0, 1, "a", b"1"),
        put(2, 9, "a", b"2"),
        get(3, 4, "a", b"2"),
        get(5, 6, "a", b"1"),
    ],
    "a value of nobody": [put(0, 1, "a", b"1", 1), get(2, 3, "a", b"2", 2)],
    "a lost change": [put(0, 1, "a", b"1", 1), get(2, 3, "a", None, 0)],
    "a lost update": [
        put(0, 1, "a", b"1", 1),
        put(2, 5, "a", b"2", 2, last=1),
        put(3, 6, "a", b"3", 3, last=1),
    ],
    "a lost update without its revisions": [
        put(0, 1, "a", b"1", 1),
        put(2, 5, "a", b"2", last=1),
        put(3, 6, "a", b"3", last=1),
    ],
    "two creates": [
        put(0, 5, "a", b"1", creates=True),
        put(0, 5, "a", b"2", creates=True),
    ],
    "a change that is made twice": [
        put(0, 1, "a", b"1", 1),
        put(2, 3, "a", b"2", 2),
        get(4, 5, "a", b"1", 3),
    ],
    "an unknown change that is made twice": [
        lost(0, "a", b"1"),
        get(2, 3, "a", b"1"),
        put(4, 5, "a", b"2"),
        get(6, 7, "a", b"2"),
        get(8, 9, "a", b"1"),
    ],
    "a change with a new revision": [
        put(0, 1, "a", b"1", 1),
        get(2, 3, "a", b"1", 2),
    ],
    "a revision that is too low": [put(0, 1, "a", b"1", 2), put(2, 3, "a", b"2", 1)],
    "a refusal without a reason": [
        put(0, 1, "a", b"1", 1),
        refused(2, 3, "a", last=1),
    ],
    "a key that exists although it is deleted": [
        put(0, 1, "a", b"1", 1),
        put(2, 3, "a", None, 2),
        refused(4, 5, "a", 1, creates=True),
    ],
    "half a transaction": [
        both(0, 1, b"1", b"2", 1),
        get(2, 3, "a", b"1", 1),
        get(4, 5, "b", None, 0),
    ],
    "half an unknown transaction": [
        both(0, None, b"1", b"2"),
        get(2, 3, "a", b"1"),
        get(4, 5, "b", None),
    ],
    "two transactions in different orders": [
        both(0, 9, b"1", b"2"),
        both(0, 9, b"3", b"4"),
        get(10, 11, "a", b"1"),
        get(10, 11, "b", b"4"),
    ],
    "an unknown change before it began": [get(0, 1, "a", b"1", 1), lost(2, "a", b"1")],
}


@pytest.mark.parametrize("history", CORRECT.values(), ids=CORRECT)
def test_accepts_what_a_bucket_may_do(history):
    """
    A history that has an order is accepted.
    """
    assert refutation(history) is None


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_rejects_everything_else(history):
    """
    A history without an order is rejected.
    """
    assert "cannot follow" in refutation(history)


class Bucket:
    """
    A bucket in memory, used by threads whose operations overlap.
    """

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.slots = {}
        self.sequence = 0
        self.values = itertools.count()

    def act(self, begin, *, revisions):
        """
        Make one operation, which takes effect at once, and return it.
        """
        chance = self.chance
        end = begin + chance.random() * 5
        key = chance.choice("abc")
        value, revision = self.slots.get(key, (None, 0))
        number = revision if revisions else None
        if chance.random() < 0.3:
            return get(begin, end, key, value, number)
        keys = [key] if chance.random() < 0.7 else ["a", "b"]
        made, stored = [], []
        unknown = chance.random() < 0.2
        for each in keys:
            found, at = self.slots.get(each, (None, 0))
            new = None if chance.random() < 0.2 else b"%d" % next(self.values)
            expected = {}
            if chance.random() < 0.5 and revisions:
                expected["last"] = chance.choice([at, max(at - 1, 0)])
            elif chance.random() < 0.3:
                expected["creates"] = True
            made.append(Change(each, new, **expected))
            if expected.get("last", at) != at or (expected.get("creates") and found is not None):
                outcome = "unknown" if unknown else "refused"
                at = at if revisions else None
                return Operation(begin, end, outcome, (made[-1],), (None if unknown else at,))
        if not unknown or chance.random() < 0.5:
            for change in made:
                self.sequence += 1
                self.slots[change.key] = (change.value, self.sequence)
                stored.append(self.sequence if revisions and not unknown else None)
        return Operation(begin, end, "unknown" if unknown else "done", tuple(made), tuple(stored))


def random_history(seed, *, revisions, size):
    """
    Return the operations of a correct bucket; each begins up to 5 units before it takes effect.
    """
    bucket = Bucket(seed)
    found = []
    for place in range(size):
        operation = bucket.act(place, revisions=revisions)
        begin = place - bucket.chance.random() * 5
        found.append(Operation(begin, *operation_rest(operation)))
    return found


def operation_rest(operation):
    """
    Return the arguments of an operation after its begin.
    """
    return operation.end, operation.outcome, operation.changes, operation.revisions


@pytest.mark.parametrize(("revisions", "size"), [(True, 120), (False, 50)])
@pytest.mark.parametrize("seed", range(20))
def test_random_histories(seed, revisions, size):
    """
    Histories of a correct bucket are accepted, and rejected if a later read has an early value.
    """
    history = random_history(seed, revisions=revisions, size=size)
    end = max(operation.begin for operation in history) + 1000
    early = next(
        (change, revision)
        for operation in history
        for change, revision in zip(operation.changes, operation.revisions, strict=True)
        if operation.outcome == "done" and change.value is not None and change.key == "c"
    )

    assert refutation(history) is None
    last = put(end, end + 1, "c", b"last")
    stale = get(end + 2, end + 3, "c", early[0].value, early[1])
    assert refutation([*history, last, stale]) is not None


def has_an_order(state, left):
    """
    Return whether the operations have an order, by trying each.
    """
    if all(operation.outcome == "unknown" for operation in left):
        return True
    end = min(operation.end for operation in left)
    for place, operation in enumerate(left):
        after = step(state, operation) if operation.begin <= end else None
        if after is not None and has_an_order(after, left[:place] + left[place + 1 :]):
            return True
    return False


def damaged(history, chance):
    """
    Return a history of which some outcomes are exchanged or forgotten.
    """
    history = list(history)
    for _ in range(chance.randrange(4)):
        first, second = (chance.randrange(len(history)) for _ in range(2))
        one, other = history[first], history[second]
        if one.outcome == other.outcome and len(one.changes) == len(other.changes):
            history[first] = attrs.evolve(one, changes=other.changes)
            history[second] = attrs.evolve(other, changes=one.changes)
        elif one.outcome == "done":
            history[first] = attrs.evolve(one, outcome="unknown", revisions=())
    return history


@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "values only"])
def test_agrees_with_trying_every_order(revisions):
    """
    The search, which leaves out much, decides as one that leaves out nothing.
    """
    start = State(tuple((key, Slot()) for key in "abc"))
    verdicts = set()
    for seed in range(300):
        chance = random.Random(seed)
        history = damaged(random_history(seed, revisions=revisions, size=9), chance)
        verdict = refutation(history) is None
        assert verdict == all(has_an_order(start, part) for part in components(history)), history
        verdicts.add(verdict)
    assert verdicts == {True, False}
