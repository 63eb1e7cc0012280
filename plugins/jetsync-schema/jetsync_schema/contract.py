"""
The base class of contracts, which convert payloads to documents and back.
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
    A contract for payloads. Subclass it for your own format.

    Contracts are immutable. Several threads use them at the same time.
    """

    kind: ClassVar[str]
    """The name of the format in definitions."""

    @property
    def schema_id(self) -> str | None:
        """
        The header ``Schema-Id`` of messages written with this contract, or None for no header.
        """
        return None

    @abc.abstractmethod
    def load(self, data: bytes | bytearray, schema_id: str | None = None) -> Any:
        """
        Decode a payload to a Python value (the *document*).

        Args:
            data: The payload.
            schema_id: The header ``Schema-Id`` of the message. Only passed if the contract has a
                `schema_id`.

        Raises:
            MismatchError: The payload does not match. Any other error also makes the operation
                fail, and shows a fault of the contract itself.
        """

    @abc.abstractmethod
    def dump(self, document: Any) -> bytes:
        """
        Convert a document to a payload that matches the contract.

        Raises:
            MismatchError: The document does not match.
        """

    def encode(self, key: str, value: Any) -> bytes:  # noqa: ARG002
        """
        Convert a document to the value of a key. `jetsync.KeyValue.with_codec` calls this.

        Raises:
            MismatchError: The document does not match.
        """
        return self.dump(value)

    def decode(self, key: str, value: bytes) -> Any:  # noqa: ARG002
        """
        Convert the value of a key to a document. `jetsync.KeyValue.with_codec` calls this.

        Raises:
            MismatchError: The value does not match.
        """
        return self.load(value)

    def describe(self) -> dict[str, Any]:
        """
        Return the fields of the contract's definition as JSON values, without the subjects.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be written as a definition")

    def definition(self, *subjects: str, name: str | None = None) -> bytes:
        """
        Return the definition of this contract for a key-value bucket or an index file.

        Args:
            *subjects: The subject patterns.
            name: The name in errors. None uses the key in a bucket, and the first pattern in an
                index file.

        Raises:
            InvalidSubjectError: A pattern is invalid.
        """
        patterns: Sequence[str] = [check_pattern(subject) for subject in subjects]
        named = {} if name is None else {"name": name}
        return json.dumps({**named, "subjects": patterns, **self.describe()}).encode()
