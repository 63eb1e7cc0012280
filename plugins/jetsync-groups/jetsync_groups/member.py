"""
A member of a group, before it consumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync
from jetsync_groups.consumption import GroupConsumption
from jetsync_groups.dead_letters import DeadLetters
from jetsync_groups.errors import NotAMemberError
from jetsync_groups.names import check_name, key_of
from jetsync_groups.partitions import whole
from jetsync_groups.store import Documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync_groups.documents import ElasticSettings, StaticSettings

__all__ = ["Member"]

DEFAULT_ACK_WAIT: Final = 5.0
"""Seconds, as in orbit.go."""


@attrs.frozen(kw_only=True)
class Plan:
    """
    What a consumption needs to know about its group.
    """

    js: jetsync.JetStream
    stream: str
    group: str
    member: str
    source: jetsync.Stream
    """The stream that the member's consumer reads."""
    consumer_name: str
    is_static: bool
    documents: Documents[Any]
    ack_wait: float
    max_ack_pending: int | None
    timeout: float

    def parse(self, data: bytes) -> ElasticSettings | StaticSettings:
        """
        Return the settings in a document of the group.
        """
        found: ElasticSettings | StaticSettings = self.documents.parse(
            self.stream, self.group, data
        )
        return found

    def may_change(self, found: Any, wanted: Any) -> bool:
        """
        Return whether members can go on after this change of the settings.
        """
        return bool(found.is_same_group(wanted))


class Member:
    """
    One member of a group; made by ``join``. Joining sends nothing: :meth:`consume` does.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __repr__(self) -> str:
        plan = self._plan
        return f"<Member {plan.stream}/{plan.group} {plan.member!r}>"

    def consume(
        self,
        handler: Callable[[jetsync.Message], object],
        *,
        max_messages: int = 100,
        dead_letter: str | None = None,
        max_deliver: int | None = None,
    ) -> GroupConsumption:
        """
        Call a handler with each message of the member's partitions, in a thread.

        The handler gets one message at a time, with the subject that was published. The message is
        acknowledged when it returns. If it raises an exception, the message is redelivered:
        immediately the first time, then after 1, 2, 4, ... seconds, at most 30. Its ``ack_wait`` is
        renewed while the handler runs, however long that takes. To use more threads, run more
        members.

        An elastic member that the group does not have yet waits until it is added. Several
        processes may consume as the same member: one of them gets the messages, and another one
        takes over if it is silent.

        Args:
            handler: Called with each message.
            max_messages: How many messages to have in this process, at least 2, so that the server
                sees a pull while the handler runs. ``max_ack_pending`` limits them, too.
            dead_letter: A subject, in another stream, for copies of messages that are given up: if
                the handler raises ``jetsync.DeadLetter``, or after *max_deliver* deliveries. The
                message is terminated after its copy is stored. The copy names the original stream,
                sequence and subject, and ``jetsync.replay`` puts it back.
            max_deliver: Give a message up after this many deliveries, including those whose worker
                died. The count begins again if the member gets other partitions. Needs
                *dead_letter*. Default: no limit.

        Raises:
            GroupNotFoundError, GroupDocumentError: The group does not exist, or cannot be read.
            NotAMemberError: A static group does not have the member.
            InvalidArgumentError, InvalidTypeError: An argument is not valid.
            NoStreamResponseError: No stream stores *dead_letter*.
            RequestTimeoutError, DisconnectedError: There was no answer in time.
        """
        plan = self._plan
        if not callable(handler):
            raise jetsync.InvalidTypeError("handler must be callable", argument="handler")
        jetsync.check_function("handler", handler)
        whole("max_messages", max_messages, 2)
        if max_deliver is not None:
            whole("max_deliver", max_deliver)
            if dead_letter is None:
                text = "max_deliver needs dead_letter: where should the messages go?"
                raise jetsync.InvalidArgumentError(text, argument="max_deliver")
        letters = None
        if dead_letter is not None:
            self._check_target(dead_letter)
            letters = DeadLetters(
                plan.js, plan.stream, plan.group, plan.member, dead_letter, max_deliver
            )
        bucket = plan.documents.open(plan.stream, plan.group, timeout=plan.timeout)
        settings = plan.documents.read(bucket, plan.stream, plan.group, timeout=plan.timeout)
        if plan.is_static and plan.member not in settings.names:
            raise NotAMemberError(plan.stream, plan.group, f"it has no member {plan.member!r}")
        watch = bucket.watch(key_of(plan.stream, plan.group), timeout=plan.timeout)
        try:
            return GroupConsumption(
                plan, handler, letters, settings=settings, watch=watch, max_messages=max_messages
            )
        except BaseException:
            watch.close()
            raise

    def _check_target(self, subject: str) -> None:
        plan = self._plan
        try:
            found = plan.js.stream_name_by_subject(subject, timeout=plan.timeout)
        except jetsync.StreamNotFoundError:
            raise jetsync.NoStreamResponseError(subject, argument="dead_letter") from None
        if found in {plan.stream, plan.source.name}:
            text = f"dead_letter {subject!r} is in stream {found!r}: give one of another stream"
            raise jetsync.InvalidArgumentError(text, argument="dead_letter")


def _check_seconds(ack_wait: object) -> None:
    if not isinstance(ack_wait, int | float) or isinstance(ack_wait, bool):
        raise jetsync.InvalidTypeError("ack_wait must be seconds", argument="ack_wait")


def member_of(
    js: jetsync.JetStream,
    stream: str,
    group: str,
    member: str,
    *,
    source: jetsync.Stream,
    consumer_name: str,
    is_static: bool,
    documents: Documents[Any],
    ack_wait: float,
    max_ack_pending: int | None,
    timeout: float,
) -> Member:
    """
    Check the options of ``join``, and return the member.
    """
    check_name("member", member)
    _check_seconds(ack_wait)
    if not 2 <= ack_wait < 24 * 3600:
        # Below, a member is replaced between two pulls.
        text = f"ack_wait must be from 2 seconds to a day, not {ack_wait}"
        raise jetsync.InvalidArgumentError(text, argument="ack_wait")
    if max_ack_pending is not None:
        whole("max_ack_pending", max_ack_pending)
    return Member(
        Plan(
            js=js,
            stream=stream,
            group=group,
            member=member,
            source=source,
            consumer_name=consumer_name,
            is_static=is_static,
            documents=documents,
            ack_wait=float(ack_wait),
            max_ack_pending=max_ack_pending,
            timeout=timeout,
        )
    )
