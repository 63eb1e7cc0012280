"""
Publish many messages with a window of acknowledgements, from one thread.

The calling thread does the work, though any thread may read the acks from the socket. It encodes a
block, writes it, and processes the acks that arrive while it waits for room. Every message ends up
in the report as stored or failed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from jetsync._base.turn import refuse_request
from jetsync._hooks.errors import PluginError
from jetsync.errors import ConnectionClosedError, DisconnectedError
from jetsync.publish.encode import BLOCK_MESSAGES
from jetsync.publish.errors import PublishManyError
from jetsync.publish.flight import Flight
from jetsync.publish.hooks import BulkHooks
from jetsync.values.outbound import message_iterator, message_of
from jetsync.values.pub_acks import PublishFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jetsync._api.context import Context
    from jetsync.publish.flight import FlightOptions
    from jetsync.values.outbound import OutboundMessage
    from jetsync.values.pub_acks import PubAck, PublishReport


class BulkPublish:
    """
    One call of ``publish_many``.
    """

    def __init__(
        self,
        context: Context,
        options: FlightOptions,
        on_ack: Callable[[OutboundMessage, PubAck], object] | None,
    ) -> None:
        self._lane = context.lane
        self._options = options
        self._on_ack = on_ack
        self._flight = Flight(context, options, keep_acks=on_ack is not None)
        self._hooks = BulkHooks(context.plugins)
        # The first error of ``on_ack``.
        self._callback_error: Exception | None = None
        # The error that this call raises if messages have failed.
        self._failed: PublishManyError | None = None
        self._exhausted = False
        # How many failures the reports to plugins have counted.
        self._noted = 0
        # All messages before this one have ended. An interrupt may strike between the steps that
        # end a message. So this changes only after all of them, and no more after an interrupt.
        self._ended = 0
        self._settling = False

    def run(self, messages: Iterable[Any]) -> PublishReport:
        """Publish all messages, wait until each has ended, and return or raise the report."""
        try:
            source = message_iterator(messages)
            # Raises before anything is sent in a signal handler that cannot wait for acks.
            refuse_request()
            self._hooks.begin(self._options.operation, self._flight.pipeline.tally)
            return self._hooks.run(partial(self._publish, source))
        except PluginError as error:
            # The caller has to learn what was sent before.
            error.report = self._report()
            if error.report.failures:
                raise PublishManyError(error.report) from error
            raise
        except PublishManyError as error:
            if error is self._failed:
                raise
            # Of another call, which the iterable or `on_ack` made: its report is about that one.
            raise PublishManyError(self._report()) from error
        except BaseException as error:
            # Ctrl-C, or an error of the iterable or of `on_ack`. The caller may want to continue.
            vars(error)["report"] = self._report()
            raise

    def _publish(self, source: Iterator[Any]) -> PublishReport:
        """Do the work of :meth:`run` inside the plugins' wrappers."""
        broken: Exception | None = None
        try:
            try:
                self._send_all(source)
            except (DisconnectedError, ConnectionClosedError) as error:
                # If a block could not be written, the report has the error.
                if all(failure is not error for _, _, failure in self._flight.failures):
                    broken = error
            except Exception as error:  # noqa: BLE001 - raised below, once all have ended.
                broken = error
            self._await_acks()
        finally:
            self._flight.close()
            if self._hooks.reports is not None:
                self._note_failures()
                # After an interrupt, the outcome of the messages in flight is unknown.
                self._hooks.reports.send(interrupted=self._flight.open_count)
        broken = broken or self._callback_error
        if broken is not None:
            raise broken
        report = self._report()
        if report.failures:
            self._failed = PublishManyError(report)
            raise self._failed
        return report

    def _await_acks(self) -> None:
        """Wait until all messages in flight have an outcome."""
        while self._flight.open_count and self._wait():
            self._settle()

    def _report(self) -> PublishReport:
        flight = self._flight
        # An interrupt may leave a message in two places.
        failed = {each[0]: each for each in (*flight.interrupted(), *flight.failures)}
        failures = [
            PublishFailure(number, message_of(item), error)
            for number, item, error in failed.values()
        ]
        return flight.pipeline.tally.report(
            failures,
            exhausted=self._exhausted,
            resume_at=min(self._ended, *failed, flight.stage.last),
        )

    def _send_all(self, source: Iterator[Any]) -> None:
        """
        Send until the source is exhausted, or until a full window of messages has failed.
        """
        flight, size = self._flight, self._options.size
        # Writing into a few free places would make the blocks ever smaller.
        least = max(min(BLOCK_MESSAGES, size) // 2, 1)
        while not self._exhausted and len(flight.failures) < size:
            self._settle()
            if self._callback_error is not None:
                return
            if flight.is_full:
                flight.pipeline.prune()
            room = size - flight.open_count
            if room < least or flight.is_full:
                self._wait()
            else:
                self._exhausted = self._send_block(source, min(room, BLOCK_MESSAGES))

    def _send_block(self, source: Iterator[Any], most: int) -> bool:
        """Encode and write one block; return whether the source is exhausted."""
        flight, hooks = self._flight, self._hooks
        may_wait = False
        try:
            exhausted = flight.encoder.fill(
                flight.stage,
                source,
                flight.prefix,
                flight.stage.last + most,
                failures=flight.failures,
                shared_headers=hooks.shared_headers,
                prepare=hooks.prepare,
            )
            may_wait = True
        except Exception:
            may_wait = True
            raise
        finally:
            # Also if the source raised: the messages that it gave before are published. After
            # Ctrl-C, this does not wait for a connection.
            flight.send(may_wait=may_wait)
        return exhausted

    def _wait(self) -> bool:
        """
        Wait for an answer, at most until a retry, a timeout or a report to plugins is due.

        Return False if no answer can arrive: an interrupt may leave messages in flight that were
        never sent.
        """
        due = self._flight.due()
        if due is None:
            return False
        if self._hooks.reports is not None:
            due = min(due, self._hooks.reports.due)
        self._flight.wait(due)
        return True

    def _settle(self) -> None:
        flight, interrupted = self._flight, self._settling
        self._settling = True
        flight.settle()
        acked = flight.take_acked() if flight.pipeline.acked else ()
        if self._on_ack is not None:
            for item, ack in acked:
                try:
                    self._on_ack(message_of(item), flight.pipeline.full_ack(ack))
                except Exception as error:  # noqa: BLE001 - raised once all have ended.
                    self._callback_error = self._callback_error or error
        if self._hooks.reports is not None and self._note_failures():
            self._hooks.reports.send()
        if not interrupted:
            self._ended = flight.first_open(flight.stage.last)
            self._settling = False

    def _note_failures(self) -> bool:
        """Count what has ended since the last call; return whether a report to plugins is due."""
        assert self._hooks.reports is not None
        failures = self._flight.failures
        first, self._noted = self._noted, len(failures)
        return self._hooks.reports.note(error for _, _, error in failures[first:])
