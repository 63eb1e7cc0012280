from __future__ import annotations

import threading

import pytest

from jetsync._base.deadline import Deadline
from jetsync._base.loading import Loading
from jetsync.errors import WaitTimeoutError


def soon():
    """A deadline."""
    return Deadline.after(60.0)


class TestWait:
    def test_loads_once(self):
        """The imports are made once, in another thread, before the first call returns."""
        threads = []
        loading = Loading(lambda: threads.append(threading.current_thread()))

        loading.wait(soon())
        loading.wait(soon())

        assert len(threads) == 1
        assert threads[0] is not threading.current_thread()
        assert not threads[0].is_alive()

    def test_many_threads(self):
        """Each of several threads returns after the imports were made."""
        release, found = threading.Event(), []
        loading = Loading(lambda: release.wait(60) and found.append("loaded"))
        seen = []

        def use():
            loading.wait(soon())
            seen.append(found[0])

        users = [threading.Thread(target=use) for _ in range(3)]
        for user in users:
            user.start()
        release.set()
        for user in users:
            user.join(60)

        assert seen == ["loaded"] * 3

    def test_deadline(self):
        """A deadline ends the wait, and the imports continue without it."""
        release, over = threading.Event(), threading.Event()

        def load():
            release.wait(60)
            over.set()

        loading = Loading(load)
        with pytest.raises(WaitTimeoutError):
            loading.wait(Deadline.after(0.01))
        release.set()
        assert over.wait(60)
        loading.wait(soon())

    def test_error(self):
        """An error of an import is raised, and the next call tries again."""
        errors = [ImportError("broken")]

        def load():
            if errors:
                raise errors.pop()

        loading = Loading(load)
        with pytest.raises(ImportError, match="broken"):
            loading.wait(soon())
        loading.wait(soon())
