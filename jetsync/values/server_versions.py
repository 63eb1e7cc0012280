"""
The first server version with each feature, and the checks of a server's version and answers.

Servers before 2.12 silently drop unknown fields. They create a stream without ``allow_atomic``, and
then store "atomic" batches message by message. Later servers refuse an unknown field with an error
text. Both become a :class:`~jetsync.errors.NotSupportedError` that names the field and the server
version it needs. No I/O here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jetsync.errors import InvalidJsonError, NotSupportedError
from jetsync.values.server_info import version_numbers

if TYPE_CHECKING:
    from jetsync.values.outbound import OutboundMessage
    from jetsync.values.server_info import ServerInfo

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

STREAM_NEEDS: Final[Mapping[str, str]] = {
    "compression": "2.10",
    "consumer_limits": "2.10",
    "first_seq": "2.10",
    "metadata": "2.10",
    "mirror.subject_transforms": "2.10",
    "sources.subject_transforms": "2.10",
    "subject_transform": "2.10",
    "allow_msg_ttl": "2.11",
    "subject_delete_marker_ttl": "2.11",
    "placement.preferred": "2.11",
    "allow_atomic": "2.12",
    "allow_msg_counter": "2.12",
    "allow_msg_schedules": "2.12",
    "persist_mode": "2.12",
    "allow_batched": "2.14",
    "mirror.consumer": "2.14",
    "sources.consumer": "2.14",
    "template_owner": "server 2.12 or earlier",
}
"""
The first server version with each stream field, by path. All other fields are older than 2.10.
"""

CONSUMER_NEEDS: Final[Mapping[str, str]] = {
    "filter_subjects": "2.10",
    "metadata": "2.10",
    "pause_until": "2.11",
    "priority_groups": "2.11",
    "priority_policy": "2.11",
    "priority_timeout": "2.11",
    "sourcing": "2.14",
}
"""The first server version with each consumer field."""

TTL_NEED: Final = "2.11"
"""The first version with ``Nats-TTL``. Older servers store it as an ordinary header."""

EXPECTED_SUBJECT_NEED: Final = "2.11"
"""
The first version with ``Nats-Expected-Last-Subject-Sequence-Subject``. Older servers check the
message's own subject instead (seen on 2.10.26).
"""

PULL_NEEDS: Final[Mapping[str, str]] = {
    "group": "2.11",
    "min_pending": "2.11",
    "min_ack_pending": "2.11",
    "priority": "2.12",
}
"""The first version with each pull field. Older servers ignore them."""

CONSUMER_COMMAND_NEEDS: Final[Mapping[str, str]] = {
    "PAUSE": "2.11",
    "UNPIN": "2.11",
    "RESET": "2.14",
}
"""The first version with each command for a consumer. Older servers do not answer it."""

NEEDS_PAGES: Final = "server 2.11 or later"
"""Servers with direct reads of many messages, for the error."""

ATOMIC_LEVEL: Final = 2
"""The API level from which servers have atomic batches."""

FAST_LEVEL: Final = 4
"""The API level from which servers have fast ingest."""

MARKER_LEVEL: Final = 4
"""
The API level from which servers commit a batch without a message and keep counters correct in
batches.
"""

SCHEDULE_LEVEL: Final = 2
"""The API level from which servers support schedules with ``@at``."""

FULL_SCHEDULE_LEVEL: Final = 4
"""The API level from which they support all other schedules."""

COUNTER_LEVEL: Final = 2
"""The API level from which servers have counters."""

BROKEN_ATOMIC: Final[Mapping[str, str]] = {
    "2.12.0": "checks the expectations of all messages against the last one's subject",
    "2.12.1": "commits a batch without a message that it refused",
}
"""Servers whose atomic batches are not atomic, and why."""

FILTERS_LEVEL: Final = 3
"""
The API level from which a consumer gets all messages of several filters, and their right number.
Before, a filter with ``*`` hides messages of another one, and so does one that is the beginning of
another one's subjects (seen on 2.10.26, 2.11.11 and 2.12.2, but not on 2.12.5).
"""

TIMES_LEVEL: Final = 3
"""
The API level from which streams in memory find messages by their time although others were removed.
Before, such a search may end too early (seen on 2.11.11, 2.12.0 and 2.12.2, but not on 2.12.5).
"""

_VALUE_NEEDS: Final[Mapping[tuple[str, str], str]] = {
    ("priority_policy", "prioritized"): "2.12",
    ("ack_policy", "flow_control"): "2.14",
}
"""The first version with values that are newer than their field."""


_OMITTED: Final = {"persist_mode": "default", "priority_policy": "none"}
"""Values that servers leave out of their answers."""


@functools.lru_cache(maxsize=16)
def level_of_version(version: str) -> int:
    """
    Return the API level of a server version such as ``2.12.5``; 0 before 2.11.
    """
    found = version_numbers(version)
    return next((level for first, level in _LEVELS if found >= first), 0)


def _or_later(version: str) -> str:
    """Return a first version and its API level as text, for the error."""
    level = level_of_version(version)
    return f"server {version} or later{f' (API level {level})' if level else ''}"


def require(feature: str, need: str, version: str) -> None:
    """
    Raise NotSupportedError if a server of this version would ignore a feature.

    Args:
        feature: The feature, for the error.
        need: The first server version that supports it.
        version: Version of the connected server. The leader of a stream may run another version,
            which only a request would reveal.
    """
    if level_of_version(version) < level_of_version(need) and version != UNKNOWN:
        raise NotSupportedError(feature, needs=_or_later(need), server=version)


def require_message(message: OutboundMessage, server: ServerInfo) -> None:
    """
    Raise unless *server* supports the headers of *message*, which older servers ignore.

    Raises:
        NotSupportedError: It is too old for a time-to-live or for a condition on another subject.
    """
    if message.ttl is not None:
        require("a time-to-live of a message", TTL_NEED, server.version)
    if message.expect is not None and message.expect.last_subject_sequence_subject is not None:
        require("last_subject_sequence_subject", EXPECTED_SUBJECT_NEED, server.version)


def api_level_of(metadata: Mapping[str, str] | None) -> int | None:
    """
    Return the API level in the metadata of a stream or consumer; ``None`` if there is none.

    Servers before 2.11 do not write it, and listings leave it out.
    """
    text = (metadata or {}).get("_nats.level", "")
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def check_reply(
    needs: Mapping[str, str],
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
    expected = {field for field, value in _OMITTED.items() if sent.get(field) == value}
    if needs is CONSUMER_NEEDS:
        # Servers up to 2.12.0 return only the one of the two names that was sent.
        expected |= {"name", "durable_name"}
    if sent.get("subject_delete_marker_ttl"):
        # Markers are rollups, so the server turns deny_purge off (ADR-43).
        expected.add("deny_purge")
    if sent.get("mirror"):
        # A mirror keeps no message ids, and clusters return no window for one.
        expected.add("duplicate_window")
    if sent.get("sealed"):
        # The server turns off whatever would change a sealed stream.
        expected |= {"allow_rollup_hdrs", "max_age"}
    dropped = [path for path in _dropped(sent, returned) if path not in expected]
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
    needs: Mapping[str, str],
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
            return NotSupportedError(f"{field} {value!r}", needs=_or_later(need), server=server)
    return None


def _need_of(path: str, needs: Mapping[str, str]) -> str:
    need = needs.get(path, "a server that knows this field")
    return _or_later(need) if need[0].isdecimal() else need


def _dropped(sent: Mapping[str, Any], returned: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """
    Yield the paths of fields that were set and are missing, off or empty in the answer.

    A field that was sent as off or empty is never missing: old servers leave out ``False``. Changed
    values are accepted, because servers fill in, round and limit values.
    """
    for key, value_sent in sent.items():
        here = f"{path}{key}"
        got: Any = returned.get(key)
        if got and type(value_sent) not in (dict, list):
            continue  # Most fields; the checks below are slower.
        if path == "metadata." and key.startswith("_nats."):
            continue
        if isinstance(value_sent, Mapping) and isinstance(got, Mapping):
            yield from _dropped(value_sent, got, f"{here}.")
        elif _are_objects(value_sent) and _are_objects(got) and len(value_sent) == len(got):
            for one, other in zip(value_sent, got, strict=True):
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
