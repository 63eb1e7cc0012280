"""
Parse the options of reads that are times.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from jetsync_spark.common.errors import OptionError

__all__ = ["moment"]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

_SECONDS: Final = range(10**9, 10**11)
"""Seconds since 1970 from 2001 on. As milliseconds, they would be before JetStream existed."""

_LAST: Final = ((1 << 63) - 1) // 1_000_000
"""The largest milliseconds since 1970 that a server's nanoseconds can hold."""

_ISO: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?)(?:(?<=:\d\d:\d\d)[.,](\d{1,6}))?)?"
    r"\s?(?:([Zz])|([+-]\d\d):?(\d\d)?)?"
)


def moment(name: str, value: str) -> dt.datetime:
    """
    Parse a time.

    Args:
        name: The option.
        value: Milliseconds since 1970, or ISO 8601 with a time zone.

    Raises:
        OptionError: It is neither.
    """
    given, example = value.strip(), "2026-11-29T10:40:00Z"
    cure = f"give milliseconds since 1970, or a time with its zone such as {example}"
    problem = f"option {name} is {value!r}"
    # int() also takes underscores, and digits of other scripts.
    if re.fullmatch("[0-9]{1,19}", given):
        number = int(given)
        if number in _SECONDS:
            raise OptionError(
                f"{problem}, which looks like seconds",
                option=name,
                cure=f"give milliseconds since 1970, such as {number}000, or a time with its zone "
                f"such as {example}",
            )
        if number <= _LAST:
            return _EPOCH + dt.timedelta(milliseconds=number)
        raise OptionError(f"{problem}, which is after the year 2261", option=name, cure=cure)
    found = _ISO.fullmatch(given)
    if found is None:
        raise OptionError(problem, option=name, cure=cure)
    day, clock, fraction, utc, hours, minutes = found.groups()
    if clock is None:
        raise OptionError(f"{problem}, which has no time of day", option=name, cure=cure)
    if utc is None and hours is None:
        raise OptionError(
            f"{problem}, which has no time zone",
            option=name,
            cure=f"give one, such as {given}Z for UTC, because Spark does not pass on the zone of "
            "the session. For a datetime from collect(), pass its astimezone()",
        )
    zone = "+00:00" if utc else f"{hours}:{minutes or '00'}"
    try:
        # Python 3.10 takes three or six digits of a fraction, and no Z.
        found_at = dt.datetime.fromisoformat(
            f"{day}T{clock if len(clock) == 8 else clock + ':00'}.{fraction or '0':0<6}{zone}"
        )
    except ValueError:
        raise OptionError(f"{problem}, which is no time", option=name, cure=cure) from None
    if not 1970 <= found_at.year <= 2261:
        raise OptionError(f"{problem}, which is not from 1970 to 2261", option=name, cure=cure)
    return found_at
