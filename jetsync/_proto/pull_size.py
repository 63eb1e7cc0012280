"""
The size of pulls: how many messages and bytes the next one of a consumption asks for, and how many
are left for the next one of a fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync._proto.pull_request import ConsumeOptions, PullRequest

# The batch of a pull that is only limited by bytes.
UNBOUNDED_BATCH: Final = 1_000_000

# No further pull is sent if fewer seconds than this are left.
SHORTEST_REST: Final = 0.01


def pull_size(options: ConsumeOptions, held: int, promised: int) -> tuple[int, int | None]:
    """
    Return how many messages and bytes to ask for; no messages if nothing is missing.

    Args:
        options: The limits of the buffer, and what the consumer allows.
        held: What is in the buffer or parked, and what open pulls may still deliver. It is counted
            in bytes if the buffer has a limit in bytes, and otherwise in messages.
        promised: How many messages have arrived so far, and how many open pulls may still deliver.
    """
    size: int | None = None
    if options.max_bytes is None:
        messages = options.max_messages - held
    else:
        messages, size = UNBOUNDED_BATCH, options.max_bytes - held
        if options.max_batch_bytes is not None:
            size = min(size, options.max_batch_bytes)
        if size <= 0:
            return 0, size
    if options.stop_after is not None:
        messages = min(messages, options.stop_after - promised)
    if options.max_batch is not None:
        messages = min(messages, options.max_batch)
    return max(messages, 0), size


def rest_of(
    request: PullRequest, received: int, received_bytes: int, seconds: float
) -> PullRequest | None:
    """Return *request* for the messages that are left; None if none are left, or no time."""
    messages = request.max_messages - received
    size = None if request.max_bytes is None else request.max_bytes - received_bytes
    if messages <= 0 or seconds < SHORTEST_REST or (size is not None and size <= 0):
        return None
    beat = request.heartbeat
    return attrs.evolve(
        request,
        max_messages=messages,
        max_bytes=size,
        expires=request.expires if request.no_wait else seconds,
        heartbeat=None if beat is not None and beat > seconds / 2.0 else beat,
    )


def room_for(request: PullRequest, received: int, received_bytes: int, sizes: Iterable[int]) -> int:
    """Return how many messages of the given sizes are within the limits of *request*."""
    room = 0
    for size in sizes:
        received_bytes += size
        if received + room >= request.max_messages:
            break
        if request.max_bytes is not None and received_bytes > request.max_bytes:
            break
        room += 1
    return room
