"""
Dead letters: copies of rows and messages that cannot be processed, with the reason in headers.

Rows cannot be written, and messages cannot be read. Both keep the original payload, so that a
program can correct it and send it again.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError, OptionError
from jetsync_spark.common.options import choice
from jetsync_spark.common.subjects import bad_token, is_template

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "DEAD_LETTER",
    "FAIL",
    "SKIP",
    "DeadLetter",
    "DeadLetters",
    "check_policy",
    "columns_text",
    "dead_letter",
    "dead_letters_of",
    "origin_of",
    "policy",
    "policy_validator",
    "store_dead_letters",
]

FAIL: Final = "fail"
SKIP: Final = "skip"
DEAD_LETTER: Final = "deadletter"
"""Options are compared in lower case. Users write ``deadLetter``."""

_POLICIES: Final = (FAIL, SKIP, DEAD_LETTER)

PREFIX: Final = "Jetsync-Dead-Letter-"

HEADERS: Final = 4096
"""The headers of a dead letter have fewer bytes, with those of a batch and of common plugins."""

_LONGEST: Final = {"Reason": 600, "Columns": 1200}
"""Maximum bytes of the values of some headers."""

_OTHERS: Final = 255
"""Maximum bytes of the other values."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

policy: Callable[[str, str], str] = choice(FAIL, SKIP, "deadLetter")
"""Parses ``fail``, ``skip`` or ``deadLetter``, in any case."""


class DeadLetter(jetsync.OutboundMessage):
    """
    A dead letter, which writers distinguish from rows.
    """

    __slots__ = ()


@attrs.frozen
class DeadLetters:
    """
    Where dead letters go, as planned.
    """

    subject: str
    stream: str
    """The stream that captures the subject."""

    max_size: int | None = None
    """The largest message that the stream accepts. None means no limit."""


def policy_validator(name: str) -> Callable[[Any, attrs.Attribute[str], object], None]:
    """
    Return a validator of attrs for the option with this name.
    """

    def check(_: Any, __: attrs.Attribute[str], value: object) -> None:
        if value not in _POLICIES:
            raise OptionError(
                f"{name} is {value!r}", option=name, cure="give fail, skip or deadLetter"
            )

    return check


def check_policy(name: str, chosen: str, subject: str | None) -> None:
    """
    Check that a policy and the subject of the dead letters belong together.

    Args:
        name: The option of the policy.
        chosen: The policy.
        subject: The subject.

    Raises:
        OptionError: They do not.
    """
    if subject is None:
        if chosen == DEAD_LETTER:
            raise OptionError(
                f"{name} deadLetter needs a subject",
                option="deadLetterSubject",
                cure="set deadLetterSubject to a subject that a stream captures",
            )
        return
    if chosen != DEAD_LETTER:
        raise OptionError(
            f"deadLetterSubject has no effect with {name} {chosen}",
            option="deadLetterSubject",
            cure=f"set {name} to deadLetter, or leave it out",
        )
    bad = next(filter(None, map(bad_token, subject.split("."))), None)
    if bad is not None or is_template(subject):
        raise OptionError(
            f"deadLetterSubject {subject!r}: a token {bad or 'has braces'}",
            option="deadLetterSubject",
            cure="give one subject for all dead letters, without columns and wildcards",
        )


def dead_letters_of(js: jetsync.JetStream, subject: str) -> DeadLetters:
    """
    Return where dead letters go. Asks the server.

    Raises:
        JetStreamSparkError: No stream can store them.
        JetSyncError: The server did not answer.
    """
    try:
        config = js.stream(js.stream_name_by_subject(subject)).cached_info.config
    except jetsync.StreamNotFoundError:
        raise JetStreamSparkError(
            "no stream captures the subject of the dead letters",
            subject=subject,
            cure="create a stream for it, or correct deadLetterSubject",
        ) from None
    largest = config.max_msg_size
    largest = None if largest is None or largest <= 0 else largest
    if config.no_ack or config.sealed or (largest is not None and largest < HEADERS):
        raise JetStreamSparkError(
            "the stream cannot keep dead letters, because it sends no acks (no_ack), is sealed, or "
            f"has a max_msg_size below {HEADERS} bytes",
            stream=config.name,
            subject=subject,
            cure="change the stream, or give a subject of another one as deadLetterSubject",
        )
    return DeadLetters(subject, str(config.name), largest)


def dead_letter(
    subject: str, reason: str, data: bytes, largest: int, about: Mapping[str, object]
) -> DeadLetter:
    """
    Return a dead letter, which servers accept.

    Args:
        subject: The subject of the dead letters.
        reason: Why the original cannot be processed.
        data: The payload of the original.
        largest: Maximum bytes of a message. A longer payload is cut off.
        about: More headers, without their prefix. None is left out.
    """
    values = {"Reason": reason, **about}
    room = max(largest - HEADERS, 0)
    if len(data) > room:
        values["Truncated-From"] = len(data)
        data = data[:room]
    headers = {
        PREFIX + name: _line(str(value), _LONGEST.get(name, _OTHERS))
        for name, value in values.items()
        if value is not None
    }
    return DeadLetter(subject, data, headers)


def store_dead_letters(
    js: jetsync.JetStream,
    letters: Sequence[DeadLetter],
    after_report: Callable[[jetsync.PublishReport], object],
    *,
    ack_timeout: float | None = None,
) -> None:
    """
    Store dead letters, those that failed again and again.

    Args:
        js: Where to store them.
        letters: The dead letters.
        after_report: Called after each attempt. It waits before failed letters are sent again, or
            raises.
        ack_timeout: Seconds to wait for each ack. None means the default of *js*.
    """
    left: Sequence[Any] = letters
    while left:
        try:
            report = js.publish_many(left, ack_timeout=ack_timeout)
        except jetsync.PublishManyError as error:
            report = error.report
        after_report(report)
        # After many failures, publish_many does not read the rest.
        read = report.count + len(report.failures)
        left = [*(failure.message for failure in report.failures), *left[read:]]


def origin_of(letter: DeadLetter) -> tuple[object, ...]:
    """
    Return the headers of a dead letter that are the same whenever its original is found invalid.

    The reason may differ, for example in the address of an object. The number of the row differs if
    a replay has its rows in another order.
    """
    headers = cast("Mapping[str, str]", letter.headers)
    return tuple(headers.get(PREFIX + name) for name in ("Subject", "Columns"))


def columns_text(values: Mapping[str, Any]) -> str | None:
    """
    Return columns as JSON, in which long values are cut off, or None if there are too many.
    """
    for most in (200, 50, 0):
        cut = {name: _cut(value, most) for name, value in values.items()}
        text = json.dumps(cut, default=repr)
        if len(text) <= _LONGEST["Columns"]:
            return text
    return None


def _cut(value: Any, most: int) -> Any:
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):
        value = text = repr(value)
    return value if len(text) <= most else text[:most] + "..."


def _line(text: str, most: int) -> str:
    """Return a text as the value of a header: one line with at most that many bytes."""
    # A regular expression over megabytes would take long, and a line may begin with spaces.
    line = _CONTROL.sub("?", " ".join(text[: 4 * most].split()))
    if len(line.encode()) <= most:
        return line
    return line.encode()[: most - 3].decode(errors="ignore") + "..."
