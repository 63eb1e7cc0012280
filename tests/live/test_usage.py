"""
Wrong arguments in the first calls of a new user: the error names the argument, and nothing is sent.
"""

from __future__ import annotations

import copy
import functools
import pickle
import re
from pathlib import Path

import pytest

import jetsync

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def stream(js, unique):
    """A stream of its own."""
    return js.create_stream(unique, subjects=[f"{unique}.>"])


@pytest.fixture
def kv(js, unique):
    """A bucket of its own."""
    return js.create_key_value(unique, atomic=True)


@pytest.mark.parametrize(
    ("arguments", "fields", "text"),
    [
        ((), {"options": {"name": "x"}}, "options must be a ConnectOptions, not dict"),
        ((4222,), {}, "servers must be an address or a list of addresses, not int"),
        (([4222],), {}, "servers must be"),
        ((), {"plugins": 5}, "plugins must be a list of plugins, not int"),
        ((), {"timeout": 1}, r"connect\(\) has no argument 'timeout'; .*'connect_timeout'"),
        ((), {"url": "nats://x"}, "did you mean 'servers'"),
        ((), {"reconnect": False}, "did you mean 'max_reconnects'"),
        ((), {"allow_reconnect": False}, "did you mean 'max_reconnects'"),
        ((), {"name": 5}, "name must be text, not int"),
        ((), {"reconnect_attempts": "x"}, "did you mean|whole number, not str"),
    ],
)
def test_a_wrong_argument_of_connect_is_named(arguments, fields, text):
    """A wrong argument of `connect` is refused, and the error names it."""
    with pytest.raises(jetsync.InvalidTypeError, match=text) as caught:
        jetsync.connect(*arguments, **fields)
    assert caught.value.argument is not None


LINES = {
    "publish": lambda client, js, text: client.publish(text, b""),
    "reply": lambda client, js, text: client.publish("a", b"", reply=text),
    "request": lambda client, js, text: client.request(text, b""),
    "request_many": lambda client, js, text: client.request_many(text, b""),
    "subscribe": lambda client, js, text: client.subscribe(text),
    "queue": lambda client, js, text: client.subscribe("a", queue=text),
    "domain": lambda client, js, text: client.jetstream(domain=text).account_info(),
    "prefix": lambda client, js, text: client.jetstream(prefix=text).account_info(),
    "stored": lambda client, js, text: js.publish(text, b""),
    "many": lambda client, js, text: js.publish_many([(text, b"")]),
    "header": lambda client, js, text: js.publish("a", b"", headers={text: "x"}),
    "create_stream": lambda client, js, text: js.create_stream(text, subjects=["a"]),
    "stream": lambda client, js, text: js.stream(text),
    "delete_stream": lambda client, js, text: js.delete_stream(text),
    "create_consumer": lambda client, js, text: js.create_consumer(text, "c"),
    "named_consumer": lambda client, js, text: js.create_consumer("S", text),
    "consumer": lambda client, js, text: js.consumer("S", text),
    "delete_consumer": lambda client, js, text: js.delete_consumer("S", text),
    "bucket": lambda client, js, text: js.key_value(text),
    "create_bucket": lambda client, js, text: js.create_key_value(text),
    "delete_bucket": lambda client, js, text: js.delete_key_value(text),
    "inbox": lambda client, js, text: jetsync.ConnectOptions(inbox_prefix=text),
}
"""Calls with a text that is sent on a line of the protocol, outside of JSON."""


@pytest.mark.parametrize("call", LINES)
@pytest.mark.parametrize("text", ["", "a b", "a\tb", "a\r\nPING", "a\0b", "a\x7fb", "\udc80"])
def test_texts_that_would_break_a_line(client, call, text):
    """A text with a space or a control character is refused, and nothing is sent."""
    before = client.statistics().bytes_out
    with pytest.raises((jetsync.InvalidArgumentError, jetsync.PublishManyError)):
        LINES[call](client, client.jetstream(), text)
    # `publish_many` also ends the subscription for its acks, which it has not yet opened.
    unsub = len("UNSUB 4294967296\r\n") if call == "many" else 0
    assert client.statistics().bytes_out - before in (0, unsub)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda js: jetsync.ack_many(5), "messages must be a list of Message objects, not int"),
        (lambda js: js.publish_many([], on_ack=3), "on_ack must be a function, not int"),
        (lambda js: js.publisher(on_report=5), "on_report must be a function, not int"),
        (lambda js: js.fast_publisher(on_gap=5), "on_gap must be a function, not int"),
        (lambda js: js.publish_many([], on_ack=coroutine), "on_ack must be a plain function, not"),
        (lambda js: js.publisher(on_report=coroutine), "on_report must be a plain function, not"),
        (lambda js: js.fast_publisher(on_gap=generator), "on_gap must be a function without yield"),
        (lambda js: js.publish_many([], window="5"), "window must be a whole number, not str"),
        (lambda js: js.create_stream("T", mirror="A"), "mirror must be a StreamSource, not str"),
        (lambda js: js.create_stream("T", sources=["A"]), "sources must be a StreamSource, not"),
        (lambda js: js.publish("a", b"", msg_id=5), "msg_id must be text, not int"),
        (lambda js: js.publish("a", b"", expect=5), "expect must be an Expect, not int"),
        (lambda js: js.schedule("a", b"", target=5, at=0), "must be text, not int"),
        (lambda js: js.create_stream("T", mirror=jetsync.StreamConfig()), "not StreamConfig"),
        (lambda js: js.create_key_value("T", sources=5), "sources must be a list of buckets, not"),
        (lambda js: js.create_stream("T", max_msgs="5"), "max_msgs must be a whole number, not"),
    ],
)
def test_a_wrong_argument_of_a_context_is_named(js, call, text):
    """A wrong argument of a context is refused, and the error names it."""
    with pytest.raises(jetsync.InvalidTypeError, match=text):
        call(js)


