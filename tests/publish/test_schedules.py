from __future__ import annotations

import datetime as dt

import pytest

from jetsync import errors
from jetsync.publish.schedules import ScheduleOptions

NOON = dt.datetime(2026, 8, 6, 12, 30, tzinfo=dt.timezone.utc)
PLAIN = {
    "target": "out.a",
    "at": None,
    "every": None,
    "cron": None,
    "time_zone": None,
    "source": None,
    "ttl": None,
    "rollup": False,
}


def headers(**given):
    """Return the headers of a schedule on the subject ``plan.a``."""
    return dict(ScheduleOptions(**{**PLAIN, **given}).pairs("plan.a"))


class TestPatterns:
    @pytest.mark.parametrize(
        ("given", "pattern"),
        [
            ({"at": NOON}, "@at 2026-08-06T12:30:00Z"),
            (
                {"at": NOON.astimezone(dt.timezone(dt.timedelta(hours=2)))},
                "@at 2026-08-06T12:30:00Z",
            ),
            ({"at": 1_500_000_000_500_000_000}, "@at 2017-07-14T02:40:00.5Z"),
            ({"at": 2**63 - 1}, "@at 2262-04-11T23:47:16.854775807Z"),
            ({"every": 1}, "@every 1s"),
            ({"every": 1.5}, "@every 1.5s"),
            ({"every": dt.timedelta(hours=1)}, "@every 3600s"),
            ({"every": 100}, "@every 100s"),
            ({"cron": "0 30 9 * * 1-5"}, "0 30 9 * * 1-5"),
            ({"cron": "@daily"}, "@daily"),
        ],
    )
    def test_each_kind(self, given, pattern):
        """Each kind of schedule is written as servers read it."""
        assert headers(**given) == {"Nats-Schedule": pattern, "Nats-Schedule-Target": "out.a"}

    def test_further_options_of_schedules_have_their_own_headers(self):
        """Further options have their own headers."""
        found = headers(
            cron="@hourly", time_zone="Europe/Berlin", source="in.a", ttl=60, rollup=True
        )
        assert found == {
            "Nats-Schedule": "@hourly",
            "Nats-Schedule-Target": "out.a",
            "Nats-Schedule-Source": "in.a",
            "Nats-Schedule-Time-Zone": "Europe/Berlin",
            "Nats-Schedule-TTL": "60",
            "Nats-Schedule-Rollup": "sub",
        }

    @pytest.mark.parametrize(
        ("given", "argument"),
        [
            ({}, "at"),
            ({"at": NOON, "every": 5}, "at"),
            ({"every": 5, "cron": "@daily"}, "at"),
            ({"at": dt.datetime(2026, 8, 6)}, "at"),  # noqa: DTZ001 - the test passes it on purpose
            ({"at": -1}, "at"),
            ({"at": 2**63}, "at"),
            ({"at": 1_500_000_000}, "at"),
            ({"at": dt.datetime(9999, 1, 1, tzinfo=dt.timezone.utc)}, "at"),
            ({"every": 0.999}, "every"),
            ({"every": 0}, "every"),
            ({"every": -5}, "every"),
            ({"every": float("nan")}, "every"),
            ({"every": 101 * 366 * 86_400}, "every"),
            ({"cron": "30 9 * * 1-5"}, "cron"),
            ({"cron": "@every 5s"}, "cron"),
            ({"cron": ""}, "cron"),
            ({"cron": "0 0 0 * *\r\n*"}, "cron"),
            ({"every": 5, "time_zone": "Europe/Berlin"}, "time_zone"),
            ({"at": NOON, "time_zone": "Europe/Berlin"}, "time_zone"),
            ({"cron": "@daily", "time_zone": "a\r\nb"}, "time_zone"),
            ({"every": 5, "target": "plan.a"}, "target"),
            ({"every": 5, "source": "plan.a"}, "source"),
            ({"every": 5, "source": "out.a"}, "source"),
        ],
    )
    def test_invalid_arguments(self, given, argument):
        """An invalid value is refused before it is sent, and the error names the argument."""
        with pytest.raises(errors.InvalidArgumentError) as caught:
            headers(**given)
        assert caught.value.argument == argument

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ({"at": "soon"}, errors.InvalidTypeError),
            ({"at": True}, errors.InvalidTypeError),
            ({"every": "5s"}, errors.InvalidTypeError),
            ({"cron": 5}, errors.InvalidTypeError),
            ({"every": 5, "target": "out.*"}, errors.InvalidSubjectError),
            ({"every": 5, "target": ""}, errors.InvalidSubjectError),
            ({"every": 5, "source": "in.>"}, errors.InvalidSubjectError),
            ({"every": 5, "ttl": 0.5}, errors.InvalidTtlError),
        ],
    )
    def test_other_errors(self, given, error):
        """Wrong types, subjects and times-to-live have their own errors."""
        with pytest.raises(error):
            headers(**given)


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({"at": NOON}, 2),
        ({"at": NOON, "ttl": 60}, 2),
        ({"every": 5}, 4),
        ({"cron": "@daily"}, 4),
        ({"at": NOON, "source": "in.a"}, 4),
        ({"at": NOON, "rollup": True}, 4),
    ],
)
def test_servers_of_2_12_know_only_a_time_and_a_target(given, level):
    """Servers of 2.12 know only a time and a target."""
    assert ScheduleOptions(**{**PLAIN, **given}).level == level
