"""
The size of a consumption's pulls: how many messages and bytes the next one asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jetsync._proto.consume import ConsumeOptions

# The batch of a pull that is only limited by bytes.
UNBOUNDED_BATCH: Final = 1_000_000


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
