"""
Fixtures of the tests of publishing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import jetsync
from helpers.streams import memory_stream
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stream_fields() -> dict[str, bool]:
    """
    The fields that the stream needs: by default those of a stream that accepts atomic batches.
    """
    return {"allow_atomic": True}


@pytest.fixture
def stream(
    js: jetsync.JetStream, unique: str, stream_fields: dict[str, bool]
) -> Iterator[jetsync.Stream]:
    """
    A stream in memory.
    """
    yield memory_stream(js, unique, **stream_fields)
    with suppress(jetsync.StreamNotFoundError):
        js.delete_stream(unique)


@pytest.fixture(scope="session")
def hasty() -> Iterator[DevServer]:
    """
    A server that drops batches after an idle second.
    """
    with DevServer(config={"jetstream": {"limits": {"batch": {"timeout": "1s"}}}}) as server:
        yield server
