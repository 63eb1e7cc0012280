"""
The result backend: results in a key-value bucket.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from celery import maybe_signature, states
from celery.backends.asynchronous import AsyncBackendMixin
from celery.backends.base import BaseKeyValueStoreBackend
from celery.exceptions import ChordError
from celery.result import GroupResult, allow_join_result
from celery.utils.functional import _regen
from kombu.utils.encoding import bytes_to_str
from kombu.utils.functional import retry_over_time

import jetsync
from jetsync_celery import links
from jetsync_celery.chords import Parts, name_of_part, part_of
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
        """Remove a key."""
        self._retry(self.values.delete, key)

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

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """Keep the structure of a header with groups. Other headers may be made task by task."""
        self.ensure_chords_allowed()
        # To look into a generator would make all its tasks before the first one is sent.
        if not isinstance(header_result_args[1], _regen):
            header = self.app.GroupResult(*header_result_args)
            if any(isinstance(each, GroupResult) for each in header.results):
                header.save(backend=self)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Store how many parts a chord has. Celery does it before it sends the last part."""
        self.set(self._size_key(group_id), str(chord_size))
        # The same signature, applied again, is a new run with the same id.
        self._retry(Parts.reopen, self.values, self.get_key_for_chord(group_id))

    def add_to_chord(self, group_id: str, result: Any) -> None:
        """Let a chord wait for one more part. A part of it calls this."""
        self._retry(
            self.values.change,
            self._size_key(group_id),
            lambda old: None if old is None else str(int(old) + 1),
        )

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Count a part of a chord once, and start its body after the last one."""
        if not request.group or not request.id:
            return
        key = self.get_key_for_chord(request.group)
        part = part_of(request.id, request.group_index)
        value = self.encode([request.id, state, self.encode_result(result, state)])
        name = name_of_part(part, request.group_index)
        self._retry(self.values.put_below, key, name, value)
        done = self._retry(Parts.add, self.values, key, part)
        size = self.get(self._size_key(request.group))
        # A part that ran again may find that its worker died before it could start the body.
        if size is not None and len(done.done) >= int(size) and not done.is_closed:
            self._start_body(request, key, len(done.done))

    def _start_body(self, request: Any, key: str, size: int) -> None:
        body = maybe_signature(request.chord, app=self.app)
        try:
            values = self._values_of_parts(request.group, key)
            if len(values) < size and not GroupResult.restore(request.group, backend=self):
                return  # The same part, run by another worker, has started the body meanwhile.
            body.delay(values)
        except Exception as error:  # noqa: BLE001 - of the part, or of what publishes the body.
            _logger.warning("celery_chord_failed", group=request.group, error=repr(error))
            self.chord_error_from_stack(body, _chord_error(error))
        self._retry(Parts.close, self.values, key)
        self._retry(self.values.delete_below, key)

    def _values_of_parts(self, group_id: str, key: str) -> list[Any]:
        header = GroupResult.restore(group_id, backend=self)
        if header is not None:
            with allow_join_result():
                joined: list[Any] = header.join_native(
                    timeout=self.app.conf.result_chord_join_timeout, propagate=True
                )
                return joined
        return [self._value_of_part(each) for each in self._retry(self.values.get_below, key)]

    def _value_of_part(self, data: bytes) -> Any:
        task_id, state, value = self.decode(data)
        if state in states.EXCEPTION_STATES:
            value = self.exception_to_python(value)
        if state in states.PROPAGATE_STATES:
            raise ChordError(f"Dependency {task_id} raised {value!r}") from value
        return value

    def _size_key(self, group_id: str) -> Any:
        return self.get_key_for_group(group_id, ".size")

    def _retry(self, function: Callable[..., Any], *args: Any) -> Any:
        return retry_over_time(function, RETRY_ERRORS, args, {}, _report, **self._policy)


def _report(error: Exception, intervals: Any, retries: int) -> float:
    wait = float(next(intervals))
    _logger.warning(
        "celery_result_retried", error=str(error), retries=retries, wait=wait, at=time.time()
    )
    return wait


def _chord_error(error: Exception) -> ChordError:
    if isinstance(error, ChordError):
        return error
    found = ChordError(repr(error))
    found.__cause__ = error
    return found
