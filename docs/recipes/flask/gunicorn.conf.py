"""
gunicorn reads this file from the working folder.
"""

from typing import Any


def post_worker_init(worker: Any) -> None:
    """
    Connect in each worker: after the fork, and after gevent has patched the process.
    """
    import app

    app.jetstream()
    worker.log.info("Connected")
