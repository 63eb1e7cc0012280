from __future__ import annotations

import asyncio

import pytest

from jetsync_django.cache.keys import bucket_key

pytestmark = pytest.mark.live


@pytest.fixture
def cache(make_cache):
    """
    A cache with a bucket of its own.
    """
    return make_cache({"TIMEOUT": 77})


@pytest.fixture
def ttl_of(cache, js, make_cache):
    """
    A function that returns the time-to-live of a key's value.
    """

    def ttl_of(key, version=1):
        return js.key_value(make_cache.name).get(bucket_key(f":{version}:{key}")).ttl

    return ttl_of


@pytest.mark.parametrize("timeout", [0, -1, -0.5])
def test_a_value_without_time_is_not_stored(cache, timeout):
    """
    A timeout of 0 or less stores no value, and removes the one that a key has.
    """
    cache.set_many({"set": 1, "many": 1, "touch": 1, "add": 1})
    cache.set("set", 2, timeout)
    assert cache.set_many({"many": 2}, timeout) == []
    assert cache.touch("touch", timeout)
    assert not cache.touch("touch", timeout)
    assert not cache.add("add", 2, timeout)
    assert cache.add("new", 2, timeout)

    assert cache.get_many(["set", "many", "touch", "add", "new"]) == {"add": 1}


def test_no_timeout_and_the_default_are_different(cache, ttl_of):
    """
    None stores a value for ever. Without a timeout, the one of the settings applies.
    """
    cache.set("set", 1)
    cache.add("add", 1)
    cache.set_many({"many": 1, "touch": 1})
    assert [ttl_of(key) for key in ("set", "add", "many", "touch")] == [77] * 4

    assert cache.touch("touch", timeout=None)
    assert ttl_of("touch") is None
    assert cache.touch("touch")
    assert ttl_of("touch") == 77


def test_each_method_takes_a_version(cache):
    """
    A version of a key is changed and read alone.
    """
    keys = ("set", "add", "incr", "decr", "touch", "delete", "many", "zero")
    cache.set_many(dict.fromkeys(keys, 1))
    cache.set("set", 5, version=2)
    assert cache.add("add", 6, version=2)
    cache.set_many({"incr": 7, "decr": 7, "touch": 7, "delete": 7, "zero": 7}, version=2)
    assert cache.incr("incr", version=2) == 8
    assert cache.decr("decr", version=2) == 6
    assert cache.touch("touch", 0, version=2)
    assert cache.delete("delete", version=2)
    assert cache.set_many({"zero": 1}, 0, version=2) == []
    cache.set("many", 9, version=2)
    cache.delete_many(["many"], version=2)

    assert cache.get_many(keys) == dict.fromkeys(keys, 1)
    left = {"set": 5, "add": 6, "incr": 8, "decr": 6}
    assert cache.get_many(keys, version=2) == left
    assert cache.get("set", version=2) == 5
    assert not cache.touch("set", version=3)
    with pytest.raises(ValueError, match="not found"):
        cache.incr("set", version=3)


def test_async_methods_take_the_same_arguments(cache, ttl_of):
    """
    The async methods change and read the same version as the others, with the same timeout.
    """

    async def use():
        await cache.aset_many({"a": 1, "b": 2, "c": 3}, 100, version=2)
        assert await cache.aincr("a", 5, version=2) == 6
        await cache.adelete_many(["b"], version=2)
        return await cache.aget_many(["a", "b", "c"], version=2)

    cache.set_many({"a": 10, "b": 20})
    assert asyncio.run(use()) == {"a": 6, "c": 3}
    assert ttl_of("c", version=2) == 100
    assert cache.get_many(["a", "b", "c"]) == {"a": 10, "b": 20}
