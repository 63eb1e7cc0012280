"""
Tickets as they are stored: keys and values.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync

if TYPE_CHECKING:
    from jetsync import Entry

NAME: Final = re.compile(r"[-_=/A-Za-z0-9]+(\.[-_=/A-Za-z0-9]+)*")
"""Names that keys of buckets may contain."""


def check_name(what: str, name: object, *, parts: bool = True) -> str:
    """
    Return a name that keys may contain.

    Args:
        what: The name of the argument.
        name: The name.
        parts: Whether it may consist of several parts, with dots between them.
    """
    if not isinstance(name, str):
        raise jetsync.InvalidTypeError(f"{what} must be text, not {name!r}", argument=what)
    if not NAME.fullmatch(name) or (not parts and "." in name):
        dots = " and single dots between them" if parts else ""
        raise jetsync.InvalidArgumentError(
            f"{what} must consist of letters, digits and -_=/{dots}, not {name!r}", argument=what
        )
    return name


@attrs.frozen(kw_only=True)
class Record:
    """
    The value of a ticket's key.
    """

    holder: str
    """Host, process and thread, for people."""

    lease: int
    """The time-to-live in seconds."""

    limit: int = 1
    """How many tickets may hold at the same time."""

    renewal: int = 0
    """How often the ticket was renewed before."""

    ticket: int | None = None
    """The ticket's number, which is the first revision. The first revision itself has None."""

    holds: bool = False
    """Whether the ticket is known to hold."""

    def encode(self) -> bytes:
        """
        Return the value of the key.
        """
        fields = attrs.asdict(self, filter=lambda _, value: value is not None)
        return json.dumps(fields, separators=(",", ":")).encode()


@attrs.frozen(order=True)
class Rival:
    """
    A ticket of the same lock, as it was read.
    """

    number: int
    """The ticket's number."""

    key: str
    """The key."""

    lease: int = attrs.field(order=False)
    """Its time-to-live in seconds."""

    holds: bool = attrs.field(order=False)
    """Whether the ticket is known to hold."""


def rival_of(entry: Entry) -> Rival:
    """
    Return the ticket in an entry that has a value.

    Raises:
        jetsync.DecodeError: The value is not a ticket.
    """
    fields: Any = entry.json()
    try:
        return Rival(
            int(fields.get("ticket") or entry.revision),
            entry.key,
            int(fields["lease"]),
            bool(fields.get("holds")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise jetsync.DecodeError(
            "value",
            "it is not a ticket of jetsync-locks: delete the key",
            bucket=entry.bucket,
            key=entry.key,
            sequence=entry.revision,
        ) from error
