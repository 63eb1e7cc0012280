from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import ImproperlyConfigured

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import eventually
from jetsync_django.cache import JetStreamCache
from jetsync_django.cache.keys import bucket_key
from jetsync_django.connections import connect_options, shared_client

pytestmark = pytest.mark.live


@pytest.fixture
def cache(make_cache):
    """
    A cache with a bucket of its own, which is deleted after the test.
    """
    return make_cache()


@pytest.fixture
def bucket(cache, js, make_cache):
    """
    The bucket of the cache.
    """
    cache.clear()
    return js.key_value(make_cache.name)


def ttl_of(bucket, key):
    """
    Return the time-to-live of a key's value.
    """
    return bucket.get(bucket_key(f":1:{key}")).ttl


@pytest.mark.parametrize(
    ("timeout", "ttl"), [(1, 1), (0.2, 1), (100.2, 101), (3600, 3600), (None, None)]
)
def test_the_server_removes_a_value_after_its_timeout(cache, bucket, timeout, ttl):
    """
    A timeout becomes the time-to-live of the key, in whole seconds. None stores it for ever.
    """
    cache.set("key", "value", timeout)
    cache.add("added", "value", timeout)
    cache.set_many({"many": "value"}, timeout)

    assert [ttl_of(bucket, key) for key in ("key", "added", "many")] == [ttl] * 3


def test_the_default_timeout_is_that_of_the_settings(make_cache, js):
    """
    `TIMEOUT` is the timeout of values without one.
    """
    make_cache({"TIMEOUT": 77}).set("key", 1)

    assert ttl_of(js.key_value(make_cache.name), "key") == 77


def test_nothing_is_left_of_expired_and_deleted_values(cache, bucket):
    """
    Values that expired or were deleted leave nothing in the bucket, not even markers.
    """
    cache.set("expires", 1, timeout=1)
    cache.set_many({"deleted": 2, "also": 3, "zero": 4, "touched": 5})
    assert cache.delete("deleted")
    cache.delete_many(["also", "never-there"])
    cache.set("zero", 1, timeout=0)
    assert cache.touch("touched", timeout=0)

    eventually(lambda: bucket.stream.info().state.messages == 0)


def test_counts_keep_their_timeout(cache, bucket):
    """
    `incr` and `decr` change the value and keep its timeout; `touch` starts it again.
    """
    cache.set("for-ever", 1, timeout=None)
    cache.set("hits", 1, timeout=1000)
    assert cache.incr("for-ever") == 2
    assert cache.incr("hits", 10) == 11
    assert cache.decr("hits") == 10
    assert ttl_of(bucket, "for-ever") is None
    assert 900 < ttl_of(bucket, "hits") <= 1000

    assert cache.touch("hits", timeout=5000)
    assert ttl_of(bucket, "hits") == 5000
    assert cache.get("hits") == 10


def test_no_count_is_lost_between_threads(cache):
    """
    Threads that count at the same time lose no count.
    """
    cache.set("hits", 0)
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: cache.incr("hits"), range(100)))

    assert sorted(counts) == list(range(1, 101))


def test_only_one_of_many_adds_a_key(cache):
    """
    If threads add the same key, one of them succeeds.
    """
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda n: cache.add("key", n), range(16))) == 1


def test_get_or_set_calls_the_function_once_a_value_is_missing(cache):
    """
    `get_or_set` calls the function only if there is no value, and None is a value.
    """
    calls = []
    for _ in range(3):
        assert cache.get_or_set("key", lambda: calls.append(1)) is None

    assert calls == [1]


def test_versions_and_prefixes_are_separate(make_cache):
    """
    The same key has a value of its own in each version and below each prefix.
    """
    one, other = make_cache(), make_cache({"KEY_PREFIX": "shop", "VERSION": 2})
    one.set("key", "first")
    one.set("key", "second", version=2)
    other.set("key", "shop")

    assert one.get_many(["key"]) == {"key": "first"}
    assert one.get("key", version=2) == "second"
    assert other.get("key") == "shop"
    assert one.incr_version("key", 5) == 6
    assert one.get("key") is None
    assert one.get("key", version=6) == "first"


def test_values_that_are_too_large_are_named(cache):
    """
    `set_many` stores the other values and returns the keys of those that the server refuses.
    """
    large = b"x" * 2_000_000

    assert cache.set_many({"small": 1, "large": large, "other": 2}) == ["large"]
    assert cache.get_many(["small", "large", "other"]) == {"small": 1, "other": 2}
    with pytest.raises(jetsync.MaxPayloadError):
        cache.set("large", large)


def test_a_full_cache_removes_the_oldest_values(make_cache):
    """
    With `MAX_BYTES`, the values that were written first make room for new ones.
    """
    cache = make_cache(MAX_BYTES=100_000)
    for number in range(200):
        cache.set(number, b"x" * 1000)

    left = cache.get_many(range(200))
    assert 50 < len(left) < 100
    assert [*left] == [*range(200 - len(left), 200)]


