"""
Streams for tests that read, and their readers.
"""

from __future__ import annotations

import contextlib
import itertools
import os

import jetsync
from jetsync_spark.common.options import read_settings
from jetsync_spark.read.options import ReadOptions
from jetsync_spark.read.origin import readable_origin_of
from jetsync_spark.read.ranges import Range

_numbers = itertools.count(1)


@contextlib.contextmanager
def numbered(js, count, *, subjects=1, size=8, prefix="R", **config):
    """
    Make a stream with that many messages whose payloads are their sequences; remove it afterwards.
    """
    name = f"{prefix}{os.getpid()}-{next(_numbers)}"
    given = {"storage": "memory", "allow_direct": True, **config}
    stream = js.create_stream(name, subjects=[f"{name}.>"], **given)
    try:
        extend(js, stream, count, subjects=subjects, size=size)
        yield stream
    finally:
        with contextlib.suppress(jetsync.StreamNotFoundError):
            js.delete_stream(name)


def extend(js, stream, count, *, subjects=1, size=8):
    """
    Publish that many more messages.
    """
    last = stream.info().state.last_seq
    js.publish_many(
        (f"{stream.name}.{n % subjects}", (b"%d " % n).ljust(size, b"."))
        for n in range(last + 1, last + count + 1)
    )


def remake(js, stream, count, *, size=8):
    """
    Delete a stream and create another one with its name.
    """
    config = stream.info().config
    stream.delete()
    made = js.create_stream(config)
    extend(js, made, count, size=size)
    return made


def origin_now(js, name):
    """
    Return the present state of a stream.
    """
    return readable_origin_of(js.stream(name).cached_info)


def part_of(js, stream, start=1, end=None):
    """
    Plan a part of the present stream.
    """
    origin = origin_now(js, stream.name)
    return Range(stream.name, origin.created, start, origin.next if end is None else end)


def asked(stream, **options):
    """
    Return the options of a reader of this stream.
    """
    return read_settings(ReadOptions, {"stream": stream.name, **options})
