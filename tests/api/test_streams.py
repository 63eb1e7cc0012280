from __future__ import annotations

import json
import time
import weakref
from types import SimpleNamespace

import pytest

from helpers.waiting import at_some_pace
from jetsync._api.context import Context
from jetsync.errors import RequestTimeoutError
from jetsync.stream import Stream
from jetsync.values.stream_config import StreamConfig
from jetsync.values.stream_info import StreamInfo

SUBJECTS = [f"s.{number:03d}" for number in range(100)]
PAGE = 20


class SlowServer:
    """A connection to a server that needs a while to list a page of the subjects."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.lane, self.plugins, self.server = object(), object(), SimpleNamespace()
        self.contexts = weakref.WeakSet()
        self.offsets = []

    def exchange(self, subject, header, body, deadline, **options):
        offset = json.loads(body).get("offset", 0)
        self.offsets.append(offset)
        time.sleep(self.seconds)  # The tests are about a slow server, so this one sleeps.
        if deadline.expired():
            raise RequestTimeoutError(subject.decode(), deadline.total)
        page = dict.fromkeys(SUBJECTS[offset : offset + PAGE], 1)
        answer = {"total": len(SUBJECTS), "state": {"subjects": page}, "config": {"name": "S"}}
        return b"_INBOX.x", b"", None, json.dumps(answer).encode()


def slow_stream(pace):
    """Return a slow server, and a stream of it whose timeout is enough for three pages."""
    server = SlowServer(0.1 * pace)
    context = Context(server, prefix="$JS.API", domain=None, default_timeout=0.35 * pace)
    return server, Stream(context, StreamInfo(config=StreamConfig(name="S")))


class TestSubjects:
    def test_each_page_has_the_default_timeout(self):
        """A list of many subjects arrives even if it takes longer than one request may."""

        def attempt(pace):
            server, stream = slow_stream(pace)
            found = stream.info(subjects_filter=">").state.subjects
            assert found == dict.fromkeys(SUBJECTS, 1)
            assert server.offsets == [0, 20, 40, 60, 80]

        at_some_pace(attempt)

    def test_an_explicit_timeout_covers_all_pages(self):
        """A caller who passes a timeout gets an answer or an error within it."""

        def attempt(pace):
            server, stream = slow_stream(pace)
            with pytest.raises(RequestTimeoutError):
                stream.info(subjects_filter=">", timeout=0.25 * pace)
            assert len(server.offsets) == 3

        at_some_pace(attempt)
