from __future__ import annotations

import datetime as dt
import pickle

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync._base.fields import Choice, checked, choose, duration
from jetsync._base.fields import durations as duration_list
from jetsync.errors import InvalidArgumentError, InvalidTypeError, ProtocolError
from jetsync.values.codec import (
    ConfigModel,
    WireModel,
    format_time,
    from_wire,
    parse_time,
    parse_time_ns,
    seconds_to_ns,
    to_wire,
)

UTC = dt.timezone.utc

# The range of the clock of servers.
FIRST, LAST = "1677-09-21T00:12:43.145224192Z", "2262-04-11T23:47:16.854775807Z"


class Colour(Choice):
    RED = "red"
    BLUE = "blue"


def _colour(value: Colour | str | None) -> Colour | None:
    return choose(Colour, value)


@attrs.define(field_transformer=checked, repr=False)
class Part(ConfigModel):
    name: str | None = None
    size: int | None = None


@attrs.define(kw_only=True, field_transformer=checked, repr=False)
class Thing(ConfigModel):
    name: str | None = None
    tags: list[str] | None = None
    on: bool | None = None
    count: int | None = None
    colour: Colour | None = attrs.field(default=None, converter=_colour)
    age: float | None = attrs.field(default=None, converter=duration)
    waits: list[float] | None = attrs.field(default=None, converter=duration_list)
    since: dt.datetime | None = None
    labels: dict[str, str] | None = None
    part: Part | None = None
    parts: list[Part] | None = None


@attrs.frozen(kw_only=True)
class Report(WireModel):
    total: int = 0
    seen: dt.datetime | None = None
    idle: float | None = None
    rows: list[int] = attrs.field(factory=list)
    by_name: dict[str, int] = attrs.field(factory=dict)


