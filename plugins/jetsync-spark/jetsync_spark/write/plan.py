"""
What is checked before the first row is written, and what travels to the executors.

Everything that the stream or the columns make impossible is found here, on the driver where that
can be.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync
from jetsync_spark.common.clients import Settings, lend
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.retry import Patience
from jetsync_spark.common.subjects import StreamSubjects, SubjectTemplate, bad_token, is_template
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.options import ATOMIC, EXACTLY_ONCE, WriteOptions

if TYPE_CHECKING:
    from jetsync_spark.common.task import Task

__all__ = ["Plan", "check_streams", "columns_of", "make_plan"]

KEPT: Final = 10.0
"""Seconds for which what is known of a stream is not asked for again, as by each micro-batch."""

_NAME: Final = re.compile(r"[\w-]{1,64}", re.ASCII)
_logger = jetsync.get_logger("jetsync.spark.planning")


@attrs.frozen(kw_only=True)
class Plan:
    """
    What a task has to know to write its rows; can be pickled, and holds no secret of options.
    """

    settings: Settings = attrs.field(repr=False)
    options: WriteOptions
    columns: Columns
    make: Callable[[Any], Any] | None = None
    """Makes a message of a row; None goes by the columns."""

    subjects: tuple[str, ...] = ()
    """What the stream takes."""

    ledgers: tuple[str, ...] = ()
    """What the subjects of the ledger may begin with; a new one begins with the first of them."""

    application: str = "spark"
    """What connections are named after, where there is no query."""

    job: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    """A name that no other job has."""

    def connection_name(self, task: Task) -> str:
        """
        Return what an operator sees of the connection that a task makes.
        """
        whose = task.query or self.options.write_id or self.application
        return f"jetsync-spark-{whose}-{task.partition}"


def columns_of(subject: str | None, *, constant: bool) -> Columns:
    """
    Return the usual columns, with the subject from where it is to come.

    Args:
        subject: A template with braces; anything else is a subject for all rows if *constant*, and
            the name of a column otherwise. None is the column ``subject``.
        constant: What it means without braces.
    """
    if subject is None:
        return Columns()
    if is_template(subject):
        return Columns(subject=None, template=SubjectTemplate.parse(subject))
    if not constant:
        return Columns(subject=subject)
    bad = next(filter(None, map(bad_token, subject.split("."))), None)
    if bad is not None:
        raise OptionError(
            f"subject {subject!r}: a token {bad}",
            option="subject",
            cure="give tokens with dots between them, or a template such as orders.{region}",
        )
    return Columns(subject=None, constant=subject)


def make_plan(
    settings: Settings,
    options: WriteOptions,
    columns: Columns,
    *,
    types: Mapping[str, str] | None = None,
    all_used: bool = False,
    make: Callable[[Any], Any] | None = None,
    patience: float = 0.0,
    application: str = "spark",
) -> Plan:
    """
    Check everything that can be checked before a row is there.

    Args:
        settings: How to connect.
        options: What to write, and how.
        columns: What becomes of the columns.
        types: The types of the columns, where the schema is known.
        all_used: Whether columns that nothing becomes of are refused.
        make: Makes messages of rows in the place of the columns.
        patience: Seconds to wait for servers that are away.
        application: For the names of connections.

    Raises:
        JetStreamSparkError: it can not work, with the reason and what to do.
    """
    if types is not None and make is None:
        columns = columns.within(types)
        columns.check_types(types)
        if all_used:
            columns.check_known(types)
    if options.write_id is not None and not _NAME.fullmatch(options.write_id):
        raise OptionError(
            f"writeId {options.write_id!r} is no name",
            option="writeId",
            cure="give up to 64 letters, digits, _ and -",
        )
    config = _configuration(settings, options.stream, patience, application)
    subjects = StreamSubjects(config.subjects or ())
    _check_stream(config, options, columns)
    _check_subject(subjects, options, columns)
    ledgers: tuple[str, ...] = ()
    if options.mode == EXACTLY_ONCE:
        ledgers = _ledgers_of(subjects, options)
        _check_ledger(config, options, ledgers[0])
    return Plan(
        settings=settings,
        options=options,
        columns=columns,
        make=make,
        subjects=subjects.filters,
        ledgers=ledgers,
        application=application,
    )


_configurations: dict[tuple[Settings, str], tuple[float, jetsync.StreamConfig]] = {}
_lock = threading.RLock()


def _after_fork() -> None:
    # A thread of the parent may have held it.
    global _lock  # noqa: PLW0603 - the module's own state.
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _configuration(
    settings: Settings, stream: str, seconds: float, application: str
) -> jetsync.StreamConfig:
    """
    Ask for a stream's configuration, unless that was done a moment ago.
    """
    with _lock:
        kept = _configurations.get((settings, stream))
    if kept is not None and time.monotonic() - kept[0] < KEPT:
        return kept[1]

    def ask() -> jetsync.StreamConfig:
        with lend(settings, f"jetsync-spark-{application}-plan") as client:
            return client.jetstream().stream(stream).cached_info.config

    config = Patience(seconds).keep_trying(ask, f"planning a write to stream {stream} failed")
    with _lock:
        _configurations[settings, stream] = (time.monotonic(), config)
    return config


def check_streams(plan: Plan, streams: Iterable[str]) -> None:
    """
    Refuse acknowledgements of other streams than the one that the rows are for.

    Raises:
        JetStreamSparkError: a subject has become one of another stream, which has stored its rows.
    """
    name = plan.options.stream
    other = next((each for each in streams if each != name), None)
    if other is None:
        return
    with _lock:
        # Whoever plans next is to find it before a row is stored.
        _configurations.pop((plan.settings, name), None)
    raise JetStreamSparkError(
        f"stream {other} has stored rows that are for stream {name}",
        stream=name,
        cure=f"the subjects of the rows were moved: give them back, or write to {other}, and look "
        "for rows that are in the wrong stream",
    )


def _check_stream(config: jetsync.StreamConfig, options: WriteOptions, columns: Columns) -> None:
    def refuse(what: str, cure: str, err_code: int | None = None) -> None:
        raise JetStreamSparkError(what, stream=options.stream, err_code=err_code, cure=cure)

    if config.mirror is not None:
        refuse("a mirror takes no messages", f"write to its origin, {config.mirror.name}")
    if config.sealed:
        refuse("a sealed stream takes no messages", "write to another stream")
    if config.no_ack:
        refuse("the stream confirms nothing (no_ack)", "set no_ack to False on the stream")
    if options.mode in {ATOMIC, EXACTLY_ONCE} and not config.allow_atomic:
        refuse(
            f"mode {options.mode} needs atomic batches, which the stream does not allow",
            "set allow_atomic on the stream (nats-server 2.12.5 or newer), or use mode atleastonce",
            10174,
        )
    if options.mode == ATOMIC and columns.msg_id is not None:
        refuse(
            f"mode atomic can not write the ids of column {columns.msg_id}: the stream would "
            "refuse the chunks that it has when the task runs again",
            "drop the column, or use mode atleastonce, which stores an id once",
        )
    if options.fast_ingest and not config.allow_batched:
        refuse(
            "fastIngest needs fast batches, which the stream does not allow",
            "set allow_batched on the stream (nats-server 2.14 or newer), or leave it out",
        )
    if columns.ttl is not None and not config.allow_msg_ttl:
        refuse(
            f"column {columns.ttl} needs a stream that allows a time-to-live for each message",
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
            "the stream does not take that subject",
            stream=options.stream,
            subject=wrong,
            cure=f"add it to the stream, which has {', '.join(subjects.filters) or 'none'}",
        )


def _ledgers_of(subjects: StreamSubjects, options: WriteOptions) -> tuple[str, ...]:
    """
    Return what the subjects of the ledger may begin with.
    """
    given = options.ledger_subject
    if given is not None:
        if subjects.takes(f"{given}.query.0"):
            return (given,)
        raise JetStreamSparkError(
            "the stream does not take the subjects of the ledger",
            stream=options.stream,
            subject=f"{given}.*.*",
            cure=f"add {given}.> to the stream, which has {', '.join(subjects.filters) or 'none'}",
        )
    found = subjects.ledger_rooms()
    if not found:
        raise JetStreamSparkError(
            "mode exactlyonce keeps a ledger in the stream, which has no subject for it",
            stream=options.stream,
            cure=f"add a subject such as ledger.{options.stream}.> to the stream, or set "
            "ledgerSubject",
        )
    return found


def _check_ledger(config: jetsync.StreamConfig, options: WriteOptions, ledger: str) -> None:
    """
    Refuse streams that would not keep the ledger, and warn of those that may not.
    """
    retention = config.retention
    if retention not in {None, jetsync.RetentionPolicy.LIMITS}:
        raise JetStreamSparkError(
            f"mode exactlyonce keeps a ledger in the stream, and retention {retention.value} "
            "removes messages that were read",
            stream=options.stream,
            cure="write to a stream with retention limits, and let the other one source it",
        )
    transform = config.subject_transform
    if transform is not None:
        changed = StreamSubjects((transform.src or ">",))
        if changed.may_take(f"{ledger}.*.*"):
            raise JetStreamSparkError(
                "mode exactlyonce finds its ledger by its subject, which the stream transforms",
                stream=options.stream,
                subject=f"{ledger}.*.*",
                cure="set a ledgerSubject that subject_transform leaves alone, or write to a "
                "stream without it",
            )
    full = config.discard is jetsync.DiscardPolicy.NEW
    if full and config.discard_new_per_subject and (config.max_msgs_per_subject or 0) > 0:
        raise JetStreamSparkError(
            "mode exactlyonce writes many messages to the subject of its ledger, and the stream "
            f"refuses more than {config.max_msgs_per_subject} (discard_new_per_subject)",
            stream=options.stream,
            err_code=10077,
            cure="set discard_new_per_subject to False on the stream, or write to another one",
        )
    # A stream that is full may refuse new messages in place of old ones; age takes what is old.
    taking = ("max_age",) if full else ("max_age", "max_msgs", "max_bytes")
    limits = {
        name: value for name in taking if (value := getattr(config, name)) is not None and value > 0
    }
    if limits:
        # Exactly-once lasts as long as the ledger does.
        _logger.warning("ledger_may_be_lost", stream=options.stream, **limits)
