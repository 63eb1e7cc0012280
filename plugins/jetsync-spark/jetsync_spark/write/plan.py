"""
Checks before the first row is written, and the plan that is sent to the executors.

If the stream or the columns make a write impossible, it fails here, on the driver if possible.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

import jetsync
from jetsync_spark.common.clients import Settings
from jetsync_spark.common.dead_letters import DeadLetters, dead_letters_of
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.retry import ask_with_retry
from jetsync_spark.common.subjects import StreamSubjects, SubjectTemplate, bad_token, is_template
from jetsync_spark.write.buckets import (
    bucket_columns,
    check_bucket,
    check_same_domain,
    ledger_of_bucket,
)
from jetsync_spark.write.columns import Columns, Types
from jetsync_spark.write.options import ATOMIC, EXACTLY_ONCE, WriteOptions

if TYPE_CHECKING:
    from jetsync_spark.common.task import Task

__all__ = ["Plan", "check_dead_letters", "check_streams", "columns_of", "make_plan"]

K = TypeVar("K")
T = TypeVar("T")

CACHE_SECONDS: Final = 10.0
"""Seconds for which a stream's configuration is cached, so that micro-batches do not request it."""

_NAME: Final = re.compile(r"[\w-]{1,64}", re.ASCII)
_logger = jetsync.get_logger("jetsync.spark.planning")


@attrs.frozen(kw_only=True)
class Plan:
    """
    What a task needs to write its rows. It can be pickled and holds no secrets from options.
    """

    settings: Settings = attrs.field(repr=False)
    options: WriteOptions
    columns: Columns
    make: Callable[[Any], Any] | None = None
    """Function that converts a row to a message. None uses the columns."""

    subjects: tuple[str, ...] = ()
    """The subjects of all streams."""

    streams: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The streams and their subjects."""

    max_size: int | None = None
    """The largest message that a stream accepts. None means no limit."""

    dead_letters: DeadLetters | None = None
    """Where dead letters go. None if invalid rows have another policy."""

    ledgers: tuple[str, ...] = ()
    """Possible prefixes of the ledger's subjects. A new ledger uses the first."""

    rollup: bool = False
    """Whether the stream allows messages that replace the earlier ones on their subject."""

    application: str = "spark"
    """Part of the connection names if there is no query."""

    job: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    """A unique name of the job."""

    def connection_name(self, task: Task) -> str:
        """
        Return the name of a task's connection, which operators see.
        """
        whose = task.query or self.options.write_id or self.application
        return f"jetsync-spark-{whose}-{task.partition}"


def columns_of(
    subject: str | None, *, constant: bool, bucket: str | None = None, **parts: Any
) -> Columns:
    """
    Return the columns for a subject option.

    Args:
        subject: A template if it has braces. Otherwise a subject for all rows if *constant*, else
            the name of a column. None means the column ``subject``.
        constant: The meaning of a subject without braces.
        bucket: The bucket to change, whose columns have fixed names.
        parts: The columns of other parts, as for :class:`Columns`.
    """
    if bucket is not None:
        return bucket_columns(bucket, subject, **parts)
    if subject is None:
        return Columns(**parts)
    if is_template(subject):
        template = SubjectTemplate.parse(subject)
        if template.columns:
            return Columns(subject=None, template=template, **parts)
        # It has escaped braces only.
        return Columns(subject=None, constant=template.fill(()), **parts)
    if not constant:
        return Columns(subject=subject, **parts)
    bad = next(filter(None, map(bad_token, subject.split("."))), None)
    if bad is not None:
        raise OptionError(
            f"subject {subject!r}: a token {bad}",
            option="subject",
            cure="separate tokens with dots, or give a template such as orders.{region}",
        )
    return Columns(subject=None, constant=subject, **parts)


