"""
Context in the headers of messages, in the format of the configured propagator.

Names are written as the propagator spells them, such as ``traceparent``. They are read in any case,
because other clients write them differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import propagate
from opentelemetry.propagators.textmap import Getter, Setter

import jetsync

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator

    from jetsync.typing import HeadersInput


class HeadersGetter(Getter[jetsync.Headers]):
    """
    Read context from the headers of a message.
    """

    def get(self, carrier: jetsync.Headers, key: str) -> list[str] | None:
        """
        Return all values of a name, ignoring case, or None.
        """
        found = carrier.get_all(key)
        if not found:
            wanted = key.lower()
            found = [value for name, value in carrier.items() if name.lower() == wanted]
        return found or None

    def keys(self, carrier: jetsync.Headers) -> list[str]:
        """
        Return all names.
        """
        return carrier.keys()


class HeadersSetter(Setter[jetsync.Headers]):
    """
    Write context into headers.
    """

    def set(self, carrier: jetsync.Headers, key: str, value: str) -> None:
        """
        Replace all values of a name.
        """
        carrier.set(key, value)


GETTER = HeadersGetter()
SETTER = HeadersSetter()


def inject(
    headers: HeadersInput | None = None,
    context: Context | None = None,
    *,
    propagator: TextMapPropagator | None = None,
) -> jetsync.Headers:
    """
    Return a copy of the headers with a context added.

    Use this function to send a context other than that of the publishing span. The plugin does not
    replace a context that a message already has.

    Args:
        headers: The other headers of the message.
        context: The context. None means the current one.
        propagator: The propagator. None means the configured one.
    """
    made = jetsync.Headers(headers)
    chosen = propagate.get_global_textmap() if propagator is None else propagator
    chosen.inject(made, context=context, setter=SETTER)
    return made


def extract(
    message: jetsync.Message | jetsync.StoredMessage,
    context: Context | None = None,
    *,
    propagator: TextMapPropagator | None = None,
) -> Context:
    """
    Return *context*, extended with the trace context of a message.

    Args:
        message: The message.
        context: The context to extend. None means the current one.
        propagator: The propagator. None means the configured one.
    """
    chosen = propagate.get_global_textmap() if propagator is None else propagator
    return chosen.extract(message.headers, context=context, getter=GETTER)
