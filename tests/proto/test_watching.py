from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync._proto.watching import MOST, NUDGED, QUIET, WatchEngine


def taken(engine, *entries):
    """Take entries, each a revision and how many follow; return whether each asks for the last."""
    return [engine.take(revision, following) for revision, following in entries]


class TestComplete:
    def test_an_empty_bucket(self):
        """
        Without initial entries, a watch is current at once.
        """
        assert WatchEngine(0, 9).current

    def test_all_have_arrived(self):
        """
        A watch is current once as many entries as existed have arrived, though others follow.
        """
        engine = WatchEngine(3, 5)
        assert taken(engine, (1, 4), (3, 4)) == [False, False]
        assert not engine.current
        assert taken(engine, (5, 4)) == [False]
        assert engine.current

    def test_changes_do_not_count_as_initial_entries(self):
        """
        An entry that is newer than the watch may be that of a new key.
        """
        engine = WatchEngine(3, 5)
        taken(engine, (1, 4), (6, 3), (7, 3))
        assert not engine.current

    @pytest.mark.parametrize("complete", [False, True])
    def test_changes_without_end(self, complete):
        """
        A watch is current after four times the number of entries, unless the caller needs all.
        """
        engine = WatchEngine(3, 5, complete=complete)
        taken(engine, *((6 + number, 9) for number in range(MOST * 3 - 1)))
        assert not engine.current
        taken(engine, (90, 9))
        assert engine.current is not complete

    @pytest.mark.parametrize("forget", [WatchEngine.recreate, WatchEngine.repeat])
    def test_of_another_consumer(self, forget):
        """
        The entries of another consumer are not counted, because it may repeat keys.
        """
        engine = WatchEngine(2, 5)
        forget(engine)
        taken(engine, (1, 9), (2, 9), (3, 9))
        assert not engine.current
        taken(engine, (4, 0))
        assert engine.current

    def test_the_last_entries_were_not_kept(self):
        """
        If the entries that completed a watch arrive again, it is current after them.
        """
        engine = WatchEngine(2, 5)
        taken(engine, (1, 1), (2, 0))
        assert engine.current
        engine.repeat()
        taken(engine, (1, 1))
        assert not engine.current
        taken(engine, (2, 0))
        assert engine.current

    @given(st.lists(st.booleans(), min_size=1, max_size=30))
    def test_whichever_keys_change(self, changes):
        """
        If each key that changes sends its change last, a watch is current after the last key.
        """
        engine = WatchEngine(len(changes), len(changes))
        kept = [number for number, changed in enumerate(changes, 1) if not changed]
        newer = [len(changes) + number for number, changed in enumerate(changes, 1) if changed]
        entries = kept + newer
        for number, revision in enumerate(entries, 1):
            assert not engine.current
            if engine.take(revision, len(entries) - number):
                engine.learn_last(entries[-1])
        assert engine.current


class TestCounts:
    """The server may count changes late."""

    @pytest.mark.parametrize("complete", [False, True])
    def test_nothing_follows(self, complete):
        """
        If nothing follows, the last revision is needed, and a watch is current from there on.
        """
        engine = WatchEngine(3, 5, complete=complete)
        assert taken(engine, (1, 1), (3, 0)) == [False, True]
        assert not engine.current
        engine.learn_last(7)
        assert not engine.current
        assert taken(engine, (6, 0)) == [False]
        assert not engine.current
        assert taken(engine, (7, 5)) == [False]
        assert engine.current

    @pytest.mark.parametrize("last", [3, None])
    def test_nothing_is_missing(self, last):
        """
        A watch is current if the last revision has arrived, or is not known.
        """
        engine = WatchEngine(3, 5, complete=True)
        taken(engine, (3, 0))
        engine.learn_last(last)
        assert engine.current

    def test_is_not_asked_twice(self):
        """
        If the server says again that it has sent everything, a watch is current.
        """
        engine = WatchEngine(3, 5, complete=True)
        taken(engine, (3, 0))
        engine.learn_last(7)
        assert engine.look(0, (1, 3), (1, 3)) is None
        assert engine.current


class TestLook:
    def test_everything_has_arrived(self):
        """
        A watch is current if the server has sent everything, and all of it has arrived.
        """
        engine = WatchEngine(3, 5)
        taken(engine, (1, 2))
        assert engine.look(0, (1, 1), (1, 1)) == "last"
        engine.learn_last(1)
        assert engine.current

    def test_messages_that_were_never_sent(self):
        """
        After a purge, the consumer is at a message that it never sent.
        """
        engine = WatchEngine(3, 5)
        taken(engine, (1, 2))
        assert engine.look(0, (1, 9), (1, 1)) == "last"
        engine.learn_last(1)
        assert engine.current

    def test_entries_are_in_flight(self):
        """
        A watch is not current while entries are in flight.
        """
        engine = WatchEngine(3, 5)
        taken(engine, (1, 2))
        assert engine.look(0, (2, 3), (1, 1)) is None
        assert not engine.current

    def test_the_last_revision_is_needed(self):
        """
        A watch asks for the last revision before it is current without all initial entries.
        """
        engine = WatchEngine(3, 5)
        assert engine.look(0, (0, 0), (0, 0)) == "last"
        assert not engine.current
        engine.learn_last(0)
        assert engine.current

    def test_nudges(self):
        """
        A nudge is followed by another question soon, at most once for each initial entry.
        """
        engine = WatchEngine(3, 5)
        assert engine.quiet == QUIET
        pauses = []
        for _ in range(4):
            assert engine.look(1, (1, 1), (1, 1)) == "nudge"
            pauses.append(engine.quiet)
        assert pauses == [NUDGED, NUDGED, QUIET, QUIET]
        assert not engine.current
