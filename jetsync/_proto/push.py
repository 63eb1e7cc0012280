"""
The engine of a consumption from a push consumer: it buffers messages and answers flow control.

The server sends messages to the consumer's deliver subject as they come. With flow control, it
sends a request after some of them, and stops when too many bytes follow without an answer. The
engine answers once all messages that arrived before the request were taken. So the server's window
limits the buffer, and a slow application is not sent more. The server knows one request at a time
and ignores answers to others, so the engine keeps the newest one.

While a request is open, the server's heartbeats name it (``Nats-Consumer-Stalled``). If the engine
holds no such request, the request or its answer was lost, and it answers as if the request had just
arrived.

If the server is silent, the engine asks for the consumer's info, because a push consumer is deleted
without a status. It uses no sockets, clocks or threads.

The server numbers the deliveries of a consumer. If nothing acknowledges messages and no other
client gets them, a gap in the numbers shows messages that were lost for good.

See ADR-9 for heartbeats and ADR-15 for push consumers. What servers do was measured on 2.10 to
2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from jetsync import errors
from jetsync._base.integers import LONGEST_DIGITS
from jetsync._proto.buffered import Buffered
from jetsync._proto.consumer_probe import ConsumerProbe, read_gone
from jetsync._proto.origin import Origin, Strays, are_own
from jetsync._proto.status import HEARTBEAT_CODE, read_status
from jetsync.events import PullOutcome
from jetsync.values.ack_subject import parse_ack_reply
from jetsync.values.headers import find_last
from jetsync.values.server_info import decode_json
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._proto.status import Status
    from jetsync.values.frame import Frame

# Seconds of silence after which the consumer is looked for, if it sends no heartbeats.
QUIET: Final = 30.0

# How the subjects of flow control begin. An answer to any other subject could be a request to the
# server, such as one that deletes a stream, on behalf of whoever publishes to the deliver subject.
FLOW_PREFIX: Final = b"$JS.FC."

# How the statuses begin that push consumers act on.
_STATUSES: Final = b"NATS/1.0 100", b"NATS/1.0 409"

_STALLED: Final = b"Nats-Consumer-Stalled"
_LAST_DELIVERY: Final = b"Nats-Last-Consumer"


@attrs.frozen(kw_only=True)
class PushOptions:
    """How a consumption reads a push consumer; checked and complete."""

    stream: str
    consumer: str
    deliver_subject: str
    deliver_group: str | None
    # Seconds that `next` waits by default.
    expires: float
    # Seconds between the consumer's heartbeats; 0 without any.
    heartbeat: float
    # The limits of the buffer; None if flow control limits it.
    max_messages: int | None = None
    max_bytes: int | None = None
    stop_after: int | None = None
    # The consumer's limit of deliveries, with a handler; 0 for no limit, and without a handler.
    max_deliver: int = 0
    # The number of the consumer's last delivery, if a gap means that messages are lost.
    delivered: int | None = None


class PushEngine(Buffered):
    """
    Keep the messages of a push consumer, and decide when to answer the server.

    Args:
        prefix: How the reply subjects of probes start.
        options: The consumer.
    """

    def __init__(self, prefix: bytes, options: PushOptions) -> None:
        super().__init__(ConsumerProbe(prefix), options.stop_after, options.max_deliver)
        self.options = options
        # How many messages are lost for good, by the numbers of the deliveries.
        self.lost_messages: int = 0
        self._subject = options.deliver_subject.encode()
        self._origin = Origin(options.stream, options.consumer)
        # What other clients published to the deliver subject.
        self.strays: Strays = Strays()
        # The same, as far as the thread that reads the socket has dropped it.
        self.sifted: Strays = Strays()
        self._delivered = options.delivered
        # The newest flow control request: how many messages came before it, and its subject.
        self._request: tuple[int, bytes] | None = None
        # When the last frame arrived, or when silence began to count; None while no connection has
        # the subscription.
        self._heard: float | None = None

    @property
    def heartbeat(self) -> float:
        """Seconds between the server's heartbeats; 0 without any."""
        return self.options.heartbeat

    def low_mark(self) -> int:
        """Return at how many buffered messages :meth:`answer_due` has an answer; -1 for none."""
        if self.is_ending:
            # The thread that takes the last message notices the end.
            return 0
        if self._request is None:
            return -1
        return max(self.admitted - self.parked - self._request[0], -1)

    def answer_due(self) -> bytes | None:
        """Return the subject to answer now, because all messages before the request were taken."""
        request = self._request
        if request is None or self.admitted - self.parked - len(self.buffer) < request[0]:
            return None
        return request[1]

    def answered(self) -> None:
        """Note that the answer was sent."""
        self._request = None

    def last_answer(self) -> bytes | None:
        """
        Return the subject to answer at the end, so that the server does not wait for an answer.
        """
        request, self._request = self._request, None
        return None if request is None else request[1]

    def next_look(self) -> float | None:
        """Return when to call :meth:`look` again; None for no such moment."""
        if self.answer_due() is not None:
            # Another thread has taken the last message before the request just now.
            return 0.0
        moments = [self._next_silence()]
        if self.probe.wanted:
            moments.append(self.probe.next_due())
        return min(filter(None, moments), default=None)

    def receive(self, frames: Sequence[Frame], now: float) -> list[tuple[Status, PullOutcome]]:
        """Put the messages of *frames* into the buffer; return each status and its outcome."""
        if self.probe.asked:
            frames, answers = self.probe.take(frames)
            for answer, _ in answers:
                self._learn(answer)
        if not frames:
            return []
        found: list[tuple[Status, PullOutcome]] = []
        if are_own(frames, self._origin.prefix):
            self._accept(frames)
        else:
            before = self.strays.counts["foreign"]
            found = self._receive_mixed(frames)
            if self.strays.counts["foreign"] - before == len(frames):
                return found
        self._heard, self.silent_before, self.excused = now, 0.0, False
        return found

    def sift(self, frames: Sequence[Frame]) -> list[Frame]:
        """Return the frames without those of other clients, for a full mailbox; any thread."""
        kept: list[Frame] = []
        foreign: list[Frame] = []
        for frame in frames:
            (foreign if self.is_foreign(frame) else kept).append(frame)
        self.sifted.note("foreign", foreign)
        return kept

    def is_foreign(self, frame: Frame) -> bool:
        """Return whether another client sent a frame, which is neither message nor status."""
        subject, reply, header, _ = frame
        return (
            subject == self._subject
            and not (header is not None and header.startswith(_STATUSES))
            and not self._origin.sends(reply)
        )

    def look(self, now: float) -> float | None:
        """
        Check for silence; return its seconds if two heartbeats were missed.
        """
        due = self._next_silence()
        if due is None or now < due:
            return None
        assert self._heard is not None
        self.silent_before += now - self._heard
        self._heard = now
        self.probe.want()
        if not self.options.heartbeat:
            return None
        self.misses += 1
        return self.silent_before

    def subscribed(self, now: float) -> None:
        """Note that the connection has the subscription, so that silence counts from now on."""
        if self._heard is None:
            self._heard = now

    @property
    def patience(self) -> float:
        """Seconds without a thread that drives, after which earlier silence does not count."""
        return self.options.heartbeat or QUIET

    def heard_now(self, now: float) -> None:
        """Count silence from now on, if the connection has the subscription."""
        if self._heard is not None:
            self._heard = now

    def lost(self, epoch: int, now: float) -> None:
        """Note that the connection was lost. The server's requests may still be open."""
        super().lost(epoch, now)
        # However long it takes to reconnect, that is no silence of the server.
        self._heard = None

    def _next_silence(self) -> float | None:
        """Return when the silence has lasted too long; None without a subscription."""
        return None if self._heard is None else self._heard + 2.0 * self.patience

    def _receive_mixed(self, frames: Sequence[Frame]) -> list[tuple[Status, PullOutcome]]:
        """Do as :meth:`receive` for a block with statuses, in the order of its frames."""
        messages: list[Frame] = []
        found = []
        for frame in frames:
            if self._origin.sends(frame[1]):
                messages.append(frame)
                continue
            status = self._status_of(frame)
            if status is None:
                self.strays.note("foreign", [frame])
                continue
            self._accept(messages)
            messages = []
            if status.code == HEARTBEAT_CODE:
                self._hear(frame)
            elif status.rule.error is errors.ConsumerDeletedError:
                self.fail(status.error(self.options.stream, self.options.consumer))
                found.append((status, PullOutcome.FAILED))
            else:
                found.append((status, PullOutcome.IGNORED))
        self._accept(messages)
        return found

    def _status_of(self, frame: Frame) -> Status | None:
        """Return the status in a frame that is no message of the consumer; None for others."""
        subject, _, header, _ = frame
        if header is None or subject != self._subject:
            return None
        try:
            return read_status(header)
        except errors.ProtocolError:
            # Any client may publish to the deliver subject.
            return None

    def _hear(self, frame: Frame) -> None:
        """Read a heartbeat, or a request of flow control, which has a reply subject."""
        _, reply, header, _ = frame
        assert header is not None
        asked = reply or find_last(header, _STALLED) or b""
        open_request = self._request
        if is_flow_control(asked) and (open_request is None or open_request[1] != asked):
            self._request = self.admitted, asked
        said = find_last(header, _LAST_DELIVERY) or b""
        if said.isdigit() and len(said) <= LONGEST_DIGITS:
            self._number(int(said), 0)

    def _accept(self, messages: Sequence[Frame]) -> None:
        if not messages:
            return
        if self._delivered is not None:
            newest = parse_ack_reply(messages[-1][1])
            if newest is not None:
                self._number(newest.consumer_sequence, len(messages))
        self.admit(messages)

    def _number(self, newest: int, arrived: int) -> None:
        """Compare the number of the newest delivery with how many messages have arrived."""
        if self._delivered is None:
            return
        self.lost_messages += max(newest - self._delivered - arrived, 0)
        self._delivered = newest

    def _learn(self, answer: Frame) -> None:
        """Read the answer to a probe."""
        options = self.options
        if not answer[3]:
            # No server answers at the moment.
            return
        gone = read_gone(answer[3], options.stream, options.consumer)
        if gone is not None:
            self.fail(gone)
            return
        config = decode_json(answer[3]).get("config")
        if isinstance(config, dict) and (
            config.get("deliver_subject") != options.deliver_subject
            or (config.get("deliver_group") or None) != options.deliver_group
        ):
            self.fail(errors.ConsumptionClosedError(reason="the consumer's delivery was changed"))


def is_flow_control(subject: bytes) -> bool:
    """Return whether *subject* is one that flow control requests are answered to."""
    if not subject.startswith(FLOW_PREFIX):
        return False
    try:
        validate_subject(subject.decode())
    except (UnicodeDecodeError, errors.InvalidSubjectError):
        return False
    return True
