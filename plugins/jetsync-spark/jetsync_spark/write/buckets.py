"""
What is special about planning a write to a key-value bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.keys import LEDGER_KEY, Keys, bad_key, key_prefix
from jetsync_spark.write.checks import Checks
from jetsync_spark.write.columns import OF_BUCKETS, Columns
from jetsync_spark.write.options import ATOMIC

if TYPE_CHECKING:
    import jetsync
    from jetsync_spark.common.clients import Settings
    from jetsync_spark.common.errors import RowError
    from jetsync_spark.write.options import WriteOptions

__all__ = ["KeyChecks", "bucket_columns", "check_bucket", "check_same_domain", "ledger_of_bucket"]


def bucket_columns(bucket: str, subject: str | None, **parts: Any) -> Columns:
    """
    Return the columns of changes of a bucket.

    Args:
        bucket: The bucket.
        subject: The argument or option ``subject``.
        parts: As for :class:`Columns`.

    Raises:
        OptionError: An argument names a column, although the columns have fixed names.
    """
    case_sensitive = parts.pop("case_sensitive", False)
    defaults = {"subject": "subject", "data": "data"}
    for name, given in {"subject": subject, **parts}.items():
        if given is not None and given != defaults.get(name):
            raise OptionError(
                f"argument {name} does not apply to a bucket",
                option=name,
                cure="leave it out, and name the columns key, value, "
                f"{', '.join(OF_BUCKETS.values())}, for example with df.select",
            )
    return Columns(subject="key", data="value", bucket=bucket, case_sensitive=case_sensitive)


def check_same_domain(settings: Settings) -> None:
    """
    Raise if the bucket is in another domain or account, where its keys have other subjects.
    """
    fields = ("domain", "api_prefix", "jetstream_domain", "jetstream_prefix")
    for name in fields:
        if getattr(settings, name, None):
            raise OptionError(
                "rows cannot be written to a bucket of another JetStream domain or account",
                option=name,
                cure="connect to a server of that domain or account, without jetstreamDomain and "
                "jetstreamPrefix",
            )


def check_bucket(config: jetsync.StreamConfig, options: WriteOptions, columns: Columns) -> Columns:
    """
    Check a bucket, and return the columns with what tasks have to know about it.

    Raises:
        JetStreamSparkError: The bucket cannot store such rows.
    """

    def refuse(what: str, cure: str) -> None:
        raise JetStreamSparkError(what, stream=config.name, bucket=options.bucket, cure=cure)

    if config.mirror is not None:
        origin = (config.mirror.name or "").removeprefix("KV_")
        refuse("a bucket that mirrors another one accepts no rows", f"write to bucket {origin}")
    if columns.ttl is not None and not config.allow_msg_ttl:
        refuse(
            f"column {columns.ttl} needs a bucket that allows a time-to-live per key",
            "set limit_marker_ttl on the bucket (nats-server 2.11 or newer), or drop the column",
        )
    if columns.expected_sequence is not None and options.mode == ATOMIC:
        refuse(
            f"mode atomic cannot write column {columns.expected_sequence}: if the task runs again, "
            "the bucket would refuse chunks that it has already stored",
            "use mode atleastonce or exactlyonce",
        )
    return attrs.evolve(columns, has_history=config.max_msgs_per_subject != 1)


def ledger_of_bucket(bucket: str) -> str:
    """
    Return the prefix of the ledger's subjects in a bucket.
    """
    return key_prefix(bucket) + LEDGER_KEY


class KeyChecks(Checks):
    """
    Checks values of rows that change a bucket. Errors name the row.

    Args:
        bucket: The bucket.
        partition: The number of the partition.
        more: As for :class:`Checks`.
    """

    def __init__(self, bucket: str, partition: int, **more: Any) -> None:
        super().__init__(Keys(), bucket, partition, **more)

    def null_subject(self, row: int, column: str | None) -> RowError:
        """Return the error of a row whose key is null."""
        return self._error("the key is null", row, column, "drop such rows, or give a key")

    def subject(self, subject: object, row: int, column: str | None) -> str:
        """
        Return the key if it is valid. Raise otherwise.
        """
        if subject is None:
            raise self.null_subject(row, column)
        if not isinstance(subject, str):
            what = f"the key must be a string, not {type(subject).__name__}"
            raise self._error(what, row, column, "cast it to a string")
        if self.subjects.takes(subject):
            return subject
        cure = "correct or drop such rows, or replace characters with regexp_replace or hex"
        raise self._error(f"the key {bad_key(subject)}", row, column, cure)
