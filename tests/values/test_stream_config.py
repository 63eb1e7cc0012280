from __future__ import annotations

import pickle
from contextlib import nullcontext

import attrs
import pytest

import jetsync._api.streams as stream_admin
from jetsync.errors import (
    InvalidArgumentError,
    InvalidJsonError,
    InvalidNameError,
    InvalidSubjectError,
    NotSupportedError,
)
from jetsync.values.codec import from_wire, to_wire
from jetsync.values.server_versions import (
    CONSUMER_NEEDS,
    STREAM_NEEDS,
    check_reply,
    explain_refusal,
)
from jetsync.values.stream_config import (
    ConsumerLimits,
    DiscardPolicy,
    ExternalStream,
    PersistMode,
    Placement,
    Republish,
    RetentionPolicy,
    SourceConsumer,
    StorageType,
    StoreCompression,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from jetsync.values.stream_info import (
    ClusterInfo,
    LostStreamData,
    PeerInfo,
    StreamAlternate,
    StreamInfo,
    StreamSourceInfo,
    StreamState,
)

FIELDS = {
    *("name", "description", "subjects", "retention", "max_consumers", "max_msgs", "max_bytes"),
    *("max_age", "max_msgs_per_subject", "max_msg_size", "discard", "storage", "num_replicas"),
    *("no_ack", "duplicate_window", "placement", "mirror", "sources", "compression", "first_seq"),
    *("subject_transform", "republish", "allow_direct", "mirror_direct", "sealed", "deny_delete"),
    *("discard_new_per_subject", "deny_purge", "allow_rollup_hdrs", "consumer_limits", "metadata"),
    *("allow_msg_ttl", "subject_delete_marker_ttl", "allow_atomic", "allow_msg_counter"),
    *("allow_msg_schedules", "persist_mode", "allow_batched", "template_owner"),
}
"""Every field of StreamConfig in the sources of servers 2.10 to 2.15."""

ECHO = {
    "name": "S",
    "subjects": ["FOO.>"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_age": 0,
    "discard": "old",
    "storage": "memory",
    "num_replicas": 1,
    "duplicate_window": 120000000000,
    "compression": "none",
    "allow_direct": False,
    "sealed": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
    "metadata": {"_nats.level": "5", "_nats.req.level": "0", "_nats.ver": "2.15.1"},
}


def test_a_stream_config_has_every_field_of_every_server():
    """
    An update would reset a field that is missing here.
    """
    names = {item.name for item in attrs.fields(StreamConfig)} - {"extra", "_received"}
    assert names == FIELDS


def test_a_full_configuration_has_the_wire_form_of_the_protocol():
    """
    Durations become nanoseconds, nested models objects, and enumerations strings.
    """
    config = StreamConfig(
        name="S",
        subjects=["a.>", "b"],
        retention="workqueue",
        discard=DiscardPolicy.NEW,
        storage="file",
        compression="s2",
        persist_mode="async",
        max_age=3600,
        subject_delete_marker_ttl=1,
        placement=Placement("east", ["ssd"]),
        mirror=StreamSource("UP", external=ExternalStream("$JS.hub.API", "d")),
        sources=[
            StreamSource(
                "A",
                opt_start_seq=5,
                subject_transforms=[SubjectTransform("a.>", "b.>")],
                consumer=SourceConsumer("c", "d"),
            )
        ],
        republish=Republish("a.>", "r.>", headers_only=True),
        consumer_limits=ConsumerLimits(5, 10),
        allow_atomic=False,
    )
    assert to_wire(config) == {
        "name": "S",
        "subjects": ["a.>", "b"],
        "retention": "workqueue",
        "discard": "new",
        "storage": "file",
        "compression": "s2",
        "persist_mode": "async",
        "max_age": 3600 * 10**9,
        "subject_delete_marker_ttl": 10**9,
        "placement": {"cluster": "east", "tags": ["ssd"]},
        "mirror": {"name": "UP", "external": {"api": "$JS.hub.API", "deliver": "d"}},
        "sources": [
            {
                "name": "A",
                "opt_start_seq": 5,
                "subject_transforms": [{"src": "a.>", "dest": "b.>"}],
                "consumer": {"name": "c", "deliver_subject": "d"},
            }
        ],
        "republish": {"src": "a.>", "dest": "r.>", "headers_only": True},
        "consumer_limits": {"inactive_threshold": 5 * 10**9, "max_ack_pending": 10},
        "allow_atomic": False,
    }


@pytest.mark.parametrize(
    ("field", "word", "member"),
    [
        ("retention", "interest", RetentionPolicy.INTEREST),
        ("storage", "memory", StorageType.MEMORY),
        ("discard", "old", DiscardPolicy.OLD),
        ("compression", "none", StoreCompression.NONE),
        ("persist_mode", "default", PersistMode.DEFAULT),
    ],
)
def test_policies_of_a_stream_take_their_plain_string(field, word, member):
    """
    A field accepts the string and holds the member, which equals the string.
    """
    assert getattr(StreamConfig(**{field: word}), field) is member
    assert member == word


def test_a_stream_as_described_by_a_server():
    """
    An empty stream has no times. The configuration is sent back as received.
    """
    info = from_wire(
        StreamInfo,
        {
            "config": ECHO,
            "created": "2026-11-20T18:08:31.254763402Z",
            "state": {
                "messages": 0,
                "first_ts": "0001-01-01T00:00:00Z",
                "last_ts": "0001-01-01T00:00:00Z",
                "lost": {"msgs": None, "bytes": 0},
            },
            "cluster": {"leader": "N1", "replicas": [{"name": "N2", "active": 1500000000}]},
            "sources": [{"name": "UP", "lag": 0, "active": -1}],
            "later": 1,
        },
    )
    assert to_wire(info.config) == ECHO
    assert info.state.first_ts is None
    assert info.cluster is not None
    assert info.cluster.replicas[0].active == 1.5
    assert info.sources[0].active is None
    assert info.extra == {"later": 1}
    assert pickle.loads(pickle.dumps(info)) == info


class TestValidation:
    @pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "a>", "a/b", "a\\b", "a\n"])
    def test_a_bad_name_is_refused(self, name):
        """
        An invalid name raises an error before anything is sent.
        """
        with pytest.raises(InvalidNameError):
            stream_admin.validate_config(StreamConfig(name=name))

    def test_a_stream_needs_a_name(self):
        """
        A configuration without a name raises an error.
        """
        with pytest.raises(InvalidArgumentError, match="needs a name"):
            stream_admin.validate_config(StreamConfig(subjects=["a"]))

    @pytest.mark.parametrize("subject", ["", ".a", "a.", "a..b", "a b", ">.a"])
    def test_a_bad_subject_is_refused(self, subject):
        """
        The subjects of the stream and the filters of its sources are checked.
        """
        with pytest.raises(InvalidSubjectError):
            stream_admin.validate_config(StreamConfig(name="S", subjects=["ok", subject]))
        if subject:
            with pytest.raises(InvalidSubjectError):
                stream_admin.validate_config(
                    StreamConfig(name="S", sources=[StreamSource("A", filter_subject=subject)])
                )


