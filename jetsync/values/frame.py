"""
A message from the server before it is parsed.
"""

from typing import TypeAlias

__all__ = ["Frame"]

Frame: TypeAlias = tuple[bytes, bytes, bytes | None, bytes]
"""
The parts of one received message: subject, reply subject (``b""`` if there is none), header block
(``None`` if there is none) and payload. The header block is not parsed and reaches from
``NATS/1.0`` to the empty line.
"""
