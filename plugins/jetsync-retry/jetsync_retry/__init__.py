"""
Retries for jetsync, by operation and class of error.

`Retry` is the plugin. `jetsync.connect(plugins=["retry"])` loads it with its defaults. Pass an
object to configure it. A `Policy` defines how operations and errors are retried, with the wait and
stop strategies of tenacity.

Retries never store a message twice. jetsync calls the plugin only if another attempt is safe, and
`Retry` gives up before the stream may forget the message ID.
"""

from __future__ import annotations

from jetsync_retry._policy import OPERATIONS, Policy
from jetsync_retry._retry import Retry
from jetsync_retry._statistics import Decision, RetryCount, RetryStatistics

__all__ = ["OPERATIONS", "Decision", "Policy", "Retry", "RetryCount", "RetryStatistics"]
