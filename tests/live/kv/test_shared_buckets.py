"""
Buckets that are shared: with nats-py, between mirrors, between domains.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

import jetsync
from helpers.nats_py import with_nats_py
from helpers.waiting import eventually
from jetsync import KeyOperation, MarkerReason
from jetsync.devserver import DevServer


@pytest.fixture
def bucket(js, unique):
    """
    The name of a bucket that is deleted after the test.
    """
    yield unique
    with suppress(jetsync.BucketNotFoundError):
        js.delete_key_value(unique)


MARKED = [
    ("a", KeyOperation.PUT, None),
    ("b", KeyOperation.PUT, None),
    ("c", KeyOperation.PUT, None),
    ("b", KeyOperation.DELETE, None),
    ("c", KeyOperation.PURGE, None),
    ("d", KeyOperation.PUT, None),
    ("d", KeyOperation.PURGE, MarkerReason.MAX_AGE),
]
"""The changes that both clients make to a bucket, and the entries that a watch gets."""


class Raised:
    """
    A plugin that keeps the events of raised times-to-live.
    """

    def __init__(self):
        self.seen = []

    @jetsync.hookimpl
    def jetsync_status(self, event):
        if isinstance(event, jetsync.TtlRaisedEvent):
            self.seen.append(event)


def put_in(kv, key, *, ttl):
    """
    Set a key in a transaction of its own.
    """
    with kv.atomic() as tx:
        tx.create(key, b"", ttl=ttl)


@pytest.fixture(scope="module")
def hub():
    """
    A server whose JetStream has a domain.
    """
    config = {"jetstream": {"domain": "hub"}, "leafnodes": {"port": -1}}
    with DevServer(config=config) as server:
        yield server


class TestNatsPy:
    def test_made_by_nats_py(self, nats_server, js, bucket):
        """
        A bucket that nats-py created and filled can be read, watched and changed, with its markers.
        """

        async def write(other):
            kv = await other.create_key_value(
                bucket=bucket, limit_marker_ttl=60, storage="memory", direct=True
            )
            for key in ("a", "b", "c"):
                await kv.put(key, key.encode())
            await kv.delete("b")
            await kv.purge("c")
            await kv.create("d", b"d", msg_ttl=3)

        with_nats_py(nats_server, write)
        kv = js.key_value(bucket)
        with kv.watch(include_history=True) as watch:
            entries = list(watch.initial(timeout=10))
            entries.append(watch.next(timeout=10))
        seen = [(each.key, each.operation, each.marker) for each in entries]
        # The bucket keeps one revision of each key.
        assert seen == [MARKED[0], *MARKED[3:]]
        assert kv.keys() == ["a"]
        assert {key: entry.value for key, entry in kv.get_many(">").items()} == {"a": b"a"}
        for key, word in (("b", "deleted"), ("c", "purged"), ("d", "expired")):
            with pytest.raises(jetsync.KeyNotFoundError, match=word):
                kv.get(key)
        assert kv.create("d", b"again") > entries[-1].revision
        assert kv.status().limit_marker_ttl == 60
        # The bucket in jetsync's terms: nats-py allows times-to-live on every bucket.
        with pytest.raises(jetsync.AtomicPublishDisabledError):
            kv.atomic()

    def test_read_by_nats_py(self, nats_server, js, bucket):
        """
        nats-py can read, watch and change a bucket that jetsync created and filled.
        """
        kv = js.create_key_value(bucket, history=5, limit_marker_ttl=3, storage="memory")

        async def read(other):
            theirs = await other.key_value(bucket)
            watcher = await theirs.watchall()
            assert await watcher.updates(timeout=5) is None
            await asyncio.to_thread(write)
            seen = [await watcher.updates(timeout=10) for _ in MARKED]
            assert [(entry.key, entry.operation) for entry in seen] == [
                (key, None if operation is KeyOperation.PUT else operation.value)
                for key, operation, _ in MARKED
            ]
            await watcher.stop()
            assert await theirs.keys() == ["a"]
            assert (await theirs.get("a")).value == b"a"
            return await theirs.put("a", b"theirs")

        def write():
            for key in ("a", "b", "c"):
                kv.put(key, key)
            kv.delete("b")
            kv.purge("c")
            kv.create("d", b"d", ttl=3)

        revision = with_nats_py(nats_server, read)
        assert kv.get("a").value == b"theirs"
        assert kv.get("a").revision == revision

    def test_a_transaction_is_read_by_nats_py(self, nats_server, js, bucket):
        """
        Other clients see the changes of a transaction like other changes.
        """
        kv = js.create_key_value(bucket, storage="memory", atomic=True)
        kv.put("gone", b"")
        with kv.atomic() as tx:
            tx.create("a", b"1")
            tx.put("b", b"2")
            tx.delete("gone")

        async def read(other):
            theirs = await other.key_value(bucket)
            return sorted(await theirs.keys()), (await theirs.get("b")).value

        assert with_nats_py(nats_server, read) == (["a", "b"], b"2")

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"history": 5, "ttl": 60, "description": "d", "max_value_size": 1000},
            {"storage": "memory", "max_bytes": 100_000, "limit_marker_ttl": 5},
        ],
    )
    def test_the_same_layout(self, nats_server, js, bucket, fields):
        """
        Both clients create the same stream, except for times-to-live and direct gets.
        """

        async def make(other):
            await other.create_key_value(bucket=bucket, **fields)

        with_nats_py(nats_server, make)
        theirs = js.stream(f"KV_{bucket}").config
        js.delete_key_value(bucket)
        ours = js.create_key_value(bucket, **fields).stream.config
        for config in (theirs, ours):
            config.metadata = config.allow_msg_ttl = config.allow_direct = None
        assert ours == theirs

    def test_created_again_by_others(self, nats_server, js, client, bucket):
        """
        Other clients can create a bucket again that jetsync created with the defaults.
        """
        # nats-py allows times-to-live on every bucket, and direct gets on request.
        js.create_key_value(bucket, limit_marker_ttl=60)

        async def again(other):
            await other.create_key_value(bucket=bucket, limit_marker_ttl=60, direct=True)

        with_nats_py(nats_server, again)
        js.delete_key_value(bucket)
        js.create_key_value(bucket)
        # The request of nats.go 1.54 for a bucket with its defaults.
        request = {
            "name": f"KV_{bucket}",
            "subjects": [f"$KV.{bucket}.>"],
            "retention": "limits",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "discard": "new",
            "max_age": 0,
            "max_msgs_per_subject": 1,
            "max_msg_size": -1,
            "storage": "file",
            "num_replicas": 1,
            "duplicate_window": 120_000_000_000,
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "mirror_direct": False,
        }
        subject = f"$JS.API.STREAM.CREATE.KV_{bucket}"
        answer = json.loads(client.request(subject, json.dumps(request).encode()).data)
        assert "error" not in answer


class TestMirrors:
    def test_mirror_changes_and_expires(self, nats_server, js, bucket, unique):
        """
        A mirror can be updated like any bucket, and accepts a time-to-live if its origin does.
        """
        origin = js.create_key_value(bucket, storage="memory", atomic=True)
        mirror = js.create_key_value(f"{unique}-m", mirror=bucket, storage="memory")
        for refused in (lambda: mirror.put("a", b"", ttl=9), lambda: put_in(mirror, "a", ttl=9)):
            with pytest.raises(jetsync.MessageTtlDisabledError, match=bucket):
                refused()
        js.update_key_value(bucket, history=2, limit_marker_ttl=30)
        raised = Raised()
        with jetsync.connect(nats_server.url, plugins=[raised]) as client:
            own = client.jetstream().key_value(mirror.bucket)
            assert own.create("a", b"", ttl=60) == 1
            assert own.create("b", b"", ttl=60) == 2
            put_in(own, "c", ttl=60)
            assert not raised.seen
            own.create("d", b"", ttl=9)
            put_in(own, "e", ttl=9)
        assert [event.subject for event in raised.seen] == [f"$KV.{bucket}.{k}" for k in "de"]
        assert [origin.get(key).ttl for key in "abc"] == [60, 60, 60]
        changed = js.update_key_value(mirror.bucket, description="new", limit_marker_ttl=5)
        config = changed.stream.config
        assert (config.description, config.mirror.name) == ("new", f"KV_{bucket}")
        assert config.allow_msg_ttl
        js.delete_key_value(mirror.bucket)
        again = js.create_key_value(
            mirror.bucket, mirror=bucket, storage="memory", limit_marker_ttl=5
        )
        assert again.status().allows_ttl
        assert again.status().limit_marker_ttl is None
        js.delete_key_value(again.bucket)

    @pytest.mark.cluster
    def test_a_mirror_in_a_cluster(self):
        """
        A cluster returns no duplicate window for a mirror, which is nevertheless created.
        """
        with DevServer(cluster=3) as server, jetsync.connect(server.url) as client:
            js = client.jetstream(timeout=5)

            def created(name, **options):
                # A server that still takes up its place in the cluster gives no answer.
                with suppress(jetsync.RequestTimeoutError):
                    return js.create_key_value(name, storage="memory", **options)

            eventually(lambda: created("B")).put("a", b"1")
            mirror = eventually(lambda: created("M", mirror="B"))
            assert eventually(lambda: list(mirror.keys())) == ["a"]

    def test_a_mirror_is_read_here_and_written_to_the_origin(self, js, bucket, unique):
        """
        A mirror is read by its own name with the keys of its origin. Writes go to the origin.
        """
        origin = js.create_key_value(bucket, history=5, storage="memory", atomic=True)
        origin.put("a", b"1")
        mirror = js.create_key_value(f"{unique}-m", mirror=bucket, history=5, storage="memory")
        eventually(lambda: mirror.stream.info().state.last_seq == 1)
        assert mirror.get("a", 1) == mirror.get("a")
        assert mirror.get("a").bucket == f"{unique}-m"
        with mirror.watch() as watch:
            assert [entry.key for entry in watch.initial(timeout=10)] == ["a"]
            assert mirror.put("b", b"2") == 2
            assert mirror.delete("a") == 3
            assert mirror.create("a", b"4") == 4
            assert [watch.next(timeout=10).revision for _ in range(3)] == [2, 3, 4]
        with pytest.raises(jetsync.KeyExistsError):
            mirror.create("a", b"5")
        assert origin.get("a").value == b"4"
        assert sorted(mirror.keys()) == ["a", "b"]
        with mirror.atomic() as tx:
            tx.update("a", b"6", last=4)
            tx.put("b", b"6")
        eventually(lambda: mirror.stream.info().state.last_seq == 6)
        assert {entry.value for entry in mirror.get_many(">").values()} == {b"6"}
        mirror.delete("a")
        eventually(lambda: mirror.stream.info().state.last_seq == 7)
        assert mirror.purge_deletes(0) == 1
        assert len(origin.history("b")) == 2
        with pytest.raises(jetsync.KeyNotFoundError):
            origin.history("a")
        assert {bucket, f"{unique}-m"} <= set(js.key_value_names())
        transaction = mirror.atomic()
        transaction.put("a", b"")
        js.delete_key_value(bucket)
        for change in (lambda: mirror.put("a", b""), transaction.commit):
            with pytest.raises(jetsync.BucketNotFoundError) as gone:
                change()
            assert gone.value.bucket == bucket
        assert mirror.get("b").value == b"6"
        js.delete_key_value(f"{unique}-m")

    def test_a_bucket_with_a_source_has_the_keys_of_both(self, js, bucket, unique):
        """
        A bucket with a source has the keys of the source and its own.
        """
        origin = js.create_key_value(f"{unique}-o", storage="memory")
        origin.put("a", b"1")
        kv = js.create_key_value(bucket, sources=[f"{unique}-o"], storage="memory")
        kv.put("b", b"2")
        eventually(lambda: sorted(kv.keys()) == ["a", "b"])
        assert kv.get("a").value == b"1"
        js.delete_key_value(f"{unique}-o")

    def test_a_source_that_is_no_bucket(self, js, bucket, unique):
        """
        A bucket with a plain stream as source has its messages, under the keys of the transform.
        """
        orders = js.create_stream(f"{unique}-o", subjects=[f"{unique}.>"], storage="memory")
        js.publish(f"{unique}.stock.oak", b"1")
        js.publish(f"{unique}.price.oak", b"2")
        transform = jetsync.SubjectTransform(
            src=f"{unique}.stock.*", dest=f"$KV.{bucket}.stock.{{{{wildcard(1)}}}}"
        )
        source = jetsync.StreamSource(name=orders.name, subject_transforms=[transform])
        kv = js.create_key_value(bucket, sources=[source], storage="memory")
        eventually(lambda: kv.keys() == ["stock.oak"])
        js.publish(f"{unique}.stock.ash", b"3")
        eventually(lambda: len(kv.keys()) == 2)
        kv.put("own", b"4")
        values = {key: entry.value for key, entry in kv.get_many(">").items()}
        assert values == {"stock.oak": b"1", "stock.ash": b"3", "own": b"4"}
        orders.delete()


class TestDomains:
    def test_a_bucket_in_a_domain_is_read_and_changed_there(self, hub, unique):
        """
        A bucket in a domain is read and changed through the domain's subjects.
        """
        with jetsync.connect(hub.url) as client:
            js = client.jetstream(domain="hub")
            kv = js.create_key_value(unique, storage="memory", atomic=True)
            assert kv.put("a", b"1") == 1
            kv.delete("a")
            assert kv.create("a", b"3") == 3
            with kv.atomic() as tx:
                tx.update("a", b"4", last=3)
                tx.create("b", b"4")
            with pytest.raises(jetsync.KeyExistsError):
                kv.create("b", b"")
            assert {entry.value for entry in kv.get_many(">").values()} == {b"4"}
            with kv.watch("a") as watch:
                assert [entry.key for entry in watch.initial(timeout=10)] == ["a"]
            plain = client.jetstream().key_value(unique)
            assert plain.get("a").value == b"4"
            js.delete_key_value(unique)

    def test_a_mirror_of_another_domain_writes_there(self, hub, unique):
        """
        A mirror of a bucket in another domain is read here, and its writes go there.
        """
        leaf = {
            "jetstream": {"domain": "leaf"},
            "leafnodes": {"remotes": [{"url": f"nats://127.0.0.1:{hub.ports()['leafnodes']}"}]},
        }
        with DevServer(config=leaf) as server, jetsync.connect(server.url) as client:
            there, here = client.jetstream(domain="hub"), client.jetstream(domain="leaf")
            eventually(lambda: answers(there))
            origin = there.create_key_value(unique, history=5, storage="memory", atomic=True)
            assert origin.put("a", b"1") == 1
            source = jetsync.StreamSource(
                name=unique, external=jetsync.ExternalStream(api="$JS.hub.API")
            )
            mirror = here.create_key_value(unique, mirror=source, history=5)
            eventually(lambda: mirror.keys() == ["a"])
            with mirror.watch(updates_only=True) as watch:
                assert mirror.put("b", b"2") == 2
                assert mirror.delete("a") == 3
                assert mirror.create("a", b"4") == 4
                with mirror.atomic() as tx:
                    tx.update("a", b"5", last=4)
                    tx.put("b", b"5")
                assert [watch.next(timeout=10).revision for _ in range(5)] == [2, 3, 4, 5, 6]
            assert origin.get("a").value == b"5"
            assert {entry.value for entry in mirror.get_many(">").values()} == {b"5"}
            with pytest.raises(jetsync.WrongLastRevisionError) as wrong:
                mirror.update("a", b"", last=4)
            assert wrong.value.last_sequence == 5
            there.delete_key_value(unique)


def answers(js):
    """
    Return the account if JetStream answers, else None.
    """
    try:
        return js.account_info(timeout=1)
    except jetsync.JetSyncError:
        return None