class TestDurations:
    @pytest.mark.parametrize(
        ("value", "ns"),
        [
            (0, 0),
            (1, 10**9),
            (0.1, 10**8),
            (1e-9, 1),
            (0.123456789, 123456789),
            (dt.timedelta(days=400, microseconds=1), 400 * 86400 * 10**9 + 1000),
            (31536000.000001, 31536000000001000),
            (10**8, 10**17),
        ],
    )
    def test_seconds_become_exactly_the_nanoseconds_they_say(self, value, ns):
        """
        A duration with a decimal form is sent exactly.
        """
        assert seconds_to_ns(value) == ns

    @given(st.integers(min_value=0, max_value=2**23 * 10**9))
    def test_nanoseconds_survive_as_float_seconds(self, ns):
        """
        Up to 97 days, a float of seconds keeps every nanosecond.
        """
        assert seconds_to_ns(ns / 10**9) == ns

    @pytest.mark.parametrize("value", [30_000_000_000, 1e-10, dt.timedelta(days=366 * 300)])
    def test_a_field_names_itself_when_it_refuses_a_duration(self, value):
        """
        Durations that look like nanoseconds, or do not fit on the wire, are refused before sending.
        """
        with pytest.raises(InvalidArgumentError, match=r"^age"):
            to_wire(Thing(age=value))

    def test_a_server_may_have_any_duration(self):
        """
        Durations that users may not write can be read, copied and sent back.
        """
        received = from_wire(Thing, {"age": 40 * 10**18 // 10, "waits": [2 * 10**18]})
        assert (received.age, received.waits) == (4e9, [2e9])
        changed = attrs.evolve(received, name="x")
        assert to_wire(changed) == {"age": 4 * 10**18, "waits": [2 * 10**18], "name": "x"}
        assert to_wire(Thing(age=received.age, waits=received.waits)) == to_wire(received)

    @pytest.mark.parametrize("value", [-1, -0.001, float("inf"), float("nan")])
    def test_impossible_durations_are_refused(self, value):
        """
        A negative or infinite duration raises InvalidValueError.
        """
        with pytest.raises(InvalidArgumentError):
            seconds_to_ns(value)

    @pytest.mark.parametrize("value", [True, "5", None, b"1"])
    def test_a_duration_is_a_number_or_a_timedelta(self, value):
        """
        Anything but a number or a timedelta raises InvalidTypeError.
        """
        with pytest.raises(InvalidTypeError):
            seconds_to_ns(value)


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "ns"),
        [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.000000001Z", 1),
            ("1969-12-31T23:59:59.999999999Z", -1),
            ("2026-11-20T16:38:27.709983862Z", 1795192707709983862),
            ("2026-11-20T17:38:27.70998386+01:00", 1795192707709983860),
            ("2026-11-20T12:38:27-04:00", 1795192707000000000),
            ("2026-11-20t16:38:27z", 1795192707000000000),
        ],
    )
    def test_all_nine_digits_are_read(self, text, ns):
        """
        RFC 3339 with any fraction and any offset is nanoseconds since the epoch.
        """
        assert parse_time_ns(text) == ns

    @pytest.mark.parametrize("text", ["", "now", "2026-11-20", "2026-13-01T00:00:00Z", "1e9"])
    def test_an_invalid_time_is_a_protocol_error(self, text):
        """
        Another text in place of a time is a protocol error.
        """
        with pytest.raises(ProtocolError):
            parse_time_ns(text)

    def test_a_datetime_is_utc_and_cut_to_microseconds(self):
        """
        Digits below a microsecond are cut, not rounded, so the time is never later than the
        server's.
        """
        found = parse_time("2026-11-20T16:38:27.709983999Z")
        assert found == dt.datetime(2026, 11, 20, 16, 38, 27, 709983, tzinfo=UTC)
        assert found.utcoffset() == dt.timedelta(0)

    @pytest.mark.parametrize(
        ("moment", "text"),
        [
            (dt.datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
            (dt.datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=UTC), "2026-01-02T03:04:05.6Z"),
            (
                dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
                "2026-01-01T22:00:00Z",
            ),
            (1795192707709983862, "2026-11-20T16:38:27.709983862Z"),
            (0, "1970-01-01T00:00:00Z"),
            (2**63 - 1, LAST),
            (-(2**63), FIRST),
            (-(2**64), FIRST),
            (dt.datetime(1677, 9, 21, tzinfo=UTC), FIRST),
            (dt.datetime(2262, 4, 12, tzinfo=UTC), LAST),
            (dt.datetime.min.replace(tzinfo=UTC), FIRST),
            (dt.datetime.max.replace(tzinfo=UTC), LAST),
            # In UTC, they are in the years 0 and 10000.
            (dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14))), FIRST),
            (dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-12))), LAST),
        ],
    )
    def test_a_moment_is_written_in_utc_without_trailing_zeros(self, moment, text):
        """
        The text has the form that servers write, and is within the range of their clocks.
        """
        assert format_time(moment) == text

    @given(st.integers(-(2**62), 10**8 - 1) | st.integers(10**17, 2**62))
    def test_nanoseconds_survive_the_text(self, ns):
        """
        Formatting and parsing a time returns the same nanoseconds.
        """
        assert parse_time_ns(format_time(ns)) == ns

    @pytest.mark.parametrize("moment", [1_767_225_600, 1_767_225_600_000, 2**63])
    def test_another_unit_is_refused(self, moment):
        """
        A number of seconds or milliseconds since 1970 would mean a time in January 1970.
        """
        with pytest.raises(InvalidArgumentError, match="must be nanoseconds since 1970"):
            format_time(moment)

    def test_a_naive_datetime_is_refused(self):
        """
        A naive datetime would mean another time on a machine in another zone.
        """
        with pytest.raises(InvalidArgumentError, match="time zone"):
            format_time(dt.datetime(2026, 1, 1))  # noqa: DTZ001


