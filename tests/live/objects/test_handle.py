"""
Object stores on real servers: descriptions, and the store itself.
"""

from __future__ import annotations

import json
from unittest.mock import patch

import attrs
import pytest

import jetsync
from helpers.waiting import eventually, timed
from jetsync._proto.object_names import encode_name
from jetsync.devserver import DevServer
from jetsync.objects import bucket, put
from jetsync.values.headers import ROLLUP


def document_of(store, name):
    """
    Return the document of an object as it is stored.
    """
    token = encode_name(name)
    return json.loads(store.stream.get_last(f"$O.{store.bucket}.M.{token}").data)


def without_padding(js, store, name):
    """
    Store an object whose name another client has written without padding.
    """
    store.put(name, b"data")
    document, subject = document_of(store, name), f"$O.{store.bucket}.M.{encode_name(name)}"
    store.stream.purge(subject)
    js.publish(subject.rstrip("="), json.dumps(document), headers={ROLLUP: "sub"})


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
            # An error that names the store already is not replaced, because it may have a reason.
            assert not isinstance(caught.value.__cause__, jetsync.ObjectStoreNotFoundError)

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
        without_padding(js, store, "a")
        assert store.info("a").size == 4
        assert store.get_bytes("a") == b"data"
        assert [info.name for info in store.list()] == ["a"]

    @pytest.mark.parametrize("call", ["info", "delete"])
    def test_an_object_that_is_replaced_between_two_lookups_is_found(
        self, js, store, monkeypatch, call
    ):
        """An object is found if another client adds the padding of its name meanwhile."""
        without_padding(js, store, "a")

        def replaces(get):
            def replace(context, stream, request, deadline, **options):
                if request["last_by_subj"].endswith("YQ"):
                    monkeypatch.undo()
                    js.object_store(store.bucket).put("a", b"later")
                return get(context, stream, request, deadline, **options)

            return replace

        for name in ("confirmed_get", "leader_get"):
            monkeypatch.setattr(bucket, name, replaces(getattr(bucket, name)))
        getattr(store, call)("a")
        assert store.info("a", include_deleted=True).is_deleted == (call == "delete")
        assert call == "delete" or store.get_bytes("a") == b"later"

    @pytest.mark.parametrize("change", [lambda s: s.put("a", b"new"), lambda s: s.delete("a")])
    def test_what_an_object_without_padding_leaves_is_removed_once(self, js, store, client, change):
        """A change removes the old document and its chunks with one request for each."""
        without_padding(js, store, "a")
        with client.subscribe("$JS.API.STREAM.PURGE.>") as purges:
            client.flush()
            change(store)
            filters = [json.loads(purges.next(timeout=5).data)["filter"] for _ in range(2)]
            assert filters[0] == f"$O.{store.bucket}.M.YQ"
            assert filters[1].startswith(f"$O.{store.bucket}.C.")
            client.flush()
            assert purges.pending == 0

    def test_a_put_replaces_an_object_without_padding(self, js, store):
        """A put replaces an object whose name has no padding, and respects `expect`."""
        without_padding(js, store, "a")
        old = store.info("a")
        with pytest.raises(jetsync.ObjectExistsError):
            store.put("a", b"later", expect="new")
        for call in (lambda: store.add_link("a", "b"), lambda: store.rename("b", "a")):
            store.put("b", b"other")
            with pytest.raises(jetsync.ObjectExistsError):
                call()
        store.delete("b")
        info = store.put("a", b"later", expect=old)
        assert store.get_bytes("a") == b"later"
        assert subjects(store) == {
            f"$O.{store.bucket}.M.YQ==": 1,
            f"$O.{store.bucket}.M.Yg==": 1,
            f"$O.{store.bucket}.C.{info.nuid}": 1,
        }

    def test_a_put_keeps_a_newer_document_without_padding(self, js, store):
        """A put removes the document that it has read, and none that was stored meanwhile."""
        without_padding(js, store, "a")
        subject = f"$O.{store.bucket}.M.YQ"
        document = store.stream.get_last(subject).data
        newer, progress, given = [], [], []

        def pieces():
            # Before the next piece after a chunk is stored, the put reads the old document.
            while not progress:
                given.append(b"12345678")
                yield given[-1]
            newer.append(js.publish(subject, document, headers={ROLLUP: "sub"}).sequence)
            yield b"the last"

        store.put("a", pieces(), chunk_size=8, on_progress=lambda done, _: progress.append(done))
        assert store.get_bytes("a") == b"".join(given) + b"the last"
        assert store.stream.get_last(subject).sequence == newer[0]

    def test_changes_ask_the_leader(self, store, monkeypatch):
        """A change reads the last document from the leader, because a replica may be behind."""
        store.put("a", b"data")
        # Reads of replicas fail.
        monkeypatch.setattr(bucket, "confirmed_get", None)
        store.put("a", b"later", expect=store.update_meta("a", description="d"))
        store.rename("a", "b")
        store.delete("b")
        assert store.list() == []

    def test_old_chunks_that_cannot_be_removed(self, store, monkeypatch, caplog):
        """If old chunks cannot be removed, calls succeed, and `collect_garbage` removes them."""

        def purge(*_, **__):
            raise jetsync.RequestTimeoutError("purge", 1.0)

        store.put("a", b"data")
        monkeypatch.setattr(bucket.Bucket, "purge_chunks", purge)
        store.put("a", b"later")
        store.delete("a")
        monkeypatch.undo()
        assert caplog.text.count("chunks_left") == 2
        assert store.collect_garbage(0) == 2

    def test_free_names_without_padding_are_replaced(self, js, store):
        """A link and a rename remove the document of a free name that has no padding."""
        deleted = json.dumps({"deleted": True})
        for name in ("Yg", "Yw"):
            js.publish(f"$O.{store.bucket}.M.{name}", deleted)
        store.put("a", b"data")
        store.rename("a", "b")
        store.add_link("c", "b")
        assert store.get_bytes("c") == b"data"
        documents = {subject for subject in subjects(store) if ".M." in subject}
        assert documents == {f"$O.{store.bucket}.M.{name}" for name in ("YQ==", "Yg==", "Yw==")}

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
            (f"$O.{store.bucket}.M.{encode_name(str(number))}", b"{}") for number in range(1500)
        ]
        js.publish_many(documents)
        assert len(store.list()) == 1500

    def test_a_wrong_name_in_a_document_hides_no_object(self, js, store):
        """A document with the name of another object is listed under its own name."""
        store.put("a", b"x")
        js.publish(f"$O.{store.bucket}.M.Yg==", json.dumps({"name": "a", "nuid": "n"}))
        assert [info.name for info in store.list()] == ["a", "b"]

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

    @pytest.mark.parametrize("nuid", [">", "*", "a b", "", 5, None])
    def test_an_invalid_id_removes_no_data(self, js, store, nuid):
        """If a document names all chunks by a wildcard, a deletion removes none of them."""
        store.put("a", b"data")
        document = {**store.info("a").document, "nuid": nuid}
        js.publish(f"$O.{store.bucket}.M.Yg==", json.dumps({**document, "name": "b"}))
        with pytest.raises(jetsync.ObjectCorruptedError):
            store.get("b")
        store.delete("b")
        assert store.get_bytes("a") == b"data"


