"""
How often a JSON Schema can evaluate schemas for the values on one path of a document.

A validator evaluates what ``allOf`` and ``$ref`` name each time, even if it is the same schema. So
30 definitions, each of which refers twice to the next, take 2**30 evaluations for one number.
jsonschema-rs has no limit, and nothing can interrupt it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urldefrag, urljoin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_EVALUATIONS: Final = 10_000
"""
The most evaluations for one path of a document. An invalid document then takes about 0.2 s, because
jsonschema-rs makes an error for each of them. Of 2,355 schemas that are in use, such as those of
CloudFormation and tox, none has more than 157.
"""

_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_IN_PLACE_MAPS: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANY_KEY: Final = ("additionalProperties", "unevaluatedProperties")
_ITEMS: Final = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")

_EVERY_KEY: Final = 0
_EVERY_NAME: Final = 1
_EVERY_ITEM: Final = 2

Step = str | int
"""A step from a value to a value in it: the key, or one of the numbers above."""


def evaluations(schema: Any, documents: Mapping[str, Any]) -> int:
    """
    Return the most evaluations of schemas for the values on one path of a document.

    A schema that refers to itself counts once, because its cost depends on the document.
    """
    return _Costs(schema, documents).total(schema)


class _Costs:
    """
    The costs of all parts of a schema.
    """

    def __init__(self, schema: Any, documents: Mapping[str, Any]) -> None:
        self._places: dict[str, Any] = {}
        self._bases: dict[int, str] = {}
        self._known: dict[int, Counter[Step | None]] = {}
        for name, document in (*documents.items(), ("", schema)):
            self._index(document, name)

    def _index(self, document: Any, base: str) -> None:
        """Find the names of all parts, and the address to which the references in them relate."""
        self._places[base] = document
        pending = [(document, base)]
        while pending:
            part, base = pending.pop()
            if isinstance(part, list):
                pending += [(each, base) for each in part]
            elif isinstance(part, dict) and id(part) not in self._bases:
                own = part.get("$id", part.get("id"))
                if isinstance(own, str):
                    base = urljoin(base, own)
                    self._places[base] = part
                    base = urldefrag(base).url
                for anchor in _ANCHORS:
                    self._places[f"{base}#{part.get(anchor)}"] = part
                self._bases[id(part)] = base
                pending += [(each, base) for each in part.values()]

    def _target(self, reference: str, base: str) -> Any:
        """Return the part that a reference names; None if it is not known here."""
        # Addresses such as `urn:a` cannot be joined.
        address = base + reference if reference[:1] == "#" else urljoin(base, reference)
        if address in self._places:
            return self._places[address]
        address, pointer = urldefrag(address)
        found: Any = self._places.get(address)
        for step in unquote(pointer).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (LookupError, TypeError, ValueError):
                return None
        return found

    def total(self, part: Any) -> int:
        """Return the cost of a part for the worst path."""
        costs = self._costs(part)
        deeper = [
            cost + (costs[_EVERY_KEY] if isinstance(step, str) else 0)
            for step, cost in costs.items()
            if step is not None
        ]
        return costs[None] + max(deeper, default=0)

    def _costs(self, part: Any) -> Counter[Step | None]:
        """
        Return the cost of a part for the value itself, under None, and for the values in it.
        """
        if not isinstance(part, dict):
            return Counter({None: 1})
        if id(part) not in self._known:
            # For references from a part to itself.
            self._known[id(part)] = Counter({None: 1})
            found: Counter[Step | None] = Counter({None: 1})
            for each in self._in_place(part):
                found.update(self._costs(each))
            for step, each in _inside(part):
                found[step] += self.total(each)
            for given in (part[keyword] for keyword in _ITEMS if keyword in part):
                each_item = given if isinstance(given, list) else [given]
                found[_EVERY_ITEM] += max(map(self.total, each_item), default=0)
            self._known[id(part)] = found
        return self._known[id(part)]

    def _in_place(self, part: dict[str, Any]) -> Iterator[Any]:
        """Yield the schemas that are evaluated for the same value."""
        for keyword in _IN_PLACE:
            given = part.get(keyword, [])
            yield from given if isinstance(given, list) else [given]
        for keyword in _IN_PLACE_MAPS:
            with contextlib.suppress(AttributeError):
                yield from part.get(keyword, {}).values()
        for keyword in _REFERENCES:
            if isinstance(reference := part.get(keyword), str):
                yield self._target(reference, self._bases[id(part)])


def _inside(part: dict[str, Any]) -> Iterator[tuple[Step, Any]]:
    """Yield the schemas that are evaluated for values of an object, with the step to each."""
    for keyword in _ANY_KEY:
        if keyword in part:
            yield _EVERY_KEY, part[keyword]
    if "propertyNames" in part:
        yield _EVERY_NAME, part["propertyNames"]
    for step, keyword in ((None, "properties"), (_EVERY_KEY, "patternProperties")):
        given = part.get(keyword)
        if isinstance(given, dict):
            for key, each in given.items():
                yield key if step is None else step, each
