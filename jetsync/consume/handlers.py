"""
The threads that call a consumption's handler.

Each worker takes a message, calls the handler, and sees to the acknowledgement and to what the
handler raised. With order by subject, taking and noting whose turn it is are one step; a message
whose subject is being worked on waits behind it, and counts as one that was not taken yet.

Guarantees
- Nothing that a handler raises ends a worker, unless it means to end the program or the policy says
  so.
- The consumption has ended once the last handler has returned.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import attrs

from jetsync import events
from jetsync._base import log as _log
from jetsync._base.locks import Latch, keep_interrupts
from jetsync._proto.pull import message_size
from jetsync.consume.inbox import refusal
from jetsync.errors import JetSyncError, NotJetStreamMessageError
from jetsync.values.message import ACK, Message

if TYPE_CHECKING:
    from jetsync.consume.consumption import Consumption
    from jetsync.values.frame import Frame

THREAD_NAME: Final = "jetsync-consume"

KEEP_ALIVE_STEPS: Final = 8
"""How many times during one ack wait there is a look at whether messages have to be kept alive."""

KEEP_ALIVE_AT: Final = 3
"""
After how many of these looks they are: twice within one ack wait, so that one may come late.
"""

_logger = _log.get_logger("jetsync.consume")


@attrs.frozen(kw_only=True)
class HandlerOptions:
    """
    How a handler is called.
    """

    handler: Callable[[Message], object]
    threads: int = 1
    ordered_by: Literal["subject"] | None = None
    on_error: Literal["nak", "leave", "stop"] = "nak"
    auto_ack: bool = False
    acked: bool = True
    """Whether the consumer wants acknowledgements at all."""

    keep_alive: float | None = None
    """The consumer's ack wait, if it is to be started anew for messages that are here for long."""


