"""
The offsets of a streaming query, which Spark keeps in its checkpoint as JSON.

This module does no I/O. Spark compares offsets as text and stores the end of each micro-batch. It
does not store the start of the query: after a restart it asks for the start again, and "latest" is
then somewhere else. Each end therefore also holds the start of its batch, and the first offset is
marked as unreliable (:attr:`Offset.initial`).
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from jetsync_spark.common.errors import JetStreamSparkError

__all__ = ["Offset", "Span", "span"]

VERSION: Final = 1


@attrs.frozen
class Offset:
    """
    A position in a stream.
    """

    stream: str
    """The stream."""

    created: str
    """When the stream was created."""

    next: int
    """The sequence to read next."""

    begins: int | None = None
    """The start of the batch that ends here. None in the first offset of a query."""

    guessed: bool = False
    """
    Whether :attr:`begins` is only valid for the first batch of a query. PySpark 4.0 and 4.1 ask for
    an end before they say whether the batch is the first.
    """

    @property
    def initial(self) -> bool:
        """Whether this is the start of a query, which may differ after a restart."""
        return self.begins is None

    def to_json(self) -> dict[str, Any]:
        """
        Return the offset for Spark. The order of the keys never changes.
        """
        place: dict[str, Any] = {
            "v": VERSION,
            "stream": self.stream,
            "created": self.created,
            "seq": self.next,
        }
        if self.begins is None:
            return {**place, "initial": True}
        place["from"] = self.begins
        return {**place, "guessed": True} if self.guessed else place

    @classmethod
    def from_json(cls, given: dict[str, Any], stream: str) -> Offset:
        """
        Parse an offset from a checkpoint.

        Args:
            given: A result of :meth:`to_json`.
            stream: The stream that the query reads now.

        Raises:
            JetStreamSparkError: The offset is malformed or belongs to another stream.
        """
        try:
            version, name = given["v"], given["stream"]
            begins = None if given.get("initial") else int(given["from"])
            guessed = bool(given.get("guessed"))
            made = cls(name, given["created"], int(given["seq"]), begins, guessed)
        except (KeyError, TypeError, ValueError):
            version, made, name = None, None, stream
        if made is None or version != VERSION:
            raise JetStreamSparkError(
                f"the checkpoint has an offset that this version cannot parse: {given}",
                stream=stream,
                cure="use the version that wrote it, or start with a new checkpoint",
            )
        if name != stream:
            raise JetStreamSparkError(
                f"the checkpoint belongs to stream {name}",
                stream=stream,
                cure="give each query a checkpoint of its own",
            )
        return made


@attrs.frozen
class Span:
    """
    The range that one micro-batch reads.
    """

    created: str
    """When the stream was created."""

    start: int
    """The first sequence."""

    end: int
    """The sequence after the last one."""


def span(start: Offset, end: Offset) -> Span:
    """
    Return the range between two offsets.

    The end holds the start of its batch. Spark's start may be earlier if lost messages are skipped.
    It may be anything if the query restarted before its first batch, or if the stream was
    recreated.
    """
    if start == end:
        return Span(end.created, end.next, end.next)
    same = start.created == end.created
    begins = end.next if end.begins is None else end.begins
    if end.guessed and not start.initial:
        begins = start.next if same else 1
    elif same and not start.initial:
        begins = max(begins, start.next)
    return Span(end.created, begins, max(begins, end.next))
