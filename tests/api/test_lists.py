from __future__ import annotations

import pytest

from jetsync._api.lists import Progress, pages
from jetsync._base.deadline import Deadline
from jetsync.errors import ProtocolError


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
