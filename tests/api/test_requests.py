from __future__ import annotations

import pytest

from jetsync._api.requests import Progress, config_of, pages
from jetsync._base.deadline import Deadline
from jetsync._base.fields import whole_number
from jetsync.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    ProtocolError,
)
from jetsync.values.consumer_config import ConsumerConfig
from jetsync.values.stream_config import StreamConfig


class FakeServer:
    """
    A list endpoint of a set of names, sorted as servers sort them.
    """

    def __init__(self, names, *, limit=10):
        self.names = set(names)
        self.limit = limit
        self.offsets = []
        self.before_page = lambda: None

    def deadline(self, timeout):
        return Deadline.after(5 if timeout is None else timeout)

    def api(self, endpoint, body, deadline, **named):
        assert endpoint == "STREAM.NAMES"
        self.before_page()
        self.offsets.append(body["offset"])
        names = sorted(self.names)
        offset = min(body["offset"], len(names))
        page = names[offset : offset + self.limit] or None
        return {"total": len(names), "offset": offset, "limit": self.limit, "streams": page}


def listed(server):
    """
    List the names as the handles do.
    """
    return pages(server, "STREAM.NAMES", {}, None)


NAMES = [f"S{number:03d}" for number in range(35)]


class TestPages:
    def test_everything_comes_once_and_in_order(self):
        """
        Pages overlap by one entry, so 35 entries in pages of 10 need 4 requests.
        """
        server = FakeServer(NAMES)
        assert list(listed(server)) == NAMES
        assert server.offsets == [0, 9, 18, 27]

    def test_a_page_is_asked_for_when_it_is_needed(self):
        """
        The first request is sent when the first entry is requested.
        """
        server = FakeServer(NAMES)
        found = listed(server)
        assert server.offsets == []
        assert [next(found) for _ in range(10)] == NAMES[:10]
        assert server.offsets == [0]

    @pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20])
    def test_sizes_around_a_page(self, count):
        """
        No entry is missed or repeated if the count is close to the page size.
        """
        assert list(listed(FakeServer(NAMES[:count]))) == NAMES[:count]

    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_tiny_pages_come_to_an_end(self, limit):
        """
        Pages of one or two entries still reach the end.
        """
        many = [f"S{number:03d}" for number in range(200)]
        assert list(listed(FakeServer(many, limit=limit))) == many

    def test_deleting_yielded_entries_misses_nothing(self):
        """
        A loop that deletes each entry deletes all of them.
        """
        server = FakeServer(NAMES)
        found = []
        for name in listed(server):
            found.append(name)
            server.names.discard(name)
        assert found == NAMES
        assert server.names == set()

    def test_deleting_ahead_yields_no_ghost_twice(self):
        """
        Only entries that are deleted before their page is read are left out.
        """
        server = FakeServer(NAMES)
        found = []
        for name in listed(server):
            found.append(name)
            server.names.discard(f"S{int(name[1:]) + 5:03d}")
        assert len(found) == len(set(found))
        assert server.names <= set(found)

    def test_creating_meanwhile_doubles_nothing(self):
        """
        New entries shift the later ones, and the list repeats none of those.
        """
        server = FakeServer(NAMES)
        found = []
        for name in listed(server):
            found.append(name)
            if name.startswith("S"):
                server.names.add(f"A{name}")
        assert len(found) == len(set(found))
        assert set(NAMES) <= set(found)

    def test_a_list_that_never_rests_still_ends(self):
        """
        A list that grows during the read still ends.
        """
        server = FakeServer(NAMES)
        more = iter(range(10**6))
        server.before_page = lambda: server.names.add(f"A{next(more):06d}")
        found = list(listed(server))
        assert len(found) == len(set(found))
        assert len(server.offsets) < 40

    def test_a_shrinking_list_ends(self):
        """
        An offset beyond the end ends the list without an error.
        """
        server = FakeServer(NAMES)
        found = listed(server)
        first = [next(found) for _ in range(10)]
        server.names.clear()
        assert first == NAMES[:10]
        assert list(found) == []

    @pytest.mark.parametrize("total", [1 << 60, "growing"])
    @pytest.mark.parametrize("page", ["same", "empty", "single", "unknown", "endless"])
    def test_a_list_that_a_server_does_not_end_is_an_error(self, page, total):
        """
        A server that repeats pages, sends empty ones or adds entries without end ends the read.
        """
        server = FakeServer(())
        pages_of = {
            "same": lambda offset: ["A", "B", "C"],
            "empty": lambda offset: None if offset else ["A", "B"],
            "single": lambda offset: ["A"],
            "unknown": lambda offset: ["X", "Y"] if offset else ["A", "B"],
            "endless": lambda offset: [f"S{offset + place}" for place in range(999)],
        }

        def api(endpoint, body, deadline, **named):
            number, offset = len(server.offsets), body["offset"]
            server.offsets.append(offset)
            assert number < 300, "the list does not end"
            more = 2000 * (number + 1) if total == "growing" or page == "endless" else total
            return {"total": offset + more, "limit": 2, "streams": pages_of[page](offset)}

        server.api = api
        with pytest.raises(ProtocolError, match=r"does not end the list STREAM\.NAMES"):
            list(listed(server))

    def test_an_empty_page_is_an_error_at_once(self):
        """
        If the page that has to come is empty, the read does not ask for it again.
        """
        progress = Progress("STREAM.INFO.S")
        progress.check(2, 2, 5)
        with pytest.raises(ProtocolError, match="the page after 2 of 5 entries is empty"):
            progress.check(0, 2, 5)


