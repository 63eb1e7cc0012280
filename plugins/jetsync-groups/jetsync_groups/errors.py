"""
Errors of partitioned groups. All of them are errors of jetsync.
"""

from __future__ import annotations

import jetsync

__all__ = [
    "GroupChangedError",
    "GroupDocumentError",
    "GroupError",
    "GroupExistsError",
    "GroupNotFoundError",
    "NotAMemberError",
]


class GroupError(jetsync.JetSyncError):
    """
    The root of all errors of this package. ``stream`` and ``group`` name the group.
    """

    def __init__(self, stream: str, group: str, reason: str) -> None:
        super().__init__(f"group {group!r} of stream {stream!r}: {reason}")
        self.stream = stream
        self.group = group


class GroupNotFoundError(GroupError):
    """
    The group does not exist.
    """


class GroupExistsError(GroupError):
    """
    A group of that name exists with other settings, or another group uses a name that it needs.
    Nothing was changed.
    """


class GroupDocumentError(GroupError):
    """
    The stored settings of the group cannot be read, or contradict each other.
    """


class GroupChangedError(GroupError):
    """
    The settings of the group were changed in a way that ends its members. Join again.
    """


class NotAMemberError(GroupError):
    """
    A static group does not have this member.
    """
