"""
gunicorn reads this file from the working folder.
"""


def post_worker_init(worker):
    """
    Connect in each worker: after the fork, and after gevent has patched the process.
    """
    import orders

    orders.jetstream()
    worker.log.info("Connected")
