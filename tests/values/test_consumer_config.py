from __future__ import annotations

import datetime as dt

import attrs
import pytest

from jetsync.errors import InvalidJsonError, NotSupportedError
from jetsync.values.codec import from_wire, to_wire
from jetsync.values.consumer_config import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
    ReplayPolicy,
)
from jetsync.values.consumer_info import (
    ConsumerInfo,
    PauseState,
    PriorityGroupState,
    SequenceInfo,
)
from jetsync.values.server_versions import (
    CONSUMER_NEEDS,
    api_level_of,
    check_reply,
    explain_refusal,
    level_of_version,
)
from jetsync.values.subjects import overlap

FIELDS = {
    *("durable_name", "name", "description", "deliver_policy", "opt_start_seq", "opt_start_time"),
    *("ack_policy", "ack_wait", "max_deliver", "backoff", "filter_subject", "filter_subjects"),
    *("replay_policy", "rate_limit_bps", "sample_freq", "max_waiting", "max_ack_pending"),
    *("flow_control", "headers_only", "max_batch", "max_expires", "max_bytes", "deliver_subject"),
    *("deliver_group", "idle_heartbeat", "inactive_threshold", "num_replicas", "mem_storage"),
    *("metadata", "pause_until", "priority_groups", "priority_policy", "priority_timeout"),
    *("direct", "sourcing"),
}
"""Every field of ConsumerConfig in the sources of servers 2.10 to 2.15."""

ECHO = {
    "durable_name": "C",
    "name": "C",
    "deliver_policy": "by_start_time",
    "opt_start_time": "2020-01-01T00:00:00.123456789Z",
    "ack_policy": "explicit",
    "ack_wait": 30000000000,
    "backoff": [1, 1234567891234567891],
    "max_deliver": -1,
    "replay_policy": "instant",
    "max_waiting": 512,
    "max_ack_pending": 1000,
    "num_replicas": 0,
    "metadata": {"_nats.level": "5", "_nats.req.level": "1", "_nats.ver": "2.15.1"},
    "pause_until": "2030-01-01T00:00:00.123456789Z",
}


def test_a_consumer_config_has_every_field_of_every_server():
    """
    An update would reset a field that is missing here.
    """
    names = {item.name for item in attrs.fields(ConsumerConfig)} - {"extra", "_received"}
    assert names == FIELDS


@pytest.mark.parametrize(
    ("field", "word", "member"),
    [
        ("deliver_policy", "last_per_subject", DeliverPolicy.LAST_PER_SUBJECT),
        ("ack_policy", "none", AckPolicy.NONE),
        ("ack_policy", "flow_control", AckPolicy.FLOW_CONTROL),
        ("replay_policy", "original", ReplayPolicy.ORIGINAL),
        ("priority_policy", "pinned_client", PriorityPolicy.PINNED_CLIENT),
    ],
)
def test_policies_of_a_consumer_take_their_plain_string(field, word, member):
    """
    A field accepts the string and holds the member, which equals the string.
    """
    assert getattr(ConsumerConfig(**{field: word}), field) is member
    assert member == word


def test_durations_and_times_on_the_wire():
    """
    Durations are sent as nanoseconds, and times as RFC 3339.
    """
    config = ConsumerConfig(
        ack_wait=1.5,
        backoff=[1, dt.timedelta(seconds=2)],
        max_expires=30,
        priority_timeout=10,
        pause_until=dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc),
    )
    assert to_wire(config) == {
        "ack_wait": 1_500_000_000,
        "backoff": [1_000_000_000, 2_000_000_000],
        "max_expires": 30_000_000_000,
        "priority_timeout": 10_000_000_000,
        "pause_until": "2030-01-01T00:00:00Z",
    }


def test_a_consumer_as_described_by_a_server():
    """
    The configuration is sent back exactly as it was received.
    """
    info = from_wire(
        ConsumerInfo,
        {
            "stream_name": "S",
            "name": "C",
            "config": ECHO,
            "delivered": {
                "consumer_seq": 3,
                "stream_seq": 5,
                "last_active": "2026-11-20T18:08:31Z",
            },
            "num_pending": 7,
            "paused": True,
            "pause_remaining": 98257887864235349,
            "priority_groups": [{"group": "A", "pinned_ts": "0001-01-01T00:00:00Z"}],
        },
    )
    assert to_wire(info.config) == ECHO
    assert (info.delivered.stream_seq, info.ack_floor.stream_seq, info.num_pending) == (5, 0, 7)
    assert info.priority_groups[0].pinned_ts is None


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "*.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "b.>", False),
        (">", "a", True),
        ("*.c", "a.>", True),
        ("a.*.c", "a.b.d", False),
    ],
)
def test_overlap_of_wildcards(one, other, expected):
    """
    Two wildcards overlap if some subject matches both, in either order.
    """
    assert overlap(one, other) is expected
    assert overlap(other, one) is expected


