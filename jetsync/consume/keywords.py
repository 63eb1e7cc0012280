"""
The keywords of the calls that fetch and consume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from jetsync._base.deadline import Seconds


class PriorityFields(TypedDict, total=False):
    """
    The keywords of a pull that concern priority groups, for type checkers.
    """

    group: str | None
    min_pending: int | None
    min_ack_pending: int | None
    priority: int | None


class OrderedFetchFields(TypedDict, total=False):
    """
    The keywords of :meth:`OrderedConsumer.fetch`, for type checkers.
    """

    max_bytes: int | None
    expires: Seconds | None
    heartbeat: Seconds | None
    no_wait: bool


class FetchFields(OrderedFetchFields, PriorityFields, total=False):
    """
    The keywords of :meth:`Consumer.fetch`, for type checkers.
    """


class OrderedConsumeFields(TypedDict, total=False):
    """
    The keywords of :meth:`OrderedConsumer.consume`, for type checkers.
    """

    max_messages: int | None
    max_bytes: int | None
    expires: Seconds | None
    heartbeat: Seconds | None
    threshold_messages: int | None
    threshold_bytes: int | None
    stop_after: int | None


class ConsumeFields(OrderedConsumeFields, PriorityFields, total=False):
    """
    The keywords of :meth:`Consumer.consume`, for type checkers.
    """

    ack: Literal["explicit", "auto"]
    threads: int
    ordered_by: Literal["subject"] | None
    on_error: Literal["nak", "leave", "stop"]
    keep_alive: bool


KEYWORDS: Final[Mapping[str, Collection[str]]] = {
    "Consumer.fetch": ("max_messages", *FetchFields.__annotations__),
    "Consumer.next": ("expires", "heartbeat", *PriorityFields.__annotations__),
    "Consumer.consume": ("handler", *ConsumeFields.__annotations__),
    "OrderedConsumer.fetch": ("max_messages", *OrderedFetchFields.__annotations__),
    "OrderedConsumer.consume": (*OrderedConsumeFields.__annotations__,),
}
"""The keywords of each public call."""