def fill(js, store):
    """
    Store chunks until not one more message fits into the store.
    """
    size = 1 << 16
    while size:
        try:
            js.publish(f"$O.{store.bucket}.C.other", b"x" * (size - 1))
        except jetsync.StreamFullError:
            size //= 2


class TestFull:
    """
    Object stores whose limit of bytes is reached.
    """

    @pytest.fixture(params=[None, pytest.param("2.10.26", marks=pytest.mark.versions)])
    def js(self, js_of, request):
        """
        JetStream of servers of several versions.
        """
        return js_of(request.param)

    @pytest.fixture
    def full(self, js, unique):
        """
        A store with an object, a link and an object without data that has no room for a message.
        """
        store = js.create_object_store(unique, storage="memory", max_bytes=300_000)
        store.put("object", b"x" * 100_000, description="text")
        store.add_link("link", "object")
        store.put("empty", b"")
        fill(js, store)
        yield store
        js.delete_object_store(unique)

    @pytest.mark.parametrize("name", ["object", "link", "empty"])
    def test_objects_are_deleted(self, js, full, name):
        """In a full store, objects and links are deleted with a mark, as in others."""
        with pytest.raises(
            jetsync.StreamFullError, match=r"object store .* maximum bytes .*delete objects"
        ):
            full.update_meta(name, description="a longer text")
        nuid = full.info(name).nuid
        with full.watch(updates_only=True) as watch:
            full.delete(name)
            assert watch.next(timeout=10).is_deleted
        assert name not in [info.name for info in full.list()]
        assert full.info(name, include_deleted=True).is_deleted
        assert f"$O.{full.bucket}.C.{nuid}" not in subjects(full)

    def test_a_store_is_emptied(self, js, full):
        """A full store can be emptied completely."""
        for info in full.list():
            fill(js, full)
            full.delete(info.name)
        full.collect_garbage(0)
        assert full.purge_deletes(0) == 3
        assert subjects(full) == {}

    @pytest.mark.parametrize("step", ["remove", "drop_chunks", "store"])
    def test_an_interrupt_leaves_no_object_without_data(self, monkeypatch, full, step):
        """If the deletion is interrupted at any step, the whole object is there, or nothing."""
        calls = []

        def interrupt(self, *args):
            calls.append(1)
            if step == "store" and len(calls) == 1:
                return done(self, *args)
            raise KeyboardInterrupt

        done = getattr(bucket.Bucket, step)
        with monkeypatch.context() as patched:
            patched.setattr(bucket.Bucket, step, interrupt)
            with pytest.raises(KeyboardInterrupt):
                full.delete("object")
        if step == "remove":
            assert full.get_bytes("object") == b"x" * 100_000
            full.delete("object")
        with pytest.raises(jetsync.ObjectNotFoundError):
            full.get("object")
        full.collect_garbage(0)
        assert full.put("object", b"new").size == 3

    def test_a_change_meanwhile_is_not_lost(self, monkeypatch, js, full):
        """An object that another client changes before it is deleted stays."""
        remove = bucket.Bucket.remove

        def change_and_remove(self, info, deadline):
            monkeypatch.undo()
            full.stream.update(max_bytes=400_000)
            changed.append(full.update_meta("object", description="changed"))
            return remove(self, info, deadline)

        changed = []
        monkeypatch.setattr(bucket.Bucket, "remove", change_and_remove)
        with pytest.raises(jetsync.ObjectChangedError):
            full.delete("object")
        assert full.info("object") == attrs.evolve(
            changed[0], modified=full.info("object").modified
        )
        assert len(full.get_bytes("object")) == 100_000

    def test_an_object_that_is_stored_before_the_mark_stays(self, monkeypatch, full):
        """An object that another client stores before the deletion is marked stays."""
        drop_chunks = bucket.Bucket.drop_chunks

        def drop_and_put(self, info, deadline):
            monkeypatch.undo()
            drop_chunks(self, info, deadline)
            full.put("object", b"new")

        monkeypatch.setattr(bucket.Bucket, "drop_chunks", drop_and_put)
        full.delete("object")
        assert full.get_bytes("object") == b"new"

    def test_a_deletion_without_a_mark_is_logged(self, monkeypatch, js, full, caplog):
        """If there is no room for the mark at all, the object is gone, and the log says so."""
        drop_chunks = bucket.Bucket.drop_chunks

        def drop_and_fill(self, info, deadline):
            drop_chunks(self, info, deadline)
            fill(js, full)

        monkeypatch.setattr(bucket.Bucket, "drop_chunks", drop_and_fill)
        full.delete("object")
        assert "deletion_not_marked" in caplog.text
        with pytest.raises(jetsync.ObjectNotFoundError):
            full.info("object", include_deleted=True)


