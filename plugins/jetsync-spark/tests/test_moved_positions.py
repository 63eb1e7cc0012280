"""
The message that a position has, and how a stream is compared with it.
"""

import time
import types

import attrs
import pytest
from backups import backup_of, restore
from streams_to_read import extend, numbered, origin_now

import jetsync
from jetsync.devserver import DevServer

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

from moving import again, kept, restored
from queries import Rows

from jetsync_spark.read import micro_batch, planner
from jetsync_spark.read.origin import first_after, time_of

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("impatient")]


class TestPositions:
    def test_the_message_of_a_position(self, js, earliest):
        """An offset has the last message of the stream, and keeps it until it is reached."""
        with kept(js, 30) as stream:
            query = earliest(stream)
            time = stream.get_message(30).timestamp.isoformat()
            extend(js, stream, 0)
            assert query.plan(Rows(10))
            assert query.ends[-1]["last"] == [30, time]
            extend(js, stream, 10)
            assert query.plan(Rows(20))
            assert query.ends[-1]["last"] == [30, time]
            assert query.plan()
            assert query.ends[-1]["last"] == [
                40,
                stream.get_message(40).timestamp.isoformat(),
            ]

    def test_requests(self, client, js, earliest):
        """Positions cost no request, and a stream that was replaced costs one."""
        from requests_to_server import asked

        with kept(js, 30) as stream:
            query = earliest(stream)
            assert query.plan(Rows(10))
            extend(js, stream, 10)
            found = asked(client, lambda: query.plan() and query.parts())
            assert found == [f"$JS.API.STREAM.INFO.{stream.name}"]
            restored(client, stream, backup_of(client, stream.name))
            extend(js, stream, 10)
            get = f"$JS.API.STREAM.MSG.GET.{stream.name}"
            found = asked(client, lambda: again(query).plan())
            assert [each for each in found if "MSG.GET" in each] == [get]
            # A restart compares streams with new messages, too, once.
            extend(js, stream, 10)
            found = asked(client, lambda: again(query).plan() and query.parts())
            assert [each for each in found if "MSG.GET" in each] == [get]
            extend(js, stream, 10)
            found = asked(client, lambda: query.plan() and query.parts())
            assert found == [f"$JS.API.STREAM.INFO.{stream.name}"]
            found = asked(client, lambda: again(query).plan())
            assert not any("MSG.GET" in each for each in found)

    def test_without_permission_to_ask_the_leader(self):
        """Without permission for STREAM.MSG.GET, direct gets compare."""
        config = (
            "authorization { users: [{user: a, password: b, "
            'permissions: {publish: {deny: "$JS.API.STREAM.MSG.GET.>"}}}] }'
        )
        with DevServer(config=config) as server:
            url = server.url.replace("://", "://a:b@")
            with jetsync.connect(url) as client:
                js = client.jetstream()
                with kept(js, 30) as stream:
                    last = stream.get_message(30, direct=True).timestamp.isoformat()
                    assert time_of(stream, 30) == last
                    assert time_of(stream, 31) is None
                    assert first_after(stream, origin_now(js, stream.name), last) == 31
                    stream.update(allow_direct=False)
                    assert time_of(stream, 30) is None


def test_a_stream_that_returns_while_another_lags(client, js, earliest, monkeypatch):
    """
    A query that continues without a deleted stream, and waits for another one, reads the first
    stream from its position if that is restored in the meantime.
    """
    with kept(js, 3) as one, kept(js, 3) as two:
        query = earliest(f"{one.name},{two.name}", failOnDataLoss="false")
        assert query.all() == [[1, 2, 3, 1, 2, 3]]
        for stream in (one, two):
            extend(js, stream, 3)
        query.reader.prepareForTriggerAvailableNow()
        backup = backup_of(client, one.name)
        one.delete()
        monkeypatch.setattr(planner, "CATCHING_UP", 0.0)
        assert query.plan(Rows(1))
        assert query.ranges() == [(two.name, 4, 5)]

        lags = [True]
        real = micro_batch.readable_origin_of

        def lagging(*given):
            found = real(*given)
            return attrs.evolve(found, next=4) if found.stream == two.name and lags else found

        def sleep(_):
            restore(client, backup)
            lags.clear()

        monkeypatch.setattr(planner, "CATCHING_UP", 30.0)
        monkeypatch.setattr(micro_batch, "readable_origin_of", lagging)
        clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
        monkeypatch.setattr(micro_batch, "time", clock)
        assert query.plan()
        assert set(query.ranges()) == {(one.name, 4, 7), (two.name, 5, 7)}


class TestNewer:
    @pytest.mark.parametrize("count", [0, 1, 2, 9])
    def test_the_first_message_after_a_time(self, js, count):
        """The first message after each time is found, also with gaps."""
        with numbered(js, count) as stream:
            times = [stream.get_message(n).timestamp for n in range(1, count + 1)]
            origin = origin_now(js, stream.name)
            for time in times:
                found = first_after(stream, origin, time.isoformat())
                assert found == 1 + sum(each <= time for each in times)
            assert first_after(stream, origin, "2020-01-01T00:00:00+00:00") == origin.first
            assert first_after(stream, origin, "2099-01-01T00:00:00+00:00") == origin.next
            if count == 9:
                for sequence in (4, 5, 9):
                    stream.delete_message(sequence)
                assert first_after(stream, origin, times[2].isoformat()) in {4, 5, 6}
                assert first_after(stream, origin, times[7].isoformat()) == 9
