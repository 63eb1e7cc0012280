"""
Puts whose connection is cut, whose server is gone, and that are interrupted: each object is whole
or absent, and garbage collection removes what is left.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import weakref
from contextlib import suppress
from types import SimpleNamespace

import pytest

import jetsync
from helpers.interrupts import interrupted_at, steps_of
from helpers.waiting import eventually
from jetsync import hookimpl
from jetsync._io.connection import Connection
from jetsync.objects import bucket, put, upload

DATA = os.urandom(1_000_000)
OLD = os.urandom(300_000)


@pytest.fixture
def store(proxied, observer):
    """
    The same object store through a proxy; ``store.proxy`` is in the second place.
    """
    js, proxy = proxied()
    return js.object_store(observer.bucket), proxy


def check(observer, *allowed):
    """
    Check that the object is whole, and that no chunks stay.
    """
    observer.collect_garbage(0)
    objects = observer.list()
    found = observer.get_bytes("a") if objects else None
    assert found in allowed
    chunks = observer.stream.info(subjects_filter=f"$O.{observer.bucket}.C.>").state.subjects
    assert len(chunks) == len(objects)


def asked(js):
    """
    Return whether the server answers a request.
    """
    with suppress(jetsync.JetSyncError):
        return js.account_info(timeout=5)


class Stop(BaseException):
    """
    An interrupt, as KeyboardInterrupt.
    """


class Divert:
    """
    Send some chunks to a subscriber that never answers, the first time.
    """

    def __init__(self, *places):
        self._places = places
        self.sent = []

    @hookimpl
    def jetsync_prepare_message(self, message):
        """
        Change the subject of the chosen chunks.
        """
        if ".C." in message.subject:
            if len(self.sent) in self._places:
                message.subject = "silent"
            self.sent.append(message.msg_id)
        return message


class Answers:
    """
    Which answers to chunks are lost or late, by the number of the request.
    """

    def __init__(self):
        self.requests = 0
        self.lost = set()
        self.late = {}


@pytest.fixture
def answers(monkeypatch):
    """
    The answers to the chunks of puts.
    """
    answers = Answers()

    class Request(upload.Request):
        __slots__ = ("_number",)

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self._number = answers.requests
            answers.requests += 1

        def deliver(self, frame):
            if self._number in answers.late:
                threading.Timer(answers.late[self._number], super().deliver, [frame]).start()
            elif self._number not in answers.lost:
                super().deliver(frame)

    monkeypatch.setattr(upload, "Request", Request)
    return answers


class TestCuts:
    @pytest.mark.parametrize("reset", [False, True])
    @pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.5, 0.9, 0.999, 1.0])
    def test_a_put_survives_a_cut_while_it_sends(self, store, observer, share, reset):
        """If the connection is lost while chunks are sent, the put sends the missing ones again."""
        store, proxy = store
        proxy.cut_after(to_server=int(share * len(DATA)), reset=reset)
        info = store.put("a", DATA, chunk_size=50_000, timeout=20)
        assert (info.size, info.chunks) == (len(DATA), 20)
        check(observer, DATA)

    @pytest.mark.parametrize("size", [1, 300, 700, 1500])
    def test_a_put_survives_a_cut_while_answers_arrive(self, store, observer, size):
        """If acknowledgements are lost, the stream drops the chunks that it has already."""
        store, proxy = store
        proxy.cut_after(to_client=size)
        store.put("a", DATA, chunk_size=50_000, timeout=20)
        check(observer, DATA)

    @pytest.mark.parametrize("places", [[0], [3], [19], [2, 3, 11], [*range(20)]])
    def test_a_put_survives_answers_that_never_arrive(self, nats_server, observer, places):
        """If some chunks or all of them get no answer, they are sent again."""
        with jetsync.connect(nats_server.url, plugins=[Divert(*places)]) as client:
            with client.subscribe("silent"):
                store = client.jetstream().object_store(observer.bucket)
                info = store.put("a", DATA, chunk_size=50_000)
            assert client.statistics().requests_in_flight == 0
        assert (info.size, info.chunks) == (len(DATA), 20)
        check(observer, DATA)

    @pytest.mark.parametrize("places", [[0], [1, 5, 6, 20], [*range(40, 70)]])
    def test_a_put_survives_lost_answers(self, observer, answers, places):
        """If answers to stored chunks are lost, no chunk is stored twice or in the wrong place."""
        answers.lost.update(places)
        data = os.urandom(20 << 20)
        info = observer.put("a", data, chunk_size=1 << 17)
        subject = f"$O.{observer.bucket}.C.{info.nuid}"
        assert observer.stream.info(subjects_filter=subject).state.subjects == {subject: 160}
        check(observer, data)

    def test_plugins_see_lost_answers(self, proxied, observer, answers):
        """Only chunks without an answer are reported as failed, with an unknown outcome."""
        counts = []

        class Counts:
            @hookimpl
            def jetsync_status(self, event):
                """
                Note the counts.
                """
                if isinstance(event, jetsync.PublishCountsEvent):
                    counts.append((event.failed, event.unknown, event.duplicates))

        answers.lost.update([3, 7])
        js, _ = proxied(Counts())
        js.object_store(observer.bucket).put("a", DATA, chunk_size=50_000)
        # Chunk 7 was also stored before the second chunk 4, and then again after that.
        assert [*map(sum, zip(*counts, strict=True))] == [2, 2, 2]
        assert answers.requests == 20 + 17 + 13
        check(observer, DATA)

    @pytest.mark.parametrize(
        "error", [ValueError("x"), jetsync.StreamFullError(description="x"), Stop()], ids=repr
    )
    def test_a_plugin_that_fails_after_the_document_is_stored(self, proxied, observer, error):
        """The chunks stay, because the stored document needs them."""

        class Fails:
            @hookimpl(wrapper=True)
            def jetsync_publish(self, operation):
                """
                Fail after each publish but those of chunks.
                """
                yield
                if operation.name != "put":
                    raise error

        observer.put("a", OLD)
        js, _ = proxied(Fails())
        with pytest.raises((jetsync.PluginError, Stop)):
            js.object_store(observer.bucket).put("a", DATA, chunk_size=50_000)
        check(observer, DATA)

    def test_ctrl_c_while_the_old_chunks_are_removed(self, observer, js, monkeypatch):
        """Ctrl-C after the document is stored leaves no chunks of the replaced object."""
        observer.put("a", OLD)
        store, purge = js.object_store(observer.bucket), bucket.Bucket.purge_chunks

        def interrupted(self, *arguments):
            monkeypatch.setattr(bucket.Bucket, "purge_chunks", purge)
            raise Stop

        monkeypatch.setattr(bucket.Bucket, "purge_chunks", interrupted)
        with pytest.raises(Stop) as caught:
            store.put("a", DATA)
        assert not hasattr(caught.value, "nuid")
        assert observer.collect_garbage(0) == 0
        check(observer, DATA)

    @pytest.mark.parametrize(
        ("place", "name"), [(bucket, "publish_one"), (bucket.Bucket, "drop_chunks")]
    )
    def test_a_signal_handler_fails_after_the_document_is_stored(
        self, observer, js, monkeypatch, place, name
    ):
        """If a signal handler makes a call that is refused, the stored object keeps its chunks."""
        observer.put("a", OLD)
        store, step = js.object_store(observer.bucket), getattr(place, name)

        def interrupted(*arguments, **options):
            monkeypatch.setattr(place, name, step)
            step(*arguments, **options)
            raise jetsync.CallInSignalHandlerError

        monkeypatch.setattr(place, name, interrupted)
        with pytest.raises(jetsync.CallInSignalHandlerError):
            store.put("a", DATA)
        assert observer.collect_garbage(0) == 0
        check(observer, DATA)

    @pytest.mark.parametrize(
        "late",
        [
            pytest.param({3: 0.2, 5: 0.4, 7: 0.6}, id="some"),
            pytest.param({0: 1.4, 19: 0.8}, id="soon after the newest one"),
            pytest.param(dict.fromkeys(range(20), 1.3), id="all"),
        ],
    )
    def test_late_answers_are_awaited(self, observer, answers, late):
        """No chunk is sent again for a late answer, if it is not long after that to the newest."""
        answers.late.update(late)
        observer.put("a", DATA, chunk_size=50_000)
        assert answers.requests == 20
        check(observer, DATA)

    def test_answers_that_are_seen_late_are_progress(self, observer, answers, monkeypatch):
        """If a process stands still after answers have arrived, its put goes on afterwards."""
        passed, settle = [], upload.Upload._settle

        def stand_still(self):
            if self._in_flight and self._in_flight[0].request.ready:
                passed.append(100.0)
            settle(self)

        monkeypatch.setattr(upload.Upload, "_settle", stand_still)
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed))
        monkeypatch.setattr(upload, "time", clock)
        answers.late[19] = 0.5
        observer.put("a", DATA, chunk_size=50_000)
        assert passed
        check(observer, DATA)

    def test_a_put_survives_many_cuts(self, store, observer):
        """A put continues after each of many cuts."""
        store, proxy = store
        chance, data = random.Random(5), bytearray()

        def pieces():
            cuts = 0
            while (done := proxy.statistics().cuts) < 5:
                # Another call would replace a cut that has not happened yet.
                if done == cuts:
                    cuts += 1
                    proxy.cut_after(to_server=chance.randrange(60_000))
                data.extend(piece := os.urandom(20_000))
                yield piece

        store.put("a", pieces(), chunk_size=7000, timeout=20)
        check(observer, data)

    def test_no_chunk_is_stored_before_one_that_was_lost(self, proxied, observer):
        """If a connection is lost with a chunk, the next chunk is not sent before that one."""
        js, proxy = proxied()

        def pieces():
            yield DATA[:50_000]
            proxy.pause("to_server")
            yield DATA[50_000:100_000]
            proxy.cut()
            proxy.resume()
            eventually(lambda: asked(js))
            yield DATA[100_000:150_000]

        js.object_store(observer.bucket).put("a", pieces(), chunk_size=50_000, timeout=20)
        assert observer.stream.info().state.num_deleted == 0
        check(observer, DATA[:150_000])

    def test_a_put_of_more_data_than_the_window_survives_cuts(self, store, observer):
        """Chunks that are sent again after a cut have their own data, not that of later chunks."""
        store, proxy = store
        data, cuts = os.urandom(24 << 20), []

        def pieces():
            for at in range(0, len(data), 1 << 20):
                # Another call would replace a cut that has not happened yet.
                if at >= 5 << 20 and proxy.statistics().cuts == len(cuts):
                    cuts.append(at)
                    proxy.cut_after(to_server=(2 << 20) + 1234)
                yield data[at : at + (1 << 20)]

        store.put("a", pieces(), timeout=20)
        assert proxy.statistics().cuts >= 1
        check(observer, data)

    @pytest.mark.parametrize("replaces", [False, True])
    @pytest.mark.parametrize("to_client", [0, 10, 100])
    def test_the_document_is_found_after_a_cut(self, store, observer, replaces, to_client):
        """If the answer to the document is lost, jetsync finds out that it was stored."""
        store, proxy = store
        if replaces:
            observer.put("a", OLD)
        total = len(DATA)

        def progress(done, _):
            if done == total:
                proxy.cut_after(to_client=to_client)

        info = store.put("a", DATA, on_progress=progress, timeout=20)
        assert info.revision == observer.info("a").revision
        check(observer, DATA)

    @pytest.mark.parametrize("to_server", [0, 50, 200, 500])
    def test_the_document_is_sent_again_after_a_cut(self, store, observer, to_server):
        """If the document is lost, jetsync sends it again."""
        store, proxy = store
        observer.put("a", OLD)

        def progress(done, _):
            if done == len(DATA):
                proxy.cut_after(to_server=to_server)

        store.put("a", DATA, on_progress=progress, timeout=20)
        check(observer, DATA)

    def test_the_chunks_are_counted_after_a_second_cut(self, store, observer):
        """After a cut, a put counts its chunks, and it does so again if the answer is lost."""
        store, proxy = store

        def pieces():
            proxy.cut_after(to_server=100_000)
            yield DATA

        def progress(done, _):
            if done == len(DATA):
                proxy.cut_after(to_client=10)

        store.put("a", pieces(), chunk_size=50_000, on_progress=progress, timeout=20)
        assert proxy.statistics().cuts == 2
        check(observer, DATA)

    def test_a_put_without_a_connection_fails_in_time(self, store, observer):
        """Without a connection, a put fails after its timeout, and says which chunks stay."""
        store, proxy = store

        def pieces():
            yield DATA[:200_000]
            eventually(lambda: observer.stream.info().state.messages)
            proxy.refuse()
            proxy.cut()
            yield DATA[200_000:]

        with pytest.raises((jetsync.DisconnectedError, jetsync.RequestTimeoutError)) as caught:
            store.put("a", pieces(), timeout=0.5)
        subject = f"$O.{observer.bucket}.C.{caught.value.nuid}"
        assert subject in observer.stream.info(subjects_filter=">").state.subjects
        assert observer.collect_garbage(0) == 1
        check(observer, None)

    def test_the_outcome_may_stay_unknown(self, store, observer):
        """If nobody can say whether the document was stored, nothing is removed."""
        store, proxy = store

        def progress(done, _):
            if done == len(DATA):
                proxy.pause("to_client")

        with pytest.raises(jetsync.PublishOutcomeUnknownError) as caught:
            store.put("a", DATA, on_progress=progress, timeout=0.5)
        proxy.resume()
        assert observer.info("a").nuid == caught.value.nuid
        check(observer, DATA)

    @pytest.mark.parametrize("change", ["update_meta", "rename"])
    @pytest.mark.parametrize("failure", [jetsync.PublishOutcomeUnknownError("x"), Stop()])
    def test_a_changed_document_keeps_its_data(self, observer, js, monkeypatch, change, failure):
        """
        If another client changes or renames an object whose put has no answer, its data stays.
        """
        store = js.object_store(observer.bucket)
        publish = bucket.publish_one

        def lose_answer(*arguments, **options):
            monkeypatch.undo()
            publish(*arguments, **options)
            if change == "rename":
                observer.rename("a", "b")
            else:
                observer.update_meta("a", description="d")
            raise failure

        monkeypatch.setattr(bucket, "publish_one", lose_answer)
        with pytest.raises(type(failure)) as caught:
            store.put("a", DATA)
        (info,) = observer.list()
        assert info.nuid == caught.value.nuid
        assert observer.get_bytes(info.name) == DATA

    @pytest.mark.parametrize("failure", [jetsync.PublishOutcomeUnknownError("x"), Stop()])
    def test_a_removed_document_stays_removed(self, observer, js, monkeypatch, failure):
        """If another client removes an object whose put has no answer, it is not stored again."""
        observer.put("a", OLD)
        observer.delete("a")
        store = js.object_store(observer.bucket)
        publish = bucket.publish_one

        def lose_answer(*arguments, **options):
            monkeypatch.undo()
            publish(*arguments, **options)
            observer.delete("a")
            observer.purge_deletes(0)
            raise failure

        monkeypatch.setattr(bucket, "publish_one", lose_answer)
        with pytest.raises(type(failure)):
            store.put("a", DATA)
        check(observer, None)

    def test_a_silent_server_ends_a_put_in_time(self, store, observer, monkeypatch):
        """If no acknowledgement arrives, a put fails after its timeout."""
        store, proxy = store
        # The timeout ends the wait for an overdue answer, too.
        monkeypatch.setattr(upload, "OVERDUE", 100.0)

        def pieces():
            yield DATA[:50_000]
            proxy.pause("to_client")
            yield DATA[50_000:]

        started = time.monotonic()
        with pytest.raises(jetsync.RequestTimeoutError):
            store.put("a", pieces(), chunk_size=50_000, timeout=0.5)
        assert time.monotonic() - started < 60
        proxy.resume()
        check(observer, None)

    @pytest.mark.parametrize("way", ["to_server", "to_client"])
    def test_slow_connections_are_progress(self, store, observer, way):
        """A put that takes longer than its timeout goes on while chunks are confirmed."""
        store, proxy = store
        proxy.delay(0.1, way)

        def pieces():
            for at in range(0, 100_000, 10_000):
                time.sleep(0.1)  # A slow source is no progress of the server, and no failure.
                yield DATA[at : at + 10_000]

        store.put("a", pieces(), chunk_size=10_000, timeout=0.8)
        proxy.delay(0.0)
        check(observer, DATA[:100_000])


class Misdirect:
    """
    Send chunks to a subject without a stream, the first time or several times.
    """

    def __init__(self, *numbers, times=1):
        self._left = dict.fromkeys(map(str, numbers), times)

    @hookimpl
    def jetsync_prepare_message(self, message):
        """
        Change the subject of the chosen chunks.
        """
        number = (message.msg_id or "").partition("-")[2].partition("-")[0]
        if self._left.get(number):
            self._left[number] -= 1
            message.subject = "nowhere"
        return message


@pytest.fixture
def slots(monkeypatch):
    """
    The memory for chunks that exists.
    """
    alive = weakref.WeakSet()

    class Slot(upload.Slot):
        __slots__ = ("__weakref__",)

        def __init__(self, room, size):
            super().__init__(room, size)
            alive.add(self)

    monkeypatch.setattr(upload, "Slot", Slot)
    gc.disable()
    yield alive
    gc.enable()


class TestMemory:
    @pytest.mark.parametrize("keeps", [False, True])
    def test_a_failed_put_frees_its_memory(self, observer, slots, keeps):
        """The chunks of a put that failed are freed at once, even if the caller keeps the error."""
        observer.stream.update(max_bytes=500_000)
        try:
            observer.put("a", DATA, chunk_size=50_000)
        except jetsync.StreamFullError as error:
            kept = error if keeps else None
        # The frames of the traceback have at most the chunk that failed and the next one.
        assert len(slots) <= (2 if keeps else 0)
        del kept
        assert not slots


class TestOrder:
    @pytest.mark.parametrize("numbers", [(0,), (5,), (19,), (0, 7, 8, 19)])
    def test_a_chunk_in_the_wrong_place_is_stored_again(self, proxied, observer, numbers):
        """If the stream misses a chunk and has later ones, these are stored again after it."""
        js, _ = proxied(Misdirect(*numbers))
        store = js.object_store(observer.bucket)
        info = store.put("a", DATA, chunk_size=50_000)
        subject = f"$O.{observer.bucket}.C.{info.nuid}"
        assert observer.stream.info(subjects_filter=subject).state.subjects == {subject: 20}
        check(observer, DATA)

    def test_a_chunk_that_is_stored_before_an_earlier_one(self, proxied, observer):
        """If the stream has only a later chunk and its answer is lost, it is stored again."""
        js, proxy = proxied(Misdirect(0))
        store, old = js.object_store(observer.bucket), observer.put("a", OLD)
        before = observer.stream.info().state.messages

        def pieces():
            proxy.pause("to_client")
            yield DATA[:1000]
            yield DATA[1000:2000]
            eventually(lambda: observer.stream.info().state.messages > before)
            proxy.cut()
            proxy.resume()

        info = store.put("a", pieces(), chunk_size=1000, expect=old, timeout=20)
        subject = f"$O.{observer.bucket}.C.{info.nuid}"
        assert observer.stream.info(subjects_filter=subject).state.subjects == {subject: 2}
        check(observer, DATA[:2000])

    def test_a_cut_while_chunks_are_removed(self, proxied, observer, monkeypatch):
        """If the answer to the removal of a chunk in the wrong place is lost, the put continues."""
        js, proxy = proxied(Misdirect(0))
        store, old = js.object_store(observer.bucket), observer.put("a", OLD)
        before = observer.stream.info().state.messages
        delete = jetsync.Stream.delete_message

        def pieces():
            # Otherwise, the failure of the first chunk may arrive before the second one is sent.
            proxy.pause("to_client")
            yield DATA[:1000]
            yield DATA[1000:2000]
            eventually(lambda: observer.stream.info().state.messages > before)
            proxy.resume()

        def cut(*arguments, **options):
            monkeypatch.undo()
            proxy.cut_after(to_client=10)
            delete(*arguments, **options)

        monkeypatch.setattr(jetsync.Stream, "delete_message", cut)
        store.put("a", pieces(), chunk_size=1000, expect=old, timeout=20)
        assert proxy.statistics().cuts == 1
        check(observer, DATA[:2000])

    def test_a_chunk_that_is_never_stored_ends_the_put(self, proxied, observer):
        """A put fails in time if one chunk is never stored, although all others are."""
        js, _ = proxied(Misdirect(5, times=1000))
        store = js.object_store(observer.bucket)
        with pytest.raises(jetsync.RequestTimeoutError) as caught:
            store.put("a", DATA, chunk_size=50_000, timeout=1)
        assert isinstance(caught.value.__cause__, jetsync.NoStreamResponseError)
        check(observer, None)


def first_piece(reader):
    """Take from `chunks()` without a step at which the caller has the piece already."""
    # Kept, because Python swallows an interrupt that hits the end of a dropped generator.
    reader.kept = reader.chunks()
    for _ in reader.kept:
        break


class TestInterrupts:
    @pytest.mark.thorough
    def test_an_interrupt_at_any_step(self, store, observer):
        """Ctrl-C at any step of a put leaves the whole old object or the whole new one."""
        store, _ = store
        new = DATA[:30_000]

        def put():
            store.put("a", new, chunk_size=10_000)

        observer.put("a", OLD)
        total = steps_of(put)
        chance = random.Random(3)
        steps = [*sorted(chance.sample(range(1, total), 30)), total - 1, total - 2]
        for step in steps:
            observer.put("a", OLD)
            interrupted_at(step, put)
            check(observer, OLD, new)
            store.put("a", new)
            check(observer, new)

    def test_an_interrupt_when_answers_are_overdue(self, nats_server, observer, monkeypatch):
        """Ctrl-C while a put gives up some answers leaves no chunks and no requests."""

        def strike(*arguments):
            monkeypatch.undo()
            raise Stop

        monkeypatch.setattr(upload, "error_of", strike)
        with jetsync.connect(nats_server.url, plugins=[Divert(0, 2, 4)]) as client:
            with client.subscribe("silent"):
                store = client.jetstream().object_store(observer.bucket)
                with pytest.raises(Stop):
                    store.put("a", DATA, chunk_size=50_000)
            assert client.statistics().requests_in_flight == 0
        check(observer, None)

    def test_an_interrupt_before_the_description(self, store, observer, monkeypatch):
        """Ctrl-C after the last chunk, and before the description is sent, leaves no chunks."""
        store, _ = store

        def strike(digest):
            raise Stop

        monkeypatch.setattr(put, "encode_digest", strike)
        with pytest.raises(Stop):
            store.put("a", DATA)
        assert observer.stream.info().state.messages == 0

    def test_an_interrupt_after_the_description(self, observer, monkeypatch):
        """Ctrl-C after the description is sent completes the put, which removes the old chunks."""
        observer.put("a", OLD)
        publish = bucket.publish_one

        def strike(*arguments, **options):
            publish(*arguments, **options)
            monkeypatch.setattr(bucket, "publish_one", publish)
            raise Stop

        monkeypatch.setattr(bucket, "publish_one", strike)
        with pytest.raises(Stop):
            observer.put("a", DATA)
        assert observer.get_bytes("a") == DATA
        chunks = observer.stream.info(subjects_filter=f"$O.{observer.bucket}.C.>").state.subjects
        assert len(chunks) == 1

    def test_an_interrupt_of_a_read(self, store, observer):
        """After Ctrl-C at any step of a read, the next read returns the data from its position."""
        observer.put("a", OLD, chunk_size=100_000)
        store, _ = store

        def read():
            with store.get("a") as reader:
                assert reader.read(150_000) == OLD[:150_000]

        total = steps_of(read)
        for step in sorted(random.Random(4).sample(range(1, total), 60)):
            reader = store.get("a")
            if not interrupted_at(step, lambda reader=reader: reader.read(150_000)):
                assert reader.tell() == 0, step
                assert reader.read() == OLD, step
            reader.close()
        assert store.get_bytes("a") == OLD

    @pytest.mark.parametrize(
        "call",
        [
            lambda reader: reader.read(25_000),
            lambda reader: reader.read1(25_000),
            lambda reader: reader.readinto(bytearray(25_000)),
            lambda reader: reader.readline(25_000),
            lambda reader: reader.peek(),
            first_piece,
        ],
    )
    def test_an_interrupt_between_two_chunks(self, observer, monkeypatch, call):
        """Ctrl-C at any step of a read skips no bytes, and the digest is still checked."""
        data, step, ended = bytes(OLD[:50_000]), 0, False
        observer.put("a", data, chunk_size=10_000)
        while not ended:
            step += 1
            reader = observer.get("a")
            reader.read(5000)
            # The steps of the open read are those of a list.
            monkeypatch.setattr(
                reader,
                "_chunks",
                iter([data[i : i + 10_000] for i in range(10_000, 50_000, 10_000)]),
            )
            ended = interrupted_at(step, lambda: call(reader))  # noqa: B023
            at = reader.tell()
            assert ended or at == 5000, step
            assert reader.read() == data[at:], step
            assert reader._hashed == 5, step
            reader.close()


class TestServers:
    def test_a_killed_server(self, fragile, victim, unique):
        """A put continues after its server was killed and started again."""
        store = fragile.create_object_store(unique)

        def pieces():
            for at in range(0, len(DATA), 100_000):
                yield DATA[at : at + 100_000]
                if at in {300_000, 900_000}:
                    victim.kill()
                    victim.start()

        store.put("a", pieces(), chunk_size=30_000, timeout=30)
        assert store.get_bytes("a", timeout=20) == DATA
        fragile.delete_object_store(unique, timeout=20)


class TestReads:
    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
    def test_a_get_survives_a_cut(self, store, observer, share):
        """If the connection is lost during a read, the read continues after the last chunk."""
        store, proxy = store
        observer.put("a", DATA, chunk_size=50_000)
        with store.get("a", timeout=20) as reader:
            proxy.cut_after(to_client=int(share * len(DATA)))
            assert reader.read() == DATA
            proxy.cut_after(to_client=500)
            reader.seek(500_000)
            assert reader.read(1000) == DATA[500_000:501_000]

    def test_a_get_creates_another_consumer(self, observer, js, monkeypatch):
        """
        If a server does not answer the creation of a consumer, jetsync creates one with another
        name, because its servers may have placed the first one where no server answers.
        """
        observer.put("a", DATA, chunk_size=50_000)
        observer.stream.update(allow_direct=False)
        store, asked, exchange = js.object_store(observer.bucket), [], Connection.exchange

        def lose_first(connection, subject, *arguments, **options):
            answer = exchange(connection, subject, *arguments, **options)
            if b".CONSUMER.CREATE." in subject:
                asked.append(subject)
                if len(asked) == 1:
                    raise jetsync.RequestTimeoutError(subject.decode(), 0.0)
            return answer

        monkeypatch.setattr(Connection, "exchange", lose_first)
        assert store.get_bytes("a", timeout=20) == DATA
        assert len(asked) == len(set(asked)) == 2

    def test_a_get_without_a_connection_fails_in_time(self, store, observer):
        """Without a connection, a read fails after its timeout, and can be repeated later."""
        store, proxy = store
        observer.put("a", DATA, chunk_size=50_000)
        with store.get("a", timeout=0.5) as reader:
            proxy.refuse()
            proxy.cut()
            with pytest.raises((jetsync.DisconnectedError, jetsync.RequestTimeoutError)):
                reader.read()
            assert reader.tell() == 0
            proxy.accept()
            store.status(timeout=20)
            assert reader.read() == DATA