class HandlerPool:
    """
    The workers of one consumption, and the thread that keeps their messages alive.
    """

    def __init__(self, source: Consumption, options: HandlerOptions) -> None:
        self._source = source
        self._options = options
        self._lock = threading.RLock()
        """Guards all that follows; held for moments only. A signal handler may enter it again."""

        self._running: dict[int, bytes] = {}
        """The reply subject of the message that each worker is at, where it is kept alive."""

        self._queues: dict[bytes, deque[Frame]] = {}
        """What waits behind the message of a subject that is being worked on."""

        self._taking = threading.Lock()
        """Workers hold it while they take a message and note its turn, for the order."""

        self._idents: set[int] = set()
        self._open = options.threads
        self.done = Latch()
        """Set once the last handler has returned."""

    def start(self) -> None:
        """Start the threads."""
        names = [f"{THREAD_NAME}-{number}" for number in range(1, self._options.threads + 1)]
        threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        if self._options.keep_alive:
            name = f"{THREAD_NAME}-alive"
            threads.append(threading.Thread(target=self._keep_alive, name=name, daemon=True))
        with keep_interrupts():
            for thread in threads:
                thread.start()

    def is_own_thread(self) -> bool:
        """Return whether the calling thread is a worker."""
        return threading.get_ident() in self._idents

    def give_back_waiting(self) -> None:
        """Give back what waits behind the message of its subject, as it is over for all of them."""
        waiting: list[Frame] = []
        with self._lock:
            for queue in list(self._queues.values()):
                while queue:
                    waiting.append(queue.popleft())
        self._source.give_back(waiting)

    def after_fork(self) -> None:
        """Learn that this process is a forked child, where no worker exists. Takes no lock."""
        self._lock = threading.RLock()
        self._taking = threading.Lock()
        self._idents = set()
        self._queues = {}
        self.done = Latch()
        self.done.set()

    # The workers.

    def _work(self) -> None:
        with self._lock:
            self._idents.add(threading.get_ident())
        take = self._take if self._options.ordered_by is None else self._take_in_order
        try:
            while (frame := take()) is not None:
                self._handle(frame)
        except JetSyncError as error:
            # The client is closed, or this is a forked child: no worker can go on.
            self._source.fail(error)
        finally:
            with self._lock:
                self._idents.discard(threading.get_ident())
                self._open -= 1
                last = not self._open
            if last:
                self._tell_end()
                self.done.set()

    def _tell_end(self) -> None:
        """Log why it ended, as nobody iterates who would see it."""
        why = self._source.error
        if why is not None:
            _logger.warning(_log.CONSUMPTION_ENDED, error=repr(why))

    def _take(self) -> Frame | None:
        frame = self._source.take_frame(None)
        self._source.refill_if_low()
        return frame

    def _take_in_order(self) -> Frame | None:
        """Return the next message of a subject that nobody is at, None at the end."""
        while True:
            queue = None
            with self._taking:
                frame = self._source.take_now()
                if frame is not None:
                    with self._lock:
                        queue = self._queues.get(frame[0])
                        if queue is None:
                            self._queues[frame[0]] = deque()
                        else:
                            queue.append(frame)
                    if queue is not None:
                        self._source.set_aside(1, message_size(frame))
            if frame is None:
                if not self._source.wait_for_frame(None):
                    return None
                continue
            self._source.refill_if_low()
            if queue is None:
                return frame

    def _next_of(self, subject: bytes) -> Frame | None:
        """Return what waits behind the message of a subject that was handled, None if nothing."""
        with self._lock:
            queue = self._queues[subject]
            if not queue:
                del self._queues[subject]
                return None
            frame = queue.popleft()
        self._source.set_aside(-1, -message_size(frame))
        return frame

    def _handle(self, frame: Frame | None) -> None:
        """Handle one message, and what waits behind it."""
        while frame is not None:
            if self._source.is_stopping:
                self._source.give_back([frame])
            else:
                self._call(frame)
            frame = None if self._options.ordered_by is None else self._next_of(frame[0])

    def _call(self, frame: Frame) -> None:
        """Call the handler; raises nothing."""
        if not self._options.keep_alive:
            self._call_handler(frame)
            return
        ident = threading.get_ident()
        with self._lock:
            self._running[ident] = frame[1]
        try:
            self._call_handler(frame)
        finally:
            with self._lock:
                del self._running[ident]

    def _call_handler(self, frame: Frame) -> None:
        options = self._options
        try:
            message = self._source.make(frame)
        except Exception as error:  # noqa: BLE001 - a plugin refuses this message, mostly only this.
            self._report(error, None)
            self._source.refused(error)
            return
        try:
            options.handler(message)
        except Exception as error:  # noqa: BLE001 - whatever it is, others wait to be handled.
            self._failed(message, error)
        except BaseException as error:  # noqa: BLE001 - somebody wants the program to end.
            self._report(error, message)
            self._source.fail(error)
            self._source.stop()
        else:
            if options.auto_ack:
                self._answer(message, ACK)

    def _failed(self, message: Message, error: Exception) -> None:
        """Act on what a handler raised, as the policy says."""
        policy = self._options.on_error
        self._report(error, message)
        if policy == "leave":
            return
        with contextlib.suppress(NotJetStreamMessageError):
            self._answer(message, refusal(message.metadata.delivered))
        if policy == "stop":
            self._source.fail(error)
            self._source.stop()

    def _answer(self, message: Message, body: bytes) -> None:
        """Acknowledge or refuse a message, unless its handler did so."""
        if self._options.acked and not message.is_acked:
            self._source.answer(message, body)

    def _report(self, error: BaseException, message: Message | None) -> None:
        """Tell the log and the plugins."""
        options = self._source.options
        subject = sequence = None
        if message is not None:
            subject = message.subject
            with contextlib.suppress(NotJetStreamMessageError):
                sequence = message.sequence
        _logger.error(
            _log.HANDLER_FAILED,
            stream=options.stream,
            consumer=options.consumer,
            subject=subject,
            sequence=sequence,
            exc_info=error,
        )
        self._source.tell(
            events.HandlerErrorEvent(
                stream=options.stream,
                consumer=options.consumer,
                error=error,
                subject=subject,
                sequence=sequence,
            )
        )

    # The thread that keeps messages alive.

    def _keep_alive(self) -> None:
        """
        Start the ack wait of all that is here anew, often enough that none runs out.

        It runs from the delivery on, so what waits in the buffer or behind another message of its
        subject needs that as much as what a handler is at. So it does after a reconnect.
        """
        wait = self._options.keep_alive
        assert wait
        epoch, steps = self._source.epoch, 0
        while not self.done.wait(wait / KEEP_ALIVE_STEPS):
            steps += 1
            if steps < KEEP_ALIVE_AT and epoch == self._source.epoch:
                continue
            epoch, steps = self._source.epoch, 0
            with self._lock:
                replies = list(self._running.values())
                replies += [frame[1] for queue in self._queues.values() for frame in queue]
            self._source.prolong(replies)
