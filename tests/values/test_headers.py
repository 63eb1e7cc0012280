from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync.errors import InvalidHeaderError, InvalidTypeError
from jetsync.values.headers import (
    Headers,
    encode_headers,
    find_last,
    header_pairs,
    is_status,
    own_size,
    parse_status,
)

NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, blacklist_characters=":"), min_size=1
)
VALUES = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]))
PAIRS = st.lists(st.tuples(NAMES, VALUES))


class TestRoundTrip:
    @given(PAIRS)
    def test_names_and_values_survive_a_round_trip_in_order(self, pairs):
        """Names and values survive a round trip in order, including spaces at the end."""
        code, description, headers = Headers.parse(encode_headers(pairs))
        assert (code, description) == (None, "")
        assert headers.items() == pairs

    @given(st.lists(st.tuples(NAMES, st.binary())))
    def test_values_that_are_not_utf_8_survive_a_round_trip(self, pairs):
        """Values that are not UTF-8 survive parsing and encoding."""
        lines = [
            name.encode() + b": " + value.replace(b"\r", b"").replace(b"\n", b"")
            for name, value in pairs
        ]
        block = b"\r\n".join([b"NATS/1.0", *lines, b"", b""])
        assert encode_headers(Headers.parse(block)[2].items()) == block

    def test_order_and_duplicates(self):
        """Two values, a lower-case name, a space at the end and UTF-8 are kept."""
        pairs = [("A", "1"), ("A", "2"), ("b", "x "), ("C", "é")]
        block = encode_headers(pairs)
        assert block == "NATS/1.0\r\nA: 1\r\nA: 2\r\nb: x \r\nC: é\r\n\r\n".encode()
        assert Headers.parse(block)[2].get_all("A") == ["1", "2"]


