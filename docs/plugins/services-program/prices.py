"""
Answer requests for prices until SIGTERM.
"""

from __future__ import annotations

import logging

import jetsync
from jetsync_services import Request, Service, ServiceError

PRICES = {"chair": 30, "table": 120}

logging.basicConfig(level=logging.INFO)
with jetsync.connect(drain_timeout=8) as client:
    service = Service(client, "prices", version="1.0.0", description="Prices of furniture")

    @service.endpoint("get", subject="prices.get", threads=4, timeout=5)
    def get(request: Request) -> int:
        """
        Return the price of an item.
        """
        item = request.json()
        if item not in PRICES:
            raise ServiceError(404, f"no such item: {item}")
        return PRICES[item]

    service.run()
