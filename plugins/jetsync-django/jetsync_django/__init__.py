"""
Django on JetStream: a backend for `django.tasks` with workers, and a cache.
"""

from __future__ import annotations

__version__ = "0.1.0"
