"""
Where pulls are answered: one subscription with its mailbox and its pull engine.

A consumer keeps the inboxes that are idle and lends one to each fetch; a consumption has one of its
own. An inbox that is given up
with a pull open gives back what still arrives, so that no message waits for its ``ack_wait``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from jetsync._io.mailbox import Mailbox
from jetsync._proto import frames
from jetsync._proto.pull import PullEngine
from jetsync.errors import AcksNotWantedError, ConflictingUseError, JetSyncError
from jetsync.values.message import IN_PROGRESS, NAK, Message
from jetsync.values.subjects import ACK_PREFIX, parse_ack_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync._io.connection import Connection
    from jetsync._io.lane import Lane
    from jetsync._proto.pull import Pull, PullRequest
    from jetsync.values.frame import Frame
    from jetsync.values.message import Acker

LINGER: Final = 5.0
"""Seconds for which messages that still arrive for an abandoned pull are given back."""


KEPT_REFUSALS: Final = 30.0
"""
Seconds for which refusals wait for a connection: the ack wait that servers choose by themselves,
after which they deliver a message again without being asked to.
"""


LONGEST_NAK_DELAY: Final = 30.0
"""Seconds after which a message that fails again and again is delivered once more, at most."""


class PullInbox:
    """
    The subscription that pulls are answered on, with its mailbox and its engine.

    Lent to one batch at a time.
    """

    __slots__ = ("_context", "_line", "_sid", "box", "engine")

    def __init__(self, context: Context) -> None:
        inbox = context.connection.new_inbox().encode()
        self._context = context
        self.box = Mailbox(inbox + b".*", collect_denials=True)
        self.engine = PullEngine(inbox)
        self._sid, self._line = context.connection.listen(self.box)

    def pull(self, subject: bytes, request: PullRequest, deadline: Deadline) -> None:
        """Send one pull; raises what the lane's write does, with nothing sent."""
        # What was refused while the inbox lay idle concerned others.
        self.box.take_denials()
        self.send(subject, request, deadline)

    def send(self, subject: bytes, request: PullRequest, deadline: Deadline) -> Pull:
        """Send one pull of perhaps many and return it; raises as :meth:`pull`."""
        pull = self.engine.open(request, time.monotonic())
        block = self._line + frames.pub(subject, pull.subject, request.wire)
        try:
            pull.epoch = self._context.lane.write(block, deadline)
        except BaseException:
            self.engine.cancel(pull)
            raise
        self._line = b""
        if self._context.lane.lost_epoch >= pull.epoch:
            self.box.lost(self._context.lane.lost_epoch)
        return pull

    def abandon(self, unused: Iterable[Frame], *, acked: bool = True) -> None:
        """
        Give up with a pull still open: unsubscribe and give back what nobody took.

        Messages that are on their way arrive for some seconds more; they are given back as they
        come, so that none waits for its ``ack_wait``. Never waits.

        Args:
            unused: What has come and was not taken.
            acked: Whether the consumer wants acknowledgements; otherwise nothing is given back.
        """
        lane, box = self._context.lane, self.box
        if not acked:
            lane.unsubscribe(self._sid)
            return
        box.push = lambda frame: give_back(lane, (frame,))
        # Unsubscribed first: otherwise the server gives what it gets back to this very pull.
        lane.unsubscribe(self._sid, grace=LINGER)
        give_back(lane, unused)
        # What came before the push was changed.
        give_back(lane, box.drain())

    def close(self) -> None:
        """Unsubscribe while no pull is open."""
        self._context.lane.unsubscribe(self._sid)


def take_inbox(pool: list[PullInbox], context: Context) -> PullInbox:
    """Return an idle inbox of *pool*, or a new one. Any thread."""
    try:
        return pool.pop()
    except IndexError:
        # Not asked before: between the look and the taking another thread may take the last one.
        return PullInbox(context)