def make_plan(
    settings: Settings,
    options: WriteOptions,
    columns: Columns,
    *,
    types: Types | None = None,
    all_used: bool = False,
    make: Callable[[Any], Any] | None = None,
    application: str = "spark",
    keep: bool = True,
) -> Plan:
    """
    Check a write before its first row. Wait for unavailable servers.

    Args:
        settings: How to connect.
        options: The stream, the guarantee, and how long to wait.
        columns: The columns of the message parts.
        types: The types of the columns, if the schema is known.
        all_used: Whether to reject columns that would not be written.
        make: Function that converts rows to messages, instead of the columns.
        application: Part of the connection names.
        keep: Whether the connection stays open.

    Raises:
        JetStreamSparkError: The write is not possible.
    """
    bucket = options.bucket
    columns = attrs.evolve(columns, many_streams=len(options.streams) > 1)
    if bucket is not None:
        check_same_domain(settings)
    if types is not None and make is None:
        columns = columns.within(types)
        columns.check_types(types)
        if all_used:
            columns.check_known(types)
    if options.write_id is not None and not _NAME.fullmatch(options.write_id):
        raise OptionError(
            f"writeId {options.write_id!r} is not a valid name",
            option="writeId",
            cure="give up to 64 letters, digits, _ and -",
        )

    def ask(call: Callable[[jetsync.JetStream], T], stream: str) -> T:
        target = f"stream {stream}" if bucket is None else f"bucket {bucket}"
        doing = f"planning a write to {target} failed"
        name = f"jetsync-spark-{application}-plan"
        return ask_with_retry(settings, name, call, options.retry_timeout, doing, keep=keep)

    def configuration(stream: str) -> jetsync.StreamConfig:
        if bucket is not None:
            return ask(lambda js: js.key_value(bucket).stream.cached_info.config, stream)
        return ask(lambda js: js.stream(stream).cached_info.config, stream)

    configs = [
        _recent(_configurations, (settings, name), partial(configuration, name))
        for name in options.streams
    ]
    # Modes with a ledger write to one stream.
    config = configs[0]
    subjects = StreamSubjects([subject for each in configs for subject in each.subjects or ()])
    if bucket is not None:
        columns = check_bucket(config, options, columns)
    for each in configs:
        _check_stream(each, options, columns)
    _check_subject(subjects, options, columns)
    ledgers: tuple[str, ...] = ()
    if options.mode == EXACTLY_ONCE:
        ledgers = _ledgers_of(subjects, options)
        _check_ledger(config, options, ledgers[0])
    letters, subject = None, options.dead_letter_subject
    if subject is not None:
        _check_dead_letters(subject, subjects, options, columns, ledgers)
        letters = _recent(
            _letters,
            (settings, subject),
            lambda: ask(lambda js: dead_letters_of(js, subject), options.stream),
        )
    # If a row is too large for its stream only, the server refuses it.
    sizes = [size if (size := each.max_msg_size) and size > 0 else None for each in configs]
    return Plan(
        settings=settings,
        options=options,
        columns=columns,
        make=make,
        subjects=subjects.filters,
        streams=tuple(
            (name, tuple(each.subjects or ()))
            for name, each in zip(options.streams, configs, strict=True)
        ),
        max_size=None if None in sizes else max(size for size in sizes if size is not None),
        dead_letters=letters,
        ledgers=ledgers,
        rollup=config.allow_rollup_hdrs or False,
        application=application,
    )


_configurations: dict[tuple[Settings, str], tuple[float, jetsync.StreamConfig]] = {}
_letters: dict[tuple[Settings, str], tuple[float, DeadLetters]] = {}
_lock = jetsync.interrupt_safe_lock()


def _after_fork() -> None:
    # A thread of the parent may have held the lock.
    global _lock  # noqa: PLW0603 - the module's own state.
    _lock = jetsync.interrupt_safe_lock()


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_after_fork)


def _recent(cache: dict[K, tuple[float, T]], key: K, ask: Callable[[], T]) -> T:
    """
    Return what the server has said, from the cache if that was a moment ago.
    """
    with _lock:
        kept = cache.get(key)
    if kept is not None and time.monotonic() - kept[0] < CACHE_SECONDS:
        return kept[1]
    found = ask()
    with _lock:
        cache[key] = (time.monotonic(), found)
    return found