ACCOUNT = """
accounts { A { jetstream: {max_mem: 500000}, users: [{user: a, password: a}] } }
no_auth_user: a
"""
SERVER = "jetstream { max_memory_store: 500000 }"


@pytest.mark.parametrize(("config", "code"), [(ACCOUNT, 10002), (SERVER, 10023)])
def test_an_account_or_server_without_room(config, code):
    """If the account or the server is full, puts say so, and objects can be deleted."""
    with DevServer(config=config) as server, jetsync.connect(server.url) as client:
        js = client.jetstream()
        store = js.create_object_store("S", storage="memory")
        store.put("a", b"x" * 400_000)
        with timed(0, 30), pytest.raises(jetsync.InsufficientResourcesError) as caught:
            store.put("b", b"x" * 400_000, timeout=60 if code == 10002 else 1)
        assert caught.value.err_code == code
        size = 1 << 16
        while size:
            try:
                js.publish("$O.S.C.other", b"x" * (size - 1))
            except jetsync.InsufficientResourcesError:
                size //= 2
        store.delete("a")
        assert store.info("a", include_deleted=True).is_deleted
        assert store.list() == []


class TestPurgeDeletes:
    def test_old_marks_are_removed(self, store):
        """Marks of deleted objects are removed once they are old, and objects stay."""
        for name in ("a", "bb", "ccc", "kept"):
            store.put(name, b"data")
        for name in ("a", "bb"):
            store.delete(name)
        store.rename("ccc", "new")
        assert store.purge_deletes() == 0
        assert len(store.list(include_deleted=True)) == 5
        assert store.purge_deletes(0) == 3
        assert store.purge_deletes(0) == 0
        assert [info.name for info in store.list(include_deleted=True)] == ["kept", "new"]
        assert store.get_bytes("new") == store.get_bytes("kept") == b"data"

    def test_a_mark_hides_no_older_description(self, js, store):
        """If a client without padding has left a description before a mark, both are removed."""
        without_padding(js, store, "a")
        with patch.object(bucket.Bucket, "remove"):
            store.delete("a")
        assert store.purge_deletes(0) == 1
        assert subjects(store) == {}

    def test_an_interrupt_brings_no_object_back(self, monkeypatch, js, store):
        """The mark is removed last, so an older description never counts again."""
        without_padding(js, store, "a")
        with patch.object(bucket.Bucket, "remove"):
            store.delete("a")
        remove = bucket.Bucket.remove

        def remove_and_stop(self, info, deadline):
            remove(self, info, deadline)
            raise KeyboardInterrupt

        monkeypatch.setattr(bucket.Bucket, "remove", remove_and_stop)
        with pytest.raises(KeyboardInterrupt):
            store.purge_deletes(0)
        assert list(store.list()) == []

    def test_a_new_object_stays(self, monkeypatch, store):
        """An object that is stored while the marks are removed stays."""
        store.put("a", b"old")
        store.delete("a")
        remove = bucket.Bucket.remove

        def put_and_remove(self, info, deadline):
            monkeypatch.undo()
            store.put("a", b"new")
            return remove(self, info, deadline)

        monkeypatch.setattr(bucket.Bucket, "remove", put_and_remove)
        assert store.purge_deletes(0) == 0
        assert store.get_bytes("a") == b"new"

    @pytest.mark.parametrize("expect", [None, "new"])
    def test_a_put_whose_mark_is_removed_succeeds(self, store, expect):
        """A put is no conflict if the mark of the name is removed meanwhile."""
        store.put("a", b"old")
        store.delete("a")

        def pieces():
            yield b"x" * 200_000
            assert store.purge_deletes(0) == 1
            yield b"y"

        store.put("a", pieces(), expect=expect)
        assert store.get_bytes("a") == b"x" * 200_000 + b"y"

    def test_a_document_that_cannot_be_read_stays(self, js, store):
        """A description that cannot be read is not removed, and others are."""
        store.put("a", b"data")
        store.delete("a")
        js.publish(f"$O.{store.bucket}.M.{encode_name('b')}", b"[]")
        assert store.purge_deletes(0) == 1
        assert len(subjects(store)) == 1


