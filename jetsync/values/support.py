"""
Tell what a server cannot do: from its version, and from the configuration that it answers.

Servers before 2.12 drop fields that they do not know, without a word: a stream that was to have
``allow_atomic`` is made without it, and "atomic" batches are then stored message by message. Later
servers refuse an unknown field with an error text. Both become one and the same
:class:`~jetsync.errors.NotSupportedError` here, which names the field and what it needs.

No I/O in here.
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
"""The version of a server that does not say."""

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
    What a server must be to know a field.
    """

    version: str
    """The first version of the server, as ``2.12``."""

    level: int | None = None
    """The API level that came with it; ``None`` before there were levels."""

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
"""What the fields of a stream need, by path; those that are not named are older than 2.10."""

CONSUMER_NEEDS: Final[Mapping[str, Need | str]] = {
    "filter_subjects": _2_10,
    "metadata": _2_10,
    "pause_until": _2_11,
    "priority_groups": _2_11,
    "priority_policy": _2_11,
    "priority_timeout": _2_11,
    "sourcing": _2_14,
}
"""What the fields of a consumer need."""

TTL_NEED: Final = _2_11
"""What ``Nats-TTL`` needs; older servers store it as an ordinary header, and nothing expires."""

EXPECTED_SUBJECT_NEED: Final = _2_11
"""
What ``Nats-Expected-Last-Subject-Sequence-Subject`` needs; older servers check the message's own
subject (seen on 2.10.26).
"""

PULL_NEEDS: Final[Mapping[str, Need]] = {
    "group": _2_11,
    "min_pending": _2_11,
    "min_ack_pending": _2_11,
    "priority": _2_12,
}
"""What the fields of a pull need; older servers ignore them."""

_VALUE_NEEDS: Final[Mapping[tuple[str, str], Need]] = {
    ("priority_policy", "prioritized"): _2_12,
    ("ack_policy", "flow_control"): _2_14,
}
"""What a value needs that came later than its field."""


def level_of_version(version: Sequence[int]) -> int:
    """
    Return the API level of a server version given as numbers; 0 before 2.11, which had none.
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
    Raise NotSupportedError if a server of this *version* ignores what a request asks for.

    Args:
        feature: What is asked for.
        need: What it needs.
        version: Version of the server that the client is connected to. The leader of a stream may
            have another one, which only a request could tell.
    """
    if need.level is not None and _level_of_text(version) < need.level and version != UNKNOWN:
        raise NotSupportedError(feature, needs=str(need), server=version)


def api_level_of(metadata: Mapping[str, str] | None) -> int | None:
    """
    Return the API level that a server wrote into the metadata of a stream or consumer it leads.

    ``None`` where it wrote none: a server before 2.11, or a listing, which leaves it out.
    """
    text = (metadata or {}).get("_nats.level", "")
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def check_stream_reply(
    asked: Mapping[str, Any], echoed: Mapping[str, Any], *, server: str, name: str, done: str
) -> None:
    """
    Raise if the server took the configuration of a stream and left something out of it.

    Args:
        asked: The configuration as it was sent.
        echoed: The configuration as the server answered it.
        server: Version of the server, used where the answer does not tell.
        name: Name of the stream.
        done: What has happened to it, ``"created"`` or ``"updated"``.

    Raises:
        NotSupportedError: a field that was asked for is missing, or off.
    """
    settled = set()
    if asked.get("persist_mode") == "default":
        settled.add("persist_mode")
    if asked.get("subject_delete_marker_ttl"):
        # Markers are rollups, which the server does not let deny_purge forbid (ADR-43).
        settled.add("deny_purge")
    dropped = [path for path in _dropped(asked, echoed) if path not in settled]
    _refuse(dropped, STREAM_NEEDS, echoed, server, f"stream {name!r} was {done}")


def check_consumer_reply(
    asked: Mapping[str, Any], echoed: Mapping[str, Any], *, server: str, name: str, done: str
) -> None:
    """
    Raise if the server took the configuration of a consumer and left something out of it.

    Args and Raises as :func:`check_stream_reply`.
    """
    # Servers up to 2.12.0 echo only that one of the two names that was sent.
    settled = {"name", "durable_name"}
    if asked.get("priority_policy") == "none":
        settled.add("priority_policy")
    dropped = [path for path in _dropped(asked, echoed) if path not in settled]
    _refuse(dropped, CONSUMER_NEEDS, echoed, server, f"consumer {name!r} was {done}")


def explain_refusal(
    error: InvalidJsonError,
    asked: Mapping[str, Any],
    needs: Mapping[str, Need | str],
    server: str,
) -> NotSupportedError | None:
    """
    Return the error to raise instead, if a server refused a request for a field it does not know.

    Args:
        error: What the server answered.
        asked: The configuration as it was sent.
        needs: :data:`STREAM_NEEDS` or :data:`CONSUMER_NEEDS`.
        server: Version of the server.
    """
    found = _UNKNOWN_FIELD.search(error.description)
    if found is not None:
        # The text has the last part of the path only.
        paths = [path for path in _paths(asked) if path.rpartition(".")[2] == found[1]]
        path = next((path for path in paths if path in needs), paths[0] if paths else found[1])
        return NotSupportedError(path, needs=_need_of(path, needs), server=server)
    for (field, value), need in _VALUE_NEEDS.items():
        # 2.10 says nothing but "invalid JSON"; the later ones quote the word.
        quoted = value in error.description or error.description == "invalid JSON"
        if asked.get(field) == value and quoted:
            return NotSupportedError(f"{field} {value!r}", needs=str(need), server=server)
    return None


def _refuse(
    dropped: Sequence[str],
    needs: Mapping[str, Need | str],
    echoed: Mapping[str, Any],
    server: str,
    what: str,
) -> None:
    if not dropped:
        return
    version = (echoed.get("metadata") or {}).get("_nats.ver", server)
    error = NotSupportedError(dropped[0], needs=_need_of(dropped[0], needs), server=version)
    # The server has acted. Taking that back is not for a library to decide: the stream may have
    # been there before, with messages in it.
    error.args = (f"{error}; {what} without {', '.join(dropped)}",)
    raise error


def _need_of(path: str, needs: Mapping[str, Need | str]) -> str:
    return str(needs.get(path, "a server that knows this field"))


def _dropped(asked: Mapping[str, Any], echoed: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """
    Yield the paths of what was asked for and is missing, off or empty in the answer.

    What was asked to be off or empty is never missing, so a ``False`` that an old server leaves out
    is no fault. A changed value is none either: servers fill in, round and bound.
    """
    for key, wanted in asked.items():
        here = f"{path}{key}"
        got = echoed.get(key)
        if path == "metadata." and key.startswith("_nats."):
            continue
        if isinstance(wanted, Mapping) and isinstance(got, Mapping):
            yield from _dropped(wanted, got, f"{here}.")
        elif _are_objects(wanted, got):
            for one, other in zip(wanted, got or (), strict=True):
                yield from _dropped(one, other, f"{here}.")
        elif _is_set(wanted) and not _is_set(got):
            yield here


def _are_objects(wanted: Any, got: Any) -> bool:
    """
    Return whether both are lists of objects that can be compared one by one.
    """
    if not isinstance(wanted, list) or not isinstance(got, list) or len(wanted) != len(got):
        return False
    return all(isinstance(item, Mapping) for item in [*wanted, *got])


def _is_set(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_set(item) for item in value.values())
    return bool(value)


def _paths(asked: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in asked.items():
        yield f"{path}{key}"
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from _paths(item, f"{path}{key}.")
