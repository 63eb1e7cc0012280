"""
Static groups: the members are fixed, and read the original stream.

The stream itself has to put the partition in front of each subject, with a subject transform.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_groups.documents import StaticSettings, as_mappings, as_names
from jetsync_groups.errors import GroupDocumentError, GroupExistsError, GroupNotFoundError
from jetsync_groups.member import DEFAULT_ACK_WAIT, Member, member_of
from jetsync_groups.names import PRIORITY_GROUP, STATIC_BUCKET, check_name, durable_of, key_of
from jetsync_groups.store import Documents, require_same

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["StaticGroup", "create_static_group", "static_group", "static_groups"]

TIMEOUT: Final = 5.0
"""Seconds for a call, by default."""


class StaticGroup:
    """
    A static group; made by :func:`create_static_group` or :func:`static_group`.

    It holds nothing on the server and needs no closing. Thread-safe. ``timeout`` is in seconds, for
    each request of a call. All calls raise GroupNotFoundError if the group does not exist,
    GroupDocumentError if its settings cannot be read, and the errors of jetsync's requests.
    """

    def __init__(self, stream: jetsync.Stream, name: str) -> None:
        self._js = jetsync.JetStream.of(stream)
        self._stream = check_name("stream", stream.name)
        self._name = check_name("group", name)
        self._documents = _documents(stream)

    def __repr__(self) -> str:
        return f"<StaticGroup {self._stream}/{self._name}>"

    @property
    def name(self) -> str:
        """
        The name of the group.
        """
        return self._name

    @property
    def stream_name(self) -> str:
        """
        The name of the stream whose messages the group gets.
        """
        return self._stream

    def settings(self, *, timeout: float = TIMEOUT) -> StaticSettings:
        """
        Return the settings.
        """
        bucket = self._documents.open(self._stream, self._name, timeout=timeout)
        return self._documents.read(bucket, self._stream, self._name, timeout=timeout)

    def members(self, *, timeout: float = TIMEOUT) -> tuple[str, ...]:
        """
        Return the names of the members, sorted, whether they run or not.
        """
        return self.settings(timeout=timeout).names

    def active_members(self, *, timeout: float = TIMEOUT) -> tuple[str, ...]:
        """
        Return the names of the members that ask for messages now, sorted.
        """
        known = {durable_of(self._name, each): each for each in self.members(timeout=timeout)}
        stream = self._js.stream(self._stream, lookup=False)
        return tuple(
            sorted(
                known[each.name]
                for each in stream.consumers(timeout=timeout)
                if each.name in known and each.cached_info.num_waiting
            )
        )

    def step_down(self, member: str, *, timeout: float = TIMEOUT) -> None:
        """
        Let another process that consumes as this member get its messages.

        The process before finishes the messages that it has. With ``max_ack_pending`` above 1, both
        may work on one key until then.

        Raises:
            ConsumerNotFoundError: No process has consumed as this member.
        """
        name = durable_of(self._name, check_name("member", member))
        stream = self._js.stream(self._stream, lookup=False)
        stream.unpin_consumer(name, PRIORITY_GROUP, timeout=timeout)

    def join(
        self,
        member: str,
        *,
        ack_wait: float = DEFAULT_ACK_WAIT,
        max_ack_pending: int | None = None,
        timeout: float = TIMEOUT,
    ) -> Member:
        """
        Return a member, which can consume. This sends nothing.

        The arguments are those of :meth:`ElasticGroup.join`. The member's consumer is durable, so
        its messages wait while no process consumes as this member. If the consumer is deleted, the
        member makes it again, and it begins with the first message of the stream.
        """
        return member_of(
            self._js,
            self._stream,
            self._name,
            member,
            source=self._js.stream(self._stream, lookup=False),
            consumer_name=durable_of(self._name, member),
            is_static=True,
            documents=self._documents,
            ack_wait=ack_wait,
            max_ack_pending=max_ack_pending,
            timeout=timeout,
        )

    def delete(self, *, timeout: float = TIMEOUT) -> None:
        """
        Delete the group and the consumers of its members. Members that run end without an error.

        Consumers of other groups are left alone, whatever their names begin with. Repeat the call
        if it fails.
        """
        bucket = self._documents.open(self._stream, self._name, timeout=timeout)
        settings = self._documents.read(bucket, self._stream, self._name, timeout=timeout)
        stream = self._js.stream(self._stream, lookup=False)
        bucket.delete(key_of(self._stream, self._name), timeout=timeout)
        for member in settings.names:
            # Its process may be faster, or it never had one.
            with contextlib.suppress(jetsync.ConsumerNotFoundError):
                stream.delete_consumer(durable_of(self._name, member), timeout=timeout)


def create_static_group(
    stream: jetsync.Stream,
    name: str,
    *,
    max_members: int,
    filters: Iterable[str] = (),
    members: Iterable[str] = (),
    mappings: Mapping[str, Iterable[int]] | None = None,
    timeout: float = TIMEOUT,
) -> StaticGroup:
    """
    Create a static group, or find the same one.

    Args:
        stream: The stream. Its subject transform must put the partition in front of the subjects,
            such as ``{{partition(4,1)}}.orders.{{wildcard(1)}}``.
        name: The name of the group: letters, digits, ``-``, ``_`` and ``=``.
        max_members: The number of partitions, as in the subject transform.
        filters: The subjects that the group gets, without the partition. Default: all.
        members: The members, which share the partitions evenly.
        mappings: Instead of *members*, the partitions of each member.
        timeout: Seconds for each request.

    Raises:
        GroupExistsError: The group exists with other settings, or a member's consumer would have
            the name of another group's.
        InvalidArgumentError, InvalidTypeError: An argument is not valid.
        StreamNotFoundError: The stream does not exist.
    """
    group = StaticGroup(stream, name)
    if isinstance(filters, str):
        raise jetsync.InvalidTypeError("filters must be a list of subjects", argument="filters")
    wanted = StaticSettings(
        max_members,
        tuple(filters),
        members=as_names("members", members),
        mappings=as_mappings(mappings),
    )
    if not wanted.names:
        text = "a static group needs members or mappings: they cannot be added later"
        raise jetsync.InvalidArgumentError(text, argument="members")
    documents = _documents(stream)
    origin = stream.info(timeout=timeout).config
    bucket = documents.create_bucket(origin.num_replicas or 1, timeout=timeout)
    try:
        found = documents.read(bucket, stream.name, name, timeout=timeout)
    except GroupNotFoundError:
        _refuse_shared_names(documents, bucket, group, wanted, timeout)
    else:
        require_same(stream.name, name, found, wanted)
    documents.create(bucket, stream.name, name, wanted, timeout=timeout)
    return group


def static_group(stream: jetsync.Stream, name: str, *, timeout: float = TIMEOUT) -> StaticGroup:
    """
    Return an existing static group.

    Raises:
        GroupNotFoundError: It does not exist.
    """
    group = StaticGroup(stream, name)
    group.settings(timeout=timeout)
    return group


def static_groups(stream: jetsync.Stream, *, timeout: float = TIMEOUT) -> list[str]:
    """
    Return the names of a stream's static groups, sorted.
    """
    return _documents(stream).groups(check_name("stream", stream.name), timeout=timeout)


def _documents(stream: jetsync.Stream) -> Documents[StaticSettings]:
    return Documents(jetsync.JetStream.of(stream), STATIC_BUCKET, StaticSettings)


def _refuse_shared_names(
    documents: Documents[StaticSettings],
    bucket: jetsync.KeyValue,
    group: StaticGroup,
    wanted: StaticSettings,
    timeout: float,
) -> None:
    """Refuse a group whose consumers would have the names of others: ``a-b`` and ``c``, ``a``."""
    own = {durable_of(group.name, member) for member in wanted.names}
    for other in documents.groups(group.stream_name, timeout=timeout):
        try:
            settings = documents.read(bucket, group.stream_name, other, timeout=timeout)
        except (GroupNotFoundError, GroupDocumentError):
            continue
        shared = own & {durable_of(other, member) for member in settings.names}
        if shared:
            reason = f"its consumer {min(shared)!r} would be one of group {other!r}, too"
            raise GroupExistsError(group.stream_name, group.name, reason)
