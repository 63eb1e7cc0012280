"""
Direct reads of a stream with mirrors, which answer even if they have only a part of it.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync._api import mirrors as _mirrors
from jetsync.devserver import DevServer
from jetsync.read import pages as _page_reader

ROUNDS = 40
"""The number of repetitions of each read: another server may answer each time."""


@pytest.fixture(params=["2.11.11", None])
def any_client(request, server_for, nats_server):
    """
    A client of the oldest server version that supports pages, and of the newest.
    """
    server = nats_server if request.param is None else server_for(request.param)
    with jetsync.connect(server.url) as client:
        yield client


@pytest.fixture
def any_js(any_client):
    """
    A context of that client.
    """
    return any_client.jetstream()


@pytest.fixture
def mirrored(any_js, unique):
    """
    A function that makes a stream of 200 messages of ten subjects, and a mirror of it.
    """
    made = []

    def mirrored(*, source=None, origin=None, **config):
        stream = any_js.create_stream(
            unique,
            subjects=[f"{unique}.*"],
            allow_direct=True,
            storage="memory",
            **(origin or {}),
        )
        made.append(stream)
        any_js.publish_many((f"{unique}.{number % 10}", b"%d" % number) for number in range(200))
        mirror = any_js.create_stream(
            f"{unique}-M",
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

        # Mirrors start to answer once they have nearly caught up.
        eventually(lambda: mirror.info().state.last_seq >= 192 and answers(), 20)
        return stream

    yield mirrored
    for stream in reversed(made):
        stream.delete()


@pytest.fixture(params=["filter", "transform", "start", "history", "size"])
def partial(request, mirrored, unique):
    """
    A stream with a mirror that has one of its ten subjects, or fewer messages of each.
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
    def test_a_message_is_found_if_a_mirror_lacks_it(self, partial, unique):
        """
        A message is found even if the mirror that answers does not have it.
        """
        second = partial.get_message(2, direct=False)
        for _ in range(ROUNDS):
            assert partial.get_message(2).data == b"1"
            assert partial.get_last(f"{unique}.2").data == b"192"
            assert partial.get_last(f"{unique}.*").data == b"199"
            assert partial.get_next(f"{unique}.*", 3).data == b"2"
            assert partial.get_at(second.timestamp_ns).data == b"1"

    def test_a_missing_message_is_not_found_on_mirrors(self, partial, unique):
        """
        A message that does not exist is not found.
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
        A key is found even if a mirror has other keys or no history.
        """
        store = any_js.create_key_value(unique, history=5)
        for number in range(10):
            store.put(f"key.{number}", b"%d" % number)
        few = any_js.create_stream(
            f"{unique}-F",
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


@pytest.mark.versions
class TestManyMessages:
    @pytest.mark.thorough
    def test_all_messages_are_returned_whatever_the_mirrors_have(self, partial, unique):
        """
        All messages are returned, whatever the mirrors have.
        """
        names = [f"{unique}.{number}" for number in range(10)]
        everything = [b"%d" % number for number in range(200)]
        moment = everything[140:150]
        for _ in range(ROUNDS):
            assert values(partial.scan()) == everything
            assert values(partial.scan(page=150, subject=f"{unique}.2")) == everything[2::10]
            batch = partial.get_batch(150, sequence=3)
            assert values(batch) == everything[2:152]
            assert batch.pending == 48
            assert values(partial.get_batch(300, subject=f"{unique}.2")) == everything[2::10]
            assert values(partial.get_last_for(f"{unique}.*")) == everything[190:]
            assert values(partial.get_last_for(names[2:4])) == everything[192:194]
            assert values(partial.get_last_for(f"{unique}.2")) == [b"192"]
            assert values(partial.get_last_for(names, batch=4)) == everything[190:]
            assert values(partial.get_last_for(names, up_to_sequence=150)) == moment

    def test_missing_messages_are_left_out_of_mirrors(self, partial, unique):
        """
        Messages that do not exist are left out without an error.
        """
        many = [f"{unique}.x{number}" for number in range(50)]
        for _ in range(ROUNDS // 4):
            assert values(partial.get_batch(10, sequence=1000)) == []
            assert values(partial.scan(subject=f"{unique}.x")) == []
            assert values(partial.get_last_for(many[:2])) == []
            assert values(partial.get_last_for(many)) == []
            assert values(partial.get_last_for([*many, f"{unique}.3"])) == [b"193"]

    @pytest.mark.clause("DG-02")
    def test_a_complete_mirror_answers(self, any_client, mirrored, unique):
        """
        A complete mirror may answer, and its configuration is fetched once.
        """
        stream = mirrored()
        found = {message.stream for _ in range(ROUNDS) for message in stream.get_batch(10)}
        assert found == {unique, f"{unique}-M"}
        with any_client.subscribe("$JS.API.STREAM.INFO.>") as wire:
            for _ in range(ROUNDS):
                assert values(stream.get_batch(5)) == [b"0", b"1", b"2", b"3", b"4"]
                assert stream.get_message(7).data == b"6"
            any_client.flush()
            assert wire.next(timeout=0.05) is None


@pytest.mark.parametrize("empty", [False, True])
def test_only_a_mirror_answers(client, monkeypatch, unique, empty):
    """
    If only an incomplete mirror answers, a read of many messages raises an error that names it.
    """
    monkeypatch.setattr(_page_reader, "TRIES", 8)
    js = client.jetstream()
    stream = js.create_stream(unique, subjects=[f"{unique}.*"], allow_direct=True)
    js.publish_many((f"{unique}.{number % 10}", b"%d" % number) for number in range(20))
    other = "none" if empty else "1"
    mirror = js.create_stream(
        f"{unique}-M",
        mirror=jetsync.StreamSource(name=unique, filter_subject=f"{unique}.{other}"),
        allow_direct=True,
    )
    eventually(lambda: mirror.info().state.messages == (0 if empty else 2), 20)

    def serve(wire):
        for request in wire:
            endpoint = request.subject.removeprefix("ELSE.API.")
            endpoint = endpoint.replace(f"DIRECT.GET.{unique}", f"DIRECT.GET.{mirror.name}")
            client.publish(f"$JS.API.{endpoint}", request.data, reply=request.reply)

    with client.subscribe("ELSE.API.>") as wire:
        thread = threading.Thread(target=serve, args=(wire,), daemon=True)
        thread.start()
        client.flush()
        near = client.jetstream(prefix="ELSE.API").stream(unique)
        assert near.get_last(f"{unique}.2").data == b"12"
        for read in (
            lambda: near.get_batch(20),
            lambda: near.get_last_for(f"{unique}.*"),
            lambda: near.get_last_for(f"{unique}.*", batch=3),
        ):
            with pytest.raises(jetsync.IncompleteMirrorError) as caught:
                list(read())
            assert caught.value.mirror == (None if empty else mirror.name)
        if empty:
            # The read continues where the leader's answer says.
            assert len(list(near.scan())) == 20
        else:
            with pytest.raises(jetsync.IncompleteMirrorError):
                list(near.scan())
    thread.join(20)
    mirror.delete()
    stream.delete()


def values(messages):
    """
    List the payloads.
    """
    return [message.data for message in messages]


@pytest.mark.clause("DG-79")
def test_a_complete_mirror_answers_while_the_origin_of_a_cluster_is_down(monkeypatch, unique):
    """
    A complete mirror still serves reads if its origin does not answer, however long that lasts.
    """
    with DevServer(cluster=3) as servers, ExitStack() as stack:
        client = stack.enter_context(jetsync.connect(servers.urls, request_timeout=20))
        js = client.jetstream()
        js.create_stream(unique, subjects=[f"{unique}.*"], allow_direct=True)
        js.publish_many((f"{unique}.{number % 2}", b"%d" % number) for number in range(20))
        source = jetsync.StreamSource(name=unique)
        mirror = js.create_stream(f"{unique}-M", mirror=source, mirror_direct=True, num_replicas=3)
        eventually(lambda: mirror.info().state.last_seq == 20, 20)
        origin = servers.wait_stream_leader(unique)
        # The client is connected to the leader of the mirror, which is on another server, and so
        # continues to answer. Other replicas may not answer without their leader.
        while (leader := servers.wait_stream_leader(mirror.name)) == origin:
            client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{mirror.name}", b"", timeout=20)
        other = stack.enter_context(
            jetsync.connect(servers.urls[leader], ignore_discovered_servers=True)
        )
        stream = other.jetstream().stream(unique, timeout=20)

        def from_mirror():
            return stream.get_last(f"{unique}.1", timeout=2).stream == mirror.name

        def is_served():
            with suppress(jetsync.RequestTimeoutError):
                return from_mirror()

        # Reads that any replica may answer, so that jetsync learns of the mirror.
        eventually(from_mirror, 20)
        assert values(stream.get_batch(1, timeout=20)) == [b"0"]
        servers.kill(origin)
        # A read right after the kill may be lost with that server.
        eventually(is_served, 30)
        monkeypatch.setattr(_mirrors, "TRUSTED_FOR", 1.0)
        # Nothing but time makes the configurations old.
        time.sleep(1.1)
        assert from_mirror()
        assert stream.get_message(3).data == b"2"
        assert values(stream.get_batch(2)) == [b"0", b"1"]
        assert sorted(values(stream.get_last_for(f"{unique}.*"))) == [b"18", b"19"]
