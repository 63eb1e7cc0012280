"""
The error of a plugin, which may carry the report of a bulk publish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync.errors import JetSyncError

if TYPE_CHECKING:
    from jetsync.values.pub_acks import PublishReport

__all__ = ["PluginError"]


class PluginError(JetSyncError):
    """
    A hook of a plugin raised an error or vetoed a message.

    Errors of hooks that only observe are logged instead.

    The plugin's own error, if there is one, is the ``__cause__``.

    If ``publish_many`` ended with this error, ``report`` is the report about its messages.
    """

    def __init__(self, plugin: str, hook: str, reason: str | None = None) -> None:
        text = f"plugin {plugin!r} failed in {hook}"
        super().__init__(text if reason is None else f"{text}: {reason}")
        self.plugin = plugin
        self.hook = hook
        self.reason = reason
        self.report: PublishReport | None = None
