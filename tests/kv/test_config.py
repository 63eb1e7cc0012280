from __future__ import annotations

import attrs
import pytest

import jetsync
from jetsync import KeyValueConfig, KeyValueStatus
from jetsync.values.codec import to_wire
from jetsync.values.stream_config import StreamConfig
from jetsync.values.stream_info import StreamInfo, StreamState


def wire(**fields) -> dict:
    """Return what is sent to create a bucket."""
    return to_wire(KeyValueConfig(**fields).to_stream_config())


def transformed(name) -> jetsync.StreamSource:
    """Return a source whose orders become the keys of bucket B."""
    transform = jetsync.SubjectTransform(src="orders.>", dest="$KV.B.>")
    return jetsync.StreamSource(name=name, subject_transforms=[transform])


class TestLayout:
    def test_a_bucket_has_the_same_stream_as_with_other_clients(self):
        """The stream of a bucket is the same as that of other clients."""
        assert wire(bucket="B") == {
            "name": "KV_B",
            "subjects": ["$KV.B.>"],
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msgs_per_subject": 1,
            "max_msg_size": -1,
            "discard": "new",
            "storage": "file",
            "num_replicas": 1,
            "duplicate_window": 120_000_000_000,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
        }

    def test_each_field_of_a_bucket_sets_a_field_of_the_stream(self):
        """Each field sets a field of the stream."""
        sent = wire(
            bucket="B",
            description="d",
            history=5,
            ttl=60,
            max_value_size=1000,
            max_bytes=9999,
            storage="memory",
            num_replicas=3,
            placement=jetsync.Placement(cluster="c"),
            republish=jetsync.Republish(src=">", dest="out.>"),
            compression=True,
            metadata={"a": "b"},
            limit_marker_ttl=5,
            atomic=True,
        )
        expected = {
            "description": "d",
            "max_msgs_per_subject": 5,
            "max_age": 60_000_000_000,
            "duplicate_window": 60_000_000_000,
            "max_msg_size": 1000,
            "max_bytes": 9999,
            "storage": "memory",
            "num_replicas": 3,
            "placement": {"cluster": "c"},
            "republish": {"src": ">", "dest": "out.>"},
            "compression": "s2",
            "metadata": {"a": "b"},
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": 5_000_000_000,
            "allow_atomic": True,
        }
        assert {key: sent[key] for key in expected} == expected

    def test_duplicate_window(self):
        """The duplicate window is two minutes, or the time-to-live if that is shorter."""
        assert wire(bucket="B", ttl=600)["duplicate_window"] == 120_000_000_000
        assert wire(bucket="B", ttl=1.5)["duplicate_window"] == 1_500_000_000

    @pytest.mark.parametrize("mirror", ["O", "KV_O", jetsync.StreamSource(name="O")])
    def test_a_mirror_has_no_subjects_and_answers_for_its_origin(self, mirror):
        """A mirror has no subjects of its own, and answers for its origin."""
        sent = wire(bucket="M", mirror=mirror)
        assert sent["mirror"] == {"name": "KV_O"}
        assert sent["mirror_direct"] is True
        assert "subjects" not in sent
        assert "allow_atomic" not in sent

    def test_changes_of_a_source_get_the_subjects_of_this_bucket(self):
        """Changes of a source get the subjects of this bucket."""
        sent = wire(bucket="B", sources=["O"])
        assert sent["sources"] == [
            {"name": "KV_O", "subject_transforms": [{"src": "$KV.O.>", "dest": "$KV.B.>"}]}
        ]
        assert sent["subjects"] == ["$KV.B.>"]

    @pytest.mark.parametrize("name", ["ORDERS", "KV_O", "orders:eu"])
    def test_sources_with_transforms(self, name):
        """A source that has transforms may be any stream, and is used as it is."""
        plain = jetsync.StreamSource(name="P", opt_start_seq=3)
        sent = wire(bucket="B", sources=[transformed(name), plain])
        assert sent["sources"] == [
            {"name": name, "subject_transforms": [{"src": "orders.>", "dest": "$KV.B.>"}]},
            {
                "name": "KV_P",
                "opt_start_seq": 3,
                "subject_transforms": [{"src": "$KV.P.>", "dest": "$KV.B.>"}],
            },
        ]

    def test_a_mirror_with_transforms(self):
        """The origin of a mirror is always a bucket."""
        assert wire(bucket="M", mirror=transformed("O"))["mirror"]["name"] == "KV_O"

    def test_only_given_fields(self):
        """An update only changes the given fields, and 0 removes a limit."""
        assert KeyValueConfig(bucket="B").stream_fields() == {
            "name": "KV_B",
            "subjects": ["$KV.B.>"],
        }
        removed = KeyValueConfig(bucket="B", ttl=0, max_bytes=0, max_value_size=0, atomic=False)
        assert removed.stream_fields() == {
            "name": "KV_B",
            "subjects": ["$KV.B.>"],
            "max_age": 0.0,
            "duplicate_window": 120.0,
            "max_bytes": -1,
            "max_msg_size": -1,
            "allow_atomic": False,
        }


