"""
Context in the headers of messages, by whatever propagator is configured.

Names are written as the propagator spells them, ``traceparent`` in small letters. They are read in
any case, as other clients write them in others.
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
        Return all values of a name, in whatever case it is written; ``None`` where there are none.
        """
        found = carrier.get_all(key)
        if not found:
            wanted = key.lower()
            found = [value for name, value in carrier.items() if name.lower() == wanted]
        return found or None

    def keys(self, carrier: jetsync.Headers) -> list[str]:
        """
        Return the names that there are.
        """
        return carrier.keys()


class HeadersSetter(Setter[jetsync.Headers]):
    """
    Write context into headers of one's own.
    """

    def set(self, carrier: jetsync.Headers, key: str, value: str) -> None:
        """
        Give a name this value in the place of all it had.
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
    Return headers with a context in them; those given are not changed.

    A message that has a context when it is published keeps it: this is how to give a message
    another one than that of the span that publishes it.

    Args:
        headers: What the message has besides.
        context: The context; ``None`` for the current one.
        propagator: What writes it; ``None`` for the configured one.
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
    Return the context in which a message was published, on top of another one.

    Args:
        message: A message, however it was read.
        context: What it is put on top of; ``None`` for the current one.
        propagator: What reads it; ``None`` for the configured one.
    """
    chosen = propagate.get_global_textmap() if propagator is None else propagator
    return chosen.extract(message.headers, context=context, getter=GETTER)
