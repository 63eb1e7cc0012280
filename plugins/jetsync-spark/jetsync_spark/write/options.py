"""
Options of writers.
"""

from __future__ import annotations

import attrs

from jetsync_spark.common.dead_letters import FAIL, SKIP, check_policy, policy, policy_validator
from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.keys import bucket_stream, is_bucket_name
from jetsync_spark.common.options import (
    choice,
    count,
    flag,
    given_options,
    milliseconds,
    option,
    text,
)

__all__ = ["ATOMIC", "AT_LEAST_ONCE", "CHUNK", "EXACTLY_ONCE", "WriteOptions"]

AT_LEAST_ONCE = "atleastonce"
"""Every row is stored. After a failure some rows are stored twice."""

ATOMIC = "atomic"
"""Like at least once, but rows are stored in atomic chunks."""

EXACTLY_ONCE = "exactlyonce"
"""Every row is stored exactly once."""

MODES = (AT_LEAST_ONCE, ATOMIC, EXACTLY_ONCE)

_SAVE_MODES = frozenset({"append", "overwrite", "error", "errorifexists", "ignore"})

CHUNK = 1000
"""The default limit of servers for the messages of an atomic batch."""


def _mode_option(name: str, value: str) -> str:
    """Parse the guarantee. Spark has a save mode, which is something else."""
    if value.strip().lower() in _SAVE_MODES:
        raise OptionError(
            f"option mode is {value!r}, which is a save mode of Spark",
            option=name,
            cure=f'use .mode("append"), and leave out the option, or give {", ".join(MODES[:2])} '
            f"or {MODES[2]}",
        )
    return choice(*MODES)(name, value)


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


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


def _batch(_: WriteOptions, __: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise OptionError(
            f"batchId is {value!r}", option="batchId", cure="give the number that Spark passes"
        )


@attrs.frozen(kw_only=True)
class WriteOptions:
    """
    The stream to write to, and the guarantee.
    """

    stream: str = option("stream", text, "")
    """Name of the stream, or several names with commas between them."""

    bucket: str | None = option("bucket", text)
    """Name of a key-value bucket to change, instead of a stream."""

    subject: str | None = option("subject", text)
    """One subject for all rows, or a template. None means the column ``subject``."""

    mode: str = option("mode", _mode_option, AT_LEAST_ONCE, validator=_mode)
    """The guarantee."""

    fast_ingest: bool = option("fastIngest", flag, default=False)
    """Whether ``atleastonce`` uses fast ingest, which needs ``allow_batched`` on the stream."""

    max_in_flight: int = option("maxInFlight", count(), 4096)
    """Maximum unacknowledged messages per task."""

    chunk_size: int = option("chunkSize", count(2, CHUNK), CHUNK, validator=_chunk)
    """Maximum messages per atomic batch, including the ledger message."""

    ack_timeout: float = option("ackTimeoutMs", milliseconds, 10.0)
    """Seconds to wait for an acknowledgement."""

    retry_timeout: float = option("retryTimeoutMs", milliseconds, 30.0)
    """Seconds for which the driver and each task retry while servers or leaders are unavailable."""

    ledger_subject: str | None = option("ledgerSubject", text)
    """Prefix of the ledger's subjects. None selects a subject of the stream."""

    write_id: str | None = option("writeId", text)
    """Name of a batch write, which is stored once even if its job runs again."""

    batch_id: int | None = option("batchId", count(0), validator=_batch)
    """Number of the micro-batch, for ``foreachBatch`` over Spark Connect. Needs a ``writeId``."""

    on_invalid_row: str = option(
        "onInvalidRow",
        policy,
        FAIL,
        converter=_lower,
        validator=policy_validator("onInvalidRow"),
    )
    """What happens to a row that cannot be stored: ``fail``, ``skip`` or ``deadletter``."""

    dead_letter_subject: str | None = option("deadLetterSubject", text)
    """The subject of the dead letters."""

    def __attrs_post_init__(self) -> None:
        if self.bucket is not None:
            self._check_bucket(self.bucket)
        if not self.stream:
            raise OptionError(
                "option stream is missing",
                option="stream",
                cure="name the stream to write to, or the key-value bucket",
            )
        if len(self.streams) > 1 and (self.mode != AT_LEAST_ONCE or self.fast_ingest):
            how = "fastIngest" if self.fast_ingest else f"mode {self.mode}"
            raise OptionError(
                f"{how} writes to one stream, not to {self.stream}, because a batch of the server "
                "belongs to one stream",
                option="stream",
                cure="use mode atleastonce without fastIngest, or write to one stream after the "
                "other",
            )
        if "*" in self.stream or not all(self.streams):
            raise OptionError(
                f"option stream is {self.stream!r}",
                option="stream",
                cure="name one stream, or several with commas between them",
            )
        check_policy("onInvalidRow", self.on_invalid_row, self.dead_letter_subject)
        if self.fast_ingest and self.on_invalid_row != FAIL:
            raise OptionError(
                "fastIngest cannot leave out rows that the client or the server refuses",
                option="onInvalidRow",
                cure="leave out fastIngest, or set onInvalidRow to fail",
            )
        if self.fast_ingest and self.mode != AT_LEAST_ONCE:
            raise OptionError(
                f"fastIngest does not apply to mode {self.mode}",
                option="fastIngest",
                cure="leave it out, or use mode atleastonce",
            )
        if self.mode != EXACTLY_ONCE:
            for name, _ in given_options(self, "ledger_subject", "write_id", "batch_id"):
                raise OptionError(
                    f"option {name} is for mode exactlyonce, not {self.mode}",
                    option=name,
                    cure="leave it out, or set mode to exactlyonce",
                )
        if self.batch_id is not None and self.write_id is None:
            raise OptionError(
                "option batchId needs a writeId",
                option="batchId",
                cure="set a writeId that no other query of the stream uses, and that stays the "
                "same when the query restarts",
            )

    def _check_bucket(self, bucket: str) -> None:
        """
        Reject options that a bucket has no use for, and set its stream.
        """
        stream = bucket_stream(bucket)
        if not is_bucket_name(bucket):
            raise OptionError(
                f"option bucket is {bucket!r}",
                option="bucket",
                cure="give the name of one bucket: letters, digits, - and _",
            )
        if self.stream not in {"", stream}:
            raise OptionError(
                "both stream and bucket are given", option="bucket", cure="give one of them"
            )
        object.__setattr__(self, "stream", stream)
        for name, _ in given_options(self, "subject", "fast_ingest", "ledger_subject"):
            raise OptionError(
                f"option {name} does not apply to a bucket", option=name, cure="leave it out"
            )
        if self.mode == EXACTLY_ONCE and self.on_invalid_row not in {FAIL, SKIP}:
            raise OptionError(
                "mode exactlyonce would store dead letters in the bucket, which keeps only the "
                "last one of a subject",
                option="onInvalidRow",
                cure="use mode atleastonce, or set onInvalidRow to fail or skip",
            )

    @property
    def streams(self) -> tuple[str, ...]:
        """
        The names of the streams.
        """
        return tuple(dict.fromkeys(name.strip() for name in self.stream.split(",")))
