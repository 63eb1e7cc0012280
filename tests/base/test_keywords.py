"""
The error for a keyword of another client.
"""

from __future__ import annotations

import inspect
import pydoc
import re

import pytest

import jetsync

CALLS = [
    jetsync.Consumer.fetch,
    jetsync.Consumer.next,
    jetsync.Consumer.consume,
    jetsync.OrderedConsumer.fetch,
    jetsync.OrderedConsumer.next,
    jetsync.OrderedConsumer.consume,
    jetsync.JetStream.publish,
]
BY_POSITION = {
    jetsync.Client.request: "subject and data",
    jetsync.Client.subscribe: "subject",
    jetsync.Consumer.consume: "handler",
    jetsync.Consumer.fetch: "max_messages",
    jetsync.Consumer.next: "expires",
    jetsync.Consumption.wait: "nothing",
    jetsync.JetStream.publish: "subject and data",
    jetsync.KeyValue.create: "key and value",
    jetsync.KeyValue.delete: "key",
    jetsync.KeyValue.purge: "key",
    jetsync.KeyValue.put: "key and value",
    jetsync.KeyValue.update: "key and value",
    jetsync.OrderedConsumer.consume: "handler",
    jetsync.OrderedConsumer.fetch: "max_messages",
    jetsync.OrderedConsumer.next: "expires",
    jetsync.OrderedConsumption.wait: "nothing",
}
"""Calls of nats-py, and some others, and what they take by position."""


@pytest.mark.parametrize(
    ("call", "keyword", "meant"),
    [
        (jetsync.Consumer.fetch, "timeout", "expires"),
        (jetsync.Consumer.fetch, "batch", "max_messages"),
        (jetsync.Consumer.fetch, "max_message", "max_messages"),
        (jetsync.Consumer.next, "timeout", "expires"),
        (jetsync.Consumer.consume, "cb", "handler"),
        (jetsync.OrderedConsumer.fetch, "timeout", "expires"),
        (jetsync.OrderedConsumer.next, "timeout", "expires"),
        (jetsync.OrderedConsumer.consume, "callback", "handler"),
    ],
)
def test_the_error_names_what_the_argument_is_called(call, keyword, meant):
    """
    A TypeError names our argument for a keyword of another client, or for a misspelled one.
    """
    with pytest.raises(TypeError) as caught:
        call(None, **{keyword: 3})

    assert str(caught.value) == (
        f"{call.__qualname__}() has no argument {keyword!r}; did you mean {meant!r}?"
    )
    assert isinstance(caught.value, jetsync.InvalidTypeError)


def test_publish():
    """
    The payload of nats-py is called data, and a keyword like no other lists the arguments.
    """
    with pytest.raises(TypeError, match="no argument 'payload'; did you mean 'data'"):
        jetsync.JetStream.publish(None, "orders.1", payload=b"")
    with pytest.raises(TypeError, match="the arguments are subject, data, headers, msg_id"):
        jetsync.JetStream.publish(None, "orders.1", xyz=b"")


def test_no_argument_that_the_call_lacks_is_suggested():
    """
    For a keyword that only other calls have under another name, the error lists the arguments.
    """
    with pytest.raises(TypeError, match="no argument 'callback'; the arguments are subject, data"):
        jetsync.JetStream.publish(None, "orders.1", callback=print)


@pytest.mark.parametrize("call", BY_POSITION, ids=lambda call: call.__qualname__)
def test_an_argument_by_position_that_is_a_keyword(call):
    """
    The TypeError says which arguments have a position, and the names of the others.
    """
    parameters = inspect.signature(call).parameters.values()
    keywords = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    taken = [None for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    needed = {each.name: 1 for each in keywords if each.default is each.empty}
    with pytest.raises(TypeError) as caught:
        call(*taken, "one too many", **needed)

    assert str(caught.value) == (
        f"{call.__qualname__}() takes {BY_POSITION[call]} by position; give other arguments by "
        f"name: {', '.join(each.name for each in keywords)}"
    )
    assert isinstance(caught.value, jetsync.InvalidTypeError)


@pytest.mark.parametrize(
    "call",
    # Not a set, whose order differs between the processes of a test run.
    [*dict.fromkeys([*CALLS, *BY_POSITION])],
    ids=lambda call: call.__qualname__,
)
def test_the_catch_alls_are_not_shown(call):
    """
    Neither the signature nor the help shows the catch-alls.
    """
    kinds = {each.kind for each in inspect.signature(call).parameters.values()}

    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    shown = pydoc.render_doc(call).partition('"""')[0].splitlines()[2]
    assert not re.search("unknown|_extra", shown)
