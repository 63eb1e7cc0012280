"""
Headers and payloads that readers and writers treat in a special way.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LEDGER", "LEDGER_START", "ROLLUP", "SERVER_PREFIX"]

SERVER_PREFIX: Final = "Nats-"
# Servers act on most headers with this prefix.

LEDGER: Final = "Jetsync-Ledger"
# The header of ledger messages.

LEDGER_START: Final = b'{"v":'
# Payloads of ledger messages start with this.


ROLLUP: Final = "Nats-Rollup"
# With the value "sub", the server removes the earlier messages of the subject.