@pytest.mark.parametrize("until", [5, "x", None])
def test_a_pause_ends_at_a_datetime_and_not_at_a_number(stream, until):
    """A pause ends at a datetime; a number would be nanoseconds since 1970."""
    stream.create_consumer("w")
    with pytest.raises(jetsync.InvalidTypeError, match="until must be an aware datetime, not"):
        stream.pause_consumer("w", until)


async def coroutine(*arguments):
    """A coroutine function: a plain call would not run its code."""


def generator(*arguments):
    """A generator function: a plain call would not run its code."""
    yield arguments


class Async:
    """
    A callable object whose call returns a coroutine.
    """

    async def __call__(self, message):
        """Return a coroutine."""


@pytest.mark.parametrize("ack", ["auto", "explicit"])
@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (coroutine, "handler must be a plain function, not async"),
        (functools.partial(coroutine, 1), "handler must be a plain function, not async"),
        (Async(), "handler must be a plain function, not async"),
        (generator, "handler must be a function without yield"),
        ("handle", "handler must be a function, not str"),
        (100, "did you mean max_messages=100"),
    ],
)
def test_a_handler_that_a_call_would_not_run_is_refused(stream, handler, text, ack):
    """
    A handler whose code a call would not run is refused, so no message is acknowledged unhandled.
    """
    with pytest.raises(jetsync.InvalidTypeError, match=text):
        stream.create_consumer("w").consume(handler, ack=ack)


def test_a_stream_keeps_its_name(stream):
    """An update cannot rename a stream, and the error says that."""
    with pytest.raises(jetsync.InvalidTypeError, match="cannot be renamed"):
        stream.update(name="X")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda kv: kv.get("a", "1"), "revision must be a whole number, not str"),
        (lambda kv: kv.get_many("p", "q"), "pass several keys as a list"),
        (lambda kv: kv.get_many(5), "keys must be a key or a list of keys, not int"),
    ],
)
def test_a_wrong_argument_of_a_bucket_is_named(kv, call, text):
    """A wrong argument of a bucket is refused, and the error names it."""
    with pytest.raises(jetsync.InvalidTypeError, match=text):
        call(kv)


HANDLES = {
    "client": lambda stream, kv, client: client,
    "js": lambda stream, kv, client: client.jetstream(),
    "stream": lambda stream, kv, client: stream,
    "kv": lambda stream, kv, client: kv,
    "consumer": lambda stream, kv, client: stream.create_consumer("w"),
    "batch": lambda stream, kv, client: stream.create_consumer("w").fetch(1, expires=1),
    "consumption": lambda stream, kv, client: stream.create_consumer("w").consume(),
    "ordered": lambda stream, kv, client: stream.ordered_consumer(),
    "ordered consumption": lambda stream, kv, client: stream.ordered_consumer().consume(),
    "subscription": lambda stream, kv, client: client.subscribe("x"),
    "answers": lambda stream, kv, client: client.request_many("x", timeout=1),
    "publisher": lambda stream, kv, client: client.jetstream().publisher(),
    "future": lambda stream, kv, client: client.jetstream().publisher().publish(stream.name + ".a"),
    "atomic batch": lambda stream, kv, client: client.jetstream().atomic_batch(),
    "fast publisher": lambda stream, kv, client: client.jetstream().fast_publisher(),
    "watch": lambda stream, kv, client: kv.watch(),
    "transaction": lambda stream, kv, client: kv.atomic(),
    "scan": lambda stream, kv, client: stream.scan(),
    "direct batch": lambda stream, kv, client: stream.get_batch(1),
    "counter": lambda stream, kv, client: stream.counter("c"),
}
COPIES = {"pickle": pickle.dumps, "copy": copy.copy, "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("kind", HANDLES)
def test_handles_cannot_be_pickled_and_say_what_to_pass(client, js, unique, kv, kind, copied):
    """Handles cannot be pickled, and the error says what to pass on instead."""
    stream = js.create_stream(unique + "S", subjects=[f"{unique}S.>"], allow_direct=True)
    handle = HANDLES[kind](stream, kv, client)
    advice = "pass ConnectOptions|wait for result"
    with pytest.raises(jetsync.InvalidTypeError, match=advice) as caught:
        copied(handle)
    assert type(handle).__name__ in str(caught.value)
    stop = getattr(handle, "close", None) or getattr(handle, "discard", None)
    if stop is not None and handle is not client:
        stop()


def test_calls_in_the_guide_exist():
    """The guide to buckets mentions only methods and keywords that exist."""
    text = (DOCS / "howto" / "key-value.md").read_text(encoding="utf-8")
    owners = (jetsync, jetsync.JetStream, jetsync.KeyValue, jetsync.Transaction, jetsync.Watch)
    called = set(re.findall(r"`(?:kv\.|js\.)?(\w+)\(", text))

    assert {name for name in called if not any(hasattr(each, name) for each in owners)} == set()
    assert re.findall(r"`(?:next|wait_current)\([^)=]+\)`|, last\)`", text) == []
