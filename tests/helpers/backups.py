"""
Streams to back up, and interruptions.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import jetsync

FIXTURES = Path(__file__).parent / "backup_files"
"""
Backups of one stream, which the library of the `nats` command line made from servers 2.12.8 and
2.15.1.
"""

OLD = ["2.10.26", "2.11.11", "2.12.8", "2.14.6"]
VERSIONS = [*(pytest.param(each, marks=pytest.mark.versions) for each in OLD), None]


def make(js, name, *, count=10, size=100, **fields):
    """
    Return a new stream with messages that cannot be compressed.
    """
    stream = js.create_stream(name, subjects=[f"{name}.>"], **fields)
    js.publish_many([(f"{name}.{number % 3}", os.urandom(size)) for number in range(count)])
    return stream


def large(js, name):
    """
    Return a new stream with more data than may be in flight.
    """
    return make(js, name, count=240, size=100_000)


def content(stream):
    """
    Return the messages of a stream and the places of its consumers.
    """
    state = stream.info().state
    messages = []
    for sequence in range(state.first_seq, state.last_seq + 1):
        try:
            found = stream.get_message(sequence)
        except jetsync.MessageNotFoundError:
            continue
        messages.append(
            (sequence, found.subject, found.data, found.timestamp, found.headers.to_dict())
        )
    infos = [each.cached_info for each in stream.consumers()]
    places = sorted((each.name, each.num_pending, each.ack_floor.stream_seq) for each in infos)
    return messages, places


def names(js):
    """
    Return the names of the streams, also of those without a leader.
    """
    return list(js.stream_names())


def files_in(folder):
    """
    Return the names in a folder.
    """
    return sorted(each.name for each in folder.iterdir())


def stop_at(count, error=KeyboardInterrupt):
    """
    Return a function for ``on_progress`` that raises once so many bytes are done.
    """

    def report(done, total):
        assert 0 <= done <= total
        if done >= count:
            raise error

    return report
