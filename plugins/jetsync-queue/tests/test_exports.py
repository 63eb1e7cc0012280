"""
The public names.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import jetsync
import jetsync_queue


def test_everything_public_is_documented():
    """
    All public names are exported once, sorted and documented.
    """
    assert len(set(jetsync_queue.__all__)) == len(jetsync_queue.__all__)
    for name in jetsync_queue.__all__:
        assert getattr(jetsync_queue, name).__doc__


def test_errors_are_those_of_jetsync_and_can_be_pickled():
    """
    Errors of the plugin are caught as errors of jetsync.
    """
    error = jetsync_queue.JobFailedError("7", "why", 3)
    again = pickle.loads(pickle.dumps(error))

    assert isinstance(error, jetsync.JetSyncError)
    assert (str(again), again.job_id, again.reason, again.attempts) == (str(error), "7", "why", 3)
    assert issubclass(jetsync_queue.ResultTimeoutError, TimeoutError)
    assert issubclass(jetsync_queue.JobTimeoutError, TimeoutError)


def test_importing_it_needs_no_click():
    """
    Only the command line needs the extra `cli`.
    """
    code = "import sys, jetsync_queue; print('click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
