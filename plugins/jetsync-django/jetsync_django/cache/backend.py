"""
The methods of the cache.
"""

from __future__ import annotations

import datetime as dt
import math
import pickle
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

import jetsync
from jetsync_django.cache.bucket import MARKERS, CacheBucket
from jetsync_django.cache.keys import bucket_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["JetStreamCache", "PickleSerializer"]

Bucket = jetsync.KeyValue[bytes]
Entry = jetsync.Entry[bytes]


class PickleSerializer:
    """
    Convert values with pickle, as Django's other caches do.

    For the option ``SERIALIZER``, give a class, an object, or the path of either, with the same two
    methods. Whoever can write to the bucket can make pickle run any code in your processes.
    """

    def dumps(self, value: Any) -> bytes:
        """Return the value as bytes."""
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def loads(self, data: bytes) -> Any:
        """Return the value of these bytes."""
        return pickle.loads(data)  # noqa: S301 - the class says so


class JetStreamCache(BaseCache):
    """
    Store a cache in a key-value bucket.

    Set ``BACKEND`` to ``"jetsync_django.cache.JetStreamCache"``.

    ``LOCATION`` names the servers, as for `jetsync.connect`. The methods are those of Django's
    caches. All caches of a process share one connection, which is opened by the first call, again
    after a fork. Any number of threads may use a cache. Errors of the connection are raised: a call
    waits for at most the ``request_timeout`` of the connection (5 seconds).

    Timeouts are seconds. The server removes a value when its timeout is over, so the clocks of your
    machines do not matter, except for `incr` of a value with a timeout. Fractions are rounded up
    to whole seconds.
    """

    def __init__(self, location: Any, params: dict[str, Any]) -> None:
        super().__init__(params)
        options = params.get("OPTIONS", {})
        self._bucket: Final = CacheBucket.of(location, options)
        self._serializer: Final = _serializer(options.get("SERIALIZER", PickleSerializer))

    def get_backend_timeout(self, timeout: Any = DEFAULT_TIMEOUT) -> int | None:
        """Return the timeout in whole seconds, 0 if the value has no time left, None for ever."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return None if timeout is None else max(0, math.ceil(timeout))

    def _stored(self, key: Any, version: int | None) -> str:
        return bucket_key(self.make_and_validate_key(key, version=version))

    # One key

    def add(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        """Set the value unless the key has one, and return whether it was set."""
        stored, ttl = self._stored(key, version), self.get_backend_timeout(timeout)
        data = self._serializer.dumps(value)
        if ttl == 0:
            # The leader knows every change.
            found = self._bucket.run(lambda bucket: bucket.get(stored, default=None, direct=False))
            return found is None
        try:
            self._bucket.run(lambda bucket: bucket.create(stored, data, ttl=ttl))
        except jetsync.KeyExistsError:
            return False
        return True

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """Return the value of the key, or the default."""
        stored = self._stored(key, version)
        entry = self._bucket.run(lambda bucket: bucket.get(stored, default=None))
        return default if entry is None else self._serializer.loads(entry.value)

    def set(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        """Set the value of the key."""
        stored, ttl = self._stored(key, version), self.get_backend_timeout(timeout)
        data = self._serializer.dumps(value)
        if ttl == 0:
            self._bucket.run(lambda bucket: bucket.purge(stored, ttl=MARKERS))
        else:
            self._bucket.run(lambda bucket: bucket.put(stored, data, ttl=ttl))

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Restart the timeout of the key's value, and return whether the key has a value."""
        ttl = self.get_backend_timeout(timeout)
        if ttl == 0:
            return self.delete(key, version)
        return self._modify(key, version, lambda entry: entry.value, ttl)

    def delete(self, key: Any, version: int | None = None) -> bool:
        """Delete the key, and return whether it had a value."""
        return self._modify(key, version, lambda _: jetsync.KeyOperation.PURGE, MARKERS)

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> Any:
        """
        Add *delta* to the value, which keeps its timeout, and return the sum.

        No count is lost if many processes call it at the same time.
        """
        value: Any = None

        def add(entry: Entry) -> bytes:
            nonlocal value
            value = self._serializer.loads(entry.value) + delta
            data: bytes = self._serializer.dumps(value)
            return data

        if not self._modify(key, version, add, _time_left):
            raise ValueError(f"Key '{key}' not found")
        return value

    async def aincr(self, key: Any, delta: int = 1, version: int | None = None) -> Any:
        """See `incr`."""
        return await sync_to_async(self.incr)(key, delta, version)

    def _modify(
        self,
        key: Any,
        version: int | None,
        change: Callable[[Entry], bytes | jetsync.KeyOperation],
        ttl: int | Callable[[Entry | None], int | None] | None,
    ) -> bool:
        """Change the value of a key with a function, and return whether the key had a value."""
        stored = self._stored(key, version)

        def changed(entry: Entry | None) -> bytes | jetsync.KeyOperation | None:
            return None if entry is None else change(entry)

        return self._bucket.run(lambda bucket: bucket.modify(stored, changed, ttl=ttl)) is not None

    # Many keys

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """Return the values of those keys that have one, as they are at one moment."""
        # Two keys may have one name, such as 1 and "1".
        names = {key: self._stored(key, version) for key in keys}
        if not names:
            return {}
        found = self._bucket.run(lambda bucket: bucket.get_many([*{*names.values()}]))
        return {
            key: self._serializer.loads(found[stored].value)
            for key, stored in names.items()
            if stored in found
        }

    async def aget_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """See `get_many`."""
        return await sync_to_async(self.get_many)(keys, version)

    def set_many(
        self,
        data: Mapping[Any, Any],
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> list[Any]:
        """
        Set the values of many keys, with all of them in flight, and return the keys that failed.

        A key whose outcome is unknown counts as failed.
        """
        ttl = self.get_backend_timeout(timeout)
        if ttl == 0:
            self.delete_many(data, version)
            return []
        values = {
            self._stored(key, version): (key, self._serializer.dumps(value))
            for key, value in data.items()
        }

        def put(bucket: Bucket) -> list[Any]:
            # The bucket has one subject, with a wildcard in place of the key.
            subjects = bucket.stream.config.subjects
            assert subjects is not None
            prefix = subjects[0].removesuffix(">")
            messages = [
                jetsync.OutboundMessage(prefix + stored, value, ttl=ttl)
                for stored, (_, value) in values.items()
            ]
            try:
                self._bucket.jetstream().publish_many(messages)
            except jetsync.PublishManyError as error:
                failures = error.report.failures
                if not error.report.exhausted:
                    raise
                if any(isinstance(each.error, jetsync.NoStreamResponseError) for each in failures):
                    raise jetsync.BucketNotFoundError(bucket.bucket) from error
                return [values[each.message.subject.removeprefix(prefix)][0] for each in failures]
            return []

        return self._bucket.run(put) if values else []

    async def aset_many(
        self,
        data: Mapping[Any, Any],
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> list[Any]:
        """See `set_many`."""
        return await sync_to_async(self.set_many)(data, timeout, version)

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """Delete many keys."""
        names = [self._stored(key, version) for key in keys]

        def purge(bucket: Bucket) -> None:
            for stored in names:
                bucket.purge(stored, ttl=MARKERS)

        if names:
            self._bucket.run(purge)

    async def adelete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """See `delete_many`."""
        await sync_to_async(self.delete_many)(keys, version)

    def clear(self) -> None:
        """Remove everything from the bucket, also what caches with other prefixes have stored."""
        self._bucket.run(lambda bucket: bucket.stream.purge())


def _time_left(entry: Entry | None) -> int | None:
    """Return the seconds that an entry has left, at least 1; None if it has no timeout."""
    if entry is None or entry.ttl is None or entry.ttl == "never":
        return None
    passed = dt.datetime.now(dt.timezone.utc) - entry.created
    return max(1, math.ceil(entry.ttl - passed.total_seconds()))


def _serializer(given: Any) -> Any:
    """Return an object that converts values, from the option ``SERIALIZER``."""
    found = import_string(given) if isinstance(given, str) else given
    if isinstance(found, type):
        found = found()
    if not (callable(getattr(found, "dumps", None)) and callable(getattr(found, "loads", None))):
        raise ImproperlyConfigured(
            f"OPTIONS of a cache: SERIALIZER must have the methods dumps and loads, not {given!r}"
        )
    return found
