"""
The result backend: results in a key-value bucket.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin
from celery.backends.base import BaseKeyValueStoreBackend
from kombu.utils.encoding import bytes_to_str
from kombu.utils.functional import retry_over_time

import jetsync
from jetsync_celery import links
from jetsync_celery.chords import Parts, part_of
from jetsync_celery.values import Values
from jetsync_celery.waiting import ResultConsumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RETRY_ERRORS: Final = (
    jetsync.ConnectError,
    jetsync.DisconnectedError,
    jetsync.NoRespondersError,
    jetsync.NoStreamResponseError,
    jetsync.PublishOutcomeUnknownError,
    jetsync.RequestTimeoutError,
)
"""The errors after which a result is stored again, because the server may come back."""

_logger = jetsync.get_logger("jetsync.celery")


class JetStreamBackend(BaseKeyValueStoreBackend, AsyncBackendMixin):
    """
    Celery's results in a bucket of JetStream.

    The bucket is ``CELERY_RESULTS``, or ``CELERY_RESULTS_<path>`` if the URL has a path. Each
    result expires after Celery's ``result_expires``. Results that are larger than a message go to
    an object store. Reads of results wait for a watch instead of polling.

    Threads may share it, and each process of a pool has its own connection.

    Options, from ``result_backend_transport_options``: ``connect`` with keywords of
    ``jetsync.connect``, ``storage`` and ``num_replicas`` when the bucket is created, and
    ``retry_policy`` as in Celery.
    """

    key_t = bytes_to_str
    implements_incr = True
    persistent = True
    supports_autoexpire = True
    supports_native_join = True
    supports_result_compression = True

    def __init__(self, url: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("expires_type", int)
        super().__init__(url=url, **kwargs)
        options = self.app.conf.get("result_backend_transport_options") or {}
        connect = options.get("connect") or {}
        self._link = links.of_url(url or "jetstream://", connect)
        self._policy = {**self.retry_policy, **(options.get("retry_policy") or {})}
        name = "CELERY_RESULTS"
        if self._link.prefix != links.DEFAULT_PREFIX:
            name += f"_{self._link.prefix}"
        self.values = Values(
            self._link.options,
            name,
            expires=self.expires or None,
            storage=options.get("storage", "file"),
            num_replicas=options.get("num_replicas", 1),
        )
        self.result_consumer = ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL, without the password unless asked for."""
        url = self.url or "jetstream://"
        return url if include_password else links.without_password(url)

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return super().__reduce__(
            args, {**(kwargs or {}), "expires": self.expires, "url": self.url}
        )

    # What Celery's backend for keys and values asks for

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        value: bytes | None = self._retry(self.values.get, key)
        return value

    def mget(self, keys: Iterable[str]) -> list[bytes | None]:
        """Return the values of keys, all of one moment."""
        values: list[bytes | None] = self._retry(self.values.get_many, list(keys))
        return values

    def set(self, key: str, value: bytes | str) -> None:
        """Set the value of a key, which expires after ``result_expires``."""
        self._retry(self.values.put, key, value)

    def delete(self, key: str) -> None:
        """Remove a key. The record of a chord stays until it expires, so that it runs once."""
        if key.startswith(self.chord_keyprefix):
            self._retry(self._close_chord, key)
        else:
            self._retry(self.values.delete, key)

    def incr(self, key: str) -> int:
        """Return how many parts of a chord are done; `on_chord_part_return` has counted them."""
        return len(Parts.read(self.values, key).done)

    def expire(self, key: str, value: float) -> None:
        """Do nothing: each value expires after ``result_expires``."""

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Return whether Celery may store a result again after this error."""
        return isinstance(exc, RETRY_ERRORS)

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        meta = self._get_result_meta(
            result=result, state=state, traceback=traceback, request=request
        )
        meta["task_id"] = bytes_to_str(task_id)
        self._retry(self._replace, self.get_key_for_task(task_id), self.encode(meta))
        return result

    def _replace(self, key: str, value: bytes | str) -> None:
        """Store a result unless one of a success is stored, also if both happen at once."""
        self.values.change(key, lambda old: None if self._is_success(old) else value, is_new=True)

    def _is_success(self, value: bytes | None) -> bool:
        return value is not None and self.decode_result(value)["status"] == states.SUCCESS

    # Chords

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Store how many parts a chord has. Celery does it before it sends the last part."""
        self.set(self.get_key_for_group(group_id, ".size"), str(chord_size))
        # The same signature, applied again, is a new run with the same id.
        self._retry(Parts.reopen, self.values, self.get_key_for_chord(group_id))

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Count a part of a chord once, and start its body after the last one."""
        if not request.group or not request.id:
            return
        key = self.get_key_for_chord(request.group)
        parts = self._retry(Parts.add, self.values, key, part_of(request.id, request.group_index))
        size = self.get(self.get_key_for_group(request.group, ".size"))
        # A part that ran again may find that its worker died before it could start the body.
        if size is not None and len(parts.done) >= int(size) and not parts.is_closed:
            request.chord["chord_size"] = len(parts.done)
            super().on_chord_part_return(request, state, result, **kwargs)

    def _close_chord(self, key: str) -> None:
        Parts.close(self.values, key)

    def _retry(self, function: Callable[..., Any], *args: Any) -> Any:
        return retry_over_time(function, RETRY_ERRORS, args, {}, _report, **self._policy)


def _report(error: Exception, intervals: Any, retries: int) -> float:
    wait = float(next(intervals))
    _logger.warning(
        "celery_result_retried", error=str(error), retries=retries, wait=wait, at=time.time()
    )
    return wait
