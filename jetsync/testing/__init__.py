"""
What tests of jetsync, of its plugins and of programs that use it are made with.

For tests without a server: `ManualClock` and `ScriptedTransport` drive engines, and `HookRecorder`
is a plugin that writes down every hook call. For tests with one: `CutProxy` breaks connections
where it hurts, and `jetsync.testing.plugin` gives pytest the fixtures ``nats_server``, ``js`` and
``stream``; it is found by pytest as soon as jetsync is installed.
"""

from __future__ import annotations

from jetsync.testing._clock import ManualClock
from jetsync.testing._forwarder import ProxyStatistics
from jetsync.testing._proxy import CutProxy
from jetsync.testing._recorder import HookCall, HookRecorder
from jetsync.testing._transport import Command, ScriptedTransport

__all__ = [
    "Command",
    "CutProxy",
    "HookCall",
    "HookRecorder",
    "ManualClock",
    "ProxyStatistics",
    "ScriptedTransport",
]
