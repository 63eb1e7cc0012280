"""
Context variables of the caller do not outlive the calls and handles that saw them.
"""

from __future__ import annotations

import contextvars
import gc
import os
import weakref

import pytest

import jetsync
from helpers.interrupted_reads import KINDS, Sources
from helpers.streams import batch_stream
from helpers.waiting import eventually

VARIABLE = contextvars.ContextVar("VARIABLE")


class Value:
    """
    Stands for the data of one request of a program.
    """


@pytest.fixture(scope="module")
def rig(nats_server):
    """
    What the calls use.
    """
    with jetsync.connect(nats_server.url) as client:
        made = Sources(client, f"CONTEXT-{os.getpid()}")
        out = batch_stream(made.js, f"{made.name}-out")
        yield made
        made.close()
        out.delete()


def read(kind):
    """
    Return a call that reads everything of one kind.
    """

    def call(rig):
        made = kind(rig)
        made.take([])
        made.close()

    return call


def publisher(rig):
    """
    Publish in the background.
    """
    with rig.js.publisher() as made:
        made.publish(f"{rig.name}-out.context").result(10)


def atomic(rig):
    """
    Commit an atomic batch.
    """
    batch = rig.js.atomic_batch()
    batch.add(f"{rig.name}-out.context", b"")
    batch.commit()


def handler(rig):
    """
    Consume with a handler.
    """
    with rig.consumer(max_deliver=-1).consume(lambda message: message.ack(), stop_after=3) as made:
        made.wait(timeout=10)


CALLS = {
    "publish": lambda rig: rig.js.publish(f"{rig.name}-out.context"),
    "publish_many": lambda rig: rig.js.publish_many([(f"{rig.name}-out.context", b"")]),
    "put": lambda rig: rig.objects.put("context", b"data"),
    "publisher": publisher,
    "atomic": atomic,
    "handler": handler,
    **{name: read(kind) for name, kind in KINDS.items()},
}


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in CALLS.items()])
def test_nothing_is_kept(rig, call):
    """
    When a handle is closed, the context variables of the calls that used it are free.
    """
    assert_free(lambda: call(rig))


def test_a_client_keeps_nothing(nats_server):
    """
    An open client does not keep the context variables of the call that connected.
    """
    clients = []
    try:
        assert_free(lambda: clients.append(jetsync.connect(nats_server.url)))
        assert clients[0].is_connected
    finally:
        for client in clients:
            client.close()


def assert_free(call):
    """
    Assert that the value of a variable during a call is free after it.
    """
    value = Value()
    reference = weakref.ref(value)
    context = contextvars.Context()
    context.run(VARIABLE.set, value)
    del value
    context.run(call)
    del context

    def is_free():
        gc.collect()
        return reference() is None

    # What the loop thread was asked to do at the end keeps it for a moment.
    eventually(is_free, 5)
