"""
Watches of object stores on real servers.
"""

from __future__ import annotations

import threading

import pytest

import jetsync


def seen(info):
    """
    Return what a test looks at.
    """
    return info.name, info.size, info.is_deleted


def test_current_objects_and_then_changes(store):
    """
    A watch yields the current objects, and then each change, without chunks.
    """
    store.put("a", b"1" * 300_000)
    store.put("b", b"12")
    store.delete("b")
    with store.watch() as watch:
        assert [seen(info) for info in watch.initial(timeout=10)] == [
            ("a", 300_000, False),
            ("b", 0, True),
        ]
        assert watch.is_current
        assert watch.wait_current(timeout=0)
        info = store.put("c", b"123")
        assert watch.next(timeout=10).nuid == info.nuid
        assert watch.revision == info.revision
        store.delete("a")
        assert seen(next(watch)) == ("a", 0, True)
        assert watch.next(timeout=0) is None
        assert repr(watch) == f"<ObjectWatch {store.bucket} current revision={watch.revision}>"
    assert watch.closed
    with pytest.raises(jetsync.HandleClosedError):
        watch.next()
    assert list(watch) == []


def test_an_empty_store_is_current_at_once(store):
    """
    The watch of an empty object store has no initial objects.
    """
    with store.watch() as watch:
        assert list(watch.initial(timeout=10)) == []


def test_names_and_options_limit_a_watch(js, store):
    """
    A watch can be limited to names, to later changes, and to objects that are not deleted.
    """
    for name in ("a", "b", "c"):
        store.put(name, b"")
    store.delete("c")
    with store.watch("b", "c", ignore_deletes=True) as watch:
        assert [info.name for info in watch.initial(timeout=10)] == ["b"]
        store.put("a", b"")
        store.delete("b")
        store.put("c", b"new")
        assert seen(watch.next(timeout=10)) == ("c", 3, False)
    with store.watch(updates_only=True) as watch:
        assert watch.is_current
        js.publish(f"$O.{store.bucket}.M.eA==", b"no document")
        store.put("d", b"")
        assert watch.next(timeout=10).name == "d"
    with pytest.raises(jetsync.InvalidNameError):
        store.watch("")


def test_a_watch_ends_with_its_store(js, store):
    """
    If the object store is deleted, a watch raises an error that names it.
    """
    with store.watch() as watch:
        js.delete_object_store(store.bucket)
        with pytest.raises(jetsync.ObjectStoreNotFoundError) as caught:
            watch.next(timeout=30)
        assert caught.value.bucket == store.bucket
    with pytest.raises(jetsync.ObjectStoreNotFoundError):
        store.watch()


def test_closing_wakes_a_thread(store):
    """
    A thread that waits for a change ends when the watch is closed.
    """
    watch = store.watch()
    ended = []
    thread = threading.Thread(target=lambda: ended.append(list(watch)))
    thread.start()
    watch.close()
    thread.join(30)
    assert ended == [[]]
