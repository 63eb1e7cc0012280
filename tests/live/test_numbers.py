"""
Durations, sequences and counts that are invalid for every server. Each public call refuses them
with the name of the argument, and sends nothing.
"""

from __future__ import annotations

import datetime as dt
import inspect
import math

import attrs
import pytest

import jetsync
from helpers.connections import client_of
from helpers.traffic import sent_nothing
from jetsync._base.deadline import Deadline
from jetsync._base.iterations import Iteration

DURATIONS = (1e-10, 1_500_000_000, math.nan, math.inf, -1, "5", True)
INTEGERS = (2**63, 2**64, 1.5, "5", True)

NOW = dt.datetime.now(dt.timezone.utc)

GIVEN = {
    "batch": 2,
    "bucket": "B",
    "change": lambda entry: entry,
    "consumer": "w",
    "data": b"x",
    "group": "g",
    "handler": print,
    "key": "k",
    "keys": ["k"],
    "max_messages": 1,
    "last": 1,
    "messages": [("s.1", b"x")],
    "name": "w",
    "path": "no backup",
    "patterns": "k",
    "revision": 1,
    "sequence": 1,
    "source": "s.2",
    "stream": "S",
    "subject": "s.1",
    "subjects": ["s.1"],
    "target": "s.2",
    "time": NOW,
    "until": NOW,
    "value": b"v",
}
"""Valid values of arguments that calls require, by name."""

CALLS = {
    "JetStream.schedule": {"at": NOW},
    "AtomicBatch.commit": {"subject": "s.1"},
    "FastPublisher.commit": {"subject": "s.1"},
    "Consumer.fetch": {"max_messages": 1},
    "OrderedConsumer.fetch": {"max_messages": 1},
}
"""Further arguments that a call needs, so that exactly one is wrong."""

ANY_SIZE = {"Counter.add.value"}
"""Integers without a limit."""


def arguments():
    """
    Yield the class, the method, the argument and its wrong values for each duration and integer.
    """
    for name in jetsync.__all__:
        cls = getattr(jetsync, name)
        if not inspect.isclass(cls) or name not in HANDLES:
            continue
        for method, function in inspect.getmembers(cls, inspect.isfunction):
            if method.startswith("_") or not function.__module__.startswith("jetsync"):
                continue
            for parameter in inspect.signature(function).parameters.values():
                words = str(parameter.annotation).split(" | ")
                several = parameter.kind is parameter.VAR_POSITIONAL
                if several or f"{name}.{method}.{parameter.name}" in ANY_SIZE:
                    continue
                if "Seconds" in words:
                    yield name, method, parameter.name, DURATIONS
                elif "int" in words:
                    yield name, method, parameter.name, INTEGERS


HANDLES = {
    "Client": lambda client, **_: client,
    "JetStream": lambda js, **_: js,
    "Stream": lambda stream, **_: stream,
    "Consumer": lambda stream, **_: stream.create_consumer("w"),
    "OrderedConsumer": lambda stream, **_: stream.ordered_consumer(),
    "KeyValue": lambda kv, **_: kv,
    "Publisher": lambda js, **_: js.publisher(),
    "AtomicBatch": lambda js, **_: js.atomic_batch(),
    "FastPublisher": lambda js, **_: js.fast_publisher(),
    "Transaction": lambda kv, **_: kv.atomic(),
    "Watch": lambda kv, **_: kv.watch(),
    "Subscription": lambda client, **_: client.subscribe("x"),
}


@pytest.fixture
def handles(client, js):
    """A client, a context, a stream with every feature, and a bucket, to make handles from."""
    features = {"allow_atomic": True, "allow_batched": True, "allow_msg_schedules": True}
    stream = js.create_stream(
        "S", subjects=["s.>"], allow_direct=True, allow_msg_ttl=True, **features
    )
    yield {
        "client": client,
        "js": js,
        "stream": stream,
        "kv": js.create_key_value("B", limit_marker_ttl=5, atomic=True),
    }
    stream.delete()
    js.delete_key_value("B")


