"""
Durations, sizes, times, numbers and headers as people write them on the command line, and options
for them.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Callable

Decorator: TypeAlias = "Callable[[Callable[..., Any]], Callable[..., Any]]"
"""What adds an option to the function of a command."""

_SECONDS: Final = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}
_NUMBER: Final = r"\d+(?:\.\d+)?"
_PART: Final = re.compile(rf"({_NUMBER})(ms|[wdhms])")
_DURATION: Final = re.compile(rf"(?:{_NUMBER}(?:ms|[wdhms]))+")
# As the `nats` command line and the server's configuration: KB and KiB are 1024 bytes.
_SIZE: Final = re.compile(rf"({_NUMBER})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

# The longest duration that a configuration accepts as a number of seconds.
_LONGEST: Final = 1e9


def seconds_of(text: str) -> float:
    """
    Parse a duration such as `1h30m`, `7d` or `250ms`. A number without a unit is seconds.
    """
    if _DURATION.fullmatch(text):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    elif re.fullmatch(_NUMBER, text):
        seconds = float(text)
    else:
        reason = f"{text!r} is not a duration such as 250ms, 90s, 1h30m or 7d"
        raise click.BadParameter(reason)
    if seconds >= _LONGEST:
        raise click.BadParameter(f"{text!r} is longer than {_LONGEST / _SECONDS['d']:.0f}d")
    # 0.1 has a rounding error that a product with a unit may show.
    return round(seconds, 9)


def positive_seconds_of(text: str) -> float:
    """
    Parse a duration that is longer than 0.
    """
    seconds = seconds_of(text)
    if not seconds:
        raise click.BadParameter(f"{text!r} is not longer than 0")
    return seconds


def time_to_live(text: str) -> float | Literal["never"]:
    """
    Parse a time-to-live: a duration, or `never`.
    """
    if text == "never":
        return "never"
    try:
        return positive_seconds_of(text)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}, or 'never'") from None


def durations_of(text: str) -> list[float]:
    """
    Parse durations that are separated by commas.
    """
    return [seconds_of(part.strip()) for part in text.split(",")]


def bytes_of(text: str) -> int:
    """
    Parse a size such as `512KB` or `1.5GiB`, where KB and KiB are both 1024 bytes. -1 is no limit.
    """
    if text == "-1":
        return -1
    found = _SIZE.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size such as 1024, 512KB or 1GB")
    number, unit = found.groups(default="")
    return int(Decimal(number) * 1024 ** _POWERS[unit.lower()])


def moment_of(text: str) -> dt.datetime:
    """
    Parse a time such as `2026-08-06T18:00`, or an age: `90s`, `1h30m`, `2d`.

    A time without a zone is local time.
    """
    try:
        if _DURATION.fullmatch(text):
            ago = dt.timedelta(seconds=seconds_of(text))
            return dt.datetime.now(dt.timezone.utc) - ago
        # Python 3.10 knows a zone of Z by this name only.
        return dt.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text)).astimezone()
    except (ValueError, OverflowError, click.BadParameter):
        reason = f"{text!r} is neither a time such as 2026-08-06T18:00 nor an age such as 1h30m"
        raise click.BadParameter(reason) from None


def later_of(text: str) -> dt.datetime | dt.timedelta:
    """
    Parse a time such as `2026-08-06T18:00`, or a duration until then: `90s`, `1h30m`, `2d`.
    """
    if _DURATION.fullmatch(text):
        return dt.timedelta(seconds=positive_seconds_of(text))
    try:
        return moment_of(text)
    except click.BadParameter as error:
        raise click.BadParameter(error.message.replace("an age", "a duration")) from None


def header_of(text: str) -> tuple[str, str]:
    """
    Parse a header such as `Name: value`, and return its name and value.
    """
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{text!r} is not of the form 'Name: value'")
    return name.strip(), value.strip()


def combined(*options: Decorator) -> Decorator:
    """
    Return a decorator that adds several options, in the order of the help.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        # click lists the options of decorators from the bottom up.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


number_option: Final = functools.partial(click.option, type=click.IntRange(min=1), metavar="N")
"""An option whose value is a whole number from 1."""

size_option: Final = functools.partial(click.option, type=bytes_of, metavar="SIZE")
"""An option whose value is a number of bytes."""

age_option: Final = functools.partial(click.option, type=seconds_of, metavar="DURATION")
"""An option whose value is a duration, which may be 0."""

duration_option: Final = functools.partial(
    click.option, type=positive_seconds_of, metavar="DURATION"
)
"""An option whose value is a duration that is longer than 0."""

since_option: Final = click.option(
    "--since",
    type=moment_of,
    metavar="TIME",
    help="Begin at TIME: 2026-08-06T18:00, or 1h30m for an age.",
)
"""An option for the time of the first message."""

ttl_option: Final = click.option(
    "--ttl", type=time_to_live, metavar="DURATION", help="Time-to-live, such as 1h, or 'never'."
)
"""An option for the time-to-live of a message or a key."""
