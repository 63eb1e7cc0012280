"""
The settings of a group, and the JSON documents that store them.

The documents are those of orbit.go. Each group has one, in a key-value bucket.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

import jetsync
from jetsync_groups.names import check_name
from jetsync_groups.partitions import assigned_partitions, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

__all__ = ["ElasticSettings", "PartitionBy", "StaticSettings"]

Mappings = tuple[tuple[str, tuple[int, ...]], ...]


def _numbers(values: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(values)
    except TypeError:
        text = f"partition_by: the wildcards must be a list of numbers, not {values!r}"
        raise jetsync.InvalidTypeError(text, argument="partition_by") from None


@attrs.frozen
class PartitionBy:
    """
    Which messages a group takes, and which tokens of their subjects are the key.
    """

    filter: str = attrs.field(validator=attrs.validators.instance_of(str))
    """The subjects: at least one ``*``, or ``>`` at the end."""

    wildcards: tuple[int, ...] = attrs.field(default=(), converter=_numbers)
    """Which ``*`` of the filter make the key, counted from 1. None: the whole subject."""

    def __attrs_post_init__(self) -> None:
        if not self.filter:
            raise _invalid("partition_by", "a filter must not be empty")
        tokens = self.filter.split(".")
        stars = tokens.count("*")
        if not stars and tokens[-1] != ">":
            raise _invalid("partition_by", f"{self.filter!r} needs a '*' or must end with '>'")
        for index in self.wildcards:
            whole("partition_by", index)
        if (
            len(set(self.wildcards)) != len(self.wildcards)
            or max(self.wildcards, default=0) > stars
        ):
            raise _invalid(
                "partition_by",
                f"the wildcards {list(self.wildcards)} of {self.filter!r} must be different "
                f"numbers from 1 to {stars}",
            )

    def destination(self, n: int) -> str:
        """
        Return the server's transform that puts the partition in front of the subject.
        """
        numbers, tokens = iter(range(1, n + len(self.filter))), self.filter.split(".")
        shown = [f"{{{{Wildcard({next(numbers)})}}}}" if each == "*" else each for each in tokens]
        key = "".join(f",{index}" for index in self.wildcards)
        return f"{{{{Partition({n}{key})}}}}.{'.'.join(shown)}"


@attrs.frozen
class _Settings:
    """
    What static and elastic groups have in common.
    """

    max_members: int
    """The number of partitions, and so the highest number of members that get messages."""

    members: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    """The members that share the partitions evenly."""

    mappings: Mappings = attrs.field(default=(), kw_only=True)
    """The members with the partitions that were chosen for them, instead of ``members``."""

    def __attrs_post_init__(self) -> None:
        n = whole("max_members", self.max_members)
        if self.members and self.mappings:
            raise _invalid("mappings", "a group has members or mappings, not both")
        if not self.mappings:
            return
        names = [member for member, _ in self.mappings]
        numbers = sorted(number for _, partitions in self.mappings for number in partitions)
        if len(set(names)) != len(names):
            raise _invalid("mappings", "a member is mapped twice")
        if len(names) > n:
            raise _invalid("mappings", f"there are {len(names)} members, but {n} partitions")
        if numbers != list(range(n)):
            raise _invalid("mappings", f"each partition from 0 to {n - 1} needs one member")

    @property
    def names(self) -> tuple[str, ...]:
        """
        The names of all members, sorted.
        """
        return tuple(sorted({*self.members, *(member for member, _ in self.mappings)}))

    def partitions(self, member: str) -> list[int]:
        """
        Return the partitions of a member; none if the group does not have it.
        """
        if self.mappings:
            return sorted(dict(self.mappings).get(member, ()))
        return assigned_partitions(self.members, self.max_members, member)

    def _filters(self, member: str, subjects: Iterable[str]) -> list[str]:
        """Return the filters of a member's consumer, each once."""
        # orbit.go does this, too: mapped members take all subjects of their partitions.
        wanted = [">"] if self.mappings else list(subjects) or [">"]
        numbers = self.partitions(member)
        return [f"{number}.{subject}" for subject in wanted for number in numbers]

    def _members_document(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.members:
            found["members"] = list(self.members)
        if self.mappings:
            found["member_mappings"] = [
                {"member": member, "partitions": list(numbers)} for member, numbers in self.mappings
            ]
        return found


@attrs.frozen
class ElasticSettings(_Settings):
    """
    The settings of an elastic group. Only its members and mappings can be changed.
    """

    partition_by: tuple[PartitionBy, ...] = ()
    """Which messages the group takes, and their keys. None: all messages, by whole subjects."""

    max_buffered_messages: int | None = None
    """The most messages in the group's stream; None for no limit."""

    max_buffered_bytes: int | None = None
    """The most bytes in the group's stream; None for no limit."""

    def filters(self, member: str) -> list[str]:
        """
        Return the filters of a member's consumer on the group's stream.
        """
        return self._filters(member, [each.filter for each in self.partition_by])

    def is_same_group(self, other: ElasticSettings) -> bool:
        """
        Return whether the two differ at most in their members.
        """
        return attrs.evolve(self, members=(), mappings=()) == attrs.evolve(
            other, members=(), mappings=()
        )

    def to_json(self) -> bytes:
        """
        Return the document that is stored.
        """
        document: dict[str, Any] = {"max_members": self.max_members}
        # Go stores null for no filters.
        document["partitioning_filters"] = [
            {"filter": each.filter, "partitioning_wildcards": list(each.wildcards)}
            for each in self.partition_by
        ] or None
        if self.max_buffered_messages is not None:
            document["max_buffered_msg"] = self.max_buffered_messages
        if self.max_buffered_bytes is not None:
            document["max_buffered_bytes"] = self.max_buffered_bytes
        return _dump(document | self._members_document())

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """
        Read a stored document.

        Raises:
            ValueError: The document cannot be read, or its settings contradict each other.
        """
        document = _load(data)
        return cls(
            document["max_members"],
            tuple(
                PartitionBy(each["filter"], tuple(each.get("partitioning_wildcards") or ()))
                for each in document.get("partitioning_filters") or ()
            ),
            document.get("max_buffered_msg") or None,
            document.get("max_buffered_bytes") or None,
            **_members_of(document),
        )


@attrs.frozen
class StaticSettings(_Settings):
    """
    The settings of a static group. They never change.
    """

    subjects: tuple[str, ...] = ()
    """The subjects that the members take, without the partition in front. None: all."""

    def filters(self, member: str) -> list[str]:
        """
        Return the filters of a member's consumer.
        """
        return self._filters(member, self.subjects)

    def is_same_group(self, other: StaticSettings) -> bool:
        """
        Return whether the two differ at most in the order of their members.
        """
        in_order = [
            attrs.evolve(each, members=each.names if each.members else (), mappings=())
            for each in (self, other)
        ]
        return in_order[0] == in_order[1] and dict(self.mappings) == dict(other.mappings)

    def to_json(self) -> bytes:
        """
        Return the document that is stored.
        """
        document: dict[str, Any] = {"max_members": self.max_members}
        if self.subjects:
            document["filters"] = list(self.subjects)
        return _dump(document | self._members_document())

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """
        Read a stored document.

        Raises:
            ValueError: The document cannot be read, or its settings contradict each other.
        """
        document = _load(data)
        return cls(
            document["max_members"],
            tuple(document.get("filters") or ()),
            **_members_of(document),
        )


def as_mappings(mappings: Mapping[str, Iterable[int]] | None) -> Mappings:
    """
    Return mappings as they are kept, in the order of the names.
    """
    if not mappings:
        return ()
    return tuple(
        (
            check_name("member", member),
            tuple(sorted(whole("mappings", each, 0) for each in mappings[member])),
        )
        for member in sorted(mappings)
    )


def as_names(argument: str, names: Iterable[str]) -> tuple[str, ...]:
    """
    Return names of members, each once, in the order given.
    """
    if isinstance(names, str):
        raise jetsync.InvalidTypeError(f"{argument} must be a list of names", argument=argument)
    return tuple(dict.fromkeys(check_name("member", name) for name in names))


def _invalid(argument: str, text: str) -> jetsync.InvalidArgumentError:
    return jetsync.InvalidArgumentError(f"{argument}: {text}", argument=argument)


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _load(data: bytes) -> dict[str, Any]:
    document = json.loads(data)
    if not isinstance(document, dict) or "max_members" not in document:
        raise ValueError("it is not an object with max_members")
    return document


def _members_of(document: dict[str, Any]) -> dict[str, Any]:
    members = document.get("members") or []
    mapped = document.get("member_mappings") or []
    if not all(
        isinstance(each, str) for each in (*_list(members), *(each["member"] for each in mapped))
    ):
        raise TypeError("a member is no text")
    return {
        "members": tuple(members),
        "mappings": tuple((each["member"], tuple(each["partitions"])) for each in mapped),
    }


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("the members are no list")
    return value
