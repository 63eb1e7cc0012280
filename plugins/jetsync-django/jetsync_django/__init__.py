"""
Django on JetStream: a backend for `django.tasks` with workers, and a cache.

The cache is in `jetsync_django.cache`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetsync_django.tasks.backend import JetStreamBackend

__all__ = ["JetStreamBackend"]


def __getattr__(name: str) -> Any:
    # The cache also works with a Django that has no tasks.
    if name == "JetStreamBackend":
        from jetsync_django.tasks.backend import JetStreamBackend

        return JetStreamBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
