"""
Retries for jetsync: which operation is tried again after which error, how soon and for how long.

`Retry` is the plugin; `jetsync.connect(plugins=["retry"])` loads it as it is, an object where it is
to be configured. A `Policy` says what holds for some operations and errors. Waits and ends are
those of tenacity, so that whatever it has for them, and whatever was written for it, works here.

What can do harm is never tried again: jetsync asks a plugin only where a further attempt cannot
store a message twice, and `Retry` refuses where that would rest on an id that the stream may have
forgotten.
"""

from __future__ import annotations

from jetsync_retry._policy import OPERATIONS, Policy
from jetsync_retry._retry import Retry
from jetsync_retry._statistics import Decision, RetryCount, RetryStatistics

__all__ = ["OPERATIONS", "Decision", "Policy", "Retry", "RetryCount", "RetryStatistics"]
