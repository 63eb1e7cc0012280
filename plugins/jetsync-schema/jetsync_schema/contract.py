"""
What a contract is: something that reads a payload as a document, or says why it is none.
"""

from __future__ import annotations

import abc
import json
from typing import TYPE_CHECKING, Any, ClassVar

from jetsync_schema.registry.patterns import check_pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Contract"]


class Contract(abc.ABC):
    """
    A contract for payloads; subclass it for a kind of your own.

    It is used by many threads at once and is not changed once it is made.
    """

    kind: ClassVar[str]
    """The word for its kind in definitions."""

    @property
    def schema_id(self) -> str | None:
        """
        What the header ``Schema-Id`` of a message says that is written by this contract; None if it
        has no such header.
        """
        return None

    @abc.abstractmethod
    def load(self, data: bytes | bytearray, schema_id: str | None = None) -> Any:
        """
        Return the document that a payload is.

        Args:
            data: The payload.
            schema_id: The header ``Schema-Id``, if there is one; only asked for where the contract
                has a `schema_id` of its own.

        Raises:
            MismatchError: It is no such document. Any other error counts as a fault of the
                contract itself, and fails the operation too.
        """

    @abc.abstractmethod
    def dump(self, document: Any) -> bytes:
        """
        Return the payload that a document is written as, without looking at it twice.

        Raises:
            MismatchError: It is no such document.
        """

    def describe(self) -> dict[str, Any]:
        """
        Return what a definition says about it, apart from its subjects, as JSON has it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no form as a definition")

    def definition(self, *subjects: str, name: str | None = None) -> bytes:
        """
        Return the definition of this contract for a key-value bucket, or for an index file.

        Args:
            *subjects: The patterns of subjects that it is for.
            name: What errors call it; None for the key, or the first pattern.

        Raises:
            InvalidSubjectError: A pattern makes no sense.
        """
        patterns: Sequence[str] = [check_pattern(subject) for subject in subjects]
        named = {} if name is None else {"name": name}
        return json.dumps({**named, "subjects": patterns, **self.describe()}).encode()
