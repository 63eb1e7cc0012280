"""
The settings of groups, and the documents that store them.
"""

from __future__ import annotations

import json

import pytest

import jetsync
from jetsync_groups import ElasticSettings, PartitionBy, StaticSettings


@pytest.mark.parametrize(
    ("filter", "wildcards"),
    [
        ("", []),
        ("orders", []),
        ("orders.*", [2]),
        ("orders.*", [0]),
        ("orders.*.*", [1, 1]),
        ("orders.>", [1]),
    ],
)
def test_a_filter_without_these_wildcards_is_refused(filter, wildcards):  # noqa: A002
    """
    A filter needs the wildcards that it is partitioned by, each once.
    """
    with pytest.raises(jetsync.InvalidArgumentError):
        PartitionBy(filter, wildcards)


@pytest.mark.parametrize(
    ("filter", "wildcards", "expected"),
    [
        ("orders.*", [1], "{{Partition(12,1)}}.orders.{{Wildcard(1)}}"),
        ("a.*.b.*", [2, 1], "{{Partition(12,2,1)}}.a.{{Wildcard(1)}}.b.{{Wildcard(2)}}"),
        (">", [], "{{Partition(12)}}.>"),
        ("a.*.>", [1], "{{Partition(12,1)}}.a.{{Wildcard(1)}}.>"),
    ],
)
def test_the_transform_of_a_filter(filter, wildcards, expected):  # noqa: A002
    """
    The partition comes first, then the subject.
    """
    assert PartitionBy(filter, wildcards).destination(12) == expected


@pytest.mark.parametrize(
    "mappings",
    [
        {"a": (0, 1)},
        {"a": (0, 1), "b": (1, 2)},
        {"a": (0, 1), "b": (2, 3)},
        {"a": (0,), "b": (1,), "c": (2,), "d": ()},
    ],
)
def test_mappings_need_each_partition_once(mappings):
    """
    Every partition has one member, and there are at most as many members as partitions.
    """
    with pytest.raises(jetsync.InvalidArgumentError):
        StaticSettings(3, mappings=tuple(mappings.items()))


def test_members_and_mappings_exclude_each_other():
    """
    A group has one of the two.
    """
    with pytest.raises(jetsync.InvalidArgumentError, match="not both"):
        StaticSettings(1, members=("a",), mappings=(("a", (0,)),))


def test_the_document_of_an_elastic_group_is_that_of_go():
    """
    The names of the fields are those of orbit.go, and no filters are null.
    """
    assert json.loads(ElasticSettings(3).to_json()) == {
        "max_members": 3,
        "partitioning_filters": None,
    }
    settings = ElasticSettings(
        2, (PartitionBy("o.*", (1,)),), 10, 20, mappings=(("a", (0,)), ("b", (1,)))
    )
    assert json.loads(settings.to_json()) == {
        "max_members": 2,
        "partitioning_filters": [{"filter": "o.*", "partitioning_wildcards": [1]}],
        "max_buffered_msg": 10,
        "max_buffered_bytes": 20,
        "member_mappings": [
            {"member": "a", "partitions": [0]},
            {"member": "b", "partitions": [1]},
        ],
    }
    assert ElasticSettings.from_json(settings.to_json()) == settings


def test_the_document_of_a_static_group_is_that_of_go():
    """
    The names of the fields are those of orbit.go, and empty fields are left out.
    """
    assert json.loads(StaticSettings(3).to_json()) == {"max_members": 3}
    settings = StaticSettings(3, ("o.*",), members=("a", "b"))
    assert json.loads(settings.to_json()) == {
        "max_members": 3,
        "filters": ["o.*"],
        "members": ["a", "b"],
    }
    assert StaticSettings.from_json(settings.to_json()) == settings


def test_filters_of_members_and_of_mappings():
    """
    A member gets each subject of its partitions. A mapped one gets all subjects, once.
    """
    rules = (PartitionBy("a.*"), PartitionBy("b.*"))
    members = ElasticSettings(3, rules, members=("x", "y"))
    assert members.filters("x") == ["0.a.*", "2.a.*", "0.b.*", "2.b.*"]
    assert members.filters("z") == []
    mapped = ElasticSettings(3, rules, mappings=(("x", (2, 0)), ("y", (1,))))
    assert mapped.filters("x") == ["0.>", "2.>"]
    assert mapped.names == ("x", "y")


def test_wildcards_are_a_list():
    """
    A number alone is refused with an error that says so.
    """
    with pytest.raises(jetsync.InvalidTypeError, match="list of numbers"):
        PartitionBy("orders.*", 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"max_members":"x"}',
        b'{"max_members":0}',
        b'{"max_members":2,"members":"ab"}',
        b'{"max_members":2,"members":["a",null]}',
        b'{"max_members":1,"member_mappings":[{"member":5,"partitions":[0]}]}',
    ],
)
def test_a_document_that_cannot_be_read(data):
    """
    Errors of documents are ValueErrors or TypeErrors, which the store turns into one of its own.
    """
    with pytest.raises((ValueError, TypeError)):
        ElasticSettings.from_json(data)