class TestEcho:
    def check(self, asked, echoed):
        done = "stream 'S' was created"
        check_reply(STREAM_NEEDS, {"name": "S", **asked}, echoed, server="2.10.26", done=done)

    @pytest.mark.parametrize(
        ("asked", "feature", "needs"),
        [
            ({"allow_atomic": True}, "allow_atomic", "server 2.12 or later (API level 2)"),
            ({"allow_msg_ttl": True}, "allow_msg_ttl", "server 2.11 or later (API level 1)"),
            ({"subject_delete_marker_ttl": 10**9}, "subject_delete_marker_ttl", "2.11"),
            ({"allow_batched": True}, "allow_batched", "server 2.14 or later (API level 4)"),
            ({"persist_mode": "async"}, "persist_mode", "2.12"),
            ({"placement": {"preferred": "n"}}, "placement", "a server that knows"),
            ({"later": 1}, "later", "a server that knows this field"),
        ],
    )
    def test_the_error_of_a_dropped_field_has_the_servers_version(self, asked, feature, needs):
        """
        The error has the need, the server's version, and says that the stream was created.
        """
        with pytest.raises(NotSupportedError) as caught:
            self.check(asked, {"name": "S"})
        assert caught.value.feature == feature
        assert needs in caught.value.needs
        assert caught.value.server == "2.10.26"
        assert f"stream 'S' was created without {feature}" in str(caught.value)

    def test_off_is_as_bad_as_absent(self):
        """
        A field that the server returns as off counts as dropped.
        """
        with pytest.raises(NotSupportedError):
            self.check({"allow_direct": True}, {"name": "S", "allow_direct": False})

    def test_fields_inside_objects_count(self):
        """
        Fields of nested objects and of lists of objects are checked.
        """
        with pytest.raises(NotSupportedError) as caught:
            self.check(
                {"sources": [{"name": "A", "consumer": {"name": "c"}}]},
                {"name": "S", "sources": [{"name": "A"}]},
            )
        assert caught.value.feature == "sources.consumer"
        assert "2.14" in caught.value.needs

    def test_all_dropped_fields_are_in_the_text(self):
        """
        The error is about the first field, and its text names all of them.
        """
        with pytest.raises(
            NotSupportedError, match="without allow_atomic, allow_batched"
        ) as caught:
            self.check({"allow_atomic": True, "allow_batched": True}, {"name": "S"})
        assert pickle.loads(pickle.dumps(caught.value)).feature == "allow_atomic"

    def test_the_version_is_the_one_that_leads_the_stream(self):
        """
        The error names the version of the stream's leader, not of the connected server.
        """
        with pytest.raises(NotSupportedError) as caught:
            self.check({"allow_batched": True}, {"name": "S", "metadata": {"_nats.ver": "2.11.11"}})
        assert caught.value.server == "2.11.11"

    @pytest.mark.parametrize(
        ("asked", "echoed"),
        [
            ({"allow_atomic": False, "max_age": 0, "description": ""}, {}),
            ({"subjects": []}, {"subjects": ["S"]}),
            ({"max_msgs": 0, "num_replicas": 0}, {"max_msgs": -1, "num_replicas": 1}),
            ({"persist_mode": "default"}, {}),
            ({"mirror_direct": False}, {"mirror_direct": True}),
            ({"placement": {"cluster": "", "tags": []}}, {}),
            (
                {"subject_delete_marker_ttl": 10**9, "deny_purge": True},
                {"subject_delete_marker_ttl": 10**9, "deny_purge": False},
            ),
            (
                {"mirror": {"name": "B"}, "duplicate_window": 120 * 10**9},
                {"mirror": {"name": "B"}},
            ),
            (
                {"metadata": {"a": "b", "_nats.ver": "1", "_nats.old": "x"}},
                {"metadata": {"a": "b", "_nats.ver": "2.15.1"}},
            ),
        ],
    )
    def test_defaults_in_the_echo_of_a_stream_are_no_error(self, asked, echoed):
        """
        Defaults, fields that the server changes itself, and its metadata raise no error.
        """
        self.check(asked, {"name": "S", **echoed})


