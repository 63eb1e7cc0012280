"""
The options of a task backend.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import attrs
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

import jetsync
from jetsync_django.connections import connect_options
from jetsync_django.settings import check_names, choice, count, number
from jetsync_django.tasks.priorities import DEFAULT_BOUNDS, bounds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TaskOptions"]

OPTIONS: Final = (
    "ACK_WAIT",
    "CONNECT",
    "DATABASE",
    "ENQUEUE_ON_COMMIT",
    "NUM_REPLICAS",
    "PREFIX",
    "PRIORITIES",
    "RESULT_TTL",
    "RETRIES",
    "RETRY_WAIT",
    "SERVERS",
    "STORAGE",
    "TIMEOUT",
)

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+")


@attrs.frozen(kw_only=True)
class TaskOptions:
    """
    The ``OPTIONS`` of a backend, checked.
    """

    connect: jetsync.ConnectOptions
    prefix: str
    priorities: tuple[int, ...]
    storage: str
    num_replicas: int
    result_ttl: float
    ack_wait: float
    enqueue_on_commit: bool
    database: str
    retries: int
    retry_wait: tuple[float, ...]
    timeout: float | None

    @classmethod
    def of(cls, options: Any, alias: str) -> TaskOptions:
        """
        Read the options of the backend with this alias.

        Raises:
            ImproperlyConfigured: An option is unknown or invalid.
        """
        setting = f"TASKS[{alias!r}]['OPTIONS']"
        check_names(options, OPTIONS, setting)
        prefix = options.get("PREFIX", "django")
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise ImproperlyConfigured(
                f"{setting}: PREFIX must consist of letters, digits, - and _, not {prefix!r}"
            )
        on_commit = options.get("ENQUEUE_ON_COMMIT", True)
        if not isinstance(on_commit, bool):
            raise ImproperlyConfigured(
                f"{setting}: ENQUEUE_ON_COMMIT must be True or False, not {on_commit!r}"
            )
        waits = options.get("RETRY_WAIT", (1.0, 10.0, 60.0))
        waits = waits if isinstance(waits, (list, tuple)) else (waits,)
        return cls(
            connect=connect_options(options.get("SERVERS"), options.get("CONNECT"), setting),
            prefix=prefix,
            priorities=bounds_of(options.get("PRIORITIES", DEFAULT_BOUNDS), setting),
            storage=choice(options, "STORAGE", ("file", "memory"), setting),
            num_replicas=count(options, "NUM_REPLICAS", 1, setting),
            result_ttl=number(options.get("RESULT_TTL", 7 * 86_400), "RESULT_TTL", setting, 1),
            ack_wait=number(options.get("ACK_WAIT", 20), "ACK_WAIT", setting, 1),
            enqueue_on_commit=on_commit,
            database=_database(options, setting),
            retries=count(options, "RETRIES", 0, setting, least=0),
            retry_wait=tuple(number(each, "RETRY_WAIT", setting, 0) for each in waits) or (0.0,),
            timeout=_timeout(options, setting),
        )


def _database(options: Mapping[str, Any], setting: str) -> str:
    found = options.get("DATABASE", "default")
    if found not in connections.settings:
        raise ImproperlyConfigured(f"{setting}: there is no DATABASE {found!r}")
    return str(found)


def _timeout(options: Mapping[str, Any], setting: str) -> float | None:
    found = options.get("TIMEOUT")
    return None if found is None else number(found, "TIMEOUT", setting, 0.1)
