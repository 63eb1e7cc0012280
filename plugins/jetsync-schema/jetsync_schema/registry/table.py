"""
A snapshot of all contracts, by subject.

A table does not change once it is in use. A change of a bucket creates a new table. Checks that are
running at that moment continue with the old one.
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
"""The size of the cache of subjects. A full cache is cleared."""

KV: Final = "$KV."

API: Final = "$JS."
"""A prefix that no subject of a stream has."""


@attrs.frozen
class Bound:
    """
    A contract with its name and header.
    """

    name: str
    contract: Contract
    label: Mapping[str, str] | None
    """The header that names the writer's schema; None if the contract uses no such header."""

    published_only: bool = False
    """Whether only published messages are checked, and received messages are not."""


class Table:
    """
    Contracts by subject; any thread.

    Args:
        definitions: The contracts. If two have the same pattern, the first one is used.
        guarded: The contract for the keys of the schema bucket itself.
    """

    __slots__ = ("_cache", "_patterns", "conflicts", "names")

    def __init__(
        self, definitions: Iterable[Definition], guarded: Definition | None = None
    ) -> None:
        self._patterns: Patterns[Bound] = Patterns()
        self._cache: dict[str, Bound | None] = {}
        self.conflicts: list[tuple[Definition, str, str]] = []
        """Conflicts: a definition, its pattern, and the contract that already has the pattern."""

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
        Return the contract of a subject; None if there is none.
        """
        # Single dictionary operations need no lock. Two threads may store the same entry.
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
        Look up a contract without the cache.

        Writes to a bucket in another domain have that domain's API prefix before the key's subject.
        They have the contract of the key's subject.
        """
        found = None if subject.startswith(API) else self._patterns.find(subject)
        place = subject.find(f".{KV}")
        # A stream may have such subjects too, so a contract for the whole subject comes first.
        return self._patterns.find(subject[place + 1 :]) if found is None and place > 0 else found


def _bound(definition: Definition) -> Bound:
    contract = definition.contract
    own_id = contract.schema_id
    return Bound(definition.name, contract, None if own_id is None else {SCHEMA_ID: own_id})
