"""
The outcomes that a publisher reported, compared with the contents of the stream.
"""

from __future__ import annotations

from collections import Counter

import attrs

import jetsync


@attrs.define
class Ledger:
    """
    The names of messages by reported outcome; lists, so that any thread may add.
    """

    stored: list[str] = attrs.field(factory=list)
    unknown: list[str] = attrs.field(factory=list)
    failed: list[str] = attrs.field(factory=list)

    def enter(self, name: str, error: Exception | None) -> None:
        """
        Note the outcome of one message.
        """
        if error is None:
            self.stored.append(name)
        elif isinstance(error, jetsync.PublishOutcomeUnknownError):
            self.unknown.append(name)
        else:
            self.failed.append(name)

    def faults(self, stream: jetsync.Stream) -> dict[str, list[str]]:
        """
        Return the violations: messages that are lost, stored twice, or stored but reported as not.
        """
        count = Counter(names_in(stream))
        known = [*self.stored, *self.unknown, *self.failed]
        found = {
            "lost": [name for name in self.stored if not count[name]],
            "twice": [name for name, times in count.items() if times > 1],
            "not failed": [name for name in self.failed if count[name]],
            "from nowhere": sorted(set(count) - set(known)),
        }
        return {what: names for what, names in found.items() if names}


def names_in(stream: jetsync.Stream) -> list[str]:
    """
    Return the names of the messages of a stream, in its order.
    """
    count = stream.info().state.messages
    names: list[str] = []
    with stream.ordered_consumer() as reader:
        while len(names) < count:
            batch = reader.fetch(count - len(names), expires=10)
            names += [bytes(message.data).decode() for message in batch]
    return names
