"""
Waiting for conditions, without the helpers of jetsync's own tests.
"""

from jetsync import testing


def eventually(check, timeout=30.0):
    """
    Wait until *check* returns something true, and return that.
    """
    return testing.eventually(check, timeout=timeout)
