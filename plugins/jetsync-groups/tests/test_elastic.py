"""
Elastic groups: how they are made, changed and deleted.
"""

from __future__ import annotations

import threading

import attrs
import pytest
from conftest import until

import jetsync
from jetsync_groups import (
    ElasticSettings,
    GroupDocumentError,
    GroupError,
    GroupExistsError,
    GroupNotFoundError,
    PartitionBy,
    create_elastic_group,
    elastic_group,
    elastic_groups,
    partition,
)

pytestmark = pytest.mark.live


def bucket(js):
    """
    Return the bucket of elastic groups.
    """
    return js.key_value("elastic-consumer-groups")


def test_the_stream_of_a_group_is_that_of_go(js, orders, group):
    """
    The group's stream is a work queue that refuses new messages when it is full.
    """
    config = js.stream(f"{orders.name}-g").config
    assert config.retention is jetsync.RetentionPolicy.WORKQUEUE
    assert config.discard is jetsync.DiscardPolicy.NEW
    assert config.storage is jetsync.StorageType.MEMORY
    assert config.allow_direct
    assert (config.max_msgs, config.max_bytes) == (-1, -1)
    (source,) = config.sources
    (rule,) = source.subject_transforms
    assert source.name == orders.name
    assert rule.src == f"{orders.name}.*"
    assert rule.dest == f"{{{{Partition(4,1)}}}}.{orders.name}.{{{{Wildcard(1)}}}}"
    assert group.buffer_name == f"{orders.name}-g"


def test_messages_have_the_partition_of_their_key(js, orders, group):
    """
    The group's stream has each message under the partition that Python computes.
    """
    for key in range(20):
        js.publish(f"{orders.name}.k{key}", b"")
    buffer = js.stream(group.buffer_name)
    until(lambda: buffer.info().state.messages == 20)
    assert [message.subject for message in buffer.scan()] == [
        f"{partition(f'k{key}', 4)}.{orders.name}.k{key}" for key in range(20)
    ]


def test_creating_a_group_again_finds_it(orders, group):
    """
    The same settings find the group with its members; others are refused.
    """
    group.add_members("a")
    rules = [PartitionBy(f"{orders.name}.*", (1,))]
    again = create_elastic_group(orders, "g", max_members=4, partition_by=rules)
    assert again.members() == ("a",)
    with pytest.raises(GroupExistsError):
        create_elastic_group(orders, "g", max_members=5, partition_by=rules)
    with pytest.raises(GroupExistsError):
        create_elastic_group(orders, "g", max_members=4)
    assert elastic_group(orders, "g").settings().max_members == 4


def test_groups_whose_names_would_collide(js, orders):
    """
    Group `b-c` of stream A and group `c` of stream A-b would share a stream: the second is refused.
    """
    js.create_stream(f"{orders.name}-b", subjects=[f"{orders.name}-b.*"], storage="memory")
    create_elastic_group(orders, "b-c", max_members=1)
    with pytest.raises(GroupExistsError, match="b-c"):
        create_elastic_group(js.stream(f"{orders.name}-b"), "c", max_members=1)
    assert elastic_groups(js.stream(f"{orders.name}-b")) == []
    assert elastic_groups(orders) == ["b-c"]


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "ü", "a>"])
def test_a_name_that_is_not_part_of_a_key_is_refused(orders, name):
    """
    Dots would make the keys of groups ambiguous.
    """
    with pytest.raises(jetsync.InvalidArgumentError):
        create_elastic_group(orders, name, max_members=1)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"max_members": 0}, jetsync.InvalidArgumentError),
        ({"max_buffered_messages": 0}, jetsync.InvalidArgumentError),
        ({"partition_by": ["orders.*"]}, jetsync.InvalidTypeError),
        ({"partition_by": "ab"}, jetsync.InvalidTypeError),
        ({"partition_by": [("orders.*", [1], 2)]}, jetsync.InvalidTypeError),
    ],
)
def test_settings_are_checked_before_anything_is_sent(orders, wrong, error):
    """
    An invalid setting creates nothing.
    """
    with pytest.raises(error):
        create_elastic_group(orders, "wrong", **{"max_members": 1} | wrong)
    assert elastic_groups(orders) == []


