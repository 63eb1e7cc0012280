"""
Services over NATS (ADR-32): endpoints that answer requests, and discovery.

A :class:`Service` has endpoints, which are functions. :func:`call` calls an endpoint, and
:func:`ping`, :func:`info`, :func:`stats` and :func:`discover` find services. Services and callers
in other languages understand each other.

The fixtures for tests are in ``jetsync_services.testing``.
"""

from __future__ import annotations

from jetsync_services.calling import DiscoveredService, call, discover, info, ping, stats
from jetsync_services.documents import (
    EndpointInfo,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
)
from jetsync_services.errors import ServiceError
from jetsync_services.group import Group
from jetsync_services.request import Request, Response
from jetsync_services.service import Service

__all__ = [
    "DiscoveredService",
    "EndpointInfo",
    "EndpointStats",
    "Group",
    "Request",
    "Response",
    "Service",
    "ServiceError",
    "ServiceInfo",
    "ServicePing",
    "ServiceStats",
    "call",
    "discover",
    "info",
    "ping",
    "stats",
]