class TestToWire:
    def test_only_set_fields_are_sent(self):
        """
        None is not sent. An explicit False, 0, empty string or empty list is sent.
        """
        thing = Thing(name="", tags=[], on=False, count=0, age=0)
        assert to_wire(thing) == {"name": "", "tags": [], "on": False, "count": 0, "age": 0}

    def test_values_take_their_wire_form(self):
        """
        Durations are sent as nanoseconds, times as RFC 3339, enumerations as their value, models as
        objects.
        """
        thing = Thing(
            colour=Colour.BLUE,
            age=dt.timedelta(seconds=1.5),
            waits=[1, dt.timedelta(milliseconds=5)],
            since=dt.datetime(2026, 1, 1, tzinfo=UTC),
            part=Part("p"),
            parts=[Part(size=1)],
            labels={"a": "b"},
        )
        assert to_wire(thing) == {
            "colour": "blue",
            "age": 1_500_000_000,
            "waits": [1_000_000_000, 5_000_000],
            "since": "2026-01-01T00:00:00Z",
            "part": {"name": "p"},
            "parts": [{"size": 1}],
            "labels": {"a": "b"},
        }

    def test_containers_of_numbers_are_sent(self):
        """
        A report with lists and objects of integers can be written, as `--json` does.
        """
        report = Report(total=2, rows=[1, 2], by_name={"a": 1})
        assert to_wire(report) == {"total": 2, "rows": [1, 2], "by_name": {"a": 1}}

    def test_counts_of_servers_are_not_checked(self):
        """
        A count of a server beyond 63 bits can be written, because 2.10 reports such reservations.
        """
        assert to_wire(Report(total=2**64 - 3))["total"] == 2**64 - 3

    def test_extra_fields_are_sent(self):
        """
        Users can send a field that this version does not know.
        """
        assert to_wire(Thing(name="n", extra={"later": [1]})) == {"name": "n", "later": [1]}


class TestFromWire:
    RAW = {  # noqa: RUF012
        "name": "n",
        "age": 98257898496283823,
        "waits": [1, 98257898496283823],
        "since": "2030-01-01T00:00:00.123456789Z",
        "colour": "ultraviolet",
        "count": 0,
        "labels": {"_nats.ver": "2.15.1"},
        "part": {"name": "p", "unknown": 1},
        "parts": [{"size": 2, "deep": {"er": None}}],
        "later": {"x": None},
        "tags": None,
    }

    def test_a_model_is_sent_back_unchanged(self):
        """
        Nanoseconds, unknown fields at every depth, unknown words and nulls survive unchanged.
        """
        assert to_wire(from_wire(Thing, self.RAW)) == self.RAW

    def test_a_change_touches_only_its_field(self):
        """
        After a change of one field, all others are sent back in their original form.
        """
        changed = attrs.evolve(from_wire(Thing, self.RAW), name="m")
        assert to_wire(changed) == {**self.RAW, "name": "m"}

    def test_a_field_that_was_cleared_is_not_sent(self):
        """
        None means not set, also for a field that was read from a server.
        """
        thing = from_wire(Thing, self.RAW)
        thing.age = None
        assert "age" not in to_wire(thing)

    def test_a_field_that_was_changed_in_place_is_sent(self):
        """
        The original form is only sent back while the value is unchanged.
        """
        thing = from_wire(Thing, self.RAW)
        assert thing.labels is not None
        thing.labels["b"] = "c"
        thing.age = 2
        wire = to_wire(thing)
        assert wire["labels"] == {"_nats.ver": "2.15.1", "b": "c"}
        assert wire["age"] == 2_000_000_000

    def test_unknown_fields_are_kept_apart(self):
        """
        Unknown fields are in extra, and nowhere else.
        """
        assert from_wire(Thing, self.RAW).extra == {"later": {"x": None}}

    def test_an_unknown_enumeration_value_is_kept(self):
        """
        An unknown value compares and prints as its text, and survives pickling.
        """
        colour = from_wire(Thing, self.RAW).colour
        assert colour == "ultraviolet"
        assert str(colour) == "ultraviolet"
        assert isinstance(colour, Colour)
        assert pickle.loads(pickle.dumps(colour)) == colour

    def test_models_survive_pickling(self):
        """
        A pickled model keeps the original form of its fields.
        """
        thing = pickle.loads(pickle.dumps(from_wire(Thing, self.RAW)))
        assert to_wire(thing) == self.RAW

    def test_missing_and_null_leave_the_default(self):
        """
        A Go server writes null for an empty list.
        """
        assert from_wire(Report, {"rows": None}) == Report()

    def test_special_values_of_reports(self):
        """
        Year 1 means no time, and -1 ns means no duration.
        """
        report = from_wire(Report, {"seen": "0001-01-01T00:00:00Z", "idle": -1, "rows": [1]})
        assert report == Report(rows=[1])

    @pytest.mark.parametrize(
        ("cls", "data"),
        [
            (Thing, {"age": "5s"}),
            (Thing, {"since": "yesterday"}),
            (Thing, {"parts": [1]}),
            (Report, {"total": "many"}),
            (Thing, {"tags": "a"}),
            (Thing, {"tags": [1]}),
            (Thing, {"labels": {"a": 1}}),
            (Thing, {"labels": [["a", "b"]]}),
            (Thing, {"on": 1}),
            (Report, {"total": -1}),
            (Report, {"rows": [True]}),
            (Report, [1]),
        ],
    )
    def test_a_wrong_type_is_a_protocol_error(self, cls, data):
        """
        An invalid value from a server is never a bare TypeError or KeyError.
        """
        with pytest.raises(ProtocolError):
            from_wire(cls, data)


