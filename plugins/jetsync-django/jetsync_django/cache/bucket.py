"""
The bucket that stores a cache: its settings, how it is opened, and made if it is missing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
from django.core.exceptions import ImproperlyConfigured

import jetsync
from jetsync_django.connections import connect_options, shared_client
from jetsync_django.settings import check_names, choice, count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CacheBucket"]

T = TypeVar("T")

OPTIONS: Final = (
    "BUCKET",
    "CONNECT",
    "MAX_BYTES",
    "NUM_REPLICAS",
    "SERIALIZER",
    "STORAGE",
)

# Seconds for which the server keeps a marker after a value has expired or was deleted. Nothing
# watches a cache, so this is the least that servers allow.
MARKERS: Final = 1

_BUCKET: Final = re.compile(r"[A-Za-z0-9_-]+")

# The buckets that this process has opened. Django makes a cache object for each thread.
_opened: dict[CacheBucket, tuple[jetsync.Client, jetsync.KeyValue[bytes]]] = {}


@attrs.frozen
class CacheBucket:
    """
    The settings of the bucket of a cache. Caches with the same settings share it.
    """

    connect: jetsync.ConnectOptions
    name: str
    storage: str
    num_replicas: int
    max_bytes: int

    @classmethod
    def of(cls, location: Any, options: Mapping[str, Any]) -> CacheBucket:
        """
        Read the settings of a cache.

        Raises:
            ImproperlyConfigured: An option is unknown or invalid.
        """
        setting = "OPTIONS of a cache"
        check_names(options, OPTIONS, setting)
        name = options.get("BUCKET", "django-cache")
        if not isinstance(name, str) or not _BUCKET.fullmatch(name):
            raise ImproperlyConfigured(
                f"{setting}: BUCKET must consist of letters, digits, - and _, not {name!r}"
            )
        servers = re.split("[;,]", location) if isinstance(location, str) else [*location]
        return cls(
            connect_options(servers if any(servers) else None, options.get("CONNECT"), setting),
            name,
            choice(options, "STORAGE", ("file", "memory"), setting),
            count(options, "NUM_REPLICAS", 1, setting),
            count(options, "MAX_BYTES", 0, setting, least=0),
        )

    def run(self, call: Callable[[jetsync.KeyValue[bytes]], T]) -> T:
        """
        Call a function with the bucket, which is opened, or created, when it is first needed.

        A bucket in memory goes with its server. So if the bucket is missing, it is created, and
        the function is called once more.
        """
        client = shared_client(self.connect)
        kept = _opened.get(self)
        # Other code may have closed the client of the bucket.
        if kept is not None and kept[0] is client:
            try:
                return call(kept[1])
            except jetsync.BucketNotFoundError:
                _opened.pop(self, None)
        found = self._open(client.jetstream())
        _opened[self] = client, found
        return call(found)

    def jetstream(self) -> jetsync.JetStream:
        """Return the JetStream context of the connection that this process has."""
        return shared_client(self.connect).jetstream()

    def _open(self, js: jetsync.JetStream) -> jetsync.KeyValue[bytes]:
        try:
            found = js.key_value(self.name)
        except jetsync.BucketNotFoundError:
            found = self._create(js)
        config = found.stream.config
        if not config.allow_msg_ttl or config.max_msgs_per_subject != 1:
            raise ImproperlyConfigured(
                f"the bucket {self.name!r} cannot store a cache: it needs history=1 and a"
                " limit_marker_ttl. Choose another BUCKET, or delete this one."
            )
        return found

    def _create(self, js: jetsync.JetStream) -> jetsync.KeyValue[bytes]:
        try:
            found = js.create_key_value(
                self.name,
                description="A cache of Django",
                history=1,
                limit_marker_ttl=MARKERS,
                storage="memory" if self.storage == "memory" else "file",
                num_replicas=self.num_replicas,
                max_bytes=self.max_bytes or None,
            )
        except jetsync.StreamNameInUseError:
            # Another process has created it in the meantime, with other settings.
            return js.key_value(self.name)
        if self.max_bytes:
            # A full bucket refuses changes. A full cache removes the oldest values instead.
            found.stream.update(discard="old")
        return found
