"""
Show jetsync's events with the standard `logging`.
"""

import logging

import jetsync

logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
logging.getLogger("jetsync").setLevel(logging.INFO)

with jetsync.connect() as client, client.stop_on_signal():
    worker = client.jetstream().consumer("ORDERS", "worker")
    with worker.consume(ack="auto") as messages:
        for message in messages:
            print("handled", message.sequence)
