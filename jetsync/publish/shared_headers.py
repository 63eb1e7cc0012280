"""
What plugins do to the messages of one batch, and the headers that all of them get.

The headers (``jetsync_shared_headers``) are asked for once, before the first message is prepared,
by the thread that adds it. Whoever adds another one meanwhile waits for the answer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from jetsync.values.outbound import coerce_outbound, with_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._hooks.manager import Plugins
    from jetsync.events import BatchCommitOperation
    from jetsync.values.headers import SharedHeaders


class BatchPlugins:
    """
    Show the messages of one batch to the plugins of the client; any thread.
    """

    __slots__ = ("_asking", "_changed", "_known", "_plugins", "_shared", "active")

    def __init__(self, plugins: Plugins) -> None:
        self.active = plugins.prepare is not None or plugins.shared_headers is not None
        """Whether plugins look at messages at all."""

        self._plugins = plugins
        self._changed = threading.Condition()
        self._known = plugins.shared_headers is None
        self._shared: SharedHeaders | None = None
        self._asking = 0
        """The thread that asks the plugins."""

    def prepared(self, item: Any, operation: Callable[[], BatchCommitOperation]) -> Any:
        """
        Return what stands for a message, as the plugins leave it.

        Args:
            item: What stands for it now.
            operation: Describes the batch. It is not kept, as it knows the batch, which knows this.

        Raises:
            PluginError: A plugin vetoed it, or has failed; it is not sent.
        """
        if not self.active:
            return item
        if not self._known:
            self._ask(operation)
        if self._shared is not None:
            item = with_shared(item, self._shared)
        prepare = self._plugins.prepare
        return item if prepare is None else prepare(coerce_outbound(item))

    def _ask(self, operation: Callable[[], BatchCommitOperation]) -> None:
        """Ask the plugins, unless another thread does; a failure leaves it to the next message."""
        ask, me = self._plugins.shared_headers, threading.get_ident()
        assert ask is not None
        with self._changed:
            while self._asking not in {0, me}:
                self._changed.wait()
            if self._known or self._asking == me:
                return
            self._asking = me
        try:
            # Without the lock: plugins may take their time, or add to this very batch.
            self._shared = ask(operation())
            self._known = True
        finally:
            with self._changed:
                self._asking = 0
                self._changed.notify_all()
