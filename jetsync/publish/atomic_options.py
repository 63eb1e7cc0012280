"""
The options of an atomic batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import attrs
from attrs.validators import optional

from jetsync import errors
from jetsync._api.known_streams import KnownStream
from jetsync._base.deadline import Deadline, Seconds
from jetsync._base.fields import wrong_type
from jetsync.values.ttl import ttl_header

# Bytes of a batch id (ADR-50).
MAX_ID_BYTES: Final = 64


def _check_batch_id(_options: object, _field: object, value: Any) -> None:
    if not isinstance(value, str):
        raise wrong_type("batch_id", "a str", value)
    # With an empty id the server would store the messages one by one.
    if not 0 < len(value.encode("utf-8", "replace")) <= MAX_ID_BYTES:
        raise errors.InvalidArgumentError(
            f"batch_id must have 1 to {MAX_ID_BYTES} bytes", argument="batch_id"
        )
    if not value.isprintable() or value != value.strip():
        raise errors.InvalidArgumentError(
            f"batch_id {value!r} has control characters or surrounding spaces",
            argument="batch_id",
        )


def _check_ttl(_options: object, _field: object, value: Seconds | Literal["never"]) -> None:
    ttl_header(value)


@attrs.frozen(kw_only=True)
class AtomicOptions:
    """The options of one atomic batch; see :meth:`jetsync.JetStream.atomic_batch`."""

    # Seconds for each call.
    timeout: float
    batch_id: str | None = attrs.field(default=None, validator=optional(_check_batch_id))
    ack_first: bool = True
    ack_every: int = 0
    ttl: Seconds | Literal["never"] | None = attrs.field(
        default=None, validator=optional(_check_ttl)
    )
    broken_servers: bool = False
    # Looks up the stream of the batch by the subject of its first message; None asks the server.
    find_stream: Callable[[str, Deadline], KnownStream] | None = None
    # How often a batch is sent again if no stream answered, and the seconds before each attempt.
    retries: int = 0
    retry_wait: float = 0.25
