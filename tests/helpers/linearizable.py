"""
Decide exactly whether a history of key-value operations is linearizable.

A history is linearizable if its operations can be put into one order in which each operation takes
effect at once, between its begin and its end, and has the outcome that its caller got. The search
is that of Wing and Gong with the cache of visited states that Lowe added. Keys are checked
separately, except that a transaction joins its keys.

Revisions are outcomes like values: they are compared with the order, but they do not choose it. So
a history without revisions is decided as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NODES = 100_000
"""Positions of the search after which it gives up."""


class UndecidedError(Exception):
    """
    The search took too many steps.
    """


@attrs.frozen
class Change:
    """
    What an operation does to one key.
    """

    key: str
    value: bytes | None
    """The new value, different in each change of a history; None deletes the key."""
    last: int | None = None
    """The revision that the key must have; None for any."""
    creates: bool = False
    """Whether the key must have no value."""


@attrs.frozen
class Operation:
    """
    An operation, its times and its outcome.

    A read has the outcome ``"read"``. Changes are ``"done"``, ``"refused"`` because a key is not as
    expected, or ``"unknown"``. Operations that certainly did nothing for another reason, and reads
    without an answer, are no part of a history.
    """

    begin: float
    end: float
    outcome: str
    changes: tuple[Change, ...]
    """For a read, one change with the key and the value that was read, None if there is none."""
    revisions: tuple[int | None, ...] = ()
    """The revision of each change, or the one that a read or refusal found. None if not known."""

    def __attrs_post_init__(self) -> None:
        if not self.revisions:
            object.__setattr__(self, "revisions", (None,) * len(self.changes))
        if self.outcome == "unknown":
            object.__setattr__(self, "end", math.inf)

    @property
    def writes(self) -> bool:
        return self.outcome in {"done", "unknown"}

    @property
    def keys(self) -> set[str]:
        return {change.key for change in self.changes}


@attrs.frozen
class Slot:
    """
    The state of a key.
    """

    value: bytes | None = None
    revision: int | None = 0
    """None if it is not known. It is then between *low* and *high*."""
    low: int = 0
    high: float = math.inf

    def at(self, revision: int | None) -> Slot | None:
        """Return the slot if it may have this revision."""
        if revision is None or self.revision == revision:
            return self
        if self.revision is None and self.low < revision < self.high:
            return attrs.evolve(self, revision=revision)
        return None


Slots = tuple[tuple[str, Slot], ...]


@attrs.frozen
class State:
    """
    The state of all keys of a component, which are sorted.
    """

    slots: Slots
    floor: int = 0
    """The highest revision that is known to be stored."""

    def knows(self, key: str, slot: Slot) -> State:
        """Return the state in which the revision of a key is known."""
        slots = packed(dict(self.slots) | {key: slot})
        return State(slots, max(self.floor, slot.revision or 0))


def fulfilled(slots: dict[str, Slot], change: Change) -> bool:
    """Return whether a change finds its key as it expects."""
    slot = slots[change.key]
    return slot.at(change.last) is not None and not (change.creates and slot.value is not None)


def step(state: State, operation: Operation) -> State | None:
    """Return the state after an operation, None if it cannot have its outcome in this state."""
    slots = dict(state.slots)
    if operation.outcome == "read":
        change = operation.changes[0]
        slot = slots[change.key].at(operation.revisions[0])
        if slot is None or slot.value != change.value:
            return None
        return state.knows(change.key, slot)
    if operation.outcome == "refused":
        return refuse(state, slots, operation)
    if not all(fulfilled(slots, change) for change in operation.changes):
        return None
    floor = max(state.floor, *(change.last or 0 for change in operation.changes))
    for change, revision in zip(operation.changes, operation.revisions, strict=True):
        slots[change.key] = Slot(change.value, revision, floor)
        if revision is None:
            continue
        if revision <= floor:
            return None
        floor = revision
        for key, slot in slots.items():
            if slot.revision is None:
                # It was stored earlier.
                slots[key] = attrs.evolve(slot, high=min(slot.high, revision))
    return State(packed(slots), floor)


def refuse(state: State, slots: dict[str, Slot], operation: Operation) -> State | None:
    """Return the state after a refusal: a key is not as expected, and nothing was changed."""
    for change, revision in zip(operation.changes, operation.revisions, strict=True):
        slot = slots[change.key].at(revision)
        if slot is None:
            continue
        exists = change.creates and slot.value is not None
        if exists or (change.last is not None and slot.revision != change.last):
            return state.knows(change.key, slot)
    return None


def packed(slots: dict[str, Slot]) -> Slots:
    """Return the slots in the form that can be compared."""
    return tuple(sorted(slots.items()))


# Histories.


def components(history: Iterable[Operation]) -> list[list[Operation]]:
    """Split a history into parts that have no key in common."""
    parts: list[tuple[set[str], list[Operation]]] = []
    for operation in history:
        keys, joined = operation.keys, [operation]
        apart = []
        for part in parts:
            if part[0] & keys:
                keys, joined = keys | part[0], part[1] + joined
            else:
                apart.append(part)
        parts = [*apart, (keys, joined)]
    return [sorted(operations, key=lambda each: each.begin) for _, operations in parts]


def simplified(history: list[Operation]) -> list[Operation]:
    """
    Use what reads tell about changes with unknown outcomes, so that the search is shorter.

    A change whose value was read has the revision of this read. A change that nothing can have
    noticed is left out: no read has its value, all that is known of its key has a revision, and
    each of these revisions is that of another change.
    """
    seen = {
        operation.changes[0].value: operation.revisions[0]
        for operation in history
        if operation.outcome == "read" and operation.changes[0].value is not None
    }
    made = {0} | {
        revision
        for operation in history
        if operation.outcome == "done"
        for revision in operation.revisions
        if revision is not None
    }
    # The keys of which something is known that a change with an unknown outcome may have caused.
    open_keys = set()
    for operation in history:
        for change, revision in zip(operation.changes, operation.revisions, strict=True):
            # The value of a read tells which change it is.
            found = operation.outcome == "refused" or (
                operation.outcome == "read" and change.value is None
            )
            if (found and revision not in made) or {change.last} - {None} - made:
                open_keys.add(change.key)

    def noticed(operation: Operation) -> bool:
        return any(
            change.value is None or change.value in seen or change.key in open_keys
            for change in operation.changes
        )

    result = []
    for operation in history:
        if operation.outcome == "unknown":
            if not noticed(operation):
                continue
            revisions = tuple(seen.get(change.value) for change in operation.changes)
            operation = attrs.evolve(operation, revisions=revisions)  # noqa: PLW2901
        result.append(operation)
    return result


# The search.


@attrs.frozen
class Node:
    """
    A position of the search.
    """

    done: int
    """The operations that have their place in the order, as bits."""
    state: State
    before: State | None = None
    """The state before the last operation, if its outcome is unknown."""
    last: int = -1
    """The number of this operation."""


class Search:
    """
    The search for an order of the operations of one component.
    """

    def __init__(self, history: list[Operation]) -> None:
        self.history = simplified(history)
        keys = sorted(set().union(*(operation.keys for operation in history)))
        self.start = Node(0, State(tuple((key, Slot()) for key in keys)))
        self.deepest = self.start
        self.certain = sum(
            1 << number
            for number, operation in enumerate(self.history)
            if operation.outcome != "unknown"
        )
        # Changes whose revisions are known. All of them were made, in this order.
        made = [
            (min(known), number)
            for number, operation in enumerate(self.history)
            if operation.writes and (known := [each for each in operation.revisions if each])
        ]
        self.made = [number for _, number in sorted(made)]

    def run(self) -> bool:
        """Return whether there is an order."""
        visited = {self.start}
        stack = [self.following(self.start)]
        if not self.certain:
            return True
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            if node in visited:
                continue
            if node.done & self.certain == self.certain:
                return True
            visited.add(node)
            if len(visited) > NODES:
                raise UndecidedError(f"{len(self.history)} operations, {len(visited)} positions")
            if node.done.bit_count() > self.deepest.done.bit_count():
                self.deepest = node
            stack.append(self.following(node))
        return False

    def candidates(self, done: int) -> list[int]:
        """Return the operations that may be next: no other one ended before they began."""
        found = []
        end = math.inf
        for number, operation in enumerate(self.history):
            if operation.begin > end:
                break
            if not done >> number & 1:
                found.append(number)
                end = min(end, operation.end)
        found = [number for number in found if self.history[number].begin <= end]
        # Unknown outcomes come last: mostly they are not needed.
        return sorted(found, key=lambda number: self.history[number].end)

    def following(self, node: Node) -> Iterator[Node]:
        following = next((each for each in self.made if not node.done >> each & 1), None)
        for number in self.candidates(node.done):
            operation = self.history[number]
            if number in self.made and number != following:
                continue
            if node.before is not None and self.pointless(node, operation):
                continue
            state = step(node.state, operation)
            if state is None:
                continue
            done = node.done | 1 << number
            if operation.outcome == "unknown":
                yield Node(done, state, node.state, number)
            else:
                yield Node(done, state)

    def pointless(self, node: Node, operation: Operation) -> bool:
        """
        Return whether the last change, with an unknown outcome, need not come before *operation*.

        The search then finds the same without the change, or with the change after *operation*.
        """
        if step(node.before, operation) is None:
            return False
        keys = self.history[node.last].keys
        if operation.writes:
            return operation.keys >= keys and self.history[node.last].revisions[0] is None
        return not operation.keys & keys

    def explain(self) -> str:
        """Describe the longest order that was found, and the operations that cannot follow."""
        done, state = self.deepest.done, self.deepest.state
        left = [self.history[number] for number in self.candidates(done)]
        lines = [f"{done.bit_count()} of {len(self.history)} operations have an order"]
        lines += [f"state {key}: {slot}" for key, slot in state.slots]
        lines += [f"cannot follow: {operation}" for operation in left]
        keys = set().union(*(operation.keys for operation in left))
        near = [each for each in self.history if each.keys & keys]
        begin = min(operation.begin for operation in left)
        near.sort(key=lambda each: abs(each.begin - begin))
        lines += [f"near: {each}" for each in sorted(near[:25], key=lambda each: each.begin)]
        return "\n".join(lines)


def refutation(history: Iterable[Operation]) -> str | None:
    """
    Return why a history is not linearizable, None if it is.

    Raises:
        UndecidedError: The search took too many steps.
    """
    for part in components(history):
        search = Search(part)
        if not search.run():
            return search.explain()
    return None