def test_async_methods_do_the_same(cache):
    """
    The async methods of a cache change it as the others do, and lose no count.
    """

    async def use():
        await cache.aset_many({"a": 1, "b": 2}, 100)
        await asyncio.gather(*(cache.aincr("a") for _ in range(10)))
        await cache.adelete_many(["b"])
        return await cache.aget_many(["a", "b"]), await cache.aget_or_set("c", 3)

    assert asyncio.run(use()) == ({"a": 11}, 3)


def test_threads_share_one_connection(nats_server, make_cache):
    """
    Django makes a cache for each thread; all of them use the connection of the process.
    """
    options = connect_options(nats_server.url, None, "test")
    make_cache().set("key", 1)
    used = set()

    def use():
        make_cache().get("key")
        used.add(shared_client(options))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(used) == 1


def test_a_closed_connection_is_opened_again(cache, nats_server):
    """
    Other code may close the client that all caches of the process share.
    """
    cache.set("key", 1)
    shared_client(connect_options([nats_server.url], None, "x")).close()

    assert cache.get("key") == 1


def test_keys_with_one_name_all_get_its_value(cache):
    """
    The key 1 is also the key "1".
    """
    cache.set(1, "value")

    assert cache.get_many([1, "1", 2]) == {1: "value", "1": "value"}


def test_a_forked_child_has_a_connection_of_its_own(cache):
    """
    After a fork, as of gunicorn with `preload_app`, both processes use the cache.
    """
    cache.set("key", "parent")
    child = os.fork()
    if child == 0:
        try:
            done = cache.get("key") == "parent" and cache.incr("count") == 1
        except ValueError:
            cache.set("key", "child")
            done = cache.add("count", 1)
        finally:
            os._exit(0 if done else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert cache.get_many(["key", "count"]) == {"key": "child", "count": 1}


def test_a_cache_in_memory_is_made_again_after_its_server_restarts():
    """
    A bucket in memory ends with its server. The next call makes it again, without an error.
    """
    with DevServer() as server:
        cache = JetStreamCache(server.url, {"OPTIONS": {"STORAGE": "memory"}})
        cache.set("key", 1)
        server.restart()

        assert cache.get("key") is None
        assert cache.set_many({"key": 2}) == []
        assert cache.get("key") == 2


def test_set_many_makes_a_deleted_bucket_again(cache, js, make_cache):
    """
    If somebody deletes the bucket, `set_many` stores all values in a new one.
    """
    cache.set("key", 1)
    js.delete_key_value(make_cache.name)

    assert cache.set_many({"key": 2, "other": 3}) == []
    assert cache.get_many(["key", "other"]) == {"key": 2, "other": 3}


def test_a_server_that_is_down_is_an_error_until_it_is_up():
    """
    Without a server, calls raise a ConnectError, and the first call after its start works.
    """
    with DevServer() as server:
        options = {"CONNECT": {"connect_timeout": 1, "request_timeout": 5}}
        cache = JetStreamCache(server.url, {"OPTIONS": options})
        server.stop()
        with pytest.raises(jetsync.ConnectError):
            cache.get("key")
        server.start()
        cache.set("key", 1)

        assert cache.get("key") == 1


def test_a_serializer_of_your_own(make_cache, bucket):
    """
    `SERIALIZER` names a class, or is an object, that turns values into bytes and back.
    """
    import json

    cache = make_cache(SERIALIZER=json)
    with pytest.raises(TypeError, match="not JSON"):
        cache.set("key", object())
    cache.set("key", {"a": [1]})

    assert bucket.get(bucket_key(":1:key")).value == b'{"a": [1]}'
    assert cache.get("key") == {"a": [1]}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"BUKET": "x"}, "BUKET"),
        ({"BUCKET": "a b"}, "letters, digits"),
        ({"STORAGE": "disk"}, "file, memory"),
        ({"NUM_REPLICAS": 0}, "at least 1"),
        ({"NUM_REPLICAS": "3"}, "whole number"),
        ({"MAX_BYTES": -1}, "at least 0"),
        ({"CONNECT": "user"}, "dict"),
        ({"CONNECT": {"usr": "x"}}, "usr"),
        ({"CONNECT": {"connect_timeout": -1}}, "connect_timeout"),
        ({"SERIALIZER": dict}, "dumps and loads"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(options, text):
    """
    An unknown or invalid option raises ImproperlyConfigured when Django makes the cache.
    """
    with pytest.raises(ImproperlyConfigured, match=text):
        JetStreamCache("nats://127.0.0.1:1", {"OPTIONS": options})


def test_a_bucket_of_other_data_is_refused(cache, js, make_cache):
    """
    A bucket that keeps a history is not a cache, and is not changed.
    """
    js.create_key_value(make_cache.name, history=5)

    with pytest.raises(ImproperlyConfigured, match="history=1"):
        cache.set("key", 1)
