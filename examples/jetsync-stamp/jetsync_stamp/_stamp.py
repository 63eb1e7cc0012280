"""
The plugin and its hooks.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

from jetsync import ConfigurationError, get_logger, hookimpl
from jetsync_stamp._ages import Ages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync import Message, OutboundMessage, StoredMessage
    from jetsync.typing import HeadersInput
    from jetsync_stamp._ages import AgeStatistics

PROGRAM = "Stamp-Program"
"""The header with the name of the program that sent a message."""

TIME = "Stamp-Time"
"""The header with the time at which it was sent, in seconds since 1970."""

_logger = get_logger("jetsync_stamp")


class Stamp:
    """
    Mark messages with their sender and the time, and measure the age of messages that are read.

    Args:
        program: The name of this program. The default is `$STAMP_PROGRAM`.

        owns: One or more prefixes of the subjects that it may publish to. By default it may
            publish to all subjects.

    Raises:
        ConfigurationError: The program has no name.
    """

    name = "stamp"

    def __init__(self, program: str | None = None, owns: str | Sequence[str] = ()) -> None:
        self.program = program or os.environ.get("STAMP_PROGRAM", "")
        if not self.program:
            raise ConfigurationError("jetsync-stamp needs a program name: set STAMP_PROGRAM")
        self.owns = (owns,) if isinstance(owns, str) else tuple(owns)
        self.ages = Ages()

    @hookimpl
    def jetsync_shared_headers(self) -> HeadersInput:
        """
        Give all messages of an operation, such as a batch, the same two headers.
        """
        return {PROGRAM: self.program, TIME: f"{time.time():.6f}"}

    @hookimpl
    def jetsync_message_received(self, message: Message | StoredMessage) -> None:
        """
        Measure the age of a message that has both headers.
        """
        program, sent = message.headers.get(PROGRAM), message.headers.get(TIME)
        if program is None or sent is None:
            return
        try:
            age = time.time() - float(sent)
        except ValueError:
            # An error would reject the message, and another program may have set the header.
            _logger.debug("time_unreadable", subject=message.subject, time=sent)
            return
        if math.isfinite(age):
            self.ages.add(program, max(0.0, age))

    def statistics(self) -> dict[str, AgeStatistics]:
        """
        Return the ages of the messages that were read so far, by the program that sent them.
        """
        return self.ages.statistics()

    @hookimpl
    def jetsync_prepare_message(self, message: OutboundMessage) -> None:
        """
        Reject a message to a subject that this program does not own.
        """
        if self.owns and not message.subject.startswith(self.owns):
            raise NotOwnedError(self.program, message.subject)


class NotOwnedError(Exception):
    """
    A program published to a subject that it does not own.
    """

    def __init__(self, program: str, subject: str) -> None:
        super().__init__(f"{program} may not publish to {subject!r}")
        self.program = program
        self.subject = subject
