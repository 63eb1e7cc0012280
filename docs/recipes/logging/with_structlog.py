"""
Show jetsync's events as lines of JSON, with structlog.
"""

import logging

import structlog

import jetsync

structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.JSONRenderer(),
    ],
    wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
)

with jetsync.connect() as client, client.stop_on_signal():
    worker = client.jetstream().consumer("ORDERS", "worker")
    with worker.consume(ack="auto") as messages:
        for message in messages:
            print("handled", message.sequence)
