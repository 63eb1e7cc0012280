"""
The settings of the project that the tests use, in their own process and in workers.
"""

from __future__ import annotations

import os

SECRET_KEY = "throw-away"
USE_TZ = True
INSTALLED_APPS = ["jetsync_django"]
_DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
DATABASES = {"default": _DATABASE, "archive": {**_DATABASE}}


def tasks_of(url: str, prefix: str, **options: object) -> dict[str, object]:
    """
    Return the setting `TASKS` for a server.
    """
    given = {"SERVERS": url, "PREFIX": prefix, "ACK_WAIT": 1, "STORAGE": "memory", **options}
    return {
        "default": {
            "BACKEND": "jetsync_django.JetStreamBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": given,
        }
    }


if "SHOP_PREFIX" in os.environ:
    _storage = os.environ.get("SHOP_STORAGE", "memory")
    TASKS = tasks_of(os.environ["NATS_URL"], os.environ["SHOP_PREFIX"], STORAGE=_storage)