class TestConflicts:
    @pytest.mark.parametrize(
        ("name", "call"),
        [
            ("a", lambda store: store.delete("a")),
            ("a", lambda store: store.update_meta("a", description="d")),
            ("new", lambda store: store.rename("a", "new")),
            ("new", lambda store: store.add_link("new", "a")),
        ],
    )
    def test_a_change_between_two_steps_is_not_lost(self, js, store, monkeypatch, name, call):
        """If another client stores the object after a call has read it, the call fails."""
        store.put("a", b"old")
        put = type(store._bucket).store

        def delayed(*arguments, **options):
            monkeypatch.undo()
            js.object_store(store.bucket).put(name, b"new")
            return put(*arguments, **options)

        monkeypatch.setattr(type(store._bucket), "store", delayed)
        with pytest.raises(jetsync.ObjectChangedError):
            call(store)
        assert store.get_bytes(name) == b"new"
        assert store.get_bytes("a") == (b"new" if name == "a" else b"old")


class TestUpdateMeta:
    def test_texts_change_and_the_data_stays(self, store):
        """Texts that are given replace the old ones, and the data and other fields stay."""
        store.put("a", b"data", description="d", headers={"h": "1"}, metadata={"k": "v"})
        info = store.update_meta("a", description="new")
        assert (info.description, info.headers, info.metadata) == ("new", {"h": ["1"]}, {"k": "v"})
        store.update_meta("a", description="", metadata={"x": "y"}, headers={})
        info = store.info("a")
        assert (info.description, info.headers, info.metadata) == (None, {}, {"x": "y"})
        assert store.get_bytes("a") == b"data"

    def test_fields_of_other_clients_are_kept(self, js, store):
        """A field that jetsync does not know survives a change."""
        store.put("a", b"data")
        document = {**document_of(store, "a"), "future": [1]}
        js.publish(f"$O.{store.bucket}.M.YQ==", json.dumps(document))
        store.update_meta("a", description="new")
        assert document_of(store, "a")["future"] == [1]

    def test_wrong_calls(self, store):
        """Wrong texts, and objects that do not exist, are errors."""
        with pytest.raises(jetsync.ObjectNotFoundError):
            store.update_meta("a", description="d")
        store.put("a", b"")
        with pytest.raises(jetsync.InvalidTypeError):
            store.update_meta("a", metadata={"k": 1})
        with pytest.raises(jetsync.InvalidHeaderError):
            store.update_meta("a", headers={"": "x"})

    def test_names_without_padding_can_be_changed(self, js, store):
        """An object whose name was written without padding is changed, renamed and deleted."""
        prefix = f"$O.{store.bucket}.M."
        for name in ("a", "b", "c"):
            without_padding(js, store, name)
        assert store.update_meta("a", description="d").description == "d"
        assert store.info("a").description == "d"
        assert [info.description for info in store.list()] == ["d", None, None]
        store.rename("b", "d")
        store.delete("c")
        assert [info.name for info in store.list()] == ["a", "d"]
        assert store.get_bytes("a") == store.get_bytes("d") == b"data"
        documents = {subject for subject in subjects(store) if subject.startswith(prefix)}
        # No subject without padding is left.
        assert documents == {prefix + encode_name(name) for name in ("a", "b", "c", "d")}


