"""
The pin ids of priority groups: what a consumer's pulls send, and what its messages bring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from jetsync.values.headers import PIN_ID, find_last

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._proto.pull_request import PullRequest
    from jetsync.values.frame import Frame

PIN_HEADER: Final = PIN_ID.encode()


Pins: TypeAlias = dict[str | None, str]
"""
The pin ids of a consumer's priority groups. Thread-safe: each use is one step on the dictionary.

A consumer with the policy ``pinned_client`` serves one client of each group, until that client has
been silent for the ``priority_timeout``. Messages to the pinned client carry an id in the header
``Nats-Pin-Id``. A pull without the id waits, because the server takes it for another client's. So
all pulls of one consumer handle send the id that any of them received. See ADR-42, and ADR-37,
"Priority groups".
"""


def learn_pin(pins: Pins, group: str, messages: Sequence[Frame]) -> None:
    """Keep the id of the newest message that has one."""
    for frame in reversed(messages):
        # The server adds its header after those of the publisher.
        pin = None if frame[2] is None else find_last(frame[2], PIN_HEADER)
        if pin is not None:
            pins[group] = pin.decode("utf-8", "surrogateescape")
            return


def drop_pin(pins: Pins, refused: PullRequest) -> None:
    """Forget an id that the server refused, unless a newer one has arrived."""
    group = refused.priorities.group
    if pins.get(group) == refused.pin_id:
        pins.pop(group, None)
