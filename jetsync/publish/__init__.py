"""
Publishing: one message, many messages.
"""

from __future__ import annotations

from jetsync.publish.publisher import (
    DeliveryReport,
    Publisher,
    PublisherStatistics,
    PublishFuture,
)

__all__ = ["DeliveryReport", "PublishFuture", "Publisher", "PublisherStatistics"]
