"""
Rows that cannot be stored, whatever the state of the stream: leave them out, or write dead letters.

Most of them are found when they are converted to messages. The client, a plugin or the server
refuse the others. An error that another attempt or a change of the stream can cure does not make a
row invalid, and fails the task.
"""

from __future__ import annotations

import bisect
from array import array
from typing import TYPE_CHECKING, Any, Final

import jetsync
from jetsync_spark.common.dead_letters import SKIP, DeadLetter, columns_text, dead_letter
from jetsync_spark.write.changes import parts_of
from jetsync_spark.write.options import EXACTLY_ONCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jetsync_spark.common.errors import RowError
    from jetsync_spark.common.task import Task
    from jetsync_spark.write.plan import Plan

__all__ = ["InvalidRows", "find_faults", "is_fault"]

_FAULTS: Final = (
    jetsync.InvalidArgumentError,
    jetsync.InvalidTypeError,
    jetsync.MessageTooLargeError,
)

_logger = jetsync.get_logger("jetsync.spark.writing")


class InvalidRows:
    """
    The invalid rows of a task. Not thread-safe.

    Args:
        plan: The plan of the write, which leaves out invalid rows or stores them as dead letters.
        task: The task.
        largest: Maximum bytes of a message, according to the server.
    """

    def __init__(self, plan: Plan, task: Task, largest: int) -> None:
        options = plan.options
        self._of_bucket = options.bucket is not None
        self._skips = options.on_invalid_row == SKIP
        self._letters = plan.dead_letters
        assert self._skips or self._letters is not None
        if self._letters is not None and self._letters.max_size is not None:
            largest = min(largest, self._letters.max_size)
        self._largest = largest
        self._about = {
            "Stream": options.stream,
            "Query": options.write_id if task.query is None else task.query,
            "Batch": options.batch_id if task.batch is None else task.batch,
            "Partition": task.partition,
        }
        # In this mode, dead letters count as rows, because the ledger has to count them.
        self._keeps_places = not self._skips and options.mode == EXACTLY_ONCE
        self._missing = array("q")
        """The numbers of the rows that have no message, in order."""

        self.count = 0
        """The number of invalid rows."""

        self.reason: str | None = None
        """Why the first of them is invalid."""

    @property
    def missing(self) -> int:
        """The number of rows that have no message."""
        return len(self._missing)

    def row_of(self, message: int) -> int:
        """Return the number of the row of a message."""
        missing = self._missing
        before = bisect.bisect_right(
            range(len(missing)), message, key=lambda place: missing[place] - place
        )
        return message + before

    def replace(
        self, error: RowError, values: Mapping[str, Any], data: str | None, subject: str | None
    ) -> list[DeadLetter]:
        """
        Return what replaces a row that cannot be converted to a message.

        Args:
            error: Why not.
            values: The columns of the row.
            data: The name of the column of the payload.
            subject: The subject of the row, or None if it has no valid one.
        """
        if not self._keeps_places:
            self._missing.append(error.row)
        others = {name: value for name, value in values.items() if name != data}
        payload = values.get(data) if data is not None else None
        return self._replaced(error.row, error.reason, payload, subject, others)

    def reject(self, row: int, message: Any, error: BaseException) -> list[DeadLetter]:
        """
        Return what replaces a message that was refused.

        Args:
            row: The number of its row.
            message: The message.
            error: Why it was refused.
        """
        if type(message) is tuple:
            message = jetsync.OutboundMessage(*message)
        expect = message.expect
        others = {
            "headers": message.headers,
            "msg_id": message.msg_id,
            "ttl": message.ttl,
            "expected_sequence": None if expect is None else expect.last_subject_sequence,
        }
        if self._of_bucket:
            others = parts_of(message)
        others = {name: value for name, value in others.items() if value is not None}
        return self._replaced(row, str(error), message.data, message.subject, others)

    def _replaced(
        self, row: int, reason: str, data: Any, subject: object, others: Mapping[str, Any]
    ) -> list[DeadLetter]:
        self.count += 1
        if self.reason is None:
            self.reason = f"row {row}: {reason}"
        if self._skips:
            return []
        assert self._letters is not None
        payload = _payload(data)
        if payload is None:
            others, payload = {**others, "data": data}, b""
        about = {
            **self._about,
            "Row": row,
            "Subject": subject,
            "Columns": columns_text(others) if others else None,
        }
        return [dead_letter(self._letters.subject, reason, payload, self._largest, about)]

    def log(self, **about: Any) -> None:
        """Log how many rows were invalid, if there were any."""
        if self.count:
            _logger.warning(
                "invalid_rows",
                rows=self.count,
                dead_letters=None if self._letters is None else self._letters.subject,
                first=self.reason,
                **about,
            )


def is_fault(error: BaseException) -> bool:
    """
    Return whether an error of publishing is the fault of the message.

    Another attempt would fail too, and the other messages can be stored. A plugin refuses a message
    with a ValueError, such as the ViolationError of jetsync-schema. Other errors of plugins may
    concern all messages.
    """
    if isinstance(error, jetsync.PluginError):
        return isinstance(error.__cause__, ValueError)
    if isinstance(error, jetsync.BatchRuleError):
        # It depends on the other messages of the batch.
        return False
    return isinstance(error, _FAULTS)


def find_faults(
    js: jetsync.JetStream, messages: Sequence[Any], timeout: float
) -> dict[int, jetsync.JetSyncError]:
    """
    Return the places of messages that the client or a plugin refuses in an atomic batch.

    Nothing is stored.

    Raises:
        JetSyncError: The servers did not answer, or refuse the batch for another reason.
    """
    faults: dict[int, jetsync.JetSyncError] = {}
    batch = js.atomic_batch(ack_first=False, timeout=timeout)
    try:
        for place, message in enumerate(messages):
            made = jetsync.OutboundMessage(*message) if type(message) is tuple else message
            try:
                batch.add(
                    made.subject,
                    made.data,
                    headers=made.headers,
                    msg_id=made.msg_id,
                    ttl=made.ttl,
                    expect=made.expect,
                )
            except jetsync.JetSyncError as error:
                if not is_fault(error):
                    raise
                faults[place] = error
    finally:
        batch.discard()
    return faults


def _payload(data: Any) -> bytes | None:
    """Return the bytes of a payload of any type, or None if it has none."""
    if data is None:
        return b""
    if isinstance(data, str):
        return data.encode(errors="backslashreplace")
    try:
        return bytes(memoryview(data))
    except (TypeError, ValueError):
        return None