class TestEcho:
    def check(self, asked, echoed):
        asked = {"name": "C", "durable_name": "C", **asked}
        done = "consumer 'C' was created"
        check_reply(CONSUMER_NEEDS, asked, echoed, server="2.10.26", done=done)

    @pytest.mark.parametrize(
        ("asked", "feature", "needs"),
        [
            ({"pause_until": "2030-01-01T00:00:00Z"}, "pause_until", "2.11"),
            ({"priority_groups": ["A"]}, "priority_groups", "2.11 or later (API level 1)"),
            ({"sourcing": True}, "sourcing", "2.14"),
        ],
    )
    def test_the_error_of_a_dropped_field_says_what_it_needs(self, asked, feature, needs):
        """
        The error says what the field needs, and that the consumer was created.
        """
        with pytest.raises(NotSupportedError, match="consumer 'C' was created without") as caught:
            self.check(asked, {"name": "C"})
        assert caught.value.feature == feature
        assert needs in caught.value.needs

    @pytest.mark.parametrize(
        ("asked", "echoed"),
        [
            ({}, {"durable_name": "C"}),
            ({"priority_policy": "none"}, {}),
            ({"ack_wait": 7 * 10**9, "backoff": [1]}, {"ack_wait": 1, "backoff": [1]}),
            ({"max_deliver": 0}, {"max_deliver": -1}),
        ],
    )
    def test_defaults_in_the_echo_of_a_consumer_are_no_error(self, asked, echoed):
        """
        Defaults, a missing name, and a backoff that replaces ack_wait raise no error.
        """
        self.check(asked, echoed)


@pytest.mark.parametrize(
    ("asked", "description", "feature", "version"),
    [
        (
            {"priority_policy": "prioritized"},
            'invalid JSON: unknown priority policy: "prioritized"',
            "priority_policy 'prioritized'",
            "2.12",
        ),
        (
            {"ack_policy": "flow_control"},
            'invalid JSON: cannot unmarshal "\\"flow_control\\""',
            "ack_policy 'flow_control'",
            "2.14",
        ),
        ({"ack_policy": "flow_control"}, "invalid JSON", "ack_policy 'flow_control'", "2.14"),
        ({"sourcing": True}, 'invalid JSON: json: unknown field "sourcing"', "sourcing", "2.14"),
    ],
)
def test_an_unknown_enumeration_value_is_not_supported(asked, description, feature, version):
    """
    Servers from 2.10 up refuse an unknown word with different texts.
    """
    reason = explain_refusal(
        InvalidJsonError(description=description), asked, CONSUMER_NEEDS, "2.11.11"
    )
    assert reason is not None
    assert reason.feature == feature
    assert version in reason.needs


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("2.10.26", 0),
        ("2.11.0", 1),
        ("2.12.0", 2),
        ("2.12.4", 2),
        ("2.12.5", 3),
        ("2.14.0", 4),
        ("2.15.1", 5),
        ("2.12.5-preview.1", 3),
        ("3.0", 5),
    ],
)
def test_levels_of_versions(version, level):
    """
    Each version has the API level that was seen on that server.
    """
    assert level_of_version(version) == level


@pytest.mark.parametrize(
    ("metadata", "level"),
    [(None, None), ({}, None), ({"_nats.level": "4"}, 4), ({"_nats.level": "x"}, None)],
)
def test_level_in_the_metadata(metadata, level):
    """
    A server that writes no level has the level None, not 0.
    """
    assert api_level_of(metadata) == level


@pytest.mark.parametrize("model", [PauseState, PriorityGroupState, SequenceInfo])
def test_missing_parts_of_a_consumer_info_are_empty(model):
    """
    What a server leaves out is 0, empty or None, and fields are given by name.
    """
    assert not any(attrs.asdict(from_wire(model, {})).values())
    with pytest.raises(TypeError):
        model("x")


def test_an_empty_info_of_a_consumer_has_counts_of_0():
    """
    An info without fields has an empty configuration, and counts of 0.
    """
    info = from_wire(ConsumerInfo, {})
    assert (info.config, info.delivered) == (ConsumerConfig(), SequenceInfo())
    assert info.ack_floor == SequenceInfo()
    parts = {"config", "delivered", "ack_floor"}
    assert not any(value for name, value in attrs.asdict(info).items() if name not in parts)
    with pytest.raises(TypeError):
        ConsumerInfo("S")
