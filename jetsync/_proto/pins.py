"""
The pins of a consumer's priority groups, as its handle knows them.

What lives here: which id goes with the next pull of a group, and when it is given up. What may not:
the socket, the clock, threads.

Theory of operation. A consumer with the policy ``pinned_client`` serves one client of each group,
until that is silent for the ``priority_timeout``. The messages to the chosen one carry an id,
``Nats-Pin-Id``; a pull without it counts as another client's and waits. So all pulls of one handle,
whoever sends them, send the id that any of them was given.

Implements ADR-42 as far as pulls are concerned; see ADR-37, "Priority groups".
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
    The pin ids by group. Any thread: each method is one step on a dictionary.
    """

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Pins of {sorted(self._ids)}>"

    def get(self, group: str | None) -> str | None:
        """Return the id to send with a pull of *group*, None if none is known."""
        return None if group is None else self._ids.get(group)

    def learn(self, group: str | None, messages: Sequence[Frame]) -> None:
        """Keep the id of the newest message that has one."""
        if group is None:
            return
        for frame in reversed(messages):
            if frame[2] is not None and PIN_MARK in frame[2]:
                # The server's own header stands behind those of the publisher.
                values = Headers.parse(frame[2])[2].get_all(PIN_ID)
                if values:
                    self._ids[group] = values[-1]
                return

    def drop(self, group: str | None, refused: str | None) -> None:
        """Give up an id that the server refused, unless there was a new one meanwhile."""
        if group is not None and refused is not None and self._ids.get(group) == refused:
            self._ids.pop(group, None)
