"""
Key-value buckets: valid names and keys, the subjects of keys, and the meaning of a message.

This module uses no socket, no clock and no threads.

A bucket is a stream named ``KV_<bucket>`` over ``$KV.<bucket>.>``. The rest of a subject is the
key, and the payload is the value. Deleting a key stores an empty message with a header that marks
the deletion. Everything that reads a bucket (get, history, watch, reads of many keys) uses
:func:`operation_of` to interpret a message.

Implements ADR-8, with the limit markers of ADR-43 and ADR-48.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync._base.fields import wrong_type
from jetsync.errors import InvalidBucketError, InvalidKeyError
from jetsync.values.headers import KV_OPERATION, ROLLUP
from jetsync.values.ttl import MarkerReason, marker_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync.values.headers import Headers
    from jetsync.values.stream_config import StreamConfig

STREAM_PREFIX: Final = "KV_"
"""The prefix of a bucket's stream name."""

SUBJECT_PREFIX: Final = "$KV."
"""The prefix of a key's subject."""

DEFAULT_API: Final = "$JS.API"
"""The API prefix of a context that sets neither a domain nor a prefix."""

DELETED: Final = "DEL"
PURGED: Final = "PURGE"

DELETE_MARKER: Final = {KV_OPERATION: DELETED}
PURGE_MARKER: Final = {KV_OPERATION: PURGED, ROLLUP: "sub"}
"""The headers of messages that delete a key."""

_BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_KEY: Final = re.compile(r"[-/_=A-Za-z0-9]+(?:\.[-/_=A-Za-z0-9]+)*")
_TOKEN: Final = re.compile(r"[-/_=A-Za-z0-9]+|\*")


class KeyOperation(enum.Enum):
    """
    The change that a revision made to its key.
    """

    PUT = "PUT"
    """It set a value."""
    DELETE = "DEL"
    """It deleted the key; earlier revisions may still be stored."""
    PURGE = "PURGE"
    """It deleted the key with all earlier revisions, or the key's value expired."""


def operation_of(headers: Headers) -> tuple[KeyOperation, MarkerReason | None]:
    """
    Return what the message with these headers does to its key, and the reason if it is a marker.

    A server writes a marker when the last value of a key expires, for example. A message with an
    unknown reason or operation is an ordinary value.
    """
    if not headers:
        return KeyOperation.PUT, None
    operation = headers.get(KV_OPERATION)
    if operation == DELETED:
        return KeyOperation.DELETE, None
    if operation == PURGED:
        return KeyOperation.PURGE, None
    marker = marker_of(headers)
    if marker is None:
        return KeyOperation.PUT, None
    removed = marker is MarkerReason.REMOVE
    return KeyOperation.DELETE if removed else KeyOperation.PURGE, marker


def why_gone(operation: KeyOperation, marker: MarkerReason | None) -> str:
    """Return why a key has no value: ``"expired"``, ``"purged"`` or ``"deleted"``."""
    if marker is MarkerReason.MAX_AGE:
        return "expired"
    return "purged" if operation is KeyOperation.PURGE else "deleted"


def check_bucket(name: str) -> str:
    """
    Return the name if it is a valid bucket name.

    Raises:
        InvalidTypeError: It is not text.
        InvalidBucketError: It is empty, or contains a character other than letters, digits, ``-``
            and ``_``.
    """
    if not isinstance(name, str):
        raise wrong_type("a bucket name", "text", name, "bucket")
    if not _BUCKET_NAME.fullmatch(name):
        raise InvalidBucketError(name)
    return name


def check_key(key: str) -> str:
    """
    Return the key if it is valid.

    Raises:
        InvalidTypeError: It is not text.
        InvalidKeyError: It is empty, has an empty part between dots, or contains a wildcard or a
            character other than letters, digits, ``-``, ``_``, ``=``, ``/`` and ``.``.
    """
    if type(key) is str and _KEY.fullmatch(key):
        return key
    if not isinstance(key, str):
        raise wrong_type("a key", "text", key, "key")
    if _KEY.fullmatch(key):
        return key
    raise InvalidKeyError(key, _why_invalid(key, wildcards=False))


def check_pattern(pattern: str) -> str:
    """
    Return the pattern if it is valid: a key in which any part may be ``*`` and the last one ``>``.

    Raises:
        InvalidTypeError: It is not text.
        InvalidKeyError: As for :func:`check_key`, or ``>`` is not the last part.
    """
    if not isinstance(pattern, str):
        raise wrong_type("a pattern of keys", "text", pattern, "keys")
    parts = pattern.split(".")
    if parts[-1] == ">":
        parts.pop()
    if (not parts and pattern == ">") or (parts and all(map(_TOKEN.fullmatch, parts))):
        return pattern
    raise InvalidKeyError(pattern, _why_invalid(pattern, wildcards=True))