class TestBadInput:
    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"bucket": "a.b"}, ValueError),
            ({"bucket": ""}, ValueError),
            ({"bucket": 5}, TypeError),
            ({"bucket": "B", "history": 0}, ValueError),
            ({"bucket": "B", "history": 65}, ValueError),
            ({"bucket": "B", "history": "3"}, TypeError),
            ({"bucket": "B", "ttl": -1}, ValueError),
            ({"bucket": "B", "ttl": "5s"}, TypeError),
            ({"bucket": "B", "limit_marker_ttl": 0.5}, ValueError),
            ({"bucket": "B", "storage": "tape"}, ValueError),
            ({"bucket": "B", "mirror": "O", "sources": ["P"]}, ValueError),
            ({"bucket": "B", "mirror": "O", "atomic": True}, ValueError),
            ({"bucket": "B", "mirror": "a.b"}, ValueError),
            ({"bucket": "B", "mirror": 5}, TypeError),
            ({"bucket": "B", "sources": "O"}, TypeError),
            ({"bucket": "B", "sources": ["a.b"]}, ValueError),
            ({"bucket": "B", "sources": [transformed("a.b")]}, ValueError),
            ({"bucket": "B", "sources": [transformed(None)]}, ValueError),
        ],
    )
    def test_an_invalid_bucket_configuration_is_refused(self, fields, error):
        """An invalid value raises an error of jetsync in the constructor."""
        with pytest.raises(error) as caught:
            KeyValueConfig(**fields)
        assert isinstance(caught.value, jetsync.JetSyncError)

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"history": 65}, "history must be 1 to 64, not 65"),
            ({"limit_marker_ttl": 0.5}, "limit_marker_ttl must be at least 1 second"),
        ],
    )
    def test_a_field_out_of_range_has_the_usual_error_text(self, fields, text):
        """The error of a field out of range has the form of all others."""
        with pytest.raises(jetsync.InvalidArgumentError, match=f"^{text}$"):
            KeyValueConfig(bucket="B", **fields)

    def test_a_bucket_configuration_is_immutable(self):
        """A configuration is immutable."""
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            KeyValueConfig(bucket="B").bucket = "C"


class TestStatus:
    NAMES = (
        *("values", "bytes", "last_revision", "history", "ttl", "limit_marker_ttl"),
        *("is_compressed", "allows_ttl", "allows_atomic"),
    )

    def values(self, **fields):
        """Return the properties of a bucket with this stream."""
        info = StreamInfo(**fields)
        status = KeyValueStatus(bucket="B", stream_info=info)
        return tuple(getattr(status, name) for name in self.NAMES)

    def test_the_status_of_a_bucket_without_options_and_values(self):
        """A bucket without options and values."""
        assert self.values() == (0, 0, 0, 1, None, None, False, False, False)

    def test_each_property_of_the_status_is_read_from_the_stream(self):
        """Each property is read from the configuration or the state of the stream."""
        config = StreamConfig(
            max_msgs_per_subject=5,
            max_age=60,
            subject_delete_marker_ttl=90,
            compression="s2",
            allow_msg_ttl=True,
            allow_atomic=True,
        )
        state = StreamState(messages=7, bytes=8, last_seq=9)
        found = self.values(config=config, state=state)
        assert found == (7, 8, 9, 5, 60.0, 90.0, True, True, True)
