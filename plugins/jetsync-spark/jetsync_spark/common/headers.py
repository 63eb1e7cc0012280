"""
Headers and payloads that readers and writers treat in a special way.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Final

import jetsync

__all__ = ["LEDGER", "LEDGER_START", "ROLLUP", "SERVER_PREFIX", "without_ledger"]

SERVER_PREFIX: Final = "Nats-"
# Servers act on most headers with this prefix.

LEDGER: Final = "Jetsync-Ledger"
# The header of ledger messages.

LEDGER_START: Final = b'{"v":'
# Payloads of ledger messages start with this.


ROLLUP: Final = "Nats-Rollup"
# With the value "sub", the server removes the earlier messages of the subject.


def without_ledger(page: jetsync.StoredPage) -> jetsync.StoredPage:
    """
    Return a page without the ledger messages in it.
    """
    # Parsing headers is slow, so the payloads are checked first.
    if not any(map(methodcaller("startswith", LEDGER_START), page.data)):
        return page
    left = [
        message
        for message in page
        if not message.data.startswith(LEDGER_START) or LEDGER not in message.headers
    ]
    return jetsync.StoredPage(left)
