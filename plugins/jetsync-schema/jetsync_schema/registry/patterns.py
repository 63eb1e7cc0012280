"""
Find the most specific pattern that matches a subject.

This module holds the tree of patterns. It knows no contracts, and uses no socket and no threads. A
tree does not change once it is in use, so any number of threads may search it.

Patterns are compared token by token from the left. The first token in which they differ decides: a
literal is more specific than ``*``, and ``*`` is more specific than ``>``. Two different patterns
that match the same subject always differ in such a token, so there is never a tie.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import jetsync

T = TypeVar("T")

DEEPEST: Final = 256
"""The most tokens of a pattern. Subjects rarely have more than ten."""


def check_pattern(pattern: object) -> str:
    """
    Return the pattern if it is valid.

    Raises:
        InvalidTypeError: It is not text.
        InvalidSubjectError: It is empty, has an empty token, contains spaces, has ``>`` before its
            end, or has more than 256 tokens.
    """
    if not isinstance(pattern, str):
        raise jetsync.InvalidTypeError(
            f"a pattern of subjects must be text, not {type(pattern).__name__}", argument="subjects"
        )
    tokens = pattern.split(".")
    if "" in tokens:
        raise jetsync.InvalidSubjectError(pattern, "it has an empty token")
    if any(token.split() != [token] for token in tokens):
        raise jetsync.InvalidSubjectError(pattern, "it contains a space")
    if ">" in tokens[:-1]:
        raise jetsync.InvalidSubjectError(pattern, "'>' may only be the last token")
    if len(tokens) > DEEPEST:
        raise jetsync.InvalidSubjectError(pattern, f"it has more than {DEEPEST} tokens")
    return pattern


class _Node(Generic[T]):
    __slots__ = ("children", "rest", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        """The next nodes by token. ``*`` is a key too, because no published subject contains it."""

        self.value: T | None = None
        """The value of subjects that end here."""

        self.rest: T | None = None
        """The value of longer subjects, from a pattern that ends with ``>``."""


class Patterns(Generic[T]):
    """
    Values by patterns of subjects.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        """
        Set the value of a valid pattern; replaces an existing value.
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
        Return the value of the most specific matching pattern; None if no pattern matches.
        """
        return _find(self._root, subject.split("."), 0)


def _find(node: _Node[T], tokens: list[str], depth: int) -> T | None:
    if depth == len(tokens):
        # A `>` matches at least one token.
        return node.value
    for token in (tokens[depth], "*"):
        below = node.children.get(token)
        if below is not None:
            found = _find(below, tokens, depth + 1)
            if found is not None:
                return found
    return node.rest
