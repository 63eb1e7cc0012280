"""
Hooks of gunicorn, which reads this file from the working folder.
"""

import os


def post_worker_init(worker):
    """
    Connect in each worker, after it has been forked and patched.
    """
    from clients import client

    if not os.environ.get("CONNECT_ONLY_AT_IMPORT"):
        client()
    worker.log.info("Worker ready")