def _why_invalid(key: str, *, wildcards: bool) -> str:
    if not key:
        return "it is empty"
    parts = key.split(".")
    if "" in parts:
        return "it begins or ends with a dot, or has two in a row"
    if not wildcards and not {"*", ">"}.isdisjoint(parts):
        return "a key cannot contain a wildcard"
    if ">" in parts[:-1]:
        return "'>' may only be the last part"
    return "use letters, digits and -_=/ between dots"


def is_pattern(key: str) -> bool:
    """Return whether *key*, a valid key or pattern, is a pattern."""
    return "*" in key or key.endswith(">")


def covering(patterns: Sequence[str]) -> list[str]:
    """
    Return the patterns, without those that another pattern covers.

    Servers refuse a list of filters in which one filter covers another.
    """
    given = dict.fromkeys(patterns)
    if len(given) == 1:
        return [*given]
    # The patterns as a tree of their parts. The key "" of a node holds the pattern that ends there.
    # Comparing each key with each pattern would take minutes for 10,000 of each.
    tree: dict[str, Any] = {}
    for pattern in filter(is_pattern, given):
        node = tree
        for part in pattern.split("."):
            node = node.setdefault(part, {})
        node[""] = pattern
    return [each for each in given if not _is_covered(each, tree)]


def _is_covered(key: str, tree: dict[str, Any]) -> bool:
    """Return whether another pattern of the tree matches every key that *key* matches."""
    nodes = [tree]
    for part in key.split("."):
        if any(node.get(">", {}).get("", key) != key for node in nodes):
            return True
        # Only ">" matches all that ">" matches, and only "*" and ">" match all that "*" matches.
        parts = set() if part == ">" else {"*", part}
        nodes = [node[each] for node in nodes for each in parts if each in node]
    return any(node.get("", key) != key for node in nodes)


@attrs.frozen
class BucketLayout:
    """
    The streams and subjects of a bucket's keys.
    """

    read_prefix: str
    """The prefix of the subjects in the bucket's stream."""

    write_prefix: str
    """The prefix of the subjects to publish to."""

    origin_stream: str
    """The stream that stores published values. If the bucket is a mirror, this is its origin."""

    origin_api: str
    """The API prefix for requests about that stream."""

    def origin_subject(self, key: str) -> str:
        """Return the subject of *key* in the origin stream."""
        return f"{SUBJECT_PREFIX}{self.origin_stream.removeprefix(STREAM_PREFIX)}.{key}"

    def key_of(self, subject: str) -> str | None:
        """Return the key of a message's subject; None if the subject is not in this bucket."""
        prefix = self.read_prefix
        return subject[len(prefix) :] if subject.startswith(prefix) else None


def stream_of(bucket: str) -> str:
    """Return the name of a bucket's stream."""
    return STREAM_PREFIX + check_bucket(bucket)


def subjects_of(bucket: str) -> str:
    """Return the subjects of a bucket as a wildcard."""
    return f"{SUBJECT_PREFIX}{bucket}.>"


def layout_of(bucket: str, config: StreamConfig, api_prefix: str) -> BucketLayout:
    """
    Return the streams and subjects of a bucket's keys.

    The messages of a mirror keep the subjects of the bucket that it mirrors, unless it has a
    subject transform. Writes go to the mirrored bucket. If that bucket is in another domain, the
    subjects of writes begin with that domain's API prefix, followed by ``$KV.``.

    Args:
        bucket: The bucket's name.
        config: The configuration of its stream.
        api_prefix: The API prefix of the context that reads it.
    """
    origin, origin_api, read = bucket, api_prefix, f"{SUBJECT_PREFIX}{bucket}."
    mirror = config.mirror
    if mirror is not None:
        origin = (mirror.name or "").removeprefix(STREAM_PREFIX)
        read = f"{SUBJECT_PREFIX}{origin}."
        if mirror.external is not None and mirror.external.api:
            origin_api = mirror.external.api.removesuffix(".")
        for transform in mirror.subject_transforms or ():
            if (transform.dest or "").endswith(".>"):
                read = (transform.dest or "")[:-1]
    write = f"{SUBJECT_PREFIX}{origin}."
    if origin_api != DEFAULT_API:
        write = f"{origin_api}.{write}"
    return BucketLayout(read, write, STREAM_PREFIX + origin, origin_api)
