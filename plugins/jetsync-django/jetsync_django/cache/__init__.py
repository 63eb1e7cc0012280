"""
A cache for Django in a key-value bucket.
"""

from __future__ import annotations

from jetsync_django.cache.backend import JetStreamCache, PickleSerializer

__all__ = ["JetStreamCache", "PickleSerializer"]
