"""
What a writer is told.
"""

from __future__ import annotations

import attrs

from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.options import choice, count, flag, milliseconds, option, text

__all__ = ["ATOMIC", "AT_LEAST_ONCE", "CHUNK", "EXACTLY_ONCE", "WriteOptions"]

AT_LEAST_ONCE = "atleastonce"
"""Each row is stored, some twice after a failure."""

ATOMIC = "atomic"
"""As that, and rows are stored in chunks of which all or none is there."""

EXACTLY_ONCE = "exactlyonce"
"""Each row is stored once, whatever fails."""

MODES = (AT_LEAST_ONCE, ATOMIC, EXACTLY_ONCE)

CHUNK = 1000
"""Messages that a server takes in one atomic batch, unless an operator changed it."""


def _mode(_: WriteOptions, __: attrs.Attribute[str], value: object) -> None:
    if value not in MODES:
        raise OptionError(
            f"mode is {value!r}", option="mode", cure=f"give {', '.join(MODES[:2])} or {MODES[2]}"
        )


def _chunk(_: WriteOptions, __: attrs.Attribute[int], value: int) -> None:
    if not 2 <= value <= CHUNK:
        raise OptionError(
            f"chunkSize is {value}", option="chunkSize", cure=f"give a number from 2 to {CHUNK}"
        )


@attrs.frozen(kw_only=True)
class WriteOptions:
    """
    What to write to which stream, and with which promise.
    """

    stream: str = option("stream", text, "")
    """Name of the stream."""

    subject: str | None = option("subject", text)
    """One subject for all rows, or a template over columns; None takes the column ``subject``."""

    mode: str = option("mode", choice(*MODES), AT_LEAST_ONCE, validator=_mode)
    """What is promised."""

    fast_ingest: bool = option("fastIngest", flag, default=False)
    """Whether ``atleastonce`` uses fast ingest, which needs ``allow_batched`` on the stream."""

    max_in_flight: int = option("maxInFlight", count(), 4096)
    """Messages of one task that wait for their acknowledgement at most."""

    chunk_size: int = option("chunkSize", count(2, CHUNK), CHUNK, validator=_chunk)
    """Messages in one atomic batch at most, the one of the ledger included."""

    ack_timeout: float = option("ackTimeoutMs", milliseconds, 10.0)
    """Seconds to wait for an acknowledgement."""

    retry_timeout: float = option("retryTimeoutMs", milliseconds, 30.0)
    """Seconds for which a task goes on trying while servers or leaders are away."""

    ledger_subject: str | None = option("ledgerSubject", text)
    """What the subjects of the ledger begin with; None takes one that the stream has."""

    write_id: str | None = option("writeId", text)
    """Name of a batch write that is stored once however often its job is run."""

    def __attrs_post_init__(self) -> None:
        if not self.stream:
            raise OptionError(
                "option stream is missing", option="stream", cure="name the stream to write to"
            )
        if self.fast_ingest and self.mode != AT_LEAST_ONCE:
            raise OptionError(
                f"fastIngest does not go with mode {self.mode}",
                option="fastIngest",
                cure="leave it out, or use mode atleastonce",
            )
        if self.mode != EXACTLY_ONCE:
            for name, value in (
                ("ledgerSubject", self.ledger_subject),
                ("writeId", self.write_id),
            ):
                if value is not None:
                    raise OptionError(
                        f"option {name} is for mode exactlyonce, not {self.mode}",
                        option=name,
                        cure="leave it out, or set mode to exactlyonce",
                    )
