"""
All names of ``jetsync``. The package imports this module when the first of them is used.

The names are those in the ``__all__`` of the modules below.
"""

# ruff: noqa: F403, PLC0414 - this module only shows the names of other modules.

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from jetsync._base.fields import check_function as check_function
from jetsync._base.locks import interrupt_safe_lock as interrupt_safe_lock
from jetsync._base.log import EventLogger as EventLogger
from jetsync._base.log import get_logger as get_logger
from jetsync._base.reprs import tolerant_repr as _tolerant_repr
from jetsync._base.stop_signal import StopSignal as StopSignal
from jetsync._hooks.errors import *
from jetsync._proto.keys import KeyOperation as KeyOperation
from jetsync.backups import *
from jetsync.client import *
from jetsync.consume.ack_many import *
from jetsync.consume.consumer import *
from jetsync.consume.consumption import *
from jetsync.consume.fetch import *
from jetsync.consume.ordered import *
from jetsync.consume.ordered_consumption import *
from jetsync.consume.request_many import *
from jetsync.consume.subscription import *
from jetsync.counters import *
from jetsync.errors import *
from jetsync.events import *
from jetsync.hookspecs import hookimpl as hookimpl
from jetsync.jetstream import *
from jetsync.kv.codecs import *
from jetsync.kv.config import *
from jetsync.kv.entry import *
from jetsync.kv.handle import *
from jetsync.kv.transaction import *
from jetsync.kv.watch import *
from jetsync.objects.config import *
from jetsync.objects.handle import *
from jetsync.objects.info import *
from jetsync.objects.reader import *
from jetsync.objects.watch import *
from jetsync.options import *
from jetsync.publish.atomic import *
from jetsync.publish.errors import *
from jetsync.publish.fast import *
from jetsync.publish.publisher import *
from jetsync.read.direct import *
from jetsync.schedules import *
from jetsync.stream import *
from jetsync.system import *
from jetsync.typing import *
from jetsync.values.account import *
from jetsync.values.consumer_config import *
from jetsync.values.consumer_info import *
from jetsync.values.dead_letter import *
from jetsync.values.headers import *
from jetsync.values.message import *
from jetsync.values.outbound import *
from jetsync.values.pub_acks import *
from jetsync.values.server_info import *
from jetsync.values.stored import *
from jetsync.values.stream_config import *
from jetsync.values.stream_info import *
from jetsync.values.system_info import *
from jetsync.values.ttl import *

if not TYPE_CHECKING:  # Type checkers see the names above, and would accept every name.
    __all__ = [
        name
        for name, value in globals().items()
        if name[0] != "_"
        and name not in {"TYPE_CHECKING", "annotations"}
        and not isinstance(value, types.ModuleType)
    ]
    for _name in __all__:
        # Tracebacks, reprs and pickles name the module that users import from.
        if getattr(globals()[_name], "__module__", "").startswith("jetsync."):
            globals()[_name].__module__ = "jetsync"
            if isinstance(globals()[_name], type):
                _tolerant_repr(globals()[_name])
