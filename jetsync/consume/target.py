"""
The consumer that pulls are sent to, and what all its fetches and consumptions share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync import errors, events
from jetsync._api.strays import StrayReports
from jetsync._base.log import get_logger
from jetsync._hooks.errors import PluginError
from jetsync._proto.frames import ack_block
from jetsync._proto.origin import Origin
from jetsync.consume.auto_acks import KEEP_NAKS, give_back, nak_body
from jetsync.consume.unwanted_acks import PluginAcks, UnwantedAcks
from jetsync.values.ack_subject import parse_ack_reply
from jetsync.values.consumer_config import AckPolicy
from jetsync.values.message import Message, plain_maker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync._api.context import Context
    from jetsync._hooks.calls import Entered
    from jetsync._io.lane import Lane
    from jetsync._proto.pins import Pins
    from jetsync._proto.pull_request import PullRequest
    from jetsync._proto.status import Status
    from jetsync.consume.pull_feed import PullFeed
    from jetsync.values.frame import Frame
    from jetsync.values.message import Acker

_logger = get_logger("jetsync.pull")


class PullTarget:
    """
    One consumer on the server, as pulls see it.

    Threads: any.
    Locks: none; ``pool`` and ``pins`` change in one step each.

    Args:
        context: The context that messages are pulled and acknowledged through.
        stream: The stream's name.
        consumer: The consumer's name.
        policy: The consumer's ack policy.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        consumer: str,
        policy: AckPolicy | None,
    ) -> None:
        # The feeds of ended fetches, for the next reads.
        self.pool: list[PullFeed] = []
        self.context = context
        self.lane: Lane = context.lane
        self.stream = stream
        self.consumer = consumer
        self.wants_acks: bool = policy is not AckPolicy.NONE
        # Whether each acknowledgement covers all earlier messages.
        self.ack_all: bool = policy is AckPolicy.ALL
        self.pins: Pins = {}
        self.origin: Origin = Origin(stream, consumer)
        self.report_strays: Callable[..., None] = StrayReports(
            context.connection, stream, consumer, acked=self.wants_acks
        ).report
        endpoint = f"{context.prefix}.CONSUMER.%s.{stream}.{consumer}"
        self.subject: bytes = (endpoint % "MSG.NEXT").encode()
        self.info_subject: bytes = (endpoint % "INFO").encode()
        self._unwanted = UnwantedAcks(context.connection)
        acker: Acker = context.connection if self.wants_acks else self._unwanted
        plugins = context.plugins
        self.shows_messages: bool = plugins.received is not None or plugins.ttl_marker is not None
        self.make: Callable[[Frame], Message] = (
            self._shown_maker(acker) if self.shows_messages else plain_maker(Message, acker)
        )

    def renew_lane(self) -> None:
        """Raise if the client is closed. In a forked child, use the lane of its connection."""
        self.context.connection.check()
        self.lane = self.context.lane

    def enter(self, name: str, request: PullRequest, timeout: float) -> Entered:
        """Enter the plugins that wrap fetches, for one pull; only if there are any."""
        enter_fetch = self.context.plugins.enter_fetch
        assert enter_fetch is not None
        operation = events.FetchOperation(
            name=name,  # type: ignore[arg-type]
            stream=self.stream,
            consumer=self.consumer,
            max_messages=request.max_messages,
            max_bytes=request.max_bytes,
            expires=None if request.no_wait else request.expires,
            heartbeat=request.heartbeat,
            group=request.priorities.group,
            timeout=timeout,
        )
        return enter_fetch(operation)

    def give_back(self, frames: Iterable[Frame]) -> None:
        """Have the server redeliver messages that were not taken; never waits."""
        if self.wants_acks:
            give_back(self.lane, frames)

    def report_ignored_ack(self) -> None:
        """Report once that the consumer takes no acks, although the application asks for them."""
        self._unwanted.report(errors.AcksNotWantedError(self.consumer, stream=self.stream))

    def report_status(self, status: Status, outcome: events.PullOutcome) -> None:
        """Report the status of a pull, and what follows from it, to the log and the plugins."""
        fields = {
            "stream": self.stream,
            "consumer": self.consumer,
            "code": status.code,
            "description": status.description,
        }
        _logger.debug("pull_status", **fields)
        if self.context.plugins.status is not None:
            event = events.PullStatusEvent(
                **fields,  # type: ignore[arg-type]
                outcome=outcome,
                pending_messages=status.pending_messages,
                pending_bytes=status.pending_bytes,
            )
            self.context.plugins.status(event)

    def report_silence(self, heartbeat: float, silent_for: float) -> None:
        """Report to the plugins that two heartbeats were missed."""
        if self.context.plugins.status is not None:
            event = events.HeartbeatMissedEvent(
                stream=self.stream,
                consumer=self.consumer,
                heartbeat=heartbeat,
                silent_for=silent_for,
            )
            self.context.plugins.status(event)

    def _shown_maker(self, acker: Acker) -> Callable[[Frame], Message]:
        """
        Return the function that makes the message of a frame and shows it to the plugins.

        A message that a plugin refuses is nakked, because the caller never gets it.
        """
        context, acked = self.context, self.wants_acks
        shown: Acker = PluginAcks(context.connection) if self.ack_all else acker
        received, marked = context.plugins.received, context.plugins.ttl_marker

        def make(frame: Frame) -> Message:
            message = original = Message(*frame, shown)
            try:
                if marked is not None and message.marker is not None:
                    marked(message, message.marker)
                if received is not None:
                    message = received(message)
            except PluginError:
                parsed = parse_ack_reply(frame[1])
                if acked and parsed is not None:
                    block = ack_block([frame[1]], nak_body(parsed.delivered))
                    context.lane.post_nowait(block, keep=KEEP_NAKS)
                raise
            if shown is not acker and getattr(original, "_acker", None) is shown:
                original._acker = acker  # noqa: SLF001 - the plugins are done with it.
            return message

        return make
