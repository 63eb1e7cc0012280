"""
Durations, sizes and times on the command line.
"""

from __future__ import annotations

import datetime as dt

import click
import pytest

from jetsync.cli._output import duration, size
from jetsync.cli._units import bytes_of, moment_of, positive_seconds_of, seconds_of, time_to_live


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("90", 90),
            ("0.5", 0.5),
            ("0", 0),
            ("250ms", 0.25),
            ("100ms", 0.1),
            ("90s", 90),
            ("1h30m", 5400),
            ("7d", 604_800),
            ("2w", 1_209_600),
            ("1d1h1m1.5s", 90_061.5),
        ],
    )
    def test_parts_of_a_duration_add_up(self, text, seconds):
        """
        Parts with units add up, and a number alone is seconds.
        """
        assert seconds_of(text) == seconds

    @pytest.mark.parametrize("text", ["", "1x", "h", "-1s", "1 h", "1h30", "7D", "1e3", "nan"])
    def test_not_a_duration(self, text):
        """
        The error shows how durations are written.
        """
        with pytest.raises(click.BadParameter, match=r"is not a duration such as .*1h30m"):
            seconds_of(text)

    @pytest.mark.parametrize("text", ["20000d", "60000000000", "9" * 400])
    def test_too_long(self, text):
        """
        A number that looks like nanoseconds is refused, as it is in the library.
        """
        with pytest.raises(click.BadParameter, match="is longer than 11574d"):
            seconds_of(text)

    @pytest.mark.parametrize("seconds", [0.25, 1.5, 59, 60, 3661, 86_400, 604_800, 90_061.5])
    def test_printed_durations_can_be_given(self, seconds):
        """
        A duration that a command prints means the same as an option.
        """
        assert seconds_of(duration(seconds)) == seconds

    def test_times_to_live(self):
        """
        A time-to-live is a duration or `never`.
        """
        assert time_to_live("never") == "never"
        assert time_to_live("1h") == 3600
        with pytest.raises(click.BadParameter, match="or 'never'"):
            time_to_live("always")

    def test_longer_than_zero(self):
        """
        Waits are longer than 0.
        """
        assert positive_seconds_of("1ms") == 0.001
        with pytest.raises(click.BadParameter, match="'0s' is not longer than 0"):
            positive_seconds_of("0s")


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "count"),
        [
            ("0", 0),
            ("-1", -1),
            ("1024", 1024),
            ("100B", 100),
            ("1k", 1024),
            ("1KB", 1024),
            ("1KiB", 1024),
            ("1.5 MiB", 1536 * 1024),
            ("1GB", 1024**3),
            ("2TB", 2 * 1024**4),
        ],
    )
    def test_units_of_sizes_are_powers_of_1024(self, text, count):
        """
        Units are powers of 1024, as the `nats` command line and servers have them.
        """
        assert bytes_of(text) == count

    @pytest.mark.parametrize("text", ["", "GB", "-2", "1XB", "1 2", "1e3", "nan"])
    def test_not_a_size(self, text):
        """
        The error shows how sizes are written.
        """
        with pytest.raises(click.BadParameter, match=r"is not a size such as .*512KB"):
            bytes_of(text)

    @pytest.mark.parametrize("count", [0, 1023, 1024, 1536, 1024**3, 5 * 1024**4])
    def test_printed_sizes_can_be_given(self, count):
        """
        A size that a command prints means the same as an option.
        """
        assert bytes_of(size(count)) == count


class TestMoments:
    @pytest.mark.parametrize(
        ("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("2d", 172_800), ("0.5h", 1800)]
    )
    def test_how_long_ago(self, text, seconds):
        """
        A duration means that long before now.
        """
        before = dt.datetime.now(dt.timezone.utc)
        moment = moment_of(text)
        after = dt.datetime.now(dt.timezone.utc)

        assert before <= moment + dt.timedelta(seconds=seconds) <= after

    def test_a_time_without_a_zone_is_local_time(self):
        """
        A time without a zone is local time.
        """
        noon = dt.datetime(2026, 8, 6, 12, tzinfo=dt.timezone.utc)
        assert moment_of("2026-08-06T12:00Z") == noon
        assert moment_of("2026-08-06T14:00:00+02:00") == noon
        assert moment_of("2026-08-06T12:00") == dt.datetime(2026, 8, 6, 12).astimezone()
        assert moment_of("2026-08-06").tzinfo is not None
