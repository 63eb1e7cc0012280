"""
Logging: structured events over the standard ``logging`` module, on loggers ``jetsync.spark.*``.

Silent unless the application, or Spark's worker, configures logging. Events of executors are in the
executors' logs.
"""

from __future__ import annotations

import logging
from typing import cast

import structlog

__all__ = ["get_logger"]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """
    Return a logger that writes lines of ``event key=value``; structlog's own set-up is left alone.
    """
    return cast(
        "structlog.stdlib.BoundLogger",
        structlog.wrap_logger(
            logging.getLogger(f"jetsync.spark.{name}"),
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
        ),
    )
