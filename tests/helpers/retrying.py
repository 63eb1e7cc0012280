"""
A plugin that asks for retries.
"""

from jetsync.hookspecs import hookimpl


class RetryPlugin:
    """
    Retry after each error, and record the errors.
    """

    def __init__(self, attempts=1, delay=0.05):
        self.attempts = attempts
        self.delay = delay
        self.errors = []
        self.operations = []

    @hookimpl
    def jetsync_retry(self, operation, error, attempt):
        self.errors.append(error)
        self.operations.append(operation)
        return self.delay if attempt <= self.attempts else None
