"""
The threads that call a consumption's handler.

Each worker takes a message, calls the handler, and acknowledges or naks the message. With
``ordered_by="subject"``, a message is *parked* while another message of its subject is being
handled. A parked message counts as one that was not taken yet.

Guarantees
- An exception in a handler does not end a worker, unless it is meant to end the program or
  ``on_error`` says so.
- The consumption has ended once the last handler has returned.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from jetsync import events
from jetsync._base.failures import raised_at
from jetsync._base.locks import Latch, short_lock
from jetsync._base.log import get_logger
from jetsync._hooks.errors import PluginError
from jetsync._proto.dead_letters import is_last
from jetsync.consume.auto_acks import answer_soon, keep_alive, nak_body
from jetsync.consume.dead_letters import store
from jetsync.errors import JetSyncError, NotJetStreamMessageError
from jetsync.values.ack_subject import parse_ack_reply
from jetsync.values.dead_letter import DeadLetter, dead_letter, reason_of
from jetsync.values.message import ACK, TERM, Message

if TYPE_CHECKING:
    from jetsync.consume.core import ConsumptionCore
    from jetsync.consume.options import HandlerOptions
    from jetsync.values.frame import Frame

HANDLER_THREAD: Final = "jetsync-consume"

_logger = get_logger("jetsync.consume")


class HandlerPool:
    """
    The workers of one consumption, and the thread that keeps their messages alive.

    Threads: these. Any thread may ask for ``done`` and give back parked messages.
    Locks: the pool lock, ``_lock``, protects the parked messages, the engine's count of them and
    the other counts. The order lock, ``_order_lock``, makes taking a message and looking up its
    subject one step.
    """

    def __init__(self, core: ConsumptionCore, options: HandlerOptions) -> None:
        assert options.handler is not None
        self._core = core
        self._options = options
        self._handler = options.handler
        # Reentrant, because a signal handler may need it.
        self._lock = short_lock()
        # The reply subject of the message that each worker handles. Changed without the pool lock.
        self._running: dict[int, bytes] = {}
        # The messages that are parked until the current one of their subject has been handled.
        self._parked: dict[bytes, deque[Frame]] = {}
        self._order_lock = threading.Lock()
        names = [f"{HANDLER_THREAD}-{number}" for number in range(1, options.threads + 1)]
        self._workers = [
            threading.Thread(target=self._work, name=name, daemon=True) for name in names
        ]
        self._open = options.threads
        # How many messages could not be handled.
        self.failures: int = 0
        # The types and places of the errors that were reported on stderr.
        self._shown: set[tuple[object, ...]] = set()
        # Set once the last handler has returned.
        self.done: Latch = Latch()

    def start(self) -> None:
        """Start the threads."""
        threads = self._workers.copy()
        if self._options.keep_alive and self._core.target.wants_acks:
            name = f"{HANDLER_THREAD}-alive"
            wanted = self._core.target.lane, self._options.ack_wait, self._replies, self.done
            threads.append(threading.Thread(target=keep_alive, args=wanted, name=name, daemon=True))
        self._core.target.context.connection.start_threads(*threads)

    def is_own_thread(self) -> bool:
        """Return whether the calling thread is a worker."""
        return threading.current_thread() in self._workers

    def give_back_parked(self) -> None:
        """Give back all parked messages, because the client is being closed."""
        frames: list[Frame] = []
        with self._lock:
            for parked in list(self._parked.values()):
                frames += parked
                parked.clear()
        self._core.target.give_back(frames)

    def after_fork(self) -> None:
        """Mark all workers as ended in a forked child, where they do not exist. Takes no lock."""
        self._lock = short_lock()
        self._order_lock = threading.Lock()
        self._workers = []
        self._parked = {}
        self.done = Latch()
        self.done.set()

    # The workers.

    def _work(self) -> None:
        core = self._core
        take = self._take if self._options.ordered_by is None else self._take_in_order
        core.engine.note_busy(threading.get_ident())
        try:
            while (frame := take()) is not None:
                self._handle(frame)
        except JetSyncError as error:
            # The client is closed, or this is a forked child.
            core.engine.fail(error)
        finally:
            with self._lock:
                self._open -= 1
                last = not self._open
            if last:
                if core.error is not None:
                    # Logged, because no thread iterates and would see the error.
                    _logger.warning("consumption_ended", error=repr(core.error))
                self.done.set()

    def _take(self) -> Frame | None:
        core = self._core
        while (frame := core.take_now()) is None:
            if not self._wait():
                return None
        core.refill_if_low()
        return frame

    def _take_in_order(self) -> Frame | None:
        """Return the next message whose subject is not being handled; None at the end."""
        core = self._core
        while True:
            with self._order_lock:
                frame = core.take_now()
                if frame is not None:
                    with self._lock:
                        parked = self._parked.get(frame[0])
                        if parked is None:
                            self._parked[frame[0]] = deque()
                        else:
                            parked.append(frame)
                            core.engine.park(frame)
            if frame is None:
                if not self._wait():
                    return None
                continue
            core.refill_if_low()
            if parked is None:
                return frame

    def _wait(self) -> bool:
        """Wait until the buffer has a message; return False at the end."""
        core, me = self._core, threading.get_ident()
        core.engine.note_idle(me)
        if len(core.engine.busy) < len(self._workers) - 1:
            # Another thread may be in a long wait. Otherwise this one sends the pull that is due.
            core.wake_if_low()
        found = core.wait_for_frame(None)
        core.engine.note_busy(me)
        return found

    def _next_of(self, subject: bytes) -> Frame | None:
        """Return the next parked message of a subject; None if there is none."""
        with self._lock:
            parked = self._parked[subject]
            if not parked:
                del self._parked[subject]
                return None
            frame = parked.popleft()
            self._core.engine.unpark(frame)
        self._core.wake_if_low()
        return frame

    def _handle(self, frame: Frame | None) -> None:
        """Handle one message, and then those of its subject that are parked."""
        while frame is not None:
            core = self._core
            if core.closing and not core.engine.must_finish(frame):
                core.target.give_back([frame])
            else:
                ident = threading.get_ident()
                self._running[ident] = frame[1]
                try:
                    self._call_handler(frame)
                finally:
                    del self._running[ident]
            frame = None if self._options.ordered_by is None else self._next_of(frame[0])

    def _call_handler(self, frame: Frame) -> None:
        """Call the handler, and answer the message; raises nothing."""
        options, core = self._options, self._core
        try:
            message = core.make(frame)
        except Exception as error:  # noqa: BLE001 - a plugin usually refuses only this message.
            self._report(error, None)
            core.make_failed(error)
            # It was answered with a nak. After the last delivery, the server then gives it up.
            self._give_up(frame, Message(*frame, core.target.context.connection), error)
            return
        try:
            self._handler(message)
        except Exception as error:  # noqa: BLE001 - other messages wait to be handled.
            self._report(error, message)
            is_stored, is_over = self._give_up(frame, message, error)
            if is_stored or options.on_error == "leave":
                return
            if not is_over:
                with contextlib.suppress(NotJetStreamMessageError):
                    self._answer(message, nak_body(message.metadata.delivered))
            if options.on_error == "stop":
                core.fail(error)
        except BaseException as error:  # noqa: BLE001 - the handler wants to end the program.
            self._report(error, message)
            core.fail(error)
        else:
            if options.ack == "auto":
                self._answer(message, ACK)

    def _gives_up(self, error: BaseException, message: Message | None) -> bool:
        """Return whether the handler has decided that a message becomes a dead letter."""
        wanted = isinstance(error, DeadLetter) and self._options.dead_letter is not None
        return wanted and message is not None and not message.is_acked

    def _give_up(self, frame: Frame, message: Message, error: Exception) -> tuple[bool, bool]:
        """
        Store the dead letter of a message and terminate it, if the message is to be given up.

        Returns whether that was done, and whether the server will not deliver the message again. If
        the dead letter is not stored, the message is not terminated. After the last delivery, the
        message is not nakked either, because the server would give it up at once: until
        ``ack_wait`` is over, a dead letter may still arrive.
        """
        options, target, said = self._options, self._core.target, parse_ack_reply(frame[1])
        if options.dead_letter is None or said is None or message.is_acked:
            return False, False
        is_over = is_last(said.delivered, options.max_deliver)
        if not is_over and not self._gives_up(error, message):
            return False, False
        # Made of the frame, because plugins may have decrypted the message.
        original = Message(*frame)
        about: dict[str, Any] = {
            "stream": said.stream,
            "consumer": said.consumer,
            "subject": original.subject,
            "sequence": said.stream_sequence,
            "deliveries": said.delivered,
            "reason": reason_of(error),
        }
        letter = dead_letter(
            options.dead_letter,
            **about,
            timestamp_ns=said.timestamp_ns,
            raw_headers=original.raw_headers,
            data=original.data,
        )
        if store(target.context, letter, about) is None:
            return False, is_over
        answer_soon(target.lane, message, TERM + b" dead letter")
        return True, is_over

    def _answer(self, message: Message, body: bytes) -> None:
        """Acknowledge or nak a message, unless its handler did so."""
        target = self._core.target
        if message.is_acked:
            return
        if target.wants_acks:
            answer_soon(target.lane, message, body)
        elif self._options.ack == "auto":
            target.report_ignored_ack()

    def _report(self, error: BaseException, message: Message | None) -> None:
        """Report an error of the handler, or of a plugin, to the log, the plugins and stderr."""
        with self._lock:
            self.failures += 1
        if self._gives_up(error, message):
            # The report about the dead letter says it.
            return
        target = self._core.target
        plugins = target.context.plugins
        subject = sequence = delivered = None
        if message is not None:
            subject = message.subject
            with contextlib.suppress(NotJetStreamMessageError):
                sequence, delivered = message.sequence, message.metadata.delivered
        fields: dict[str, Any] = {
            "stream": target.stream,
            "consumer": target.consumer,
            "subject": subject,
            "sequence": sequence,
        }
        if message is None and isinstance(error, PluginError):
            plugins.faults.report(error.plugin, error.hook, error)
        else:
            _logger.error("handler_failed", **fields, delivered=delivered, exc_info=error)
            self._show(error)
        if plugins.status is not None:
            plugins.status(events.HandlerErrorEvent(**fields, error=error))

    def _show(self, error: BaseException) -> None:
        """
        Report the first error of each type and line as Python reports one that ends a thread.

        Otherwise a handler that always fails would be invisible if logging is not configured.
        """
        place = raised_at(error)
        kind = (type(error), place and place.tb_frame.f_code, place and place.tb_lineno)
        with self._lock:
            shown = kind in self._shown
            self._shown.add(kind)
        if not shown:
            thread = threading.current_thread()
            with contextlib.suppress(Exception):  # The application may have replaced the hook.
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, thread))
                )

    # The thread that keeps messages alive.

    def _replies(self) -> list[bytes]:
        """Return the reply subjects of all messages that were delivered and are not handled."""
        replies = list(self._running.values())
        with self._lock:
            replies += [frame[1] for parked in self._parked.values() for frame in parked]
        # Moves the messages that have arrived into the buffer.
        self._core.refill()
        return replies + [frame[1] for frame in self._core.engine.snapshot()]
