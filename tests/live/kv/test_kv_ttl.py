"""
Keys with a time-to-live on real servers, and the markers of those that expired.
"""

from __future__ import annotations

import pytest

import jetsync
from helpers.waiting import at_some_pace, eventually
from jetsync import KeyOperation, MarkerReason


class Events:
    """
    A plugin that keeps status events and markers.
    """

    def __init__(self):
        self.events = []
        self.markers = []

    @jetsync.hookimpl
    def jetsync_status(self, event):
        self.events.append(event)

    @jetsync.hookimpl
    def jetsync_ttl_marker(self, message, reason):
        self.markers.append((message.subject, reason))


def test_an_expired_key_leaves_a_marker_that_is_no_value(nats_server, make_bucket, unique):
    """
    An expired key leaves a marker, which no call returns as a value.
    """
    make_bucket(limit_marker_ttl=60)
    plugin = Events()
    with jetsync.connect(nats_server.url, plugins=[plugin]) as client:
        kv = client.jetstream().key_value(unique)
        with kv.watch() as watch:
            assert kv.create("a", b"1", ttl=2) == 1
            entry = watch.next(timeout=20)
            assert (entry.operation, entry.ttl) == (KeyOperation.PUT, 2)
            entry = watch.next(timeout=20)
            assert (entry.key, entry.operation, entry.value) == ("a", KeyOperation.PURGE, b"")
            assert (entry.marker, entry.ttl, entry.revision) == (MarkerReason.MAX_AGE, 60, 2)
        assert (f"$KV.{unique}.a", MarkerReason.MAX_AGE) in plugin.markers
        for direct in (True, False):
            with pytest.raises(jetsync.KeyNotFoundError, match="expired at revision 2"):
                kv.get("a", direct=direct)
        assert kv.keys() == []
        assert kv.get_many(">") == {}
        history = kv.history("a")
        assert [entry.marker for entry in history] == [MarkerReason.MAX_AGE]
        assert kv.create("a", b"2", ttl=60) == 3
        assert kv.get("a").value == b"2"


def test_markers_are_removed(make_bucket):
    """
    The marker is removed after its time, and no other marker replaces it.
    """
    kv = make_bucket(limit_marker_ttl=1)
    kv.create("a", b"1", ttl=1)
    eventually(lambda: kv.stream.info().state.messages == 0)
    assert kv.stream.info().state.last_seq == 2
    with pytest.raises(jetsync.KeyNotFoundError, match=r"in bucket '[^']+'$"):
        kv.get("a")


@pytest.mark.versions
@pytest.mark.parametrize("version", ["2.11.11", "2.12.8", "2.14.6"])
def test_markers_on_older_servers(server_for, unique, version):
    """
    Markers work on every server from 2.11 on.
    """
    with jetsync.connect(server_for(version).url) as client:
        js = client.jetstream()
        kv = js.create_key_value(unique, limit_marker_ttl=60, storage="memory")
        with kv.watch() as watch:
            kv.create("a", b"1", ttl=2)
            assert watch.next(timeout=10).value == b"1"
            assert watch.next(timeout=10).marker is MarkerReason.MAX_AGE
        js.delete_key_value(unique)


def test_a_ttl_that_the_bucket_raises_is_reported(nats_server, make_bucket, unique, caplog):
    """
    A time-to-live that the bucket raises is reported, also for a plain publish.
    """
    make_bucket(history=3, limit_marker_ttl=50, atomic=True)
    plugin = Events()
    with jetsync.connect(nats_server.url, plugins=[plugin]) as client:
        js = client.jetstream()
        kv = js.key_value(unique)

        def raised():
            return [
                (event.subject, event.asked, event.stored)
                for event in plugin.events
                if isinstance(event, jetsync.TtlRaisedEvent)
            ]

        kv.create("a", b"1", ttl=1)
        kv.create("b", b"1", ttl=50)
        kv.put("c", b"1", ttl="never")
        subject = f"$KV.{unique}.a"
        assert raised() == [(subject, 1, 50)]
        assert "ttl_raised" in caplog.text
        assert kv.get("a").ttl == 50
        # A publish does not look the stream up, but uses the result of a transaction's lookup.
        kv.delete("a")
        with kv.atomic() as tx:
            tx.create("a", b"2", ttl=2)
        assert raised()[1:] == [(subject, 2, 50)]
        js.publish(subject, b"3", ttl=3)
        assert raised()[2:] == [(subject, 3, 50)]


