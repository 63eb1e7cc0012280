"""
Object stores that jetsync and nats-py share: each reads what the other has written.
"""

from __future__ import annotations

from contextlib import suppress

import nats.js.api
import nats.js.errors
import pytest

import jetsync
from helpers.nats_py import with_nats_py

CHUNK = 128 * 1024
NAMES = ["a/b", "ü", " two words ", "x" * 1024]
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1]
DATA = bytes(range(251)) * 1000
OBJECTS = [(name, DATA[:size]) for name in NAMES for size in SIZES]


@pytest.fixture(params=["jetsync", "nats-py"])
def store(request, nats_server, js, unique):
    """
    An object store that one of the clients has created.
    """
    if request.param == "jetsync":
        made = js.create_object_store(unique, storage="memory")
    else:

        async def create(peer):
            config = nats.js.api.ObjectStoreConfig(
                description="shared", storage=nats.js.api.StorageType.MEMORY
            )
            await peer.create_object_store(unique, config)

        with_nats_py(nats_server, create)
        made = js.object_store(unique)
    yield made
    with suppress(jetsync.ObjectStoreNotFoundError):
        js.delete_object_store(unique)


@pytest.fixture
def peer(nats_server, store):
    """
    Run a coroutine function with the object store of nats-py; a function.
    """

    def peer(work):
        async def run(js):
            return await work(await js.object_store(store.bucket))

        return with_nats_py(nats_server, run)

    return peer


def test_nats_py_reads_what_jetsync_stores(store, peer):
    """
    nats-py reads objects of every kind of name and size, with their description and headers.
    """

    async def read(other):
        for name, data in OBJECTS:
            store.put(name, data, description="d", headers={"H": "v"})
            found = await other.get(name)
            assert found.data == data
            info = found.info
            assert (info.name, info.size, info.description) == (name, len(data), "d")
            assert info.headers == {"H": ["v"]}
        assert {info.name for info in await other.list()} == set(NAMES)

    peer(read)


def test_jetsync_reads_what_nats_py_stores(store, peer):
    """
    Objects of nats-py are read for every kind of name and size, with their description and headers.
    """

    async def write(other):
        meta = nats.js.api.ObjectMeta(description="d", headers={"H": ["v"]})
        for name, data in OBJECTS:
            # nats-py changes the object that it is given.
            await other.put(name, data, nats.js.api.ObjectMeta(**vars(meta)))
            assert store.get_bytes(name) == data
            info = store.info(name)
            assert (info.name, info.size, info.description) == (name, len(data), "d")
            assert info.headers.to_dict() == {"H": ["v"]}
        assert [info.name for info in store.list()] == sorted(NAMES)

    peer(write)


@pytest.mark.parametrize("name", NAMES, ids=["slash", "umlaut", "spaces", "long"])
def test_each_replaces_and_deletes_objects_of_the_other(store, peer, name):
    """
    A replaced or deleted object leaves no data, and its name can be used again by each client.
    """

    async def change(other):
        store.put(name, DATA)
        await other.put(name, b"two")
        assert store.get_bytes(name) == b"two"
        store.put(name, b"three")
        assert (await other.get(name)).data == b"three"
        store.delete(name)
        with pytest.raises(nats.js.errors.ObjectNotFoundError):
            await other.get(name)
        await other.put(name, b"four")
        assert store.get_bytes(name) == b"four"
        await other.delete(name)
        with pytest.raises(jetsync.ObjectNotFoundError):
            store.get(name)
        assert store.info(name, include_deleted=True).is_deleted
        store.put(name, b"five")
        assert (await other.get(name)).data == b"five"

    peer(change)
    # One document and one chunk.
    assert store.stream.info().state.messages == 2
    assert store.collect_garbage(0) == 0


def test_nats_py_reads_what_jetsync_renames_and_describes(store, peer):
    """
    nats-py finds an object under its new name, with its new description, and not under the old one.
    """
    for name in NAMES:
        store.put(name, DATA)
        store.rename(name, f"{name}.new"[-1024:])
        store.update_meta(f"{name}.new"[-1024:], description="new")

    async def read(other):
        for name in NAMES:
            found = await other.get(f"{name}.new"[-1024:])
            assert (found.data, found.info.description) == (DATA, "new")
            with pytest.raises(nats.js.errors.ObjectNotFoundError):
                await other.get(name)

    peer(read)


def test_jetsync_reads_what_nats_py_describes(store, peer):
    """
    A description that nats-py has changed is read, and the data stays. nats-py cannot rename.
    """
    store.put("a", DATA, metadata={"k": "v"})

    async def change(other):
        await other.update_meta("a", nats.js.api.ObjectMeta(name="a", description="new"))

    peer(change)
    assert store.info("a").description == "new"
    assert store.get_bytes("a") == DATA


def test_nats_py_follows_links_of_jetsync(js, store, peer, unique):
    """
    nats-py follows links to objects of the same and of another store, and refuses one to a store.
    """
    target = js.create_object_store(f"{unique}-2", storage="memory")
    try:
        store.add_link("here", store.put("a", b"here"))
        store.add_link("there", target.put("ü", b"there"))
        store.add_store_link("all", target)

        async def read(other):
            assert (await other.get("here")).data == b"here"
            assert (await other.get("there")).data == b"there"
            with pytest.raises(nats.js.errors.LinkIsABucketError):
                await other.get("all")

        peer(read)
    finally:
        js.delete_object_store(target.bucket)


@pytest.mark.parametrize("sealer", ["jetsync", "nats-py"])
def test_a_sealed_store_is_sealed_for_both(store, peer, sealer):
    """
    A store that one client has sealed is read by both, and changed by none.
    """
    store.put("a", b"data")

    async def check(other):
        if sealer == "jetsync":
            store.seal()
        else:
            await other.seal()
        assert (await other.get("a")).data == b"data"
        with pytest.raises(nats.js.errors.APIError):
            await other.put("b", b"")
        assert (await other.status()).sealed

    peer(check)
    assert store.get_bytes("a") == b"data"
    assert store.status().is_sealed
    with pytest.raises(jetsync.ObjectStoreSealedError):
        store.put("b", b"")


def test_each_watches_changes_of_the_other(store, peer):
    """
    A watch of each client has the objects, the changes and the deletions of the other.
    """

    async def change(other):
        watcher = await other.watch()
        assert await watcher.updates() is None
        with store.watch() as watch:
            for name in NAMES:
                store.put(name, b"1")
                found = await watcher.updates()
                assert (found.name, found.size, found.deleted) == (name, 1, False)
                assert watch.next(timeout=30).name == name
                await other.delete(name)
                assert (await watcher.updates()).deleted
                found = watch.next(timeout=30)
                assert (found.name, found.is_deleted) == (name, True)
        await watcher.stop()

    peer(change)
