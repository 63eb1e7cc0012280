"""
Settings of the plugin, and the environment variables that set them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import attrs

import jetsync

if TYPE_CHECKING:
    from collections.abc import Mapping

GRANULARITIES = ("operation", "message")

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")


def _granularity(_: Any, __: Any, value: object) -> None:
    if value not in GRANULARITIES:
        raise jetsync.ConfigurationError(
            f"granularity must be 'operation' or 'message', not {value!r}"
        )


def _limit(_: Any, __: Any, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise jetsync.ConfigurationError(f"max_links must be 0 or more, not {value!r}")


@attrs.frozen(kw_only=True)
class Settings:
    """
    Settings for traces and metrics.

    Raises:
        ConfigurationError: A value is invalid.
    """

    granularity: Literal["operation", "message"] = attrs.field(
        default="operation", validator=_granularity
    )
    """
    The trace context that each message of a bulk publish or batch carries. With ``"operation"``,
    it is the span of the ``publish_many`` call, the publisher or the batch. With ``"message"``, it
    is a span for this message alone.
    """

    empty_receives: bool = False
    """Whether a pull without messages creates a span."""

    max_links: int = attrs.field(default=128, validator=_limit)
    """Maximum number of links from a receive span to publishing spans."""

    consumers: bool = True
    """
    Whether metrics have a label for the consumer. Turn it off if consumers have random names, as
    ordered and ephemeral ones do.
    """

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """
        Read ``JETSYNC_OTEL_GRANULARITY``, ``JETSYNC_OTEL_EMPTY_RECEIVES``,
        ``JETSYNC_OTEL_MAX_LINKS`` and ``JETSYNC_OTEL_CONSUMERS``.

        Args:
            env: The variables. None means ``os.environ``.

        Raises:
            ConfigurationError: A variable is invalid.
        """
        env = os.environ if env is None else env
        given: dict[str, Any] = {}
        for field in attrs.fields(cls):
            variable = f"JETSYNC_OTEL_{field.name.upper()}"
            text = env.get(variable)
            if text is None:
                continue
            text = text.strip()
            if isinstance(field.default, bool):
                if text.lower() not in _TRUE + _FALSE:
                    raise jetsync.ConfigurationError(f"{variable} must be 1 or 0, not {text!r}")
                given[field.name] = text.lower() in _TRUE
            elif isinstance(field.default, int):
                if not text.isdigit():
                    raise jetsync.ConfigurationError(f"{variable} must be a number, not {text!r}")
                given[field.name] = int(text)
            else:
                given[field.name] = text
        return cls(**given)
