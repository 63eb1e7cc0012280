from __future__ import annotations

import pytest

import jetsync
from jetsync import ObjectStoreConfig, ObjectStoreStatus
from jetsync.values.codec import to_wire
from jetsync.values.stream_config import StreamConfig
from jetsync.values.stream_info import StreamInfo


def wire(**fields) -> dict:
    """Return what is sent to create an object store."""
    return to_wire(ObjectStoreConfig(**fields).to_stream_config())


def test_a_store_has_the_same_stream_as_with_other_clients():
    """The stream of an object store is the same as that of other clients."""
    assert wire(bucket="B") == {
        "name": "OBJ_B",
        "subjects": ["$O.B.C.>", "$O.B.M.>"],
        "retention": "limits",
        "max_bytes": -1,
        "max_age": 0,
        "discard": "new",
        "storage": "file",
        "num_replicas": 1,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
    }


def test_the_fields_of_a_store_become_those_of_its_stream():
    """Each field of the configuration becomes a field of the stream."""
    found = wire(
        bucket="B",
        description="d",
        ttl=60,
        max_bytes=1 << 20,
        storage="memory",
        num_replicas=3,
        placement=jetsync.Placement(cluster="C"),
        compression=True,
        metadata={"k": "v"},
    )
    assert found["description"] == "d"
    assert found["max_age"] == 60_000_000_000
    assert found["max_bytes"] == 1 << 20
    assert found["storage"] == "memory"
    assert found["num_replicas"] == 3
    assert found["placement"] == {"cluster": "C"}
    assert found["compression"] == "s2"
    assert found["metadata"] == {"k": "v"}
    assert wire(bucket="B", max_bytes=0)["max_bytes"] == -1
    assert wire(bucket="B", compression=False)["compression"] == "none"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"bucket": "a.b"}, jetsync.InvalidBucketError),
        ({"bucket": 5}, jetsync.InvalidTypeError),
        ({"bucket": "b", "ttl": -1}, jetsync.InvalidArgumentError),
        ({"bucket": "b", "storage": "tape"}, jetsync.InvalidArgumentError),
        ({"bucket": "b", "compression": "s2"}, jetsync.InvalidTypeError),
    ],
)
def test_wrong_fields_are_refused(fields, error):
    """A wrong value raises an error when it is given."""
    with pytest.raises(error):
        ObjectStoreConfig(**fields)


def test_a_status_shows_the_stream():
    """A status reads the configuration and the state of the stream."""
    config = StreamConfig(
        name="OBJ_B",
        description="d",
        max_age=5,
        storage="memory",
        num_replicas=3,
        sealed=True,
        compression="s2",
        metadata={"a": "b", "_nats.level": "1"},
    )
    status = ObjectStoreStatus("B", StreamInfo(config=config))
    assert (status.bucket, status.description, status.bytes) == ("B", "d", 0)
    assert (status.ttl, status.num_replicas) == (5, 3)
    assert status.storage == "memory"
    assert status.is_sealed
    assert status.is_compressed
    assert status.metadata == {"a": "b"}
