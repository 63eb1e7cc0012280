"""
Delete the consumers that an ordered consumer has created on the server.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._api import consumers as _consumer_admin
from jetsync._base.deadline import NO_WAIT
from jetsync._base.locks import POLL
from jetsync._proto import frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline

# Seconds for which the deletion of a consumer waits for a connection. Servers have deleted it by
# then, unless it was created with a longer `inactive_threshold`.
KEEP_DELETION: Final = 300.0


class Deletions:
    """
    The consumers of one ordered consumer that the server may have, until they are deleted.

    Dropping this has the current one deleted.

    Threads: those of its ordered consumer. The garbage collector may drop it in any thread.
    Locks: none; the names change in one step each.

    Args:
        context: The context of the requests.
        stream: The stream.
    """

    def __init__(self, context: Context, stream: str) -> None:
        self._context = context
        self._stream = stream
        #: The name of a consumer that may exist and has to be deleted.
        self.current: str = ""
        # Consumers whose deletion was sent, with its connection: the request may be lost.
        self._unsure: list[tuple[str, int]] = []

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At its end, the interpreter empties modules, but not the default of an argument.
        # The garbage collector must not wait for the connection.
        name = getattr(self, "current", "")
        if name and not is_ending():
            self._context.lane.post_nowait(self._deletion(name), keep=KEEP_DELETION)

    def delete_current(self, deadline: Deadline) -> None:
        """Delete the current consumer, and wait for the answer."""
        name, self.current = self.current, ""
        while name:
            try:
                _consumer_admin.delete(self._context, self._stream, name, deadline)
                self.retry()
            except (
                errors.ConnectionLostError,
                errors.JetStreamNotEnabledError,
                errors.TemporarilyUnavailableError,
            ):
                # The request may be lost, its domain may be out of reach, or its
                # cluster may have no leader.
                if not deadline.expired():
                    self._context.connection.closing.wait(min(POLL, deadline.remaining()))
                    continue
                self.forget(name)
            except (
                errors.TransportError,
                errors.RequestTimeoutError,
                errors.CallInSignalHandlerError,
            ):
                self.forget(name)
            except (errors.ConsumerNotFoundError, errors.StreamNotFoundError):
                pass
            return

    def retry(self) -> None:
        """
        Retry deletions whose connection was lost. Called when the server has just answered.

        The answer shows that everything sent earlier on this connection has arrived.
        """
        lost = self._context.lane.lost_epoch
        unsure, self._unsure = self._unsure, []
        for name, epoch in unsure:
            if epoch <= lost:
                self.forget(name)

    def _deletion(self, name: str) -> bytes:
        """Return the request that deletes a consumer; its answer is ignored."""
        context = self._context
        subject = f"{context.prefix}.CONSUMER.DELETE.{self._stream}.{name}"
        return frames.pub(subject.encode(), context.connection.new_inbox().encode(), b"")

    def forget(self, name: str) -> None:
        """
        Have a consumer deleted without waiting, if need be on the next connection.

        If the deletion is lost, the server deletes the consumer after its `inactive_threshold`.
        """
        lane = self._context.lane
        if name == self.current:
            self.current = ""
        block = self._deletion(name)
        try:
            # Not posted, because posted blocks are lost with their connection.
            epoch = lane.write(block, NO_WAIT)
            self._unsure.append((name, epoch))
        except (errors.DisconnectedError, errors.CallInSignalHandlerError):
            lane.post_nowait(block, keep=KEEP_DELETION)
        except errors.TransportError:
            pass

    def forget_current(self) -> None:
        """Have the current consumer deleted without waiting, if there is one."""
        if self.current:
            self.forget(self.current)
