"""
Reading many keys as a snapshot while another thread writes them.

The long form is ``pytest -m soak tests/soak/test_direct.py``: 200 rounds over 5000 keys, or the
number in ``JETSYNC_SOAK_ROUNDS``.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from array import array

import pytest

import jetsync
from jetsync.devserver import DevServer

ROUNDS = int(os.environ.get("JETSYNC_SOAK_ROUNDS", "200"))

# A stream with history only grows, and each read scans all of it: a new one is begun after this
# many rounds.
ROUNDS_OF_A_STREAM = 20


class Writer:
    """
    One thread that updates random keys as fast as it can.

    It is the only writer, so the n-th key it chose is the message with sequence n.
    """

    def __init__(self, url, stream, keys, seed):
        self.subjects = [f"{stream}.{number:05d}" for number in range(keys)]
        self.chosen = array("L")
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._url = url
        self._error = None
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self):
        with jetsync.connect(self._url) as client:
            # Every key exists before the first round.
            client.jetstream().publish_many(map(self._choose, range(len(self.subjects))))
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None and exc_info[0] is None:
            raise self._error

    def _choose(self, number):
        self.chosen.append(number)
        return self.subjects[number], b"%d" % len(self.chosen)

    def _updates(self):
        while not self._stop.is_set():
            yield self._choose(self._random.randrange(len(self.subjects)))

    def _write(self):
        try:
            with jetsync.connect(self._url) as client:
                # A server that searches thousands of keys delays the publishers.
                client.jetstream().publish_many(self._updates(), ack_timeout=60)
        except BaseException as error:
            self._error = error
            raise


class Replay:
    """
    Computes the last sequence of each subject, at increasing sequences.
    """

    def __init__(self, writer):
        self._writer = writer
        self._at = 0
        self.state = {}

    def go_to(self, sequence):
        """
        Return the state when *sequence* was the last one.
        """
        if sequence < self._at:
            # The snapshot of a single page is the last sequence of the server that answered.
            self._at, self.state = 0, {}
        for number in range(self._at, sequence):
            self.state[self._writer.subjects[self._writer.chosen[number]]] = number + 1
        self._at = sequence
        return self.state


def read(stream, **options):
    """
    Read all keys, and return the messages by subject, and the batch.
    """
    batch = stream.get_last_for([f"{stream.name}.>"], **options)
    found = {}
    for message in batch:
        assert message.data == b"%d" % message.sequence
        assert message.subject not in found or message.sequence > batch.up_to_sequence
        found[message.subject] = message.sequence
    return found, batch


@pytest.fixture(scope="module")
def server():
    """
    A server of its own.
    """
    with DevServer() as server:
        yield server


def rounds_of(server, name, keys, rounds, check, **config):
    """
    Read that many times while a writer writes, and check each round against the replay.
    """
    written = 0
    with jetsync.connect(server.url) as client:
        js = client.jetstream()
        for first in range(0, rounds, ROUNDS_OF_A_STREAM):
            stream = js.create_stream(
                name, subjects=[f"{name}.>"], storage="file", allow_direct=True, **config
            )
            try:
                with Writer(server.url, name, keys, seed=rounds + first) as writer:
                    replay = Replay(writer)
                    for number in range(first, min(first + ROUNDS_OF_A_STREAM, rounds)):
                        check(stream, replay, number)
                written += len(writer.chosen)
            finally:
                stream.delete()
    return written


@pytest.fixture(scope="module")
def cluster():
    """
    Three servers.
    """
    with DevServer(cluster=3) as cluster:
        yield cluster


class TestConsistency:
    @pytest.mark.parametrize(
        ("keys", "rounds"),
        [(300, 3), (1500, 3), pytest.param(5000, ROUNDS, marks=pytest.mark.soak)],
    )
    def test_a_stream_that_keeps_history(self, server, keys, rounds, record_property):
        """
        Each result is exactly the state at its sequence, in pages and in parts.
        """
        pages = itertools.cycle([None, 100, 700])

        def check(stream, replay, number):
            found, batch = read(stream, batch=next(pages))
            assert found == replay.go_to(batch.up_to_sequence)
            assert (batch.missing, batch.vanished) == ((), 0)

        written = rounds_of(server, "HISTORY", keys, rounds, check)
        record_property("written", written)

    @pytest.mark.parametrize(
        ("keys", "rounds"),
        [(300, 3), (1500, 3), pytest.param(5000, ROUNDS, marks=pytest.mark.soak)],
    )
    def test_a_stream_that_keeps_one_message_of_a_subject(
        self, server, keys, rounds, record_property
    ):
        """
        Each key is right for the sequence or listed as missing; after another read, none is
        missing.
        """
        counts = {"right": 0, "missing": 0, "reread": 0}
        pages = itertools.cycle([None, 50, 700])

        def check(stream, replay, number):
            again = number % 3 == 2
            found, batch = read(stream, batch=next(pages), reread=again)
            moment = batch.up_to_sequence
            state = dict(replay.go_to(moment))
            assert found.keys() | set(batch.missing) == state.keys()
            assert found.keys().isdisjoint(batch.missing)
            later = {name for name, sequence in found.items() if sequence > moment}
            assert later == set(batch.later)
            right = found.keys() - later
            assert {name: found[name] for name in right} == {name: state[name] for name in right}
            assert batch.vanished == len(batch.missing) + len(batch.later)
            if again:
                assert batch.missing == ()
            counts["right"] += len(right)
            counts["missing"] += len(batch.missing)
            counts["reread"] += len(later)

        written = rounds_of(server, "LATEST", keys, rounds, check, max_msgs_per_subject=1)
        record_property("written", written)
        record_property("keys", counts)

    @pytest.mark.parametrize(
        ("keys", "rounds"),
        [(300, 6), (1500, 4), pytest.param(1500, ROUNDS, marks=pytest.mark.soak)],
    )
    def test_lagging_replicas(self, cluster, keys, rounds, record_property):
        """
        Each page is of the snapshot, whichever of three servers answers; a lagging one is asked
        again.
        """
        pages = itertools.cycle([100, None, 700])

        def check(stream, replay, number):
            found, batch = read(stream, batch=next(pages))
            assert found == replay.go_to(batch.up_to_sequence)
            assert (batch.missing, batch.vanished) == ((), 0)

        written = rounds_of(cluster, "REPLICAS", keys, rounds, check, num_replicas=3)
        record_property("written", written)
