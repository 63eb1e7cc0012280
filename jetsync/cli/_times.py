"""
Times on the command line: a date and time, or an age.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

import click

_UNITS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_AGO: Final = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PART: Final = re.compile(r"([\d.]+)([dhms])")


def moment_of(text: str) -> dt.datetime:
    """
    Parse a time such as `2026-08-06T18:00`, or an age: `90s`, `1h30m`, `2d`.

    A time without a zone is local time.
    """
    try:
        if _AGO.fullmatch(text):
            ago = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
            return dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=ago)
        # Python 3.10 knows a zone of Z by this name only.
        return dt.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text)).astimezone()
    except (ValueError, OverflowError):
        reason = f"{text!r} is neither a time such as 2026-08-06T18:00 nor an age such as 1h30m"
        raise click.BadParameter(reason) from None
