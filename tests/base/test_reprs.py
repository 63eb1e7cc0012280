"""
Reprs of objects whose constructor did not finish.
"""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import traceback
from types import GenericAlias

import pytest

import jetsync
import jetsync.devserver
import jetsync.testing
from jetsync._base.reprs import tolerant_repr

NAIVE = dt.datetime(2026, 1, 1)  # noqa: DTZ001


def public_classes():
    """
    Yield the public classes that jetsync shows in its own way.
    """
    for module in (jetsync, jetsync.devserver, jetsync.testing):
        for name in module.__all__:
            cls = getattr(module, name)
            # To Python 3.10 an alias such as `tuple[bytes, bytes]` is a class, too.
            if inspect.isclass(cls) and not isinstance(cls, GenericAlias):
                own = [base for base in cls.__mro__ if base.__module__.startswith("jetsync")]
                # Tuples and members of enumerations are complete from the start.
                whole = issubclass(cls, (enum.Enum, tuple))
                if any("__repr__" in vars(base) for base in own) and not whole:
                    yield pytest.param(cls, id=name)


def shown(call):
    """
    Return the traceback of a call that fails, with the local variables.
    """
    with pytest.raises(jetsync.JetSyncError) as caught:
        call()
    error = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    return "".join(error.format())


@pytest.mark.parametrize("cls", list(public_classes()))
def test_public_classes(cls):
    """
    Each public class shows an object that has no fields yet.
    """
    assert cls.__name__ in repr(cls.__new__(cls))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("ConnectOptions", lambda: jetsync.ConnectOptions(connect_timeout="5")),
        ("ConnectOptions", lambda: jetsync.ConnectOptions(servers=[5])),
        ("StreamConfig", lambda: jetsync.StreamConfig(name="S", max_age="5")),
        ("ConsumerConfig", lambda: jetsync.ConsumerConfig(ack_wait="5")),
        ("KeyValueConfig", lambda: jetsync.KeyValueConfig(bucket="B", ttl="5")),
        ("StoredMessage", lambda: jetsync.StoredMessage("S", "s", 1, NAIVE)),
        ("DevServer", lambda: jetsync.devserver.DevServer(cluster=0)),
    ],
)
def test_tracebacks_with_local_variables(name, call):
    """
    A traceback shows the local variables of a constructor that has raised.
    """
    assert f"self = <{name}, incomplete>" in shown(call)


def test_no_repr_of_options_shows_a_secret():
    """
    Neither complete nor incomplete options show a secret.
    """
    options = jetsync.ConnectOptions(user="u", password="hidden", token="hidden")
    assert "hidden" not in repr(options)
    assert "password='***'" in repr(options)
    with pytest.raises(jetsync.InvalidArgumentError) as caught:
        jetsync.ConnectOptions(user="u", password="hidden", max_reconnects=-2)
    frame = next(
        frame
        for frame, _ in traceback.walk_tb(caught.tb)
        if isinstance(frame.f_locals.get("self"), jetsync.ConnectOptions)
    )
    assert "hidden" not in repr(frame.f_locals["self"])


def test_complete_objects():
    """
    The repr itself stays the same, and classes without one of their own are left alone.
    """

    @tolerant_repr
    class Point:
        def __init__(self, place):
            self.place = place

        def __repr__(self):
            return f"Point({self.place})"

    class Plain(Point):
        pass

    assert repr(Point(3)) == "Point(3)"
    assert tolerant_repr(Plain) is Plain
    assert "__repr__" not in vars(Plain)
    assert repr(Plain.__new__(Plain)) == "<Plain, incomplete>"
