"""
Partitions of keys, and members of partitions.
"""

from __future__ import annotations

import hashlib
import json

import pytest

import jetsync
from jetsync_groups import assigned_partitions, partition

GO_TABLE = "bd54e55cd8aff58a2faa9a2a8558a615ac5849eb896d9858dcfa7ece181c28fc"
"""
The SHA-256 of what orbit.go's ``GeneratePartitionFilters`` (873426d) returns for 1 to 64 partitions
and members, as JSON: a list of the number of partitions, that of members, and the owners.
"""


@pytest.mark.parametrize(
    ("tokens", "n", "expected"),
    [
        ("a", 10, 0),
        ("b", 10, 7),
        ("user-1", 10, 0),
        ("user-2", 10, 7),
        ("ü", 10, 0),
        ("s.a", 10, 3),
        ("s.b", 10, 2),
        ("s.user-1", 10, 5),
        ("s.user-2", 10, 8),
        ("s.ü", 10, 1),
        (["cd", "ab"], 1000, 705),
        ([], 1, 0),
    ],
)
def test_the_partition_of_a_key_is_that_of_the_server(tokens, n, expected):
    """
    The hash is FNV-1a of the tokens without separators, as nats-server 2.15.1 computes it.
    """
    assert partition(tokens, n) == expected


def test_a_server_computes_the_same_partitions(js):
    """
    A stream with the subject transform stores 200 keys under the computed partitions.
    """
    transform = jetsync.SubjectTransform("hash.*.*", "{{partition(7,2,1)}}.{{wildcard(1)}}")
    stream = js.create_stream(
        "HASH", subjects=["hash.*.*"], subject_transform=transform, allow_direct=True
    )
    keys = [(f"k{number}", f"ä{number * number}") for number in range(200)]
    js.publish_many([(f"hash.{first}.{second}", b"") for first, second in keys])
    stored = [message.subject.split(".")[0] for message in stream.scan()]
    js.delete_stream("HASH")
    assert stored == [str(partition([second, first], 7)) for first, second in keys]


def test_the_assignment_is_that_of_go():
    """
    For 1 to 64 partitions and 1 to 64 members, each partition has the owner that orbit.go chooses.
    """
    table = []
    for n in range(1, 65):
        for k in range(1, 65):
            names = [f"m{number:03}" for number in range(k)]
            owners = [-1] * n
            for place, name in enumerate(names[: n + 1]):
                for number in assigned_partitions(names, n, name):
                    owners[number] = place
            table.append([n, k, owners])
    assert hashlib.sha256(json.dumps(table).encode()).hexdigest() == GO_TABLE


def test_ten_partitions_for_three_members():
    """
    The rest goes round from the first member. The order and duplicates of names do not matter.
    """
    names = ["m3", "m1", "m2", "m1"]
    assert assigned_partitions(names, 10, "m1") == [0, 1, 2, 9]
    assert assigned_partitions(names, 10, "m2") == [3, 4, 5]
    assert assigned_partitions(names, 10, "m3") == [6, 7, 8]
    assert assigned_partitions(names, 10, "m4") == []
    assert assigned_partitions([], 10, "m1") == []


@pytest.mark.parametrize("n", [0, -1])
def test_a_number_of_partitions_below_one_is_refused(n):
    """
    There is at least one partition.
    """
    with pytest.raises(jetsync.InvalidArgumentError):
        partition("a", n)
    with pytest.raises(jetsync.InvalidArgumentError):
        assigned_partitions(["a"], n, "a")


@pytest.mark.parametrize("n", [True, 1.5, "4"])
def test_a_number_of_partitions_must_be_a_whole_number(n):
    """
    Other types are refused.
    """
    with pytest.raises(jetsync.InvalidTypeError):
        partition("a", n)
