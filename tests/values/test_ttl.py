from __future__ import annotations

import datetime as dt
import decimal
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync.errors import InvalidTtlError
from jetsync.values.headers import Headers
from jetsync.values.ttl import MarkerReason, marker_of, parse_duration, parse_ttl, ttl_header


class TestHeader:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (1, "1"),
            (1.0, "1"),
            (3600, "3600"),
            (dt.timedelta(hours=1), "3600"),
            ("never", "never"),
            (1.5, "1.5s"),
            (dt.timedelta(seconds=2, milliseconds=250), "2.25s"),
            (999_999_999, "999999999"),
            (dt.timedelta(seconds=9_223_372_036), "9223372036"),
        ],
    )
    def test_seconds_timedeltas_and_never_become_a_header_value(self, value, text):
        """Seconds from 1 up, a timedelta and "never" become a header value."""
        assert ttl_header(value) == text

    @pytest.mark.parametrize(
        "value",
        [
            *(0, -1, 0.5, 0.999, math.nan, math.inf, -math.inf, 10**9, 5_000_000_000, 10**400),
            *("x", "", "5", "NEVER", True, None, b"never", [1], decimal.Decimal(5)),
            *(dt.timedelta(0), dt.timedelta(seconds=-5), dt.timedelta(milliseconds=999)),
            dt.timedelta(seconds=9_223_372_037),
        ],
    )
    def test_other_values_of_a_ttl_are_refused(self, value):
        """Other values, also of a wrong type, raise InvalidTtlError, a ValueError."""
        with pytest.raises(InvalidTtlError) as caught:
            ttl_header(value)
        assert isinstance(caught.value, ValueError)
        assert caught.value.value == repr(value)

    def test_a_ttl_that_looks_like_nanoseconds_is_refused(self):
        """A number that looks like nanoseconds is refused, and the error names the unit."""
        with pytest.raises(InvalidTtlError, match="looks like nanoseconds"):
            ttl_header(5_000_000_000)

    def test_a_read_ttl_can_be_sent(self):
        """A message of another client can be published again with its time-to-live."""
        assert ttl_header(parse_ttl("5000000000")) == "5000000000"

    @given(st.floats(min_value=1, max_value=999_999_999))
    def test_formatting_and_parsing_returns_the_same_ttl(self, seconds):
        """Formatting and parsing return the same time-to-live, to a microsecond."""
        assert parse_ttl(ttl_header(seconds)) == pytest.approx(seconds, abs=1e-6)


class TestParse:
    @pytest.mark.parametrize(
        ("text", "ttl"),
        [
            ("5", 5.0),
            ("1m0s", 60.0),
            ("1h30m", 5400.0),
            ("1500ms", 1.5),
            ("1.5s", 1.5),
            ("never", "never"),
            ("Never", "never"),
            ("0", None),
            ("00", None),
            ("0s", None),
            ("", None),
            (None, None),
            ("5d", None),
            ("-5s", None),
            ("+5", None),
            ("abc", None),
            ("5 ", None),
            ("\u0665", None),
        ],
    )
    def test_seconds_and_go_durations_of_a_ttl_are_parsed(self, text, ttl):
        """Seconds and Go durations are parsed. Zero and other texts return None."""
        assert parse_ttl(text) == ttl


class TestMarker:
    @pytest.mark.parametrize(
        ("reason", "marker"),
        [
            ("MaxAge", MarkerReason.MAX_AGE),
            ("Remove", MarkerReason.REMOVE),
            ("Purge", MarkerReason.PURGE),
            ("Else", None),
        ],
    )
    def test_only_the_three_specified_reasons_are_known(self, reason, marker):
        """The three specified reasons are known. Other reasons return None."""
        assert marker_of(Headers({"Nats-Marker-Reason": reason})) is marker

    def test_a_message_without_a_reason_is_no_marker(self):
        """A message without headers, or without a reason, is not a marker."""
        assert marker_of(None) is None
        assert marker_of(Headers({"A": "b"})) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2.0),
        ("1m30s", 90.0),
        ("1h0m0s", 3600.0),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("", None),
        ("soon", None),
        ("2 s", None),
        ("1.2.3s", None),
        ("3w", None),
    ],
)
def test_go_durations_are_parsed_and_other_texts_are_none(text, seconds):
    """Go durations are parsed; other texts return None."""
    assert parse_duration(text) == seconds
