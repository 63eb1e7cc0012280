"""
Find out what a server does not support, from its version and from the configuration it returns.

Servers before 2.12 silently drop unknown fields. They create a stream without ``allow_atomic``, and
then store "atomic" batches message by message. Later servers refuse an unknown field with an error
text. Both become a :class:`~jetsync.errors.NotSupportedError` that names the field and the server
version it needs. No I/O here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from jetsync.errors import InvalidJsonError, NotSupportedError

_UNKNOWN_FIELD: Final = re.compile(r'unknown field "([^"]+)"')

UNKNOWN: Final = "0.0.0"
"""The version of a server that does not announce one."""

_LEVELS: Final[Sequence[tuple[tuple[int, ...], int]]] = (
    ((2, 15), 5),
    ((2, 14), 4),
    ((2, 12, 5), 3),
    ((2, 12), 2),
    ((2, 11), 1),
)
"""The first server version of each API level, newest first."""


@attrs.frozen
class Need:
    """
    The server version that a field needs.
    """

    version: str
    """The first version that supports the field, such as ``2.12``."""

    level: int | None = None
    """The API level of that version; ``None`` before 2.11, which introduced levels."""

    def __str__(self) -> str:
        level = "" if self.level is None else f" (API level {self.level})"
        return f"server {self.version} or later{level}"


_2_10: Final = Need("2.10")
_2_11: Final = Need("2.11", 1)
_2_12: Final = Need("2.12", 2)
_2_14: Final = Need("2.14", 4)

STREAM_NEEDS: Final[Mapping[str, Need | str]] = {
    "compression": _2_10,
    "consumer_limits": _2_10,
    "first_seq": _2_10,
    "metadata": _2_10,
    "mirror.subject_transforms": _2_10,
    "sources.subject_transforms": _2_10,
    "subject_transform": _2_10,
    "allow_msg_ttl": _2_11,
    "subject_delete_marker_ttl": _2_11,
    "placement.preferred": _2_11,
    "allow_atomic": _2_12,
    "allow_msg_counter": _2_12,
    "allow_msg_schedules": _2_12,
    "persist_mode": _2_12,
    "allow_batched": _2_14,
    "mirror.consumer": _2_14,
    "sources.consumer": _2_14,
    "template_owner": "server 2.12 or earlier",
}
"""The needs of stream fields, by path. All other fields are older than 2.10."""

CONSUMER_NEEDS: Final[Mapping[str, Need | str]] = {
    "filter_subjects": _2_10,
    "metadata": _2_10,
    "pause_until": _2_11,
    "priority_groups": _2_11,
    "priority_policy": _2_11,
    "priority_timeout": _2_11,
    "sourcing": _2_14,
}
"""The needs of consumer fields."""

TTL_NEED: Final = _2_11
"""Older servers store ``Nats-TTL`` as an ordinary header, and the message does not expire."""

EXPECTED_SUBJECT_NEED: Final = _2_11
"""
The need of ``Nats-Expected-Last-Subject-Sequence-Subject``. Older servers check the message's own
subject instead (seen on 2.10.26).
"""

PULL_NEEDS: Final[Mapping[str, Need]] = {
    "group": _2_11,
    "min_pending": _2_11,
    "min_ack_pending": _2_11,
    "priority": _2_12,
}
"""The needs of pull fields. Older servers ignore them."""

_VALUE_NEEDS: Final[Mapping[tuple[str, str], Need]] = {
    ("priority_policy", "prioritized"): _2_12,
    ("ack_policy", "flow_control"): _2_14,
}
"""The needs of values that are newer than their field."""


_OMITTED: Final = {"persist_mode": "default", "priority_policy": "none"}
"""Values that servers leave out of their answers."""


def level_of_version(version: Sequence[int]) -> int:
    """
    Return the API level of a server version; 0 before 2.11.
    """
    for first, level in _LEVELS:
        if tuple(version) >= first:
            return level
    return 0


@functools.lru_cache(maxsize=16)
def _level_of_text(version: str) -> int:
    numbers = version.partition("-")[0].split(".")
    return level_of_version(tuple(int(number) for number in numbers if number.isdigit()))


def require(feature: str, need: Need, version: str) -> None:
    """
    Raise NotSupportedError if a server of this version would ignore a feature.

    Args:
        feature: The feature, for the error.
        need: Its need.
        version: Version of the connected server. The leader of a stream may run another version,
            which only a request would reveal.
    """
    if need.level is not None and _level_of_text(version) < need.level and version != UNKNOWN:
        raise NotSupportedError(feature, needs=str(need), server=version)


def api_level_of(metadata: Mapping[str, str] | None) -> int | None:
    """
    Return the API level in the metadata of a stream or consumer; ``None`` if there is none.

    Servers before 2.11 do not write it, and listings leave it out.
    """
    text = (metadata or {}).get("_nats.level", "")
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def check_reply(
    needs: Mapping[str, Need | str],
    sent: Mapping[str, Any],
    returned: Mapping[str, Any],
    *,
    server: str,
    done: str,
) -> None:
    """
    Raise if the server accepted a configuration but dropped a part of it.

    Args:
        needs: :data:`STREAM_NEEDS` or :data:`CONSUMER_NEEDS`.
        sent: The configuration that was sent.
        returned: The configuration that the server returned.
        server: Version of the server, used if the answer does not contain it.
        done: What the server did, such as ``"stream 'S' was created"``.

    Raises:
        NotSupportedError: A field that was set is missing or off.
    """
    settled = {field for field, value in _OMITTED.items() if sent.get(field) == value}
    if needs is CONSUMER_NEEDS:
        # Servers up to 2.12.0 return only the one of the two names that was sent.
        settled |= {"name", "durable_name"}
    if sent.get("subject_delete_marker_ttl"):
        # Markers are rollups, so the server turns deny_purge off (ADR-43).
        settled.add("deny_purge")
    dropped = [path for path in _dropped(sent, returned) if path not in settled]
    if not dropped:
        return
    version = (returned.get("metadata") or {}).get("_nats.ver", server)
    error = NotSupportedError(dropped[0], needs=_need_of(dropped[0], needs), server=version)
    # The server has made the change. It is not undone here, because the stream may have existed
    # before and hold messages.
    error.args = (f"{error}; {done} without {', '.join(dropped)}",)
    raise error


def explain_refusal(
    error: InvalidJsonError,
    sent: Mapping[str, Any],
    needs: Mapping[str, Need | str],
    server: str,
) -> NotSupportedError | None:
    """
    Return the error to raise if the server refused a request because of an unknown field.

    Args:
        error: The answer of the server.
        sent: The configuration that was sent.
        needs: :data:`STREAM_NEEDS` or :data:`CONSUMER_NEEDS`.
        server: Version of the server.
    """
    found = _UNKNOWN_FIELD.search(error.description)
    if found is not None:
        # The text contains only the last part of the path.
        paths = [path for path in _paths(sent) if path.rpartition(".")[2] == found[1]]
        path = next((path for path in paths if path in needs), paths[0] if paths else found[1])
        return NotSupportedError(path, needs=_need_of(path, needs), server=server)
    for (field, value), need in _VALUE_NEEDS.items():
        # Server 2.10 only says "invalid JSON". Later servers quote the value.
        quoted = value in error.description or error.description == "invalid JSON"
        if sent.get(field) == value and quoted:
            return NotSupportedError(f"{field} {value!r}", needs=str(need), server=server)
    return None


def _need_of(path: str, needs: Mapping[str, Need | str]) -> str:
    return str(needs.get(path, "a server that knows this field"))


def _dropped(sent: Mapping[str, Any], returned: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """
    Yield the paths of fields that were set and are missing, off or empty in the answer.

    A field that was sent as off or empty is never missing: old servers leave out ``False``. Changed
    values are accepted, because servers fill in, round and limit values.
    """
    for key, value_sent in sent.items():
        here = f"{path}{key}"
        got = returned.get(key)
        if path == "metadata." and key.startswith("_nats."):
            continue
        if isinstance(value_sent, Mapping) and isinstance(got, Mapping):
            yield from _dropped(value_sent, got, f"{here}.")
        elif _are_objects(value_sent) and _are_objects(got) and len(value_sent) == len(got or ()):
            for one, other in zip(value_sent, got or (), strict=True):
                yield from _dropped(one, other, f"{here}.")
        elif _is_set(value_sent) and not _is_set(got):
            yield here


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def _is_set(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_set(item) for item in value.values())
    return bool(value)


def _paths(sent: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in sent.items():
        yield f"{path}{key}"
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from _paths(item, f"{path}{key}.")
