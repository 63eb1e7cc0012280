"""
The error for a keyword of another client.
"""

from __future__ import annotations

import inspect
import pydoc

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


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_the_catch_all_is_not_shown(call):
    """
    Neither the signature nor the help shows the catch-all.
    """
    kinds = {each.kind for each in inspect.signature(call).parameters.values()}

    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert "unknown" not in pydoc.render_doc(call).partition('"""')[0].splitlines()[2]
