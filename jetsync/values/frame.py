"""
A message as it comes off the wire.
"""

from typing import TypeAlias

__all__ = ["Frame"]

Frame: TypeAlias = tuple[bytes, bytes, bytes | None, bytes]
"""
One message as it came off the wire: subject, reply subject (``b""`` when there is none), header
block from ``NATS/1.0`` to the empty line (``None`` when there is none), payload. Nothing in it has
been parsed.
"""