def test_not_raised(make_bucket, caplog):
    """
    With one revision per key, the time-to-live is not raised.
    """
    kv = make_bucket(limit_marker_ttl=60)
    kv.create("a", b"1", ttl=10)
    assert kv.get("a").ttl == 10
    assert "ttl_raised" not in caplog.text


def test_the_marker_of_a_purge_is_removed_after_its_time(make_bucket):
    """
    The marker of a purge is removed after its time, and leaves no other marker.
    """
    kv = make_bucket(limit_marker_ttl=1)

    def attempt(pace):
        kv.put("a", b"1")
        kv.purge("a", ttl=2 * pace)
        with pytest.raises(jetsync.KeyNotFoundError, match="purged"):
            kv.get("a")
        eventually(lambda: kv.stream.info().state.messages == 0, 10 * pace)

    at_some_pace(attempt)


def test_a_bucket_without_limit_markers_rejects_a_ttl(make_bucket):
    """
    A bucket without limit markers rejects a time-to-live before anything is stored.
    """
    kv = make_bucket(history=5, atomic=True)
    for call in (
        lambda: kv.put("a", b"", ttl=5),
        lambda: kv.create("a", b"", ttl=5),
        lambda: kv.purge("a", ttl=5),
        lambda: kv.update("a", b"", last=0, ttl=5),
        lambda: kv.atomic().put("a", b"", ttl=5),
    ):
        with pytest.raises(jetsync.MessageTtlDisabledError, match="limit_marker_ttl"):
            call()
    assert kv.stream.info().state.messages == 0


@pytest.mark.parametrize("ttl", [0, 0.5, -1, "5", "soon", None, True])
def test_bad_times(make_bucket, ttl):
    """
    An invalid time-to-live is rejected before anything is sent. None means no time-to-live.
    """
    kv = make_bucket(limit_marker_ttl=1)
    if ttl is None:
        assert kv.put("a", b"", ttl=None) == 1
        assert kv.get("a").ttl is None
        return
    with pytest.raises(jetsync.InvalidTtlError):
        kv.put("a", b"", ttl=ttl)
    assert kv.stream.info().state.messages == 0


@pytest.mark.parametrize("way", ["put", "update", "transaction"])
def test_not_over_a_value(make_bucket, js, unique, way):
    """
    With several revisions per key, only a key without a value can get one that expires.
    """
    kv = make_bucket(history=3, limit_marker_ttl=1, atomic=True)
    first = kv.create("a", b"1", ttl="never")

    def change(ttl):
        if way == "put":
            return kv.put("a", b"2", ttl=ttl)
        if way == "update":
            return kv.update("a", b"2", last=first, ttl=ttl)
        with kv.atomic() as tx:
            tx.put("a", b"2", ttl=ttl)
        return tx.revisions["a"]

    with pytest.raises(jetsync.InvalidTtlError, match="keeps 3 revisions") as refused:
        change(1)
    assert "history=1" in str(refused.value)
    assert kv.stream.info().state.messages == 1
    change("never")
    kv.purge("a", ttl=60)
    # Another client has changed the bucket meanwhile.
    js.update_key_value(unique, history=1)
    first = kv.create("a", b"1")
    change(1)
    with kv.watch("a") as watch:
        assert watch.next(timeout=10).value == b"2"
        assert watch.next(timeout=10).marker is MarkerReason.MAX_AGE
    with pytest.raises(jetsync.KeyNotFoundError, match="expired"):
        kv.get("a")


def test_a_value_with_never_outlives_the_limit_of_the_bucket(make_bucket):
    """
    A value with ``never`` outlives the bucket's own limit.
    """
    kv = make_bucket(ttl=1, limit_marker_ttl=1)
    kv.put("a", b"1", ttl="never")
    kv.put("b", b"1")
    eventually(lambda: kv.keys() == ["a"])
    assert kv.get("a").ttl == "never"