@pytest.mark.parametrize("name", sorted(HANDLES))
def test_calls_refuse_wrong_numbers(handles, name):
    """
    No call accepts a number that a server would round, reinterpret or fail to parse.
    """
    handle = HANDLES[name](**handles)
    accepted = []
    checked = 0
    for cls, method, argument, values in arguments():
        if cls != name:
            continue
        call = getattr(handle, method)
        parameters = inspect.signature(call).parameters.values()
        needed = {
            each.name: GIVEN[each.name]
            for each in parameters
            if each.default is each.empty
            and each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}
        }
        several = [
            15 if each.name == "signals" else "k"
            for each in parameters
            if each.kind is each.VAR_POSITIONAL
        ]
        needed |= CALLS.get(f"{cls}.{method}", {})
        if (method, argument) == ("schedule", "every"):
            del needed["at"]
        for value in values:
            checked += 1
            try:
                result = call(*several, **{**needed, argument: value})
                if isinstance(result, Iteration):
                    next(result)
            except (jetsync.InvalidArgumentError, jetsync.InvalidTypeError) as error:
                if error.argument == argument:
                    continue
                result = error
            except jetsync.JetSyncError as error:
                result = error
            accepted.append((method, argument, value, result))
    close = getattr(handle, "close", None) or getattr(handle, "discard", None)
    if close is not None and name != "Client":
        close()
    assert checked
    assert accepted == []


CONFIGURATIONS = {
    jetsync.StreamConfig: lambda js, **fields: js.create_stream("T", **fields),
    jetsync.ConsumerConfig: lambda js, **fields: js.create_consumer("S", "w", **fields),
    jetsync.KeyValueConfig: lambda js, **fields: js.create_key_value("T", **fields),
}


@pytest.mark.parametrize("cls", CONFIGURATIONS)
def test_configurations_refuse_wrong_numbers(js, cls):
    """
    The fields of configurations are checked before anything is sent, too.
    """
    sent = client_of(js).statistics().bytes_out
    for field in attrs.fields(cls):
        wrong = {"int | None": INTEGERS, "float | None": DURATIONS}.get(str(field.type), ())
        least, most = field.metadata.get("range", (-(2**63), 2**63 - 1))
        for value in wrong:
            if type(value) is int and "int" in str(field.type) and least <= value <= most:
                continue
            with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
                CONFIGURATIONS[cls](js, **{field.name: value})
    assert sent_nothing(client_of(js), sent)


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (jetsync.StreamConfig, {"max_msg_size": 2**31}),
        (jetsync.StreamConfig, {"first_seq": -1}),
        (jetsync.StreamConfig, {"num_replicas": -1}),
        (jetsync.StreamConfig, {"mirror": jetsync.StreamSource("A", opt_start_seq=-1)}),
        (jetsync.ConsumerConfig, {"opt_start_seq": -1}),
        (jetsync.ConsumerConfig, {"rate_limit_bps": -1, "deliver_subject": "d"}),
        (jetsync.ConsumerConfig, {"max_waiting": -1}),
        (jetsync.ConsumerConfig, {"max_batch": -1}),
        (jetsync.ConsumerConfig, {"max_bytes": -1}),
        (jetsync.KeyValueConfig, {"max_value_size": 2**31}),
    ],
)
def test_a_number_outside_the_range_of_its_field(js, cls, fields):
    """
    Servers answer some of these numbers with a JSON parser error, and ignore others.
    """
    with pytest.raises(jetsync.InvalidArgumentError, match=r"must be (at|less)") as caught:
        CONFIGURATIONS[cls](js, **fields)
    assert caught.value.argument in {*fields, "opt_start_seq"}


def test_a_deadline_is_not_read_as_nanoseconds():
    """
    A timeout in nanoseconds would be 47 years.
    """
    with pytest.raises(jetsync.InvalidArgumentError, match="looks like nanoseconds"):
        Deadline.after(1_500_000_000)