class TestRefusal:
    @pytest.mark.parametrize(
        ("asked", "unknown", "feature", "needs"),
        [
            ({"allow_batched": True}, "allow_batched", "allow_batched", "2.14"),
            ({"sources": [{"consumer": {}}]}, "consumer", "sources.consumer", "2.14"),
            ({"mirror": {"consumer": {}}}, "consumer", "mirror.consumer", "2.14"),
            ({"template_owner": "x"}, "template_owner", "template_owner", "2.12 or earlier"),
            ({"zzz": 1}, "zzz", "zzz", "a server that knows this field"),
            (
                {"persist_mode": "async", "compression": 1, "a": 1},
                "compression",
                "compression",
                "2.10",
            ),
        ],
    )
    def test_an_unknown_field_becomes_not_supported(self, asked, unknown, feature, needs):
        """
        Servers from 2.12 up name only the last part of the field's path.
        """
        error = InvalidJsonError(description=f'invalid JSON: json: unknown field "{unknown}"')
        reason = explain_refusal(error, asked, STREAM_NEEDS, "2.12.8")
        assert reason is not None
        assert (reason.feature, reason.server) == (feature, "2.12.8")
        assert needs in reason.needs

    @pytest.mark.parametrize(
        ("description", "explained"),
        [
            ("invalid JSON", True),
            ('invalid JSON: cannot unmarshal "flow_control"', True),
            ("bad request", False),
            ("unknown", False),
        ],
    )
    def test_an_unknown_value_becomes_not_supported(self, description, explained):
        """
        Server 2.10 names neither field nor value; later ones quote the value.
        """
        error = InvalidJsonError(description=description)
        for sent, is_new in (
            ({"ack_policy": "flow_control"}, True),
            ({"ack_policy": "all"}, False),
        ):
            reason = explain_refusal(error, sent, CONSUMER_NEEDS, "2.10.26")
            assert (reason is not None) is (explained and is_new)

    @pytest.mark.parametrize("ttl", [0, 60])
    def test_markers_turn_deny_purge_off(self, ttl):
        """
        A server that turns off ``deny_purge`` has dropped nothing if the stream has markers.
        """
        sent = {"deny_purge": True, "subject_delete_marker_ttl": ttl}
        returned = {"subject_delete_marker_ttl": ttl}
        with nullcontext() if ttl else pytest.raises(NotSupportedError, match="deny_purge"):
            check_reply(STREAM_NEEDS, sent, returned, server="2.12.8", done="it was made")

    def test_other_bad_json_stays_invalid_json(self):
        """
        Other refusals stay InvalidJsonError.
        """
        error = InvalidJsonError(description="invalid JSON: unexpected end")
        assert explain_refusal(error, {"max_age": 1}, STREAM_NEEDS, "2.12.8") is None


