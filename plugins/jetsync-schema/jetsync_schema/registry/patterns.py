"""
Which contract a subject has: the most specific of the patterns that match it.

What lives here: the tree of patterns and the walk through it. What may not: contracts, the socket,
threads. A tree is not changed once it is in use, so any number of threads may walk through it.

Patterns are compared token by token from the left, and the first token in which two differ decides:
a literal is more specific than ``*``, and ``*`` more specific than ``>``. Two different patterns
that match the same subject always differ in such a token, so there is never a tie.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import jetsync

T = TypeVar("T")

DEEPEST: Final = 256
"""Tokens of a pattern at most; a subject has hardly ever more than ten."""


def check_pattern(pattern: object) -> str:
    """
    Return the pattern if a subject can match it.

    Raises:
        InvalidTypeError: It is not text.
        InvalidSubjectError: It is empty, has an empty token, blanks, or ``>`` before its end.
    """
    if not isinstance(pattern, str):
        raise jetsync.InvalidTypeError(
            f"a pattern of subjects must be text, not {type(pattern).__name__}", argument="subjects"
        )
    tokens = pattern.split(".")
    if "" in tokens:
        raise jetsync.InvalidSubjectError(pattern, "it has an empty part")
    if any(token.split() != [token] for token in tokens):
        raise jetsync.InvalidSubjectError(pattern, "it has a blank in it")
    if ">" in tokens[:-1]:
        raise jetsync.InvalidSubjectError(pattern, "'>' may only be the last part")
    if len(tokens) > DEEPEST:
        raise jetsync.InvalidSubjectError(pattern, f"it has more than {DEEPEST} parts")
    return pattern


class _Node(Generic[T]):
    __slots__ = ("children", "rest", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        """By token; ``*`` is one of them, as no token of a subject that was published is."""

        self.value: T | None = None
        """What a subject has that ends here."""

        self.rest: T | None = None
        """What a subject has that goes on: a ``>``."""


class Patterns(Generic[T]):
    """
    Values under patterns of subjects.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        """
        Put *value* under a pattern that was checked; replaces what is there.
        """
        node = self._root
        tokens = pattern.split(".")
        for token in tokens[:-1] if tokens[-1] == ">" else tokens:
            node = node.children.setdefault(token, _Node())
        if tokens[-1] == ">":
            node.rest = value
        else:
            node.value = value

    def find(self, subject: str) -> T | None:
        """
        Return what is under the most specific pattern that matches, None if none does.
        """
        return _find(self._root, subject.split("."), 0)


def _find(node: _Node[T], tokens: list[str], depth: int) -> T | None:
    if depth == len(tokens):
        # A `>` stands for one token at least.
        return node.value
    for token in (tokens[depth], "*"):
        below = node.children.get(token)
        if below is not None:
            found = _find(below, tokens, depth + 1)
            if found is not None:
                return found
    return node.rest