def check_streams(plan: Plan, streams: Iterable[str]) -> None:
    """
    Check that the target stream acknowledged the rows.

    Raises:
        JetStreamSparkError: A subject has moved to another stream, which stored the rows.
    """
    name, planned = plan.options.stream, plan.options.streams
    other = next((each for each in streams if each not in planned), None)
    if other is None:
        return
    with _lock:
        # The next plan has to notice the change before it stores a row.
        for each in planned:
            _configurations.pop((plan.settings, each), None)
    raise JetStreamSparkError(
        f"stream {other} has stored rows for stream {name}",
        stream=name,
        cure=f"the subjects were moved to {other}: move them back, or write to {other}, and check "
        "for rows in the wrong stream",
    )


def check_dead_letters(plan: Plan, streams: Iterable[str]) -> None:
    """
    Check that the planned stream acknowledged the dead letters.

    Raises:
        JetStreamSparkError: Their subject has moved to another stream, which stored them.
    """
    assert plan.dead_letters is not None
    name = plan.dead_letters.stream
    other = next((each for each in streams if each != name), None)
    if other is None:
        return
    with _lock:
        _letters.pop((plan.settings, plan.dead_letters.subject), None)
    raise JetStreamSparkError(
        f"stream {other} has stored dead letters for stream {name}",
        stream=name,
        subject=plan.dead_letters.subject,
        cure=f"their subject was moved to {other}: start the write again",
    )


def _check_stream(config: jetsync.StreamConfig, options: WriteOptions, columns: Columns) -> None:
    def refuse(what: str, cure: str, err_code: int | None = None) -> None:
        raise JetStreamSparkError(
            what, stream=config.name, bucket=options.bucket, err_code=err_code, cure=cure
        )

    kind, where = "stream", "allow_atomic on the stream"
    if options.bucket is not None:
        kind, where = "bucket", "atomic on the bucket"
    if config.mirror is not None:
        refuse("a mirror accepts no messages", f"write to its origin, {config.mirror.name}")
    if config.sealed:
        refuse("a sealed stream accepts no messages", "write to another stream")
    if config.no_ack:
        refuse("the stream sends no acks (no_ack)", "set no_ack to False on the stream")
    if options.mode in {ATOMIC, EXACTLY_ONCE} and not config.allow_atomic:
        refuse(
            f"mode {options.mode} needs atomic batches, which the {kind} does not allow",
            f"set {where} (nats-server 2.12.5 or newer), or use mode atleastonce",
            10174,
        )
    if options.mode == ATOMIC and columns.msg_id is not None:
        refuse(
            f"mode atomic cannot write the IDs of column {columns.msg_id}: if the task runs again, "
            "the stream would reject chunks that it has already stored",
            "drop the column, or use mode atleastonce, which stores an ID once",
        )
    if options.fast_ingest and not config.allow_batched:
        refuse(
            "fastIngest needs fast batches, which the stream does not allow",
            "set allow_batched on the stream (nats-server 2.14 or newer), or leave it out",
        )
    if columns.ttl is not None and not config.allow_msg_ttl:
        refuse(
            f"column {columns.ttl} needs a stream that allows a time-to-live per message",
            "set allow_msg_ttl on the stream (nats-server 2.11 or newer), or drop the column",
            10166,
        )


def _check_subject(subjects: StreamSubjects, options: WriteOptions, columns: Columns) -> None:
    wrong = None
    if columns.constant is not None and not subjects.takes(columns.constant):
        wrong = columns.constant
    elif columns.template is not None and not subjects.may_take(columns.template.pattern):
        wrong = columns.template.text
    if wrong is not None:
        raise JetStreamSparkError(
            "the stream does not capture this subject",
            stream=options.stream,
            subject=wrong,
            cure=f"add it to the stream, which has {', '.join(subjects.filters) or 'none'}",
        )