class TestRename:
    def test_the_object_has_only_the_new_name(self, store):
        """A renamed object keeps its data and texts, and the old name is deleted."""
        store.put("a", b"data", metadata={"k": "v"})
        info = store.rename("a", "b")
        assert (info.name, info.metadata) == ("b", {"k": "v"})
        assert [info.name for info in store.list()] == ["b"]
        assert store.get_bytes("b") == b"data"
        assert store.info("a", include_deleted=True).is_deleted
        # Neither a new object nor a deletion of the old name removes the data.
        store.put("a", b"other")
        store.delete("a")
        assert store.collect_garbage(0) == 0
        assert store.get_bytes("b") == b"data"
        assert store.rename("b", "b").name == "b"

    def test_a_name_that_is_taken_is_refused(self, store):
        """The new name must be free."""
        store.put("a", b"1")
        store.put("b", b"2")
        with pytest.raises(jetsync.ObjectExistsError):
            store.rename("a", "b")
        with pytest.raises(jetsync.ObjectNotFoundError):
            store.rename("c", "d")
        with pytest.raises(jetsync.InvalidNameError):
            store.rename("a", "")
        store.delete("b")
        store.rename("a", "b")
        assert store.get_bytes("b") == b"1"

    def test_a_put_during_a_rename_wins(self, js, store, monkeypatch):
        """If another client changes the object during a rename, the rename is undone."""
        store.put("a", b"old")
        put = type(store._bucket).store

        def first(self, name, *arguments, **options):
            if name == "a":
                monkeypatch.undo()
                js.object_store(store.bucket).put("a", b"new")
            return put(self, name, *arguments, **options)

        monkeypatch.setattr(type(store._bucket), "store", first)
        with pytest.raises(jetsync.ObjectChangedError):
            store.rename("a", "b")
        assert [info.name for info in store.list()] == ["a"]
        assert store.get_bytes("a") == b"new"

    def test_a_rename_replaces_no_link(self, store):
        """The new name may not be that of a link."""
        store.put("a", b"data")
        store.put("b", b"other")
        store.add_link("link", "b")
        with pytest.raises(jetsync.ObjectExistsError):
            store.rename("a", "link")
        assert store.get_bytes("link") == b"other"

    def test_a_rename_that_was_interrupted_is_repeated(self, js, store):
        """If a rename ended when the object had both names, the next one completes it."""
        store.put("a", b"data")
        document = {**store.info("a").document, "name": "b"}
        js.publish(f"$O.{store.bucket}.M.Yg==", json.dumps(document))
        info = store.rename("a", "b")
        assert info == store.info("b")
        assert [info.name for info in store.list()] == ["b"]
        assert store.get_bytes("b") == b"data"

    @pytest.mark.parametrize("step", [0, 1])
    def test_two_equal_renames_keep_the_object(self, js, store, monkeypatch, step):
        """If two clients give an object the same new name, it has that name."""
        store.put("a", b"data")
        put, calls = type(store._bucket).store, []

        def delayed(self, *arguments, **options):
            calls.append(arguments)
            if len(calls) == step + 1:
                monkeypatch.undo()
                js.object_store(store.bucket).rename("a", "b")
            return put(self, *arguments, **options)

        monkeypatch.setattr(type(store._bucket), "store", delayed)
        assert store.rename("a", "b").name == "b"
        assert [info.name for info in store.list()] == ["b"]
        assert store.get_bytes("b") == b"data"


