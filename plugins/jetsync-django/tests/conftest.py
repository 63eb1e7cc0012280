"""
Fixtures in addition to those of jetsync: caches, and a project of Django.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import django
import pytest
from django.conf import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.devserver import DevServer
    from jetsync_django.cache import JetStreamCache

if not settings.configured:
    settings.configure(INSTALLED_APPS=["jetsync_django"], SECRET_KEY="throw-away", USE_TZ=True)
    django.setup()


@pytest.fixture
def make_cache(nats_server: DevServer) -> Callable[..., JetStreamCache]:
    """
    A function that makes a cache with a bucket of its own, which takes settings and options.
    """
    from jetsync_django.cache import JetStreamCache

    name = f"cache-{uuid.uuid4().hex[:12]}"

    def make(settings: dict[str, object] | None = None, **options: object) -> JetStreamCache:
        return JetStreamCache(
            nats_server.url, {**(settings or {}), "OPTIONS": {"BUCKET": name, **options}}
        )

    make.name = name
    return make