def _check_dead_letters(
    letters: str,
    subjects: StreamSubjects,
    options: WriteOptions,
    columns: Columns,
    ledgers: tuple[str, ...],
) -> None:
    """
    Reject a subject of dead letters that cannot keep the guarantee, or that is used for more.
    """
    if options.bucket is not None and subjects.takes(letters):
        raise OptionError(
            f"dead letters with the subject {letters} would be values of bucket {options.bucket}",
            option="deadLetterSubject",
            cure="give a subject of another stream",
        )
    if letters == columns.constant:
        raise OptionError(
            f"rows and dead letters have the same subject {letters}",
            option="deadLetterSubject",
            cure="give another one",
        )
    if options.mode != EXACTLY_ONCE:
        return
    if not subjects.takes(letters):
        raise OptionError(
            f"mode exactlyonce stores dead letters together with the rows, but stream "
            f"{options.stream} does not capture their subject {letters}",
            option="deadLetterSubject",
            cure=f"add it to the stream, which has {', '.join(subjects.filters)}, and let another "
            "stream source it from there if dead letters belong into a stream of their own; or use "
            "mode atleastonce",
        )
    for ledger in ledgers:
        if letters == ledger or letters.startswith(f"{ledger}."):
            raise OptionError(
                f"dead letters cannot have the subject {letters}, because the ledger has {ledger}",
                option="deadLetterSubject",
                cure="give another one",
            )


def _ledgers_of(subjects: StreamSubjects, options: WriteOptions) -> tuple[str, ...]:
    """
    Return possible prefixes of the ledger's subjects.
    """
    if options.bucket is not None:
        return (ledger_of_bucket(options.bucket),)
    given = options.ledger_subject
    if given is not None:
        if subjects.takes(f"{given}.query.0"):
            return (given,)
        raise JetStreamSparkError(
            "the stream does not capture the subjects of the ledger",
            stream=options.stream,
            subject=f"{given}.*.*",
            cure=f"add {given}.> to the stream, which has {', '.join(subjects.filters) or 'none'}",
        )
    found = subjects.ledger_prefixes()
    if not found:
        raise JetStreamSparkError(
            "mode exactlyonce needs a subject for its ledger in the stream",
            stream=options.stream,
            cure=f"add a subject such as ledger.{options.stream}.> to the stream, or set "
            "ledgerSubject",
        )
    return found


def _check_ledger(config: jetsync.StreamConfig, options: WriteOptions, ledger: str) -> None:
    """
    Reject streams that would remove the ledger, and warn about limits that may remove it.
    """
    retention = config.retention
    if retention not in {None, jetsync.RetentionPolicy.LIMITS}:
        raise JetStreamSparkError(
            f"mode exactlyonce keeps a ledger in the stream, but retention {retention.value} "
            "removes messages",
            stream=options.stream,
            cure="write to a stream with retention limits, and let the other one source it",
        )
    transform = config.subject_transform
    if transform is not None:
        changed = StreamSubjects((transform.src or ">",))
        if changed.may_take(f"{ledger}.*.*"):
            raise JetStreamSparkError(
                "mode exactlyonce finds its ledger by its subject, but the stream transforms it",
                stream=options.stream,
                subject=f"{ledger}.*.*",
                cure="set a ledgerSubject that subject_transform leaves alone, or write to a "
                "stream without it",
            )
    full = config.discard is jetsync.DiscardPolicy.NEW
    if full and config.discard_new_per_subject and (config.max_msgs_per_subject or 0) > 0:
        raise JetStreamSparkError(
            "mode exactlyonce writes many messages to the subject of its ledger, but the stream "
            f"rejects more than {config.max_msgs_per_subject} (discard_new_per_subject)",
            stream=options.stream,
            err_code=10077,
            cure="set discard_new_per_subject to False on the stream, or write to another one",
        )
    # With discard "new", a full stream rejects new messages. Only max_age removes old ones.
    taking = ("max_age",) if full else ("max_age", "max_msgs", "max_bytes")
    limits = {
        name: value for name in taking if (value := getattr(config, name)) is not None and value > 0
    }
    if limits:
        # Without its ledger a write is no longer exactly-once.
        _logger.warning("ledger_may_be_lost", stream=options.stream, **limits)
