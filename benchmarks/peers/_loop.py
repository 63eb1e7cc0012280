"""
The event loop of the peers that need one, and the rows that they do alike.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from benchmarks.jobs import Job, Sample

T = TypeVar("T")


class LoopPeer:
    """
    Run coroutines to their end on a loop of this peer's own, uvloop's if the options say so.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        if options.get("loop") == "uvloop":
            import uvloop

            self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        else:
            self.loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Run one coroutine to its end.
        """
        return self.loop.run_until_complete(work)

    def fetch(self, job: Job) -> Sample:
        """
        Fetch batch after batch.
        """
        return self.run(self._fetch(job, ack=False))

    def fetch_ack(self, job: Job) -> Sample:
        """
        Fetch batch after batch and acknowledge each message.
        """
        return self.run(self._fetch(job, ack=True))

    async def _fetch(self, job: Job, *, ack: bool) -> Sample:
        raise NotImplementedError