class LimitedAcks:
    """
    The acker of messages that can not be ended in the ordinary way; what waits for the server's
    confirmation raises.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def acknowledge_sync(
        self,
        message: Message,
        body: bytes,  # noqa: ARG002 - as an Acker has it.
        timeout: Seconds | None,  # noqa: ARG002 - likewise.
    ) -> None:
        """Refuse: nobody would confirm it, or nobody may ask for it."""
        raise self.error(message)

    def error(self, message: Message) -> JetSyncError:
        """Make the error that names the consumer."""
        raise NotImplementedError


class UnwantedAcks(LimitedAcks):
    """
    The acker of messages whose consumer wants no acknowledgements.

    Servers take such a message for done once it was sent. An ``ack()`` therefore does no harm, and
    nothing either; what waits for a confirmation would wait for nobody.
    """

    __slots__ = ()

    def acknowledge(self, message: Message, body: bytes) -> None:
        """Send it all the same."""
        self._connection.acknowledge(message, body)

    def error(self, message: Message) -> AcksNotWantedError:
        """Make the error that names the consumer."""
        metadata = message.metadata
        return AcksNotWantedError(metadata.consumer, stream=metadata.stream)


class PluginAcks(LimitedAcks):
    """
    The acker of a message that plugins look at, whose acknowledgement is one of all before it too.

    What a plugin refuses must not take along what others are still at.
    """

    __slots__ = ()

    def acknowledge(self, message: Message, body: bytes) -> None:
        """Send what gives a message back or keeps it, refuse what ends it."""
        if not body.startswith((NAK, IN_PROGRESS)):
            raise self.error(message)
        self._connection.acknowledge(message, body)

    def error(self, message: Message) -> ConflictingUseError:
        """Make the error that names the consumer."""
        return ConflictingUseError(
            f"a plugin can not end a message of consumer {message.metadata.consumer!r}: as its "
            "ack_policy is 'all', that would end all messages before it too"
        )


def message_maker(
    context: Context, *, acked: bool = True, ack_all: bool = False
) -> Callable[[Frame], Message]:
    """
    Return what makes the message of a frame, plugins included where some look at messages.

    One that a plugin refuses is given back, as nobody else will ever have it to acknowledge.

    Args:
        context: Where messages are acknowledged.
        acked: Whether their consumer wants acknowledgements.
        ack_all: Whether each of them is one of all messages before it too.
    """
    plugins = context.plugins
    acker: Acker = context.connection if acked else UnwantedAcks(context.connection)
    shown: Acker = PluginAcks(context.connection) if ack_all else acker
    received, marked = plugins.received, plugins.ttl_marker

    def make(frame: Frame) -> Message:
        return Message(frame[0], frame[1], frame[2], frame[3], acker)

    def make_observed(frame: Frame) -> Message:
        # As above, but for the price of a call.
        message = Message(frame[0], frame[1], frame[2], frame[3], shown)
        try:
            if marked is not None and message.marker is not None:
                marked(message, message.marker)
            return message if received is None else received(message)
        except BaseException:
            if acked:
                _refuse(context.lane, frame)
            raise

    def make_in_order(frame: Frame) -> Message:
        message = make_observed(frame)
        if isinstance(getattr(message, "_acker", None), PluginAcks):
            message._acker = acker  # noqa: SLF001 - plugins are done with it.
        return message

    if received is None and marked is None:
        return make
    return make_in_order if ack_all else make_observed


def give_back(lane: Lane, unused: Iterable[Frame]) -> None:
    """
    Refuse messages that nobody took, so that they are delivered again at once; never waits.

    Without a connection they are refused on the next one, if that is soon enough.
    """
    replies = [frame[1] for frame in unused if frame[1].startswith(ACK_PREFIX)]
    if replies:
        block = b"".join([frames.pub(reply, b"", NAK) for reply in replies])
        lane.post_nowait(block, keep=KEPT_REFUSALS)


def _refuse(lane: Lane, frame: Frame) -> None:
    """Refuse one message that failed; never waits."""
    said = parse_ack_reply(frame[1])
    if said is not None:
        lane.post_nowait(frames.pub(frame[1], b"", refusal(said.delivered)), keep=KEPT_REFUSALS)


def refusal(delivered: int) -> bytes:
    """
    Return what refuses a message that failed when it was delivered for the so-manieth time.

    At once the first time, later on after a growing pause: one that always fails must not keep
    anybody busy.
    """
    if delivered < 2:
        return NAK
    delay = min(2.0 ** min(delivered - 2, 10), LONGEST_NAK_DELAY)
    return b'%b {"delay": %d}' % (NAK, round(delay * 1e9))
