"""
The pin ids of a consumer's priority groups.

A consumer with the policy ``pinned_client`` serves one client of each group, until that client has
been silent for the ``priority_timeout``. Messages to the pinned client carry an id in the header
``Nats-Pin-Id``. A pull without the id counts as another client's and waits. So all pulls of one
consumer handle send the id that any of them received.

Implements ADR-42 for pulls; see also ADR-37, "Priority groups".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetsync.values.headers import PIN_ID, Headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync.values.frame import Frame

PIN_MARK: Final = PIN_ID.encode() + b":"


class Pins:
    """
    The pin ids by group. Thread-safe, because each method is one step on a dictionary.
    """

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Pins of {sorted(self._ids)}>"

    def get(self, group: str | None) -> str | None:
        """Return the id to send with a pull of *group*, or None."""
        return None if group is None else self._ids.get(group)

    def learn(self, group: str | None, messages: Sequence[Frame]) -> None:
        """Keep the id of the newest message that has one."""
        if group is None:
            return
        for frame in reversed(messages):
            if frame[2] is not None and PIN_MARK in frame[2]:
                # The server adds its header after those of the publisher.
                values = Headers.parse(frame[2])[2].get_all(PIN_ID)
                if values:
                    self._ids[group] = values[-1]
                return

    def drop(self, group: str | None, refused: str | None) -> None:
        """Forget an id that the server refused, unless a newer one has arrived."""
        if group is not None and refused is not None and self._ids.get(group) == refused:
            self._ids.pop(group, None)
