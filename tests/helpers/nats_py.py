"""
nats-py as the other client of a test.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import nats

if TYPE_CHECKING:
    from collections.abc import Callable


def with_nats_py(server: Any, work: Callable[[Any], Any]) -> Any:
    """
    Run a coroutine function with a JetStream context of nats-py, and return its result.
    """

    async def run() -> Any:
        client = await nats.connect(server.url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())
