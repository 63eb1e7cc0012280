"""
Decisions of paged reads that need no server: what a stream allows, and who is asked again.
"""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

import pytest

import jetsync
from helpers.waiting import timed
from jetsync._api.known_streams import KnownStream
from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch
from jetsync._io.outbox import LaneState
from jetsync._proto.direct import PagedRead
from jetsync._proto.direct_last import LastRead
from jetsync.read import pages
from jetsync.read.last import OnePage
from jetsync.read.pages import TRIES, PageReader, ReadPlan, check_stream
from jetsync.values.stream_config import StreamConfig
from jetsync.values.stream_info import ClusterInfo, PeerInfo, StreamInfo

NOW = dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc)
LONG_AGO = NOW - dt.timedelta(hours=1)


def soon():
    """
    A deadline that is only reached if the code is broken.
    """
    return Deadline.after(20.0)


OPEN_LANE = SimpleNamespace(outbox=SimpleNamespace(state=LaneState.OPEN))


@pytest.fixture
def reader():
    """
    A reader of stream S that has 10 s for each page and no connection.
    """
    connection = SimpleNamespace(new_inbox=lambda: "_INBOX.x", closing=Latch())
    context = SimpleNamespace(prefix="$JS.API", connection=connection, lane=OPEN_LANE)
    plan = ReadPlan()
    plan.engine = PagedRead()
    return PageReader(context, "S", plan, name="scan", seconds=10.0)


class TestClosing:
    """
    The pauses between requests end when the client begins to close.
    """

    def test_while_a_replica_lags(self, reader):
        """
        A lagging replica is asked again at once.
        """
        reader.left, reader._lag_wait = 90.0, 30.0
        reader.context.connection.closing.set()
        with timed(0.0, 1.0):
            reader.wait_for_lag()


class TestCheckStream:
    @pytest.mark.parametrize(
        ("level", "allows", "direct", "error"),
        [
            (1, True, True, None),
            (1, False, False, None),
            (1, False, True, jetsync.DirectNotSupportedError),
            (0, True, True, jetsync.NotSupportedError),
            (0, True, False, jetsync.NotSupportedError),
        ],
    )
    def test_what_it_needs(self, level, allows, direct, error):
        """
        The server has to be 2.11 or later, and the stream has to allow the direct gets of the read.
        """
        known = KnownStream(
            name="S",
            config=StreamConfig(name="S", allow_direct=allows),
            level=level,
            version=None,
            epoch=1,
        )
        asked = []

        def named(name, deadline, *, fresh):
            asked.append(fresh)
            return known

        context = SimpleNamespace(
            streams=SimpleNamespace(named=named),
            server=SimpleNamespace(version="2.10.26"),
            lane=OPEN_LANE,
        )
        if error is None:
            assert check_stream(context, "S", soon(), direct=direct) is known
            assert asked == [False]
        else:
            with pytest.raises(error):
                check_stream(context, "S", soon(), direct=direct)
            # The stream may have changed, so it is looked up again.
            assert asked == [False, True]


class TestSilence:
    @pytest.mark.parametrize(
        ("cluster", "ts", "expected"),
        [
            (None, NOW, False),
            (ClusterInfo(leader="a", leader_since=NOW), NOW, False),
            (ClusterInfo(leader=None, replicas=[PeerInfo()]), NOW, True),
            (ClusterInfo(leader="a", replicas=[PeerInfo(offline=True)]), NOW, True),
            (ClusterInfo(leader="a", replicas=[PeerInfo(active=4.0)]), NOW, True),
            (ClusterInfo(leader="a", replicas=[PeerInfo(active=1.5)]), NOW, False),
            (ClusterInfo(leader="a", replicas=[PeerInfo()], leader_since=NOW), NOW, True),
            (ClusterInfo(leader="a", replicas=[PeerInfo()], leader_since=LONG_AGO), NOW, False),
            (ClusterInfo(leader="a", replicas=[PeerInfo()], leader_since=NOW), None, False),
            (ClusterInfo(leader="a", replicas=[PeerInfo()]), NOW, False),
        ],
        ids=[
            *("single", "one replica", "no leader", "offline", "absent", "idle"),
            *("new leader", "old leader", "no time", "unknown election"),
        ],
    )
    def test_a_replica_may_be_gone(self, reader, monkeypatch, cluster, ts, expected):
        """
        A silent page is requested again if a replica is gone or the leader is new, as far as the
        server says so.
        """
        info = StreamInfo(cluster=cluster, ts=ts)
        monkeypatch.setattr(pages, "stream_info", lambda *_: info)
        assert reader._may_be_gone(soon()) is expected

    def test_a_page_of_a_lost_connection_is_requested_again(self, reader):
        """
        A page whose connection is lost is requested again, and is not taken for one that has ended.
        """
        losses = []
        reader.plan.engine = SimpleNamespace(lost=lambda: losses.append(True))
        reader._epoch = 3
        reader._box.lost(3)
        assert reader._wait() is False
        assert losses == [True]


class TestStrangers:
    def test_others_are_asked_a_limited_number_of_times(self, reader, monkeypatch):
        """
        A page that a stream without all messages has answered is requested again, up to a limit.
        """
        answers = []
        monkeypatch.setattr(pages, "may_answer", lambda *_: answers.append(True))
        engine = reader.plan.engine
        engine.verdict, engine.answerer = "stranger", b"M"
        for _ in range(TRIES):
            reader._check_stranger()
        with pytest.raises(jetsync.IncompleteMirrorError) as caught:
            reader._check_stranger()
        assert (caught.value.stream, caught.value.mirror) == ("S", "M")
        assert len(answers) == TRIES + 1

    def test_a_trusted_one(self, reader, monkeypatch):
        """
        An answer of a mirror that has all messages does not count as an attempt.
        """
        monkeypatch.setattr(pages, "may_answer", lambda *_: True)
        reader.plan.engine.answerer = b"M"
        reader._check_stranger()
        assert reader.plan.engine.tries == 0


class TestTime:
    @pytest.mark.parametrize("options", [{"patient": True}, {}])
    def test_of_a_list_of_subjects(self, reader, monkeypatch, options):
        """
        Only a patient reader has the whole time again for each request of a list of subjects.
        """
        monkeypatch.setattr(
            pages, "read_info", lambda context, stream, ask, **_: ask(lambda deadline: None)
        )
        reader = PageReader(reader.context, "S", ReadPlan(), name="scan", seconds=10.0, **options)
        reader.left = 5.0
        reader.info("a.*")
        assert (reader.left == 10.0) is bool(options)


class TestNothingFound:
    @pytest.mark.parametrize(
        ("moment", "at_leader", "asks"),
        [(9, None, False), (9, 9, True), (9, 10, False), (None, 10, True)],
    )
    def test_an_empty_page(self, moment, at_leader, asks):
        """
        An empty page is requested again if the leader has a message up to the moment of the read.
        """
        plan = OnePage(LastRead("S", [("a",)], moment=moment, page_bytes=1000))
        again = []

        def try_again(*, wait):
            again.append(wait)

        reader = SimpleNamespace(
            try_again=try_again,
            first_at_leader=lambda request: (
                at_leader and SimpleNamespace(sequence=at_leader, timestamp_ns=0)
            ),
        )
        assert plan.confirm_nothing(reader) is asks
        assert again == [False] * asks
        assert plan.engine.done is not asks
