"""
Atomic batches and Ctrl-C, a discard by another thread, and a forked child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.forks import fork
from helpers.interrupts import Interrupt, handled_at, interrupted_at, is_locked
from helpers.streams import batch_stream
from helpers.waiting import blocked, eventually
from jetsync._base.locks import Notifier
from jetsync._proto.batch import AtomicBatchEngine
from jetsync.hookspecs import hookimpl
from jetsync.publish.atomic import AtomicBatch
from jetsync.publish.atomic_attempt import BatchAttempt
from jetsync.publish.stage import MOST_STAGED_BYTES

OPEN_BATCHES = 50
"""Batches that servers keep for one stream (ADR-50)."""


@contextlib.contextmanager
def busy(server, batch, subject):
    """
    Have another thread wait in ``batch.add`` for a paused server.
    """
    server.pause()
    try:
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(batch.add, subject, b"late", timeout=20)
            blocked(pool)
            yield call
    finally:
        server.resume()


def staging_batch(js, subject):
    """
    A batch of two messages whose next small message is staged.
    """
    batch = js.atomic_batch(ack_every=8)
    batch.add(subject, b"1")
    batch.add(subject, bytes(MOST_STAGED_BYTES))
    return batch


class TestDiscard:
    def test_while_another_thread_adds(self, victim, unique):
        """
        A discard never waits: the call that is using the batch discards it when it ends.
        """
        with jetsync.connect(victim.url) as client:
            js = client.jetstream()
            stream = batch_stream(js, unique)
            batch = js.atomic_batch(ack_every=1)
            batch.add(f"{unique}.A", b"1")
            with busy(victim, batch, f"{unique}.A") as call:
                batch.discard()
                assert not call.done()
                victim.resume()
                call.result(20)
            for use in (lambda: batch.add(f"{unique}.A"), batch.commit):
                with pytest.raises(jetsync.BatchClosedError, match="discarded"):
                    use()
            assert stream.info().state.messages == 0

    def test_for_a_waiting_call(self, victim, unique):
        """
        A call that waits for the batch raises an error once it is discarded.
        """
        with jetsync.connect(victim.url) as client:
            js = client.jetstream()
            batch_stream(js, unique)
            batch = js.atomic_batch(ack_every=1)
            batch.add(f"{unique}.A", b"1")
            with busy(victim, batch, f"{unique}.A") as call:
                with ThreadPoolExecutor(1) as pool:
                    waiting = pool.submit(batch.commit, timeout=20)
                    batch.discard()
                    victim.resume()
                    assert isinstance(waiting.exception(20), jetsync.BatchClosedError)
                call.result(20)

    def test_while_a_commit_begins(self, js, stream, monkeypatch):
        """
        If another thread discards a batch while its commit begins, the commit discards it.
        """
        stop_staging, discard, discarded = BatchAttempt.stop_staging, BatchAttempt.discard, []
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        with ThreadPoolExecutor(1) as pool:

            def stop(attempt):
                pool.submit(batch.discard).result(20)
                assert not discarded
                stop_staging(attempt)

            monkeypatch.setattr(BatchAttempt, "stop_staging", stop)
            monkeypatch.setattr(
                BatchAttempt, "discard", lambda self: discarded.append(discard(self))
            )
            with pytest.raises(jetsync.BatchClosedError, match="discarded"):
                batch.commit()
        assert len(discarded) == 1
        assert stream.info().state.messages == 0

    def test_a_handler_may_discard_the_batch_that_it_interrupts(self, victim, unique):
        """
        A handler that interrupts an add of the same thread may discard the batch.
        """
        with jetsync.connect(victim.url) as client:
            js = client.jetstream()
            batch_stream(js, unique)
            batch = js.atomic_batch(ack_every=1)
            batch.add(f"{unique}.A", b"1")
            came = []

            def handler(*_):
                batch.discard()
                came.append(True)
                victim.resume()

            before = signal.signal(signal.SIGALRM, handler)
            victim.pause()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                batch.add(f"{unique}.A", b"2", timeout=20)
            finally:
                signal.signal(signal.SIGALRM, before)
                victim.resume()
            assert came
            with pytest.raises(jetsync.BatchClosedError, match="discarded"):
                batch.commit()

    def test_an_add_in_a_signal_handler_that_interrupts_a_write(self, js, stream):
        """
        The add raises CallInSignalHandlerError, and the batch is unchanged.
        """
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        # The handler runs in the thread that holds the lock of the interrupted write.
        with (
            connection_of(js).lane.outbox.write_lock,
            pytest.raises(jetsync.CallInSignalHandlerError),
        ):
            batch.add(f"{stream.name}.A", bytes(MOST_STAGED_BYTES), msg_id="a")
        assert batch.size == 1
        batch.add(f"{stream.name}.A", bytes(MOST_STAGED_BYTES), msg_id="a")
        assert batch.commit().size == 2

    @pytest.mark.parametrize("call", ["add", "commit", "discard"])
    def test_in_a_signal_handler_at_any_step_of_an_add(self, js, stream, monkeypatch, call):
        """
        A handler that interrupts an add uses the batch, or its call raises an error.
        """
        monkeypatch.setattr("jetsync.publish.atomic_attempt.STAGING_PAUSE", 60.0)
        subject, step, ended, results = f"{stream.name}.A", 0, False, set()

        def handler():
            with contextlib.suppress(jetsync.CallInSignalHandlerError):
                batch.add(subject, b"3") if call == "add" else getattr(batch, call)()
                calls.append(call)

        while not ended:
            step += 1
            calls: list[str] = []
            batch = js.atomic_batch()
            batch.add(subject, b"1")
            try:
                ended, _ = handled_at(step, lambda: batch.add(subject, b"2"), handler)  # noqa: B023
                added = 2
            except jetsync.BatchClosedError:
                added = 1
            assert not is_locked(batch._turn._lock), step
            if call == "add":
                assert batch.commit().size == added + len(calls), step
            elif calls and call == "discard":
                with pytest.raises(jetsync.BatchClosedError):
                    batch.add(subject, b"4")
            elif calls:
                assert batch.ack is not None
                assert batch.ack.size == added, step
            else:
                assert batch.commit().size == 2, step
            results.add(len(calls))
        assert results == {0, 1}

    def test_a_discard_in_a_forked_child_does_nothing(self, js, stream):
        """
        A discard in a forked child does nothing, even if another thread held the lock.
        """
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        with batch._turn._lock:
            child = fork()
            if child == 0:
                signal.alarm(5)
                batch.discard()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert batch.commit().size == 1

    def test_the_lock_of_the_writes_is_taken(self, js, stream):
        """
        A discard does not wait for a write in progress.
        """
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        with connection_of(js).lane.outbox.write_lock:
            batch.discard()
        with pytest.raises(jetsync.BatchClosedError):
            batch.commit()


class TestCtrlC:
    def test_in_the_block(self, js, stream, monkeypatch):
        """
        Ctrl-C at the start of an add leaves no lock held, and the block ends at once.
        """
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        Interrupt(monkeypatch, BatchAttempt, "stage")
        with pytest.raises(KeyboardInterrupt), batch:
            batch.add(f"{stream.name}.A", b"2")
        assert not is_locked(batch._turn._lock)
        assert stream.info().state.messages == 0

    @pytest.fixture
    def far(self, nats_server):
        """
        A context of another client, whose connection may be lost.
        """
        with jetsync.connect(nats_server.url, reconnect_wait=0.01) as client:
            yield client.jetstream()

    @staticmethod
    def begun(js, *messages, ack_every=0):
        """
        Return a batch with these messages. An interrupt of an earlier write drops the connection.
        """
        while True:
            batch = js.atomic_batch(ack_every=ack_every)
            try:
                for message in messages:
                    batch.add(*message)
            except jetsync.ConnectionLostError:
                continue
            return batch

    @pytest.mark.parametrize("size", [1, MOST_STAGED_BYTES])
    def test_at_any_step_of_an_add(self, far, stream, monkeypatch, size):
        """
        Ctrl-C leaves the lock free. The batch either has the whole message or nothing of it, or its
        next call raises BatchClosedError. It closes no batch whose message is staged.
        """
        monkeypatch.setattr("jetsync.publish.atomic_attempt.STAGING_PAUSE", 60.0)
        subject, step, ended, closed = f"{stream.name}.A", 0, False, 0
        while not ended:
            step += 1
            batch = self.begun(far, (subject, b"1"))
            ended = interrupted_at(step, lambda: batch.add(subject, bytes(size)))  # noqa: B023
            assert not is_locked(batch._turn._lock), step
            try:
                assert batch.commit().size == batch.size, step
            except jetsync.ConnectionLostError:
                pass
            except jetsync.BatchClosedError as error:
                closed += "interrupted" in str(error)
            batch.discard()
        assert batch.ack.size == 2
        assert bool(closed) is (size > 1)

    @pytest.mark.parametrize(("size", "ack_every"), [(1, 0), (MOST_STAGED_BYTES, 0), (1, 2)])
    def test_an_add_after_an_interrupted_one(self, far, stream, size, ack_every):
        """
        The messages that are added after Ctrl-C have the next numbers of the batch.
        """
        subject, step, ended = f"{stream.name}.A", 0, False
        while not ended:
            step += 1
            batch = self.begun(far, (subject, b"1"), ack_every=ack_every)
            ended = interrupted_at(step, lambda: batch.add(subject, bytes(size)))  # noqa: B023
            with contextlib.suppress(jetsync.ConnectionLostError, jetsync.BatchClosedError):
                batch.add(subject, b"2")
                assert batch.commit(subject, b"3").size == batch.size, step
            batch.discard()
        assert batch.ack.size == 4

    def test_at_any_step_of_a_commit(self, far, stream):
        """
        The batch is stored once or not at all, and never reported otherwise. It can be sent again,
        or an error says that its commit was interrupted.
        """
        step, ended, refused = 0, False, 0
        # By the subject of each batch, how many messages the stream may have in the end. The server
        # may store a batch long after the interrupt.
        sizes: dict[str, set[int]] = {}
        while not ended:
            step += 1
            subject = f"{stream.name}.{step}"
            batch = self.begun(far, (subject, b"1"), (subject, b"2"))
            ended = interrupted_at(step, batch.commit)
            assert not is_locked(batch._turn._lock), step
            # Without message ids, it is sent again only if the first attempt was not stored.
            if batch.ack is None:
                try:
                    batch.resend()
                except jetsync.ConflictingUseError as error:
                    refused += "interrupted" in str(error)
                except (
                    jetsync.InvalidArgumentError,
                    jetsync.TransportError,
                    jetsync.BatchOutcomeUnknownError,
                ):
                    pass
            sizes[subject] = {0, 2} if batch.ack is None else {2}
            batch.discard()
            with warnings.catch_warnings():
                # If the interrupt strikes right before the commit is sent, nothing else ends it.
                warnings.simplefilter("ignore", ResourceWarning)
                ack = batch.ack
                del batch

        def wrong():
            stored = stream.info(subjects_filter=">").state.subjects or {}
            counts = {subject: stored.get(subject, 0) for subject in sizes}
            return {each: count for each, count in counts.items() if count not in sizes[each]}

        with contextlib.suppress(AssertionError):  # Raised below, with the counts.
            eventually(lambda: not wrong())
        assert not wrong()
        assert ack.size == 2
        assert refused

    def test_at_any_step_of_an_add_that_stages(self, js, stream, monkeypatch):
        """
        Ctrl-C leaves the message in the batch or not. The batch stays usable.
        """
        subject, step, ended = f"{stream.name}.A", 0, False
        monkeypatch.setattr("jetsync.publish.atomic_attempt.STAGING_PAUSE", 60.0)
        while not ended:
            step += 1
            batch = staging_batch(js, subject)
            ended = interrupted_at(step, lambda: batch.add(subject, b"2"))  # noqa: B023
            size = batch.size
            batch.add(subject, b"3")
            assert batch.size == size + 1, step
            assert batch.commit().size == size + 1, step
        assert size == 3
        assert step > 5

    def test_a_handler_adds_at_any_step_of_an_add_that_stages(self, js, stream, monkeypatch):
        """
        A handler that adds to the batch that it interrupts is refused, or both messages are added.
        """
        subject, step, ended = f"{stream.name}.A", 0, False
        monkeypatch.setattr("jetsync.publish.atomic_attempt.STAGING_PAUSE", 60.0)
        while not ended:
            step += 1
            batch, added = staging_batch(js, subject), []

            def handler(batch=batch, added=added):
                with contextlib.suppress(jetsync.CallInSignalHandlerError):
                    batch.add(subject, b"3")
                    added.append(3)

            ended, _ = handled_at(step, lambda: batch.add(subject, b"2"), handler)  # noqa: B023
            assert batch.size == 3 + len(added), step
            assert batch.commit().size == 3 + len(added), step
        assert step > 5

    def test_in_an_add(self, js, stream, monkeypatch):
        """
        A batch whose add was interrupted takes no more calls. Discarding it frees its place on the
        server.
        """
        batches = [js.atomic_batch() for _ in range(OPEN_BATCHES)]
        for batch in batches:
            batch.add(f"{stream.name}.A", b"1")
        Interrupt(monkeypatch, connection_of(js).lane, "write")
        with pytest.raises(KeyboardInterrupt), batches[0]:
            batches[0].add(f"{stream.name}.A", bytes(MOST_STAGED_BYTES))
        with pytest.raises(jetsync.BatchClosedError):
            batches[0].commit()

        def one_more():
            # If the background thread is writing, the message that frees the place follows later.
            with contextlib.suppress(jetsync.TooManyInflightError):
                batch = js.atomic_batch()
                batch.add(f"{stream.name}.A", b"3")
                batches.append(batch)
            return len(batches) > OPEN_BATCHES

        # Otherwise the server frees it after ten seconds.
        eventually(one_more, 2)
        for batch in batches:
            batch.discard()

    def test_in_an_add_whose_block_catches_it(self, js, stream, monkeypatch):
        """
        A block that catches Ctrl-C in an add ends with an error, because nothing is stored.
        """
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        Interrupt(monkeypatch, connection_of(js).lane, "write")
        with (
            pytest.raises(jetsync.BatchClosedError, match="interrupted"),
            batch,
            contextlib.suppress(KeyboardInterrupt),
        ):
            batch.add(f"{stream.name}.A", bytes(MOST_STAGED_BYTES))
        batch.discard()
        assert stream.info().state.messages == 0

    def test_in_a_batch_that_is_sent_whole(self, js, stream, monkeypatch):
        """
        Ctrl-C before the answer to the first message leaves nothing that waits for this answer.
        """
        waiters = connection_of(js).router._waiters
        before = set(waiters)
        Interrupt(monkeypatch, BatchAttempt, "_ask")
        with pytest.raises(KeyboardInterrupt):
            js.publish_batch([(f"{stream.name}.A", b"1"), (f"{stream.name}.A", b"2")])
        assert set(waiters) == before
        assert stream.info().state.messages == 0

    def test_in_a_commit_that_adds_a_message(self, js, stream, monkeypatch):
        """
        A commit that was interrupted while it added its message is not repeated with two of them.
        """
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        commit = AtomicBatchEngine.commit

        def interrupted(*arguments):
            commit(*arguments)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(AtomicBatchEngine, "commit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                batch.commit(f"{stream.name}.A", b"2")
        with pytest.raises(jetsync.BatchClosedError, match="interrupted"):
            batch.commit(f"{stream.name}.A", b"2")
        batch.discard()
        assert stream.info().state.messages == 0

    @pytest.mark.parametrize(
        ("owner", "step"), [(AtomicBatch, "_send_until_stored"), (BatchAttempt, "send")]
    )
    def test_before_the_commit(self, js, stream, monkeypatch, owner, step):
        """
        A commit that was interrupted before it was sent can be sent again.
        """
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        with monkeypatch.context() as patched:
            Interrupt(patched, owner, step)
            with pytest.raises(KeyboardInterrupt):
                batch.commit()
        assert stream.info().state.messages == 0
        with pytest.raises(jetsync.BatchClosedError, match="the commit, and nothing is stored"):
            batch.add(f"{stream.name}.A", b"2")
        assert batch.resend().size == 1
        assert stream.info().state.messages == 1

    @pytest.mark.parametrize("step", ["__init__", "send"])
    def test_in_a_resend(self, proxied, js, stream, monkeypatch, step):
        """
        A resend that was interrupted does not make the outcome of the attempt before it known.
        """
        far, proxy = proxied()
        batch = far.atomic_batch()
        batch.add(f"{stream.name}.A", b"1", msg_id="1")
        proxy.pause("to_client")
        with pytest.raises(jetsync.BatchOutcomeUnknownError):
            batch.commit(timeout=0.3)
        proxy.resume()
        with monkeypatch.context() as patched:
            Interrupt(patched, BatchAttempt, step)
            with pytest.raises(KeyboardInterrupt):
                batch.resend()
        ack = batch.resend()
        assert (ack.duplicate, ack.sequence, ack.first_sequence) == (True, 1, 1)
        assert stream.info().state.messages == 1

    def test_after_the_answer(self, js, stream, monkeypatch):
        """
        If Ctrl-C comes between the answer to a commit and its reading, the outcome is unknown.
        """
        batch = js.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        with monkeypatch.context() as patched:
            Interrupt(patched, AtomicBatchEngine, "answered")
            with pytest.raises(KeyboardInterrupt):
                batch.commit()
        assert stream.info().state.messages == 1
        with pytest.raises(jetsync.BatchClosedError, match=r"may be stored; .* resend\(\)"):
            batch.commit()
        with pytest.raises(jetsync.InvalidArgumentError, match="outcome is unknown"):
            batch.resend()


class TestPlaces:
    def test_a_commit_that_a_plugin_forbids_frees_the_place(self, nats_server, js, stream):
        """
        A commit that a plugin forbids frees the server's place.
        """

        class Veto:
            @hookimpl(wrapper=True)
            def jetsync_batch_commit(self, operation):
                raise LookupError("no")
                yield

        with jetsync.connect(nats_server.url, plugins=[Veto()]) as client:
            batches = [client.jetstream().atomic_batch() for _ in range(OPEN_BATCHES)]
            for batch in batches:
                batch.add(f"{stream.name}.A", b"1")
            with pytest.raises((jetsync.PluginError, LookupError)):
                batches[0].commit()
            other = client.jetstream().atomic_batch()
            other.add(f"{stream.name}.A", b"1")
            for batch in (*batches, other):
                batch.discard()

    def test_no_bytes_are_taken(self, js, stream, monkeypatch):
        """
        An add that finds no room ends the batch and frees its place.
        """
        batches = [js.atomic_batch() for _ in range(OPEN_BATCHES)]
        for batch in batches:
            batch.add(f"{stream.name}.A", b"1")

        def full(self):
            raise jetsync.DisconnectedError(reason="no room")

        with monkeypatch.context() as patched:
            patched.setattr("jetsync._io.outbox.OUT_LIMIT", 0)
            patched.setattr(Notifier, "listen", full)
            with pytest.raises(jetsync.DisconnectedError):
                batches[0].add(f"{stream.name}.A", bytes(MOST_STAGED_BYTES))
        other = js.atomic_batch()
        other.add(f"{stream.name}.A", b"3")
        for batch in (*batches, other):
            batch.discard()

    def test_an_answer_that_is_missing_in_a_commit(self, proxied, js, stream, monkeypatch):
        """
        A commit that ran out of time before its last message was sent frees the place too.
        """
        far, proxy = proxied()
        # As on a server that needs a last message: the first one waits for the commit, and asks.
        monkeypatch.setattr("jetsync.publish.atomic_attempt.MARKER_LEVEL", 99)
        batch = far.atomic_batch()
        batch.add(f"{stream.name}.A", b"1")
        monkeypatch.undo()
        batches = [js.atomic_batch() for _ in range(OPEN_BATCHES - 1)]
        for each in batches:
            each.add(f"{stream.name}.A", b"2")
        proxy.pause("to_client")
        with pytest.raises(jetsync.RequestTimeoutError):
            batch.commit(f"{stream.name}.A", b"3", timeout=0.2)
        proxy.resume()
        batches.append(js.atomic_batch())
        far.account_info()
        batches[-1].add(f"{stream.name}.A", b"4")
        for each in batches:
            each.discard()
        assert stream.info().state.messages == 0