class TestArguments:
    def test_a_name_comes_first(self):
        """
        The first argument is the name, and keywords are the other fields.
        """
        config = config_of(StreamConfig, "S", {"max_msgs": 1}, "create_stream()")
        assert config == StreamConfig(name="S", max_msgs=1)

    def test_a_name_may_stand_for_another_field(self):
        """
        The plain name of a consumer is the durable name; the keyword ``name`` is not.
        """
        what = "create_consumer()"
        given = config_of(ConsumerConfig, "worker", {"max_deliver": 2}, what, key="durable_name")
        assert given == ConsumerConfig(durable_name="worker", max_deliver=2)
        given = config_of(ConsumerConfig, "worker", {"name": "a"}, what, key="durable_name")
        assert given == ConsumerConfig(durable_name="worker", name="a")
        with pytest.raises(InvalidTypeError, match="given durable_name twice"):
            config_of(ConsumerConfig, "a", {"durable_name": "b"}, what, key="durable_name")

    def test_keywords_are_laid_over_a_copy(self):
        """
        Keywords change a copy of the object.
        """
        given = StreamConfig(name="S", max_msgs=1)
        config = config_of(StreamConfig, given, {"max_msgs": 2}, "create_stream()")
        assert (config.max_msgs, given.max_msgs) == (2, 1)

    @pytest.mark.parametrize(
        ("given", "fields", "text"),
        [
            ({"name": "S"}, {}, "takes a name or a StreamConfig, not dict"),
            (ConsumerConfig(), {}, "takes a name or a StreamConfig, not ConsumerConfig"),
            ("S", {"nam": "S"}, r"create_stream\(\) has no argument 'nam'; did you mean 'name'?"),
            ("S", {"zzzz": 1}, "the fields are .*subjects"),
            (StreamConfig(), {"_received": {}}, "no argument '_received'"),
        ],
    )
    def test_an_unknown_argument_is_refused_with_a_suggestion(self, given, fields, text):
        """
        The error names the call and suggests a field.
        """
        with pytest.raises(InvalidTypeError, match=text):
            config_of(StreamConfig, given, fields, "create_stream()")

    def test_values_are_checked(self):
        """
        Values are checked as in the constructor.
        """
        with pytest.raises(InvalidTypeError, match="subjects"):
            config_of(StreamConfig, "S", {"subjects": "a"}, "create_stream()")

    @pytest.mark.parametrize(
        ("value", "error"),
        [(value, InvalidArgumentError) for value in (0, -1, 2**63, 2**64)]
        + [(value, InvalidTypeError) for value in (True, 1.0, "1", None)],
    )
    def test_sequences_are_whole_numbers_from_one(self, value, error):
        """
        Sequences are integers from 1 to 2**63 - 1.
        """
        with pytest.raises(error, match="sequence"):
            whole_number("sequence", value)
