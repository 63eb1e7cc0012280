"""
Publishing: one message, many messages.
"""

from __future__ import annotations

__all__: list[str] = []
