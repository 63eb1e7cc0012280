"""
Tools for testing jetsync, its plugins and programs that use it.

For tests without a server: `make_message` makes a message as a consumer delivers it, and
`AckRecorder` records its acknowledgements. `ManualClock` and `ScriptedTransport` drive protocol
engines, the parts of jetsync that do no I/O. `HookRecorder` is a plugin that records every hook
call.

For tests with a server: `CutProxy` breaks connections, and `eventually` waits for a condition. The
plugin `jetsync.testing.plugin` gives pytest the fixtures ``nats_server``, ``js`` and ``stream``.
pytest loads it if jetsync is installed.
"""

from __future__ import annotations

from jetsync.testing._clock import ManualClock
from jetsync.testing._forwarder import ProxyStatistics
from jetsync.testing._messages import AckRecorder, RecordedAck, make_message
from jetsync.testing._proxy import CutProxy
from jetsync.testing._recorder import HookCall, HookRecorder
from jetsync.testing._transport import Command, ScriptedTransport
from jetsync.testing._waiting import eventually

__all__ = [
    "AckRecorder",
    "Command",
    "CutProxy",
    "HookCall",
    "HookRecorder",
    "ManualClock",
    "ProxyStatistics",
    "RecordedAck",
    "ScriptedTransport",
    "eventually",
    "make_message",
]
