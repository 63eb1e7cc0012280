"""
The offsets of a streaming query, which Spark keeps in its checkpoint as JSON.

Pure. Spark compares offsets as text and keeps one per micro-batch: the end. It does not keep the
one that a query begins with, asks for that anew after a restart, and by then "latest" is another
place. So each end also holds where its batch begins, and the first offset says that it is one whose
word is not to be taken (:attr:`Offset.initial`).
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
    A place in a stream.
    """

    stream: str
    """The stream."""

    created: str
    """When the stream was made."""

    next: int
    """The sequence to read next."""

    begins: int | None = None
    """Where the batch that ends here begins; None in the first offset, which ends none."""

    guessed: bool = False
    """
    Whether :attr:`begins` only holds for the first batch of a query: PySpark 4.0 and 4.1 ask for an
    end before they tell whether that is one.
    """

    @property
    def initial(self) -> bool:
        """Whether the query begins here: after a restart this may be another place."""
        return self.begins is None

    def to_json(self) -> dict[str, Any]:
        """
        Return what Spark is given; the order of the keys is always the same.
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
        Return the offset that a checkpoint has.

        Args:
            given: What :meth:`to_json` made, here or in an earlier version.
            stream: The stream that the query reads now.

        Raises:
            JetStreamSparkError: it is from something else.
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
                f"the checkpoint has an offset that this version does not know: {given}",
                stream=stream,
                cure="go on with the version that wrote it, or begin with a new checkpoint",
            )
        if name != stream:
            raise JetStreamSparkError(
                f"the checkpoint is of stream {name}",
                stream=stream,
                cure="give each query a checkpoint of its own",
            )
        return made


@attrs.frozen
class Span:
    """
    What one micro-batch reads.
    """

    created: str
    """When its stream was made."""

    start: int
    """The first sequence."""

    end: int
    """The sequence behind the last one."""


def span(start: Offset, end: Offset) -> Span:
    """
    Return what is between two offsets.

    The end knows where its batch begins. What Spark says is the start may be before that, where
    messages were lost and are passed over, and is anything where the query began anew after a
    restart, or where the stream was made again.
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
