"""
Static groups.
"""

from __future__ import annotations

import pytest
from conftest import until

import jetsync
from jetsync_groups import (
    GroupChangedError,
    GroupDocumentError,
    GroupExistsError,
    GroupNotFoundError,
    NotAMemberError,
    create_static_group,
    partition,
    static_group,
    static_groups,
)

pytestmark = pytest.mark.live


@pytest.fixture
def keyed(js, orders):
    """
    A stream that puts one of four partitions in front of its subjects, and a name for them.
    """
    name = f"{orders.name}_K"
    transform = jetsync.SubjectTransform(
        f"{name}.*", f"{{{{partition(4,1)}}}}.{name}.{{{{wildcard(1)}}}}"
    )
    return js.create_stream(
        name, subjects=[f"{name}.*"], subject_transform=transform, storage="memory"
    )


def test_members_share_the_partitions(js, keyed, handler, another):
    """
    Each member has a durable consumer with the filters of its partitions.
    """
    group = create_static_group(keyed, "s", max_members=4, members=["a", "b"])
    with group.join("a").consume(handler), group.join("b").consume(another):
        for number in range(40):
            js.publish(f"{keyed.name}.k{number}", str(number))
        mine = [str(n) for n in range(40) if partition(f"k{n}", 4) in {0, 1}]
        others = [str(n) for n in range(40) if partition(f"k{n}", 4) in {2, 3}]
        assert handler.wait_count(len(mine)) == mine
        assert another.wait_count(len(others)) == others
        assert group.active_members() == group.members() == ("a", "b")
    assert handler.messages[0].subject == f"{keyed.name}.k{mine[0]}"
    config = keyed.consumer("s-a").cached_info.config
    assert config.durable_name == "s-a"
    assert config.filter_subjects == ["0.>", "1.>"]


def test_filters_choose_subjects(js, keyed, handler):
    """
    A group with filters gets only these subjects.
    """
    group = create_static_group(
        keyed, "s", max_members=4, filters=[f"{keyed.name}.x"], mappings={"a": [0, 1, 2, 3]}
    )
    # Mapped members take all subjects of their partitions, as in orbit.go.
    assert group.settings().filters("a") == ["0.>", "1.>", "2.>", "3.>"]
    other = create_static_group(
        keyed, "t", max_members=4, filters=[f"{keyed.name}.x"], members=["a"]
    )
    with other.join("a").consume(handler):
        js.publish(f"{keyed.name}.y", b"y")
        js.publish(f"{keyed.name}.x", b"x")
        assert handler.wait_count(1) == ["x"]


def test_groups_whose_names_have_a_common_beginning(js, keyed):
    """
    Deleting group `a` leaves the consumers of group `a-b` alone, and no two consumers can have one
    name.
    """
    create_static_group(keyed, "a-b", max_members=4, members=["c"])
    with pytest.raises(GroupExistsError, match="a-b-c"):
        create_static_group(keyed, "a", max_members=4, members=["b-c"])
    short = create_static_group(keyed, "a", max_members=4, members=["c"])
    with short.join("c").consume(print) as first:
        until(lambda: first.is_active)
        with static_group(keyed, "a-b").join("c").consume(print) as second:
            until(lambda: second.is_active)
            short.delete()
            assert first.wait(timeout=30)
            assert first.error is None
            assert list(keyed.consumer_names()) == ["a-b-c"]
    assert static_groups(keyed) == ["a-b"]


def test_a_static_group_does_not_change(js, keyed, handler):
    """
    Another creation has to be equal. A changed document ends the members with an error, and their
    consumers are deleted.
    """
    group = create_static_group(keyed, "s", max_members=4, members=["a", "b"])
    create_static_group(keyed, "s", max_members=4, members=["b", "a"])
    with pytest.raises(GroupExistsError):
        create_static_group(keyed, "s", max_members=4, members=["a"])
    with group.join("a").consume(handler) as consumption:
        until(lambda: consumption.is_active)
        js.key_value("static-consumer-groups").put(
            f"{keyed.name}.s", b'{"max_members":4,"members":["a"]}'
        )
        assert consumption.wait(timeout=30)
        assert isinstance(consumption.error, GroupChangedError)
        assert list(keyed.consumer_names()) == []


def test_a_document_that_cannot_be_read_costs_no_progress(js, keyed, handler):
    """
    The member ends with an error. Once the document is repaired, it goes on after its last message.
    """
    group = create_static_group(keyed, "s", max_members=4, members=["a"])
    bucket = js.key_value("static-consumer-groups")
    document = bucket.get(f"{keyed.name}.s").value
    with group.join("a").consume(handler) as consumption:
        js.publish(f"{keyed.name}.x", b"1")
        handler.wait_count(1)
        bucket.put(f"{keyed.name}.s", b"{")
        assert consumption.wait(timeout=30)
        assert isinstance(consumption.error, GroupDocumentError)
    bucket.put(f"{keyed.name}.s", document)
    js.publish(f"{keyed.name}.x", b"2")
    with group.join("a").consume(handler):
        assert handler.wait_count(2) == ["1", "2"]


def test_a_durable_consumer_that_was_deleted_is_made_again(js, keyed, handler):
    """
    A static member goes on after its consumer was deleted.
    """
    group = create_static_group(keyed, "s", max_members=4, members=["a"])
    with group.join("a").consume(handler) as consumption:
        until(lambda: consumption.is_active)
        keyed.delete_consumer("s-a")
        until(lambda: consumption.statistics().joins == 2)
        js.publish(f"{keyed.name}.x", b"x")
        assert handler.wait_count(1) == ["x"]


def test_wrong_calls(keyed):
    """
    Unknown members and groups are refused, and a group without members.
    """
    group = create_static_group(keyed, "s", max_members=4, members=["a"])
    with pytest.raises(NotAMemberError):
        group.join("b").consume(print)
    with pytest.raises(GroupNotFoundError):
        static_group(keyed, "t")
    with pytest.raises(jetsync.InvalidArgumentError, match="needs members"):
        create_static_group(keyed, "t", max_members=4)
    with pytest.raises(jetsync.InvalidTypeError):
        create_static_group(keyed, "t", max_members=4, members="ab")
    with pytest.raises(jetsync.InvalidTypeError):
        create_static_group(keyed, "t", max_members=4, members=["a"], filters="x")
    with pytest.raises(jetsync.ConsumerNotFoundError):
        group.step_down("a")