class TestLacks:
    @pytest.mark.parametrize(
        ("fields", "features", "expected"),
        [
            ({}, (), {}),
            ({}, ("direct",), {"allow_direct": True}),
            ({"allow_direct": True}, ("direct",), {}),
            (
                {"allow_atomic": False},
                ("atomic", "ttl"),
                {"allow_atomic": True, "allow_msg_ttl": True},
            ),
            (
                {"deny_purge": True},
                ("markers",),
                {
                    "allow_msg_ttl": True,
                    "subject_delete_marker_ttl": 60.0,
                    "allow_rollup_hdrs": True,
                    "deny_purge": False,
                },
            ),
            (
                {
                    "allow_msg_ttl": True,
                    "subject_delete_marker_ttl": 5,
                    "allow_rollup_hdrs": True,
                },
                ("markers", "ttl", "rollup"),
                {},
            ),
            (
                {},
                ("fast", "counters", "schedules"),
                {"allow_batched": True, "allow_msg_counter": True, "allow_msg_schedules": True},
            ),
        ],
    )
    def test_fields_that_a_feature_needs_are_returned(self, fields, features, expected):
        """The result has each field that has to change for a feature, with its new value."""
        config = StreamConfig(**fields)
        assert config.lacks(*features) == expected
        assert attrs.evolve(config, **expected).lacks(*features) == {}

    def test_an_unknown_feature_is_refused(self):
        """An unknown feature raises an error."""
        with pytest.raises(InvalidArgumentError, match="unknown feature 'speed'"):
            StreamConfig().lacks("direct", "speed")


@pytest.mark.parametrize(
    "model",
    [ClusterInfo, LostStreamData, PeerInfo, StreamAlternate, StreamSourceInfo, StreamState],
)
def test_missing_parts_of_a_stream_info_are_empty(model):
    """
    What a server leaves out is 0, empty or None, and fields are given by name.
    """
    assert not any(attrs.asdict(from_wire(model, {})).values())
    with pytest.raises(TypeError):
        model("x")


def test_an_empty_info_of_a_stream_has_an_empty_state():
    """
    An info without fields has an empty configuration and state.
    """
    assert from_wire(StreamInfo, {}) == StreamInfo(config=StreamConfig(), state=StreamState())
    with pytest.raises(TypeError):
        StreamInfo(StreamConfig())
