"""
Fixtures of the tests of object stores.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

import jetsync


@pytest.fixture
def observer(js, unique):
    """
    An object store in memory with a connection that nothing breaks, deleted after the test.
    """
    made = js.create_object_store(unique, storage="memory")
    yield made
    with suppress(jetsync.ObjectStoreNotFoundError):
        js.delete_object_store(unique)


@pytest.fixture
def store(observer):
    """
    The object store of a test. Some files reach it through a proxy instead.
    """
    return observer
