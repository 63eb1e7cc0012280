"""
Partitioned consumer groups for jetsync: each key is always handled by the same member.

`create_elastic_group` and `create_static_group` make a group, `elastic_group` and `static_group`
open one. `group.join(...).consume(handler)` runs a member. Buckets, documents, consumers and the
hash are those of orbit.go's pcgroups, so members in Go and in Python share a group.
"""

from __future__ import annotations

from jetsync_groups.consumption import GroupConsumption, GroupStatistics
from jetsync_groups.dead_letters import Origin, origin_of
from jetsync_groups.documents import ElasticSettings, PartitionBy, StaticSettings
from jetsync_groups.elastic import (
    ElasticGroup,
    create_elastic_group,
    elastic_group,
    elastic_groups,
)
from jetsync_groups.errors import (
    GroupChangedError,
    GroupDocumentError,
    GroupError,
    GroupExistsError,
    GroupNotFoundError,
    NotAMemberError,
)
from jetsync_groups.member import Member
from jetsync_groups.partitions import assigned_partitions, partition
from jetsync_groups.static import StaticGroup, create_static_group, static_group, static_groups

__all__ = [
    "ElasticGroup",
    "ElasticSettings",
    "GroupChangedError",
    "GroupConsumption",
    "GroupDocumentError",
    "GroupError",
    "GroupExistsError",
    "GroupNotFoundError",
    "GroupStatistics",
    "Member",
    "NotAMemberError",
    "Origin",
    "PartitionBy",
    "StaticGroup",
    "StaticSettings",
    "assigned_partitions",
    "create_elastic_group",
    "create_static_group",
    "elastic_group",
    "elastic_groups",
    "origin_of",
    "partition",
    "static_group",
    "static_groups",
]
