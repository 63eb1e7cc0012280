"""
Objects of frozen classes that are made without their ``__init__``.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import attrs
import pytest

from helpers.variants import VARIANTS, use_variant
from jetsync._base import makers
from jetsync.values.pub_acks import PubAck

VALUES = ("ORDERS", 5, True, "hub", 7, "batch", 3)


@attrs.frozen(slots=True)
class Pair:
    """A class as those of jetsync."""

    one: object
    two: object


@pytest.fixture(params=VARIANTS)
def maker(request, monkeypatch):
    """The function of a variant."""
    use_variant(request.param, monkeypatch)
    return makers.maker


def make(maker, kind, *values):
    """Make one object."""
    return maker(kind, tuple(attrs.fields_dict(kind)))(*values)


def test_the_object_is_as_any_other(maker):
    """The object equals one that was made by a call of its class, and can be used like it."""
    made = make(maker, PubAck, *VALUES)
    assert made == PubAck(*VALUES)
    assert hash(made) == hash(PubAck(*VALUES))
    assert repr(made) == repr(PubAck(*VALUES))
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == made
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.stream = "other"


def test_the_number_of_values_is_checked(maker):
    """A missing value or one too many is an error."""
    for wrong in ((1,), (1, 2, 3)):
        with pytest.raises(TypeError):
            make(maker, Pair, *wrong)


def test_the_object_can_be_collected(maker):
    """An object in a cycle is collected."""

    class Seen:
        pass

    seen, items = Seen(), []
    items.append(make(maker, Pair, seen, items))
    gone = weakref.ref(seen)
    del seen, items
    gc.collect()
    assert gone() is None
