"""
Direct reads of a stream that has mirrors, which answer for it whatever they have of it.
"""

from __future__ import annotations

import pytest

import jetsync
from tests.patience import eventually

ROUNDS = 40
"""How often each read is made: each time another server may answer."""


@pytest.fixture(params=["2.11.11", None])
def any_js(request, server_for, nats_server):
    """
    A context on the oldest server that knows pages, and on the newest.
    """
    server = nats_server if request.param is None else server_for(request.param)
    with jetsync.connect(server.url) as client:
        yield client.jetstream()


@pytest.fixture
def mirrored(any_js, unique):
    """
    A function that makes a stream of 200 messages of ten subjects, and a mirror of it.
    """
    made = []

    def mirrored(*, source=None, origin=None, **config):
        stream = any_js.create_stream(
            name=unique,
            subjects=[f"{unique}.*"],
            allow_direct=True,
            storage="memory",
            **(origin or {}),
        )
        made.append(stream)
        any_js.publish_many((f"{unique}.{number % 10}", b"%d" % number) for number in range(200))
        mirror = any_js.create_stream(
            name=f"{unique}-M",
            mirror=jetsync.StreamSource(name=unique, **(source or {})),
            storage="memory",
            **config,
        )
        made.append(mirror)

        def answers():
            try:
                return stream.get_last(f"{unique}.1", direct=True).stream == mirror.name
            except jetsync.MessageNotFoundError:
                return True

        # Mirrors answer from the moment on when they are not far behind.
        eventually(lambda: mirror.info().state.last_seq >= 192 and answers(), 20)
        return stream

    yield mirrored
    for stream in reversed(made):
        stream.delete()


@pytest.fixture(params=["filter", "transform", "start", "history", "size"])
def partial(request, mirrored, unique):
    """
    A stream with a mirror that has one of its ten subjects, or less of each.
    """
    rename = jetsync.SubjectTransform(src=f"{unique}.1", dest=f"{unique}.2")
    return {
        "filter": lambda: mirrored(source={"filter_subject": f"{unique}.1"}),
        "transform": lambda: mirrored(source={"subject_transforms": [rename]}),
        "start": lambda: mirrored(source={"opt_start_seq": 150}),
        "history": lambda: mirrored(max_msgs_per_subject=1),
        "size": lambda: mirrored(max_msgs=20),
    }[request.param]()


@pytest.mark.versions
class TestOneMessage:
    def test_a_mirror_that_has_less(self, partial, unique):
        """
        What the stream has is found, whatever the mirror that answered has of it.
        """
        second = partial.get_message(2, direct=False)
        for _ in range(ROUNDS):
            assert partial.get_message(2).data == b"1"
            assert partial.get_last(f"{unique}.2").data == b"192"
            assert partial.get_last(f"{unique}.*").data == b"199"
            assert partial.get_next(f"{unique}.*", 3).data == b"2"
            assert partial.get_at(second.timestamp_ns).data == b"1"

    def test_nothing_there(self, partial, unique):
        """
        What nobody has is still not found.
        """
        for _ in range(ROUNDS // 4):
            for read in (
                lambda: partial.get_message(1000),
                lambda: partial.get_last(f"{unique}.absent"),
                lambda: partial.get_next(f"{unique}.*", 1000),
            ):
                with pytest.raises(jetsync.MessageNotFoundError):
                    read()

    def test_a_key_of_a_bucket(self, any_js, unique):
        """
        A key is found where a mirror has others, and where a mirror has no history.
        """
        store = any_js.create_key_value(bucket=unique, history=5)
        for number in range(10):
            store.put(f"key.{number}", b"%d" % number)
        few = any_js.create_stream(
            name=f"{unique}-F",
            mirror=jetsync.StreamSource(name=f"KV_{unique}", filter_subject=f"$KV.{unique}.key.1"),
        )
        eventually(lambda: few.info().state.messages == 1, 20)
        for _ in range(ROUNDS):
            assert store.get("key.2").value == b"2"
            assert store.get("key.1").value == b"1"
            with pytest.raises(jetsync.KeyNotFoundError):
                store.get("absent")
        few.delete()
        any_js.delete_key_value(unique)