class TestChecks:
    @pytest.mark.parametrize(
        "fields",
        [
            {"name": 5},
            {"tags": "a.b"},
            {"tags": b"a"},
            {"tags": ["a", 1]},
            {"on": 1},
            {"on": "true"},
            {"count": 1.0},
            {"count": True},
            {"count": "1"},
            {"colour": 1},
            {"age": "5"},
            {"age": True},
            {"waits": 5},
            {"waits": ["5"]},
            {"since": 5},
            {"since": "2026-01-01T00:00:00Z"},
            {"labels": ["a"]},
            {"labels": {"a": 1}},
            {"part": "p"},
            {"parts": Part()},
            {"parts": ["p"]},
        ],
    )
    def test_a_wrong_type_is_refused_where_it_is_written(self, fields):
        """
        The error is an InvalidTypeError that names the field.
        """
        (field,) = fields
        with pytest.raises(InvalidTypeError, match=rf"^{field}(:| must) ") as caught:
            Thing(**fields)
        assert caught.value.argument == field

    @pytest.mark.parametrize(
        "fields",
        [
            {"colour": "green"},
            {"age": -1},
            {"age": float("inf")},
            {"waits": [1, -1]},
            {"since": dt.datetime(2026, 1, 1)},  # noqa: DTZ001
        ],
    )
    def test_a_value_that_can_not_work_is_refused(self, fields):
        """
        The error is an InvalidValueError that names the field.
        """
        (field,) = fields
        with pytest.raises(InvalidArgumentError, match=rf"^{field}:? "):
            Thing(**fields)

    def test_assignment_is_checked_too(self):
        """
        A model cannot be made invalid later.
        """
        thing = Thing()
        with pytest.raises(InvalidTypeError):
            thing.tags = "a"
        thing.colour = "red"
        assert thing.colour is Colour.RED

    def test_containers_are_copied(self):
        """
        Changing the caller's list later does not change the model.
        """
        tags = ["a"]
        thing = Thing(tags=tags)
        tags.append("b")
        assert thing.tags == ["a"]

    def test_any_iterable_and_any_index_will_do(self):
        """
        Tuples and generators are accepted as lists, and integers of other libraries as integers.
        """

        class Five:
            def __index__(self):
                return 5

        thing = Thing(tags=(str(i) for i in range(2)), count=Five())
        assert (thing.tags, thing.count) == (["0", "1"], 5)

    def test_the_repr_shows_what_is_set(self):
        """
        The repr of a configuration only shows the fields that are set.
        """
        assert repr(Thing(name="n", count=0)) == "Thing(name='n', count=0)"
        assert repr(Thing(extra={"x": 1})) == "Thing(extra={'x': 1})"
