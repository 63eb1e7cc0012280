"""
The file system passes fsspec's own tests for file systems.
"""

from __future__ import annotations

import posixpath

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from jetsync.filesystem import JetStreamFileSystem

# These are the 400 tests of fsspec itself.
pytestmark = pytest.mark.thorough


class Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, nats_server):
        yield JetStreamFileSystem(nats_server.url)
        JetStreamFileSystem.clear_instance_cache()

    @pytest.fixture
    def fs_path(self, js, unique):
        js.create_object_store(unique, storage="memory")
        yield unique
        js.delete_object_store(unique)

    @pytest.fixture
    def fs_join(self):
        return posixpath.join

    @pytest.fixture
    def supports_empty_directories(self):
        return False


class TestCopy(Fixtures, AbstractCopyTests):
    pass


class TestGet(Fixtures, AbstractGetTests):
    pass


class TestOpen(Fixtures, AbstractOpenTests):
    pass


class TestPipe(Fixtures, AbstractPipeTests):
    pass


class TestPut(Fixtures, AbstractPutTests):
    pass