class TestLinks:
    def test_a_link_is_read_as_its_target(self, js, store, unique):
        """A link returns the data that its target has now, also in another object store."""
        store.put("a", b"data")
        link = store.add_link("l", "a")
        assert (link.link, link.size, link.digest) == (
            jetsync.ObjectLink(store.bucket, "a"),
            0,
            None,
        )
        assert store.info("l") == attrs.evolve(link, modified=store.info("l").modified)
        assert document_of(store, "l")["options"] == {"link": {"bucket": unique, "name": "a"}}
        store.put("a", b"new")
        assert store.get_bytes("l") == b"new"
        other = js.create_object_store(f"{unique}-2", storage="memory")
        try:
            other.add_link("far", store.info("a"))
            with other.get("far") as reader:
                assert (reader.info.bucket, reader.read()) == (unique, b"new")
            other.add_store_link("all", store)
            assert other.info("all").link == jetsync.ObjectLink(unique)
            with pytest.raises(jetsync.ObjectIsLinkError):
                other.get("all")
            other.add_store_link("all", unique)
        finally:
            js.delete_object_store(other.bucket)
        store.delete("l")
        assert store.get_bytes("a") == b"new"
        store.delete("a")

    def test_what_a_link_may_replace(self, store):
        """A link may replace a link or a deleted object, and no object."""
        store.put("a", b"1")
        store.put("b", b"2")
        store.add_link("l", "a")
        store.add_link("l", "b")
        with pytest.raises(jetsync.ObjectExistsError):
            store.add_link("a", "b")
        store.delete("a")
        store.add_link("a", "b")
        assert store.get_bytes("a") == store.get_bytes("l") == b"2"
        store.put("l", b"object")
        assert store.info("l").link is None
        assert store.get_bytes("l") == b"object"

    def test_wrong_targets(self, store):
        """The target has to be an object."""
        store.put("a", b"1")
        store.add_link("l", "a")
        with pytest.raises(jetsync.ObjectIsLinkError):
            store.add_link("m", "l")
        with pytest.raises(jetsync.ObjectNotFoundError):
            store.add_link("m", "x")
        store.delete("a")
        with pytest.raises(jetsync.ObjectNotFoundError):
            store.add_link("m", store.info("a", include_deleted=True))
        with pytest.raises(jetsync.ObjectNotFoundError):
            store.get("l")
        for call in (store.add_link, store.add_store_link):
            with pytest.raises(jetsync.InvalidTypeError):
                call("m", 5)
        with pytest.raises(jetsync.InvalidBucketError):
            store.add_store_link("m", "a.b")

    def test_chains_of_other_clients_end(self, js, store):
        """Chains of links are followed up to a limit, and circles are errors."""

        def link(name, target):
            options = {"link": {"bucket": store.bucket, "name": target}}
            token = encode_name(name)
            document = {"name": name, "nuid": "n", "options": options}
            js.publish(f"$O.{store.bucket}.M.{token}", json.dumps(document))

        store.put("0", b"data")
        for number in range(1, 10):
            link(str(number), str(number - 1))
        assert store.get_bytes("8") == b"data"
        with pytest.raises(jetsync.ObjectIsLinkError, match="more than 8"):
            store.get("9")
        link("1", "3")
        with pytest.raises(jetsync.ObjectIsLinkError, match="circle"):
            store.get("3")
        link("x", "x")
        with pytest.raises(jetsync.ObjectIsLinkError, match="circle"):
            store.get("x")

    def test_a_link_into_a_store_that_does_not_exist(self, store):
        """A link into an object store that does not exist names that store."""
        store.put("a", b"1")
        store.add_link("l", attrs.evolve(store.info("a"), bucket="nowhere"))
        with pytest.raises(jetsync.ObjectStoreNotFoundError) as caught:
            store.get("l")
        assert caught.value.bucket == "nowhere"


