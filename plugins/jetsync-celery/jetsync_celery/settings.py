"""
The options of the transport, from ``broker_transport_options``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_STEPS = 10
"""Celery has the priorities 0 to 9."""


def _steps(_: Any, __: attrs.Attribute[int], value: int) -> None:
    if not 1 <= value <= MAX_STEPS:
        raise ValueError(f"priorities must be 1 to {MAX_STEPS}, not {value}")


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"must be more than 0 seconds, not {value!r}")
    return float(value)


def _connect(value: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(value or {})


@attrs.frozen(kw_only=True)
class Settings:
    """
    The options that the transport reads from ``broker_transport_options``.

    Other keys, such as those of kombu, are left to kombu.
    """

    connect: dict[str, Any] = attrs.field(factory=dict, converter=_connect, repr=False)
    """Keywords of ``jetsync.connect``, such as ``credentials``, ``nkey_seed`` or ``tls_ca``."""

    priorities: int = attrs.field(default=4, validator=_steps)
    """Number of priority steps, 1 to 10. Celery's priorities 0 to 9 are spread over them. All
    processes must use the same number."""

    ack_wait: float = attrs.field(default=20.0, converter=_number)
    """Seconds after which the server delivers the tasks of a worker that died to another one."""

    num_replicas: int = 1
    """Replicas of the stream and the bucket, when they are created."""

    storage: Literal["file", "memory"] = "file"
    """``file`` or ``memory``, when they are created. With ``memory``, a restart of the server loses
    all tasks."""

    duplicate_window: float = attrs.field(default=120.0, converter=_number)
    """Seconds for which the server recognises a task that is sent again after an error, when the
    stream is created."""

    dead_letters: bool = False
    """Whether rejected messages that are not requeued are kept as dead jobs of the queue."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """
        Read the options that the transport knows.

        Raises:
            ValueError, TypeError: The value of an option is invalid.
        """
        names = {field.name for field in attrs.fields(cls)}
        return cls(**{name: value for name, value in options.items() if name in names})
