"""
Send a number of tasks to the Celery worker.
"""

import sys

from tasks import keep

for number in range(int(sys.argv[1])):
    keep.delay(number)
