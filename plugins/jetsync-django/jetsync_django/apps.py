"""
The app `jetsync_django`, which has the command `jetsync_worker`.
"""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["JetSyncConfig"]


class JetSyncConfig(AppConfig):
    """The app of `INSTALLED_APPS`. It has no models."""

    name = "jetsync_django"
    verbose_name = "Tasks on JetStream"
