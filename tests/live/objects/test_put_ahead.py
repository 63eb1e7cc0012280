"""
Puts that send the description in one write with the only chunk, because they know the last one.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.interrupts import interrupted_at, steps_of
from helpers.waiting import eventually
from jetsync._io.outbox import Outbox
from jetsync.objects import put, upload
from jetsync.testing import CutProxy

OLD, NEW = os.urandom(1_000), os.urandom(60_000)


@pytest.fixture
def together(monkeypatch):
    """
    The writes that have both a chunk and a description.
    """
    found = []
    send = Outbox._send

    def noted(self, block, *arguments, **options):
        if b".C." in bytes(block) and b".M." in bytes(block):
            found.append(bytes(block))
        return send(self, block, *arguments, **options)

    monkeypatch.setattr(Outbox, "_send", noted)
    return found


class Lost(put.Request):
    """
    A request whose answer is lost.
    """

    __slots__ = ()

    def deliver(self, frame):
        """
        Lose the answer.
        """


def check(store, *allowed):
    """
    Check that the object is whole, and that nothing else stays.
    """
    assert store.get_bytes("a") in allowed
    assert store.stream.info().state.messages == 2


def test_the_second_put_of_a_handle_sends_the_description_with_the_chunk(observer, together):
    """A handle knows what it has put, so replacing it takes one write and one removal."""
    observer.put("a", OLD)
    # The first put asks for the last description in that write, and stores it in another one.
    assert all(b"Nats-Rollup" not in block for block in together)
    together.clear()
    info = observer.put("a", NEW, description="new")
    assert [block.count(b"Nats-Rollup") for block in together] == [1]
    assert observer.info("a").revision == info.revision
    assert (info.size, info.chunks, info.description) == (len(NEW), 1, "new")
    check(observer, NEW)


def test_an_expected_object_is_replaced_in_one_write(observer, together):
    """A put with `expect` has read the last description before."""
    info = observer.put("a", OLD, expect="new")
    assert len(together) == 1
    together.clear()
    observer.put("a", NEW, expect=info)
    assert len(together) == 1
    with pytest.raises(jetsync.ObjectChangedError):
        observer.put("a", OLD, expect=info)
    check(observer, NEW)


def test_a_put_replaces_what_another_client_has_put_since(observer, js):
    """If the description has changed, the put reads it, and removes its chunk as any other put."""
    observer.put("a", OLD)
    js.object_store(observer.bucket).put("a", b"other")
    observer.put("a", NEW)
    check(observer, NEW)


def test_a_put_replaces_what_was_deleted_since(observer, js):
    """A deletion is a change of the description, too."""
    observer.put("a", OLD)
    js.object_store(observer.bucket).delete("a")
    observer.put("a", NEW)
    check(observer, NEW)


def test_the_description_is_not_stored_without_its_chunk(js, unique, together):
    """If the store has room for the description and not for the chunk, the old object stays."""
    store = js.create_object_store(unique, storage="memory", max_bytes=20_000)
    store.put("a", OLD)
    store.put("filler", bytes(15_000))
    together.clear()
    with pytest.raises(jetsync.StreamFullError):
        store.put("a", NEW[:5_000])
    assert len(together) == 1
    assert store.get_bytes("a") == OLD
    js.delete_object_store(unique)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, 0.999, 1.0])
def test_a_put_survives_a_cut_in_that_write(proxied, observer, share):
    """If the connection is lost, chunk and description are sent again, and stored once."""
    js, proxy = proxied()
    store = js.object_store(observer.bucket)
    store.put("a", OLD)
    proxy.cut_after(to_server=int(share * len(NEW)))
    info = store.put("a", NEW, timeout=20)
    assert observer.info("a").revision == info.revision
    observer.collect_garbage(0)
    check(observer, NEW)


@pytest.mark.parametrize("size", [1, 100, 300])
def test_a_put_survives_a_cut_while_its_answers_arrive(proxied, observer, size):
    """If the answer to the description is lost, the put finds out whether it is stored."""
    js, proxy = proxied()
    store = js.object_store(observer.bucket)
    store.put("a", OLD)
    proxy.cut_after(to_client=size)
    store.put("a", NEW, timeout=20)
    observer.collect_garbage(0)
    check(observer, NEW)


def test_a_put_survives_a_lost_answer_to_the_description(observer, monkeypatch, client):
    """Without an answer in time, the put finds its description in the store."""
    observer.put("a", OLD)
    monkeypatch.setattr(put, "Request", Lost)
    observer.put("a", NEW, timeout=1.0)
    assert client.statistics().requests_in_flight == 0
    check(observer, NEW)


def test_a_put_is_stored_without_an_answer_to_its_chunk(observer, monkeypatch, client):
    """The server stores the description only after its chunk, so its answer is enough."""
    observer.put("a", OLD)
    monkeypatch.setattr(upload, "Request", Lost)
    info = observer.put("a", NEW, timeout=0.5)
    assert observer.info("a").revision == info.revision
    assert client.statistics().requests_in_flight == 0
    check(observer, NEW)


@pytest.mark.parametrize("closes", [False, True])
def test_the_outcome_may_stay_unknown(nats_server, observer, closes):
    """Without an answer, the error says that the object may be stored, and names its data."""
    with CutProxy(nats_server.url) as proxy, jetsync.connect(proxy.url) as client:
        store = client.jetstream().object_store(observer.bucket)
        store.put("a", OLD)
        proxy.pause("to_client")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(store.put, "a", NEW, timeout=60 if closes else 0.5)
            eventually(lambda: observer.info("a").size == len(NEW))
            if closes:
                client.close(timeout=0.1)
            error = call.exception(60)
    assert isinstance(error, jetsync.PublishOutcomeUnknownError)
    assert error.nuid == observer.info("a").nuid
    observer.collect_garbage(0)
    check(observer, NEW)


def test_another_client_replaces_the_object_before_its_answer(proxied, observer, monkeypatch):
    """The outcome is unknown, although the chunk of the put was removed."""
    js, proxy = proxied()
    store = js.object_store(observer.bucket)
    store.put("a", OLD)
    again = upload.Upload._send_again

    def late(self):
        monkeypatch.undo()
        eventually(lambda: observer.info("a").size == len(NEW))
        observer.put("a", b"other")
        again(self)

    monkeypatch.setattr(upload.Upload, "_send_again", late)
    proxy.cut_after(to_client=0)
    with pytest.raises(jetsync.PublishOutcomeUnknownError):
        store.put("a", NEW, timeout=20)
    observer.collect_garbage(0)
    check(observer, b"other")


def test_plugins_see_both_messages(nats_server, observer, together):
    """With plugins, each message is sent alone, so that they can change it."""

    class Look:
        @jetsync.hookimpl
        def jetsync_prepare_message(self, message):
            """
            Keep the message as it is.
            """

    with jetsync.connect(nats_server.url, plugins=[Look()]) as client:
        store = client.jetstream().object_store(observer.bucket)
        store.put("a", OLD)
        store.put("a", NEW)
    assert all(b"Nats-Rollup" not in block for block in together)
    check(observer, NEW)


@pytest.mark.thorough
def test_an_interrupt_at_any_step(observer, client):
    """After Ctrl-C, the object is the old or the new one, and no request is left."""

    def replace():
        observer.put("a", NEW)

    observer.put("a", OLD)
    total = steps_of(replace)
    chance = random.Random(5)
    for step in [*sorted(chance.sample(range(1, total), 40)), total - 1, total - 2]:
        observer.put("a", OLD)
        interrupted_at(step, replace)
        assert client.statistics().requests_in_flight == 0, step
        observer.collect_garbage(0)
        check(observer, OLD, NEW)