class TestSeal:
    def test_a_sealed_store_can_only_be_read(self, js, store):
        """A sealed object store can be read, and refuses each change, also without a limit."""
        store.put("a", b"data")
        js.update_object_store(store.bucket, ttl=3600)
        store.seal()
        assert store.status().ttl is None
        store.seal()
        assert store.status().is_sealed
        assert store.get_bytes("a") == b"data"
        for call in (
            lambda: store.put("b", b"x"),
            lambda: store.put("b", b""),
            lambda: store.delete("a"),
            lambda: store.update_meta("a", description="d"),
            lambda: store.rename("a", "b"),
            lambda: store.add_link("l", "a"),
        ):
            with pytest.raises(jetsync.ObjectStoreSealedError) as caught:
                call()
            assert caught.value.bucket == store.bucket


class TestGarbage:
    def test_only_old_chunks_without_a_document_are_removed(self, js, store):
        """Chunks that no document names are removed once they are old enough."""
        assert store.collect_garbage(0) == 0
        store.put("a", b"data")
        store.add_link("l", "a")
        store.put("gone", b"data")
        store.delete("gone")
        for nuid in ("x1", "x2"):
            js.publish_many([(f"$O.{store.bucket}.C.{nuid}", b"chunk")] * 3)
        assert store.collect_garbage() == 0
        assert store.collect_garbage(3600) == 0
        assert store.collect_garbage(0) == 2
        assert store.collect_garbage(0) == 0
        assert store.get_bytes("a") == b"data"
        left = [subject for subject in subjects(store) if ".C." in subject]
        assert left == [f"$O.{store.bucket}.C.{store.info('a').nuid}"]

    def test_chunks_of_a_deleted_object_are_removed(self, js, store):
        """Chunks that stayed after a deletion are removed."""
        info = store.put("a", b"data")
        store.delete("a")
        js.publish(f"$O.{store.bucket}.C.{info.nuid}", b"data")
        assert store.collect_garbage(0) == 1

    def test_a_document_that_cannot_be_read_stops_it(self, js, store):
        """If a document cannot be read, its chunks are not known, so nothing is removed."""
        js.publish(f"$O.{store.bucket}.C.x", b"chunk")
        js.publish(f"$O.{store.bucket}.M.YQ==", b"?")
        with pytest.raises(jetsync.ProtocolError):
            store.collect_garbage(0)
        assert store.stream.info().state.messages == 2

    def test_garbage_collection_during_a_put_fails_the_put(self, store):
        """If another client takes the chunks of a slow put for garbage, the put fails."""

        def pieces():
            yield b"x" * (1 << 17)
            eventually(lambda: store.stream.info().state.messages == 1)
            with patch.object(put, "LONG_PAUSE", 0.0):
                assert store.collect_garbage(0) == 1
                yield b"y" * (1 << 17)

        with pytest.raises(jetsync.ObjectCorruptedError):
            store.put("a", pieces())
        assert store.list() == []
        assert store.stream.info().state.messages == 0