class TestParse:
    @pytest.mark.parametrize(
        ("block", "code", "description", "items"),
        [
            (b"NATS/1.0\r\n\r\n", None, "", []),
            (b"NATS/1.0\r\nA: b\r\n\r\n", None, "", [("A", "b")]),
            (b"NATS/1.0 503\r\n\r\n", 503, "", []),
            (b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n", 503, "", [("Nats-Subject", "x")]),
            (
                b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Stream: 5\r\n\r\n",
                100,
                "Idle Heartbeat",
                [("Nats-Last-Stream", "5")],
            ),
            (b"NATS/1.0 404 No Messages\r\n\r\n", 404, "No Messages", []),
            (b"NATS/1.0\r\nA:b\r\nC:\r\nD: \r\n\r\n", None, "", [("A", "b"), ("C", ""), ("D", "")]),
        ],
    )
    def test_header_blocks_of_every_form_are_parsed(self, block, code, description, items):
        """Status, description and headers are separated in every form that servers send."""
        found = Headers.parse(block)
        assert found[:2] == (code, description)
        assert found[2].items() == items
        assert parse_status(block) == (code, description)

    @pytest.mark.parametrize(
        ("lines", "items"),
        [
            (b"A: 1\r\njunk\r\nB: 2\r\n\r\n", [("A", "1"), ("B", "2")]),
            (b"A: 1\r\n more\r\nB: 2\r\n\r\n", [("A", "1 more"), ("B", "2")]),
            (b"A: 1\r\n\tmore\r\nB: 2\r\n\r\n", [("A", "1 more"), ("B", "2")]),
            (b"A: 1\r\n\t more: x\r\n  y\r\n\r\n", [("A", "1 more: x y")]),
            (b"junk\r\n more: x\r\nB: 2\r\n\r\n", [("B", "2")]),
            (b" first: x\r\nB: 2\r\n\r\n", [("B", "2")]),
            (b"A: 1\r\n\r\n more: x\r\nB: 2\r\n\r\n", [("A", "1"), ("B", "2")]),
            (b"A: 1\r\n\r\nB: 2\r\n\r\n", [("A", "1"), ("B", "2")]),
            (b": 1\r\nB:\r\nC : 3\r\n\r\n", [("B", ""), ("C ", "3")]),
            (b"A: \xff\r\n\xfe: 1\r\n\r\n", [("A", "\udcff"), ("\udcfe", "1")]),
            (b"A: 1\nB: 2\rC: 3\x00\r\n\r\n", [("A", "1\nB: 2\rC: 3\x00")]),
            (b"A: 1\r\n", [("A", "1")]),
            (b"A: 1", [("A", "1")]),
            (b"", []),
        ],
    )
    @pytest.mark.parametrize("first", [b"NATS/1.0", b"NATS/1.0 404 Gone", b"HTTP/1.1 200", b""])
    def test_odd_lines(self, first, lines, items):
        """Everything that is a header is read, whatever the other lines are."""
        assert Headers.parse(first + b"\r\n" + lines)[2].items() == items

    @pytest.mark.parametrize(
        ("line", "found"),
        [
            (b"", (None, "")),
            (b"NATS/1.0", (None, "")),
            (b"NATS/1.0 503", (503, "")),
            (b"NATS/1.0503", (503, "")),
            (b"NATS/1.0  404  Not  found ", (404, "Not  found")),
            (b"NATS/1.0 404 \xff", (404, "\ufffd")),
            (b"NATS/1.0 hello", (None, "hello")),
            (b"NATS/1.0 -1 x", (None, "-1 x")),
            (b"NATS/1.0 " + b"9" * 4300, (None, "9" * 4300)),
            (b"NATS/1", (None, "NATS/1")),
            (b"HTTP/1.1 200", (None, "HTTP/1.1 200")),
            (b"200 x", (None, "200 x")),
        ],
    )
    @pytest.mark.parametrize("rest", [b"", b"\r\n", b"\r\n\r\n", b"\r\nA: b\r\n\r\n"])
    def test_first_line(self, line, found, rest):
        """A status needs the version and a number; any other first line is only a description."""
        assert Headers.parse(line + rest)[:2] == parse_status(line + rest) == found

    @given(st.binary())
    def test_raises_nothing(self, noise):
        """Any bytes can be read."""
        for block in (noise, b"NATS/1.0" + noise, b"NATS/1.0\r\nA: b\r\n " + noise):
            assert Headers.parse(block)[:2] == parse_status(block)
            assert isinstance(is_status(block), bool)
            assert 0 <= own_size(block) <= len(block)

    def test_many_continued_lines(self):
        """A megabyte of continued lines becomes one value, in time that is linear in its size."""
        headers = Headers.parse(b"NATS/1.0\r\nA: b\r\n" + b" c\r\n" * 250_000)[2]
        assert headers.items() == [("A", "b" + " c" * 250_000)]

    def test_find_last(self):
        """The value that the server added is found without parsing."""
        block = b"NATS/1.0\r\nNats-Stream: a\r\nNats-Stream: b\r\nNats-Subject: c\r\n\r\n"
        assert find_last(block, b"Nats-Stream") == b"b"
        assert find_last(block, b"Nats-Sequence") is None

    @pytest.mark.parametrize("own", [b"NATS/1.0\r\nA: b", b"NATS/1", b"hello world\r\n", b"x"])
    def test_without_a_line_end(self, own):
        """The server's lines are found, whatever bytes they follow."""
        block = own + b"Nats-Stream: S\r\nNats-Subject: c\r\n\r\n"
        assert find_last(block, b"Nats-Stream") == b"S"
        assert block[: own_size(block)] == own
        assert not is_status(block)

    def test_is_status(self):
        """A stored message with a status line of its own is not a status."""
        assert is_status(b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n")
        assert is_status(b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n")
        assert not is_status(b"NATS/1.0 503\r\nNats-Stream: S\r\nNats-Subject: x\r\n\r\n")
        assert not is_status(b"NATS/1.0\r\nA: b\r\n\r\n")


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("", "x"),
            ("a b", "x"),
            ("a:b", "x"),
            ("a\r\nb", "x"),
            ("a\tb", "x"),
            ("a", "x\r"),
            ("a", "x\ny"),
            ("a", 1),
            (1, "a"),
            ("a", None),
            ("a", b"x"),
            ("a", "\ud800"),
        ],
    )
    def test_a_pair_that_would_break_the_block_is_refused(self, name, value):
        """A name or value that would break the block raises ValueError before anything is sent."""
        with pytest.raises(InvalidHeaderError) as caught:
            encode_headers([(name, value)])
        assert isinstance(caught.value, ValueError)

    @pytest.mark.parametrize("headers", ["A: b", b"x", 5, [("a",)], ["ab"], [["a", "b"]]])
    def test_headers_of_another_type_are_refused(self, headers):
        """An argument of another type raises a TypeError."""
        with pytest.raises(InvalidTypeError):
            Headers(headers)

    def test_set_changes_nothing(self):
        """If one of several new values is refused, the old ones stay."""
        headers = Headers({"A": "1"})
        with pytest.raises(InvalidHeaderError):
            headers["A"] = ["2", "bad\r\n"]
        assert headers.get_all("A") == ["1"]

    def test_a_value_that_would_break_the_block_cannot_be_added(self):
        """A value that would break the block cannot be added."""
        headers = Headers()
        with pytest.raises(InvalidHeaderError):
            headers.add("A", "x\n")
        assert len(headers) == 0


class TestInput:
    @pytest.mark.parametrize(
        "given",
        [
            {"A": ["1", "2"], "b": "3"},
            {"A": ("1", "2"), "b": "3"},
            Headers([("A", "1"), ("A", "2"), ("b", "3")]),
        ],
    )
    def test_mappings_and_headers_are_accepted(self, given):
        """Mappings to one value or several, and Headers, are accepted."""
        assert list(header_pairs(given)) == [("A", "1"), ("A", "2"), ("b", "3")]
        assert Headers(given) == Headers(header_pairs(given))

    @pytest.mark.parametrize("make", [list, tuple, iter])
    def test_headers_can_be_made_from_pairs(self, make):
        """
        Headers can be made from pairs; a message has Headers, whichever thread reads them first.
        """
        pairs = [("A", "1"), ("A", "2"), ("b", "3")]
        assert Headers(make(pairs)).items() == pairs
        with pytest.raises(InvalidTypeError, match=r"not \w+; use Headers\(pairs\)"):
            list(header_pairs(make(pairs)))

    def test_argument_is_not_changed(self):
        """The caller's mapping stays unchanged."""
        mine = {"A": ["1"]}
        headers = Headers(mine)
        headers.add("A", "2")
        assert mine == {"A": ["1"]}


class TestMapping:
    def test_lookup_is_case_sensitive_and_returns_the_first_value(self):
        """Lookup is case-sensitive and returns the first value."""
        headers = Headers([("A", "1"), ("b", "2"), ("A", "3")])
        assert headers["A"] == headers.get("A") == "1"
        assert headers.get_last("A") == "3"
        assert headers.get_all("A") == ["1", "3"]
        assert "a" not in headers
        assert "A" in headers
        assert headers.get("a") is None
        assert headers.get_last("a", "x") == "x"
        assert headers.get_all("a") == []
        with pytest.raises(KeyError):
            headers["a"]

    def test_names_and_pairs(self):
        """Iteration and length count distinct names, items has all pairs."""
        headers = Headers([("A", "1"), ("b", "2"), ("A", "3")])
        assert list(headers) == headers.keys() == ["A", "b"]
        assert len(headers) == 2
        assert headers.items() == [("A", "1"), ("b", "2"), ("A", "3")]
        assert headers.to_dict() == {"A": ["1", "3"], "b": ["2"]}

    def test_adding_keeps_old_values_and_setting_replaces_them(self):
        """Adding keeps old values, setting replaces them, and deleting needs an existing name."""
        headers = Headers({"A": "1"})
        headers.add("A", "2")
        headers["B"] = "3"
        headers.set("A", ["4", "5"])
        assert headers.to_dict() == {"B": ["3"], "A": ["4", "5"]}
        del headers["A"]
        headers.discard("A")
        with pytest.raises(KeyError):
            del headers["A"]

    def test_headers_are_equal_if_each_name_has_the_same_values(self):
        """Headers are equal when each name has the same values, also to a mapping."""
        headers = Headers([("A", "1"), ("b", "2")])
        assert headers == Headers([("b", "2"), ("A", "1")])
        assert headers == {"A": "1", "b": ["2"]}
        assert headers != Headers({"A": "1"})
        assert headers != {"A": 1}
        assert headers != 5

    def test_not_hashable(self):
        """Headers can change, so they have no hash."""
        with pytest.raises(TypeError):
            hash(Headers())

    def test_a_copy_of_headers_is_equal_and_independent(self):
        """A copy is equal and independent, and so is an unpickled one."""
        headers = Headers({"A": ["1", "2"]})
        for again in (headers.copy(), copy.copy(headers), pickle.loads(pickle.dumps(headers))):
            assert again == headers
        changed = headers.copy()
        changed.add("A", "3")
        assert headers.get_all("A") == ["1", "2"]

    def test_evaluating_the_repr_returns_equal_headers(self):
        """Evaluating the repr returns equal headers."""
        headers = Headers({"A": ["1", "2"]})
        assert repr(headers) == "Headers({'A': ['1', '2']})"


class TestForwardable:
    @pytest.mark.parametrize(
        "name",
        [
            *("Nats-Stream-Source", "Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Msg-Id"),
            *("Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-Msg-Size"),
            *("Nats-Expected-Stream", "Nats-Expected-Last-Subject-Sequence", "Nats-Batch-Id"),
            *("Nats-TTL", "Nats-Rollup", "Nats-Incr", "Nats-Counter-Sources", "Nats-Marker-Reason"),
            *("Nats-Schedule", "Nats-Scheduler", "Nats-Schedule-Next", "Nats-Pin-Id"),
            *("Nats-Trace-Dest", "Nats-Of-A-Later-Server", "nats-rollup", "NATS-TTL"),
        ],
    )
    def test_headers_that_servers_set_or_act_on_are_left_out(self, name):
        """A copy lacks the headers of servers, in any case of their names."""
        assert Headers({name: "1", "A": "2"}).forwardable().items() == [("A", "2")]

    def test_the_other_headers_keep_their_order_and_values(self):
        """A copy has all other headers, and changing it does not change the original."""
        own = [("Trace", "1"), ("A", "x"), ("Trace", "2"), ("Natsy", "y"), ("KV-Operation", "DEL")]
        headers = Headers([*own[:2], ("Nats-Msg-Id", "7"), *own[2:]])
        copied = headers.forwardable()
        assert copied.items() == own
        copied["A"] = "z"
        assert headers["A"] == "x"

    def test_headers_that_cannot_be_sent_are_left_out(self):
        """A copy of a message of any publisher can be sent, whatever headers it has."""
        block = b"NATS/1.0\r\nA b: 1\r\nC: \xff\r\nD: x\ny\r\nE\x07: 2\r\nF: 3\r\n\r\n"
        copied = Headers.parse(block)[2].forwardable()
        assert copied.items() == [("C", "\udcff"), ("F", "3")]
        assert encode_headers(copied.items()) == b"NATS/1.0\r\nC: \xff\r\nF: 3\r\n\r\n"
