"""
Options of a connection that nobody else should see.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

_KEY: Final = os.urandom(16)


class Hidden(Mapping[str, Any]):
    """
    Keywords of ``jetsync.connect`` whose values are in no ``repr`` and no JSON.

    A worker sends the options of its connection to everyone who asks for its statistics.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        # kombu shares connections whose options have the same repr.
        text = repr(sorted(self._values.items()))
        digest = hashlib.blake2b(text.encode(), key=_KEY, digest_size=8).hexdigest()
        return f"<{', '.join(sorted(self._values))}: {digest}>"

    def __json__(self) -> dict[str, str]:
        return dict.fromkeys(self._values, "**")


def without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return options of a transport that can be shown.
    """
    connect = options.get("connect")
    if not isinstance(connect, Mapping) or isinstance(connect, Hidden):
        return dict(options)
    return {**options, "connect": Hidden(connect)}
