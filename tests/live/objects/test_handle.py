"""
Object stores on real servers: descriptions, and the store itself.
"""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

import jetsync
from jetsync.values.headers import ROLLUP


@pytest.fixture
def store(js, unique):
    """
    An object store in memory, deleted after the test.
    """
    made = js.create_object_store(unique, storage="memory")
    yield made
    with suppress(jetsync.ObjectStoreNotFoundError):
        js.delete_object_store(unique)


def document_of(store, name):
    """
    Return the document of an object as it is stored.
    """
    token = jetsync._proto.objects.encode_name(name)
    return json.loads(store.stream.get_last(f"$O.{store.bucket}.M.{token}").data)


def subjects(store):
    """
    Return the subjects that have messages.
    """
    return store.stream.info(subjects_filter=">").state.subjects


class TestStores:
    def test_a_store_is_created_found_changed_listed_and_deleted(self, js, unique):
        """An object store is created, found, changed, listed and deleted."""
        made = js.create_object_store(unique, storage="memory", description="one")
        assert js.create_object_store(unique, storage="memory", description="one").bucket == unique
        with pytest.raises(jetsync.StreamNameInUseError):
            js.create_object_store(unique, storage="memory", description="two")
        assert repr(made) == f"<ObjectStore {unique!r}>"
        assert js.object_store(unique).status().description == "one"
        changed = js.update_object_store(unique, ttl=60, metadata={"k": "v"})
        status = changed.status()
        assert (status.description, status.ttl, status.metadata) == ("one", 60, {"k": "v"})
        assert js.create_or_update_object_store(unique, ttl=0).status().ttl is None
        assert unique in [each.bucket for each in js.object_stores()]
        js.delete_object_store(unique)
        assert unique not in [each.bucket for each in js.object_stores()]
        js.create_or_update_object_store(unique, storage="memory")
        js.delete_object_store(unique)

    def test_a_store_that_does_not_exist_is_an_error(self, js, unique):
        """Each call on an object store that does not exist names it."""
        made = js.create_object_store(unique, storage="memory")
        made.put("a", b"x")
        js.delete_object_store(unique)
        for call in (
            lambda: js.object_store(unique),
            lambda: js.update_object_store(unique, ttl=5),
            lambda: js.delete_object_store(unique),
            lambda: made.info("a"),
            lambda: made.get("a"),
            lambda: made.put("a", b"x"),
            lambda: made.put("a", b""),
            lambda: made.put("a", b"x", expect="new"),
            lambda: made.delete("a"),
            made.list,
            made.status,
        ):
            with pytest.raises(jetsync.ObjectStoreNotFoundError) as caught:
                call()
            assert caught.value.bucket == unique

    def test_handles_cannot_be_copied(self, store):
        """A handle cannot be pickled."""
        with pytest.raises(jetsync.InvalidTypeError):
            store.__reduce__()


