"""
Elastic groups: members can be added and removed while others consume.

An elastic group has a stream of its own, a work queue that copies the messages of the original
stream and puts the partition in front of their subjects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_groups.documents import ElasticSettings, PartitionBy, as_mappings, as_names
from jetsync_groups.errors import GroupError, GroupExistsError, GroupNotFoundError
from jetsync_groups.member import DEFAULT_ACK_WAIT, Member, member_of
from jetsync_groups.names import ELASTIC_BUCKET, PRIORITY_GROUP, buffer_of, check_name, key_of
from jetsync_groups.partitions import whole
from jetsync_groups.store import Documents, require_same

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["ElasticGroup", "create_elastic_group", "elastic_group", "elastic_groups"]

TIMEOUT: Final = 5.0
"""Seconds for a call, by default."""


class ElasticGroup:
    """
    An elastic group; made by :func:`create_elastic_group` or :func:`elastic_group`.

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
        return f"<ElasticGroup {self._stream}/{self._name}>"

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

    @property
    def buffer_name(self) -> str:
        """
        The name of the group's own stream, ``<stream>-<group>``. It has the messages that no member
        has acknowledged.
        """
        return buffer_of(self._stream, self._name)

    def settings(self, *, timeout: float = TIMEOUT) -> ElasticSettings:
        """
        Return the current settings.
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
        Return the names of the members that have a consumer now, sorted.

        The server deletes the consumer of a member that stopped or died after its ``ack_wait``.
        """
        known = set(self.members(timeout=timeout))
        buffer = self._js.stream(self.buffer_name, lookup=False)
        return tuple(sorted(known & set(buffer.consumer_names(timeout=timeout))))

    def add_members(self, *names: str, timeout: float = TIMEOUT) -> tuple[str, ...]:
        """
        Add members, and return all of them. Those that the group has already are not an error.

        If another process changes the group at the same moment, the change is tried again. Only the
        first ``max_members`` names in sorted order get partitions.

        Raises:
            GroupError: The group has mappings.
            PublishOutcomeUnknownError: The change may have been stored. It can be repeated.
        """
        added = as_names("names", names)

        def add(settings: ElasticSettings) -> ElasticSettings:
            self._refuse_mappings(settings)
            found = dict.fromkeys((*settings.members, *added))
            return attrs.evolve(settings, members=tuple(found))

        return self._documents.change(self._stream, self._name, add, timeout=timeout).names

    def drop_members(self, *names: str, timeout: float = TIMEOUT) -> tuple[str, ...]:
        """
        Remove members, and return the others. Those that the group does not have are no error.

        A member that is running finishes its message, and waits until it is added again.

        Raises: as :meth:`add_members`.
        """
        dropped = as_names("names", names)

        def drop(settings: ElasticSettings) -> ElasticSettings:
            self._refuse_mappings(settings)
            left = tuple(each for each in settings.members if each not in dropped)
            return attrs.evolve(settings, members=left)

        return self._documents.change(self._stream, self._name, drop, timeout=timeout).names

    def set_mappings(
        self, mappings: Mapping[str, Iterable[int]] | None, *, timeout: float = TIMEOUT
    ) -> None:
        """
        Choose the partitions of each member, instead of an even share.

        This replaces the members. Mapped members take all subjects of their partitions.

        Args:
            mappings: The partitions of each member. Each partition needs one member. ``None``
                removes the mappings: the group then has no members until some are added.
            timeout: Seconds for each request.

        Raises:
            InvalidArgumentError: A partition is missing or has two members, or is too high.
            PublishOutcomeUnknownError: The change may have been stored. It can be repeated.
        """
        wanted = as_mappings(mappings)

        def replace(settings: ElasticSettings) -> ElasticSettings:
            if not wanted:
                return attrs.evolve(settings, mappings=())
            return attrs.evolve(settings, members=(), mappings=wanted)

        self._documents.change(self._stream, self._name, replace, timeout=timeout)

    def step_down(self, member: str, *, timeout: float = TIMEOUT) -> None:
        """
        Let another process that consumes as this member get its messages.

        The process before finishes the messages that it has. With ``max_ack_pending`` above 1, both
        may work on one key until then.

        Raises:
            ConsumerNotFoundError: No process consumes as this member.
        """
        buffer = self._js.stream(self.buffer_name, lookup=False)
        buffer.unpin_consumer(check_name("member", member), PRIORITY_GROUP, timeout=timeout)

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

        All processes of a member need the same *ack_wait* and *max_ack_pending*, also those in Go.

        Args:
            member: The name of the member.
            ack_wait: Seconds after which the messages of a process that died are redelivered, from
                2. Another process of the member takes over after this time.
            max_ack_pending: The most messages in progress. 1 keeps the order of each key even if a
                message is redelivered, and costs a round trip for each message. Default: the
                server's, 1000. The order then only holds until a message is redelivered.
            timeout: Seconds for each request of the member.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is not valid.
        """
        return member_of(
            self._js,
            self._stream,
            self._name,
            member,
            source=self._js.stream(self.buffer_name, lookup=False),
            consumer_name=member,
            is_static=False,
            documents=self._documents,
            ack_wait=ack_wait,
            max_ack_pending=max_ack_pending,
            timeout=timeout,
        )

    def delete(self, *, timeout: float = TIMEOUT) -> None:
        """
        Delete the group and its stream. Members that run end without an error.

        Messages that no member has acknowledged are still in the original stream, if that has not
        removed them. Repeat the call if it fails.

        Raises:
            GroupNotFoundError: Neither the group nor its stream exists.
        """
        is_missing = False
        try:
            bucket = self._documents.open(self._stream, self._name, timeout=timeout)
            self._documents.read(bucket, self._stream, self._name, timeout=timeout)
        except GroupNotFoundError:
            is_missing = True
        else:
            bucket.delete(key_of(self._stream, self._name), timeout=timeout)
        try:
            self._js.delete_stream(self.buffer_name, timeout=timeout)
        except jetsync.StreamNotFoundError:
            if is_missing:
                raise GroupNotFoundError(self._stream, self._name, "it does not exist") from None

    def _refuse_mappings(self, settings: ElasticSettings) -> None:
        if settings.mappings:
            reason = "it has mappings. Change them with set_mappings, or remove them first"
            raise GroupError(self._stream, self._name, reason)


def create_elastic_group(
    stream: jetsync.Stream,
    name: str,
    *,
    max_members: int,
    partition_by: Iterable[tuple[str, Iterable[int]] | PartitionBy] = (),
    max_buffered_messages: int | None = None,
    max_buffered_bytes: int | None = None,
    timeout: float = TIMEOUT,
) -> ElasticGroup:
    """
    Create an elastic group and its stream, or find the same one.

    Args:
        stream: The stream whose messages the group gets. Its retention must not be ``interest``.
        name: The name of the group: letters, digits, ``-``, ``_`` and ``=``.
        max_members: The number of partitions, which cannot be changed. The highest number of
            members that get messages.
        partition_by: Filters, each with the wildcards that make the key, such as
            ``[("orders.*.*", [1])]``. Without wildcards, the whole subject is the key. Default: all
            messages, by their whole subjects.
        max_buffered_messages: The most messages in the group's stream. Sourcing pauses for at least
            a second when it is full. Default: no limit.
        max_buffered_bytes: The same in bytes.
        timeout: Seconds for each request.

    Raises:
        GroupExistsError: The group exists with other settings, or another stream has the name
            ``<stream>-<name>``.
        InvalidArgumentError, InvalidTypeError: An argument is not valid.
        StreamNotFoundError: The stream does not exist.
    """
    group = ElasticGroup(stream, name)
    for argument, value in (
        ("max_buffered_messages", max_buffered_messages),
        ("max_buffered_bytes", max_buffered_bytes),
    ):
        if value is not None:
            whole(argument, value)
    wanted = ElasticSettings(
        max_members,
        tuple(_rule(each) for each in partition_by),
        max_buffered_messages,
        max_buffered_bytes,
    )
    js = jetsync.JetStream.of(stream)
    documents = _documents(stream)
    origin = stream.info(timeout=timeout).config
    if origin.retention is jetsync.RetentionPolicy.INTEREST:
        text = f"stream {stream.name!r} has retention 'interest', so a group would miss messages"
        raise jetsync.InvalidArgumentError(text, argument="stream")
    bucket = documents.create_bucket(origin.num_replicas or 1, timeout=timeout)
    try:
        found = documents.read(bucket, stream.name, name, timeout=timeout)
    except GroupNotFoundError:
        pass
    else:
        require_same(stream.name, name, found, wanted)
    # The stream comes first, so that a group whose document exists can be joined.
    try:
        js.create_stream(_buffer(wanted, stream.name, name, origin), timeout=timeout)
    except jetsync.StreamNameInUseError as error:
        reason = f"stream {group.buffer_name!r} exists with other settings"
        raise GroupExistsError(stream.name, name, reason) from error
    documents.create(bucket, stream.name, name, wanted, timeout=timeout)
    return group


def elastic_group(stream: jetsync.Stream, name: str, *, timeout: float = TIMEOUT) -> ElasticGroup:
    """
    Return an existing elastic group.

    Raises:
        GroupNotFoundError: It does not exist.
    """
    group = ElasticGroup(stream, name)
    group.settings(timeout=timeout)
    return group


def elastic_groups(stream: jetsync.Stream, *, timeout: float = TIMEOUT) -> list[str]:
    """
    Return the names of a stream's elastic groups, sorted.
    """
    return _documents(stream).groups(check_name("stream", stream.name), timeout=timeout)


def _documents(stream: jetsync.Stream) -> Documents[ElasticSettings]:
    return Documents(jetsync.JetStream.of(stream), ELASTIC_BUCKET, ElasticSettings)


def _rule(given: object) -> PartitionBy:
    if isinstance(given, PartitionBy):
        return given
    if not isinstance(given, tuple | list) or len(given) != 2:
        text = f"partition_by has {given!r}: give pairs such as ('orders.*', [1])"
        raise jetsync.InvalidTypeError(text, argument="partition_by")
    return PartitionBy(*given)


def _buffer(
    wanted: ElasticSettings, stream: str, group: str, origin: jetsync.StreamConfig
) -> jetsync.StreamConfig:
    """Return the configuration of a group's stream, equal to that of orbit.go."""
    rules = wanted.partition_by or (PartitionBy(">"),)
    source = jetsync.StreamSource(
        name=stream,
        subject_transforms=[
            jetsync.SubjectTransform(each.filter, each.destination(wanted.max_members))
            for each in rules
        ],
    )
    return jetsync.StreamConfig(
        name=buffer_of(stream, group),
        retention="workqueue",
        discard="new",
        storage=origin.storage,
        num_replicas=origin.num_replicas,
        max_msgs=wanted.max_buffered_messages or -1,
        max_bytes=wanted.max_buffered_bytes or -1,
        allow_direct=True,
        sources=[source],
    )