OLD = ("2.10.26", "2.11.11", "2.12.8", "2.14.6")


@pytest.mark.versions
@pytest.mark.parametrize("version", OLD)
def test_everything_works_on_every_server(server_for, unique, version):
    """
    Object stores work on every server from 2.10 on.
    """
    with jetsync.connect(server_for(version).url) as client:
        js = client.jetstream()
        store = js.create_object_store(unique, storage="memory")
        data = bytes(range(256)) * 4000
        info = store.put("a", data, expect="new")
        with store.get("a") as reader:
            assert reader.read() == data
            reader.seek(500_000)
            assert reader.read(100) == data[500_000:500_100]
            reader.seek(-5, 2)
            assert reader.read() == data[-5:]
        store.put("b", data, expect=store.put("b", b"1"))
        store.add_link("l", "a")
        assert [info.name for info in store.list()] == ["a", "b", "l"]
        store.rename("a", "c")
        store.delete("b")
        js.publish(f"$O.{unique}.C.x", b"chunk")
        assert store.collect_garbage(0) == 1
        assert store.get_bytes("c") == data
        with pytest.raises(jetsync.ObjectExistsError):
            store.put("c", b"", expect="new")
        store.stream.purge(f"$O.{unique}.C.{info.nuid}")
        with pytest.raises(jetsync.ObjectCorruptedError):
            store.get_bytes("c")
        store.seal()
        js.delete_object_store(unique)
