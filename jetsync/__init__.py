"""
A blocking, thread-based client for NATS JetStream.
"""

from __future__ import annotations
