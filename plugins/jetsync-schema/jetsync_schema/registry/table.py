"""
All contracts as they are at one moment, by subject.

A table is not changed once it is in use: a change of a bucket makes a new one, and whoever checks a
message at that moment goes on with the one it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from jetsync_schema.contract import Contract
from jetsync_schema.messages import SCHEMA_ID
from jetsync_schema.registry.patterns import Patterns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync_schema.registry.definitions import Definition

CACHED: Final = 8192
"""Subjects whose contract is remembered; more than that, and all of them are forgotten."""

KV: Final = "$KV."

API: Final = "$JS."
"""What no stream's subjects begin with."""


@attrs.frozen
class Bound:
    """
    A contract with what it is called.
    """

    name: str
    contract: Contract
    label: Mapping[str, str] | None
    """The header that says which schema wrote a message; None where there is no such header."""

    published_only: bool = False
    """Whether what is read is left alone."""


class Table:
    """
    Contracts by subject; any thread.

    Args:
        definitions: Contracts in their order; of two for one pattern the first one counts.
        guarded: What holds for the keys of a bucket of schemas itself, with its pattern.
    """

    __slots__ = ("_cache", "_patterns", "conflicts", "names")

    def __init__(
        self, definitions: Iterable[Definition], guarded: Definition | None = None
    ) -> None:
        self._patterns: Patterns[Bound] = Patterns()
        self._cache: dict[str, Bound | None] = {}
        self.conflicts: list[tuple[Definition, str, str]] = []
        """Definitions whose pattern another one has already: which pattern, and whose it is."""

        self.names: dict[str, str] = {}
        """Names of contracts by pattern."""

        for definition in definitions:
            bound = _bound(definition)
            for pattern in definition.subjects:
                if pattern in self.names:
                    self.conflicts.append((definition, pattern, self.names[pattern]))
                else:
                    self.names[pattern] = definition.name
                    self._patterns.add(pattern, bound)
        if guarded is not None:
            bound = attrs.evolve(_bound(guarded), published_only=True)
            for pattern in guarded.subjects:
                self._patterns.add(pattern, bound)

    def find(self, subject: str) -> Bound | None:
        """
        Return the contract of a subject, None if there is none.
        """
        # Single steps on a dictionary need no lock; that two threads fill in the same is no harm.
        cache = self._cache
        try:
            return cache[subject]
        except KeyError:
            found = self._find(subject)
        if len(cache) >= CACHED:
            cache.clear()
        cache[subject] = found
        return found

    def _find(self, subject: str) -> Bound | None:
        """
        Look for the contract, also of a key that is written through the API of another domain,
        whose prefix stands before the key's own subject.
        """
        found = None if subject.startswith(API) else self._patterns.find(subject)
        place = subject.find(f".{KV}")
        # A stream may have subjects that look so: whose contract they break counts first.
        return self._patterns.find(subject[place + 1 :]) if found is None and place > 0 else found


def _bound(definition: Definition) -> Bound:
    contract = definition.contract
    own_id = contract.schema_id
    return Bound(definition.name, contract, None if own_id is None else {SCHEMA_ID: own_id})
