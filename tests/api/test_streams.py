from __future__ import annotations

import json
import time
import weakref
from types import SimpleNamespace

import pytest

from jetsync._api.context import Context
from jetsync.errors import RequestTimeoutError
from jetsync.stream import Stream
from jetsync.values.stream_config import StreamConfig
from jetsync.values.stream_info import StreamInfo

SUBJECTS = [f"s.{number:03d}" for number in range(100)]
PAGE = 20


class SlowServer:
    """A connection to a server that needs 0.1 s to list a page of the subjects."""

    def __init__(self):
        self.lane, self.plugins, self.server = object(), object(), SimpleNamespace()
        self.contexts = weakref.WeakSet()
        self.offsets = []

    def exchange(self, subject, header, body, deadline):
        offset = json.loads(body).get("offset", 0)
        self.offsets.append(offset)
        time.sleep(0.1)  # The tests are about a slow server, so this one sleeps.
        if deadline.expired():
            raise RequestTimeoutError(subject.decode(), deadline.total)
        page = dict.fromkeys(SUBJECTS[offset : offset + PAGE], 1)
        answer = {"total": len(SUBJECTS), "state": {"subjects": page}, "config": {"name": "S"}}
        return b"_INBOX.x", b"", None, json.dumps(answer).encode()


@pytest.fixture
def server():
    """A slow server."""
    return SlowServer()


@pytest.fixture
def stream(server):
    """A stream of the server, in a context whose timeout is enough for three pages."""
    context = Context(server, prefix="$JS.API", domain=None, default_timeout=0.35)
    return Stream(context, StreamInfo(config=StreamConfig(name="S")))


class TestSubjects:
    def test_each_page_has_the_default_timeout(self, server, stream):
        """A list of many subjects arrives even if it takes longer than one request may."""
        found = stream.info(subjects_filter=">").state.subjects
        assert found == dict.fromkeys(SUBJECTS, 1)
        assert server.offsets == [0, 20, 40, 60, 80]

    def test_an_explicit_timeout_covers_all_pages(self, server, stream):
        """A caller who passes a timeout gets an answer or an error within it."""
        with pytest.raises(RequestTimeoutError):
            stream.info(subjects_filter=">", timeout=0.25)
        assert len(server.offsets) == 3