class TestInfo:
    def test_a_description_shows_what_was_stored(self, store):
        """The description of an object has what the put was given, and the server's time."""
        put = store.put(
            "a/ü b", b"data", description="d", headers={"h": ["1", "2"]}, metadata={"k": "v"}
        )
        info = store.info("a/ü b")
        assert (info.bucket, info.name, info.size, info.chunks) == (store.bucket, "a/ü b", 4, 1)
        assert (info.description, info.metadata) == ("d", {"k": "v"})
        assert info.headers == {"h": ["1", "2"]}
        assert info.digest == "SHA-256=Om6weQ85rIfJTzhWst0sXREOaBFgImGpqSPTuyOtyLc="
        assert info.modified == store.stream.get_message(info.revision).timestamp
        assert jetsync_fields(put) == jetsync_fields(info)

    def test_the_document_is_that_of_other_clients(self, store):
        """The document of an object is written as other clients write it."""
        info = store.put("a", b"data", chunk_size=3)
        assert document_of(store, "a") == {
            "name": "a",
            "options": {"max_chunk_size": 3},
            "bucket": store.bucket,
            "nuid": info.nuid,
            "size": 4,
            "mtime": "0001-01-01T00:00:00Z",
            "chunks": 2,
            "digest": info.digest,
        }
        assert store.stream.get_message(info.revision).headers[ROLLUP] == "sub"

    def test_a_name_without_padding_is_found(self, js, store):
        """An object whose name another client wrote without padding is found and read."""
        store.put("a", b"data")
        document = store.info("a").document
        store.stream.purge(f"$O.{store.bucket}.M.YQ==")
        js.publish(f"$O.{store.bucket}.M.YQ", json.dumps(document))
        assert store.info("a").size == 4
        assert store.get_bytes("a") == b"data"
        assert [info.name for info in store.list()] == ["a"]
        store.put("a", b"later")
        assert [info.size for info in store.list()] == [5]

    @pytest.mark.parametrize("name", ["", 5, "\ud800"])
    def test_wrong_names_are_refused(self, store, name):
        """A name that is empty or not text is refused by each call."""
        for call in (store.info, store.get, store.delete, lambda name: store.put(name, b"")):
            with pytest.raises((jetsync.InvalidNameError, jetsync.InvalidTypeError)):
                call(name)


def jetsync_fields(info):
    """
    Return the fields of a description except for the time.
    """
    return {
        name: getattr(info, name)
        for name in ("name", "nuid", "size", "chunks", "digest", "revision", "headers", "document")
    }


class TestList:
    def test_it_has_all_objects_by_name(self, store):
        """A list has the objects by name, and deleted ones only if they are wanted."""
        for name in ("b", "a", "c"):
            store.put(name, name)
        store.delete("b")
        assert [info.name for info in store.list()] == ["a", "c"]
        deleted = store.list(include_deleted=True)
        assert [(info.name, info.is_deleted) for info in deleted] == [
            ("a", False),
            ("b", True),
            ("c", False),
        ]

    def test_an_empty_store_has_no_objects(self, store):
        """The list of an empty object store is empty."""
        assert store.list() == []

    def test_more_objects_than_one_request_returns(self, js, store):
        """A list with more objects than a server returns at once is complete."""
        documents = [
            (f"$O.{store.bucket}.M.{jetsync._proto.objects.encode_name(str(number))}", b"{}")
            for number in range(1500)
        ]
        js.publish_many(documents)
        assert len(store.list()) == 1500

    def test_a_document_that_cannot_be_read_is_left_out(self, js, store):
        """A message that is no document does not hide the objects."""
        store.put("a", b"x")
        js.publish(f"$O.{store.bucket}.M.Yg==", b"no JSON")
        assert [info.name for info in store.list()] == ["a"]
        with pytest.raises(jetsync.ProtocolError):
            store.info("b")


class TestDelete:
    def test_it_removes_the_data_and_keeps_a_mark(self, store):
        """A deleted object is not found, its chunks are removed, and its document stays."""
        store.put("a", b"data", metadata={"k": "v"})
        store.delete("a")
        with pytest.raises(jetsync.ObjectNotFoundError) as caught:
            store.info("a")
        assert caught.value.deleted_at == store.info("a", include_deleted=True).revision
        assert isinstance(caught.value, KeyError)
        assert list(subjects(store)) == [f"$O.{store.bucket}.M.YQ=="]
        document = document_of(store, "a")
        assert (document["deleted"], document["size"], document["chunks"]) == (True, 0, 0)
        assert document["metadata"] == {"k": "v"}
        assert "digest" not in document
        for call in (store.get, store.delete):
            with pytest.raises(jetsync.ObjectNotFoundError):
                call("a")
        store.put("a", b"again", expect="new")
        assert store.get_bytes("a") == b"again"

    def test_an_unknown_object_is_an_error(self, store):
        """An object that never existed cannot be deleted."""
        with pytest.raises(jetsync.ObjectNotFoundError) as caught:
            store.delete("a")
        assert caught.value.deleted_at is None