def test_a_stream_by_interest_is_refused(js, orders):
    """
    A group of an interest stream would miss messages.
    """
    orders.update(retention="interest")
    with pytest.raises(jetsync.InvalidArgumentError, match="interest"):
        create_elastic_group(js.stream(orders.name), "i", max_members=1)


def test_members_are_added_and_dropped(group):
    """
    Both return all members, sorted. Repeating them changes nothing.
    """
    assert group.add_members("b", "a") == ("a", "b")
    assert group.add_members("a") == ("a", "b")
    assert group.drop_members("b", "c") == ("a",)
    assert group.members() == ("a",)


def test_a_lost_race_is_tried_again(nats_server, orders, group):
    """
    Eight processes that add members at the same time lose none.
    """
    barrier, errors = threading.Barrier(8), []

    def add(number):
        try:
            with jetsync.connect(nats_server.url) as client:
                mine = elastic_group(client.jetstream().stream(orders.name), "g")
                barrier.wait(30)
                for each in range(3):
                    mine.add_members(f"m{number}-{each}", timeout=30)
        except Exception as error:  # noqa: BLE001 - shown below.
            errors.append(error)

    threads = [threading.Thread(target=add, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(group.members()) == 24


def test_mappings_replace_members(group):
    """
    While a group has mappings, members cannot be added. Without them it has no members.
    """
    group.add_members("z")
    group.set_mappings({"a": [0, 3], "b": [2, 1]})
    assert group.members() == ("a", "b")
    assert group.settings().partitions("a") == [0, 3]
    with pytest.raises(GroupError, match="mappings"):
        group.add_members("c")
    with pytest.raises(GroupError, match="mappings"):
        group.drop_members("a")
    with pytest.raises(jetsync.InvalidArgumentError):
        group.set_mappings({"a": [0]})
    group.set_mappings(None)
    assert group.members() == ()


def test_a_deleted_group_is_gone(js, orders, group):
    """
    Its stream goes with it, and calls say so.
    """
    group.delete()
    with pytest.raises(jetsync.StreamNotFoundError):
        js.stream(group.buffer_name)
    for call in (group.members, group.delete, lambda: group.add_members("a")):
        with pytest.raises(GroupNotFoundError):
            call()
    with pytest.raises(GroupNotFoundError):
        elastic_group(orders, "g")
    assert elastic_groups(orders) == []


def test_a_deletion_can_be_repeated(js, group, orders):
    """
    If only one of the two parts is left, deletion removes it.
    """
    bucket(js).delete(f"{orders.name}.g")
    group.delete()
    with pytest.raises(jetsync.StreamNotFoundError):
        js.stream(group.buffer_name)


def test_a_document_that_cannot_be_read_names_the_group(js, orders, group):
    """
    Another program may have written anything.
    """
    for document in (b"{", b"[" * 100_000):
        bucket(js).put(f"{orders.name}.g", document)
        with pytest.raises(GroupDocumentError, match="'g'"):
            group.members()


def test_a_group_without_filters_takes_all_messages(js, orders):
    """
    The whole subject is the key.
    """
    made = create_elastic_group(orders, "all", max_members=9)
    js.publish(f"{orders.name}.x", b"")
    buffer = js.stream(made.buffer_name)
    until(lambda: buffer.info().state.messages == 1)
    subject = buffer.get_message(1).subject
    assert subject == f"{partition(f'{orders.name}.x', 9)}.{orders.name}.x"


def test_members_that_differ_are_the_same_group():
    """
    Only members and mappings may change.
    """
    settings = ElasticSettings(2)
    assert settings.is_same_group(attrs.evolve(settings, members=("a",)))
    assert not settings.is_same_group(attrs.evolve(settings, max_buffered_bytes=1))
