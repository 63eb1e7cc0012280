"""
Load and check the plugins of a client.

`Plugins` is a typed facade over pluggy. It has one attribute per hook, which is `None` if no plugin
implements the hook. So a hook without plugins costs one comparison. Mistakes are reported when the
plugins are loaded: an unknown plugin, a plugin that is given twice, an unknown hook or argument, or
the wrong kind of function.

Environment variables, read when plugins are loaded:

- `JETSYNC_PLUGINS=a,b` adds plugins by the names of their entry points.
- `JETSYNC_BLOCK_PLUGINS=a,b` leaves plugins out by name.
- `JETSYNC_TRACE_HOOKS=1` writes a line to stderr for each hook call.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import pluggy

from jetsync import hookspecs
from jetsync._hooks.calls import (
    Entered,
    FaultLog,
    Transform,
    collect_headers,
    entering,
    first_delay,
    observe,
    transform,
)
from jetsync._hooks.check import HOOKS, adapt, check_implementations, implemented
from jetsync._hooks.dispatcher import Dispatcher
from jetsync._hooks.trace import traced
from jetsync.errors import ConfigurationError, InvalidTypeError
from jetsync.events import ClosedEvent, Operation, StatusEvent
from jetsync.values.headers import SharedHeaders
from jetsync.values.message import Message
from jetsync.values.outbound import check_readable
from jetsync.values.stored import StoredMessage
from jetsync.values.ttl import MarkerReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_Call = TypeVar("_Call")


@attrs.frozen
class PluginInfo:
    """
    A loaded plugin.
    """

    name: str
    """Its name in error messages and environment variables."""

    hooks: tuple[str, ...]
    """The hooks it implements, sorted."""

    source: str
    """Its module or class."""


@attrs.frozen(eq=False, repr=False, kw_only=True)
class Plugins:
    """
    The plugins of one client, with one attribute per hook. Any thread.

    The attribute is `None` if no plugin implements the hook. Events of the loop thread go to
    `dispatcher`, which is `None` if `status` is.
    """

    infos: tuple[PluginInfo, ...] = ()
    """The loaded plugins, in the order of loading."""

    blocked: tuple[str, ...] = ()
    """The requested plugins that were left out."""

    prepare: Transform | None = None
    received: Transform | None = None
    shared_headers: Callable[[Operation], SharedHeaders | None] | None = None
    enter_publish: Callable[[Operation], Entered] | None = None
    enter_batch_commit: Callable[[Operation], Entered] | None = None
    enter_fetch: Callable[[Operation], Entered] | None = None
    retry: Callable[[Operation, Exception, int], float | None] | None = None
    status: Callable[[StatusEvent], None] | None = None
    ttl_marker: Callable[[Message | StoredMessage, MarkerReason], None] | None = None
    dispatcher: Dispatcher | None = None
    faults: FaultLog = attrs.field(factory=FaultLog)
    """Reports the errors of plugins that no call can raise."""

    @classmethod
    def load(cls, plugins: Iterable[object] = (), env: Mapping[str, str] | None = None) -> Plugins:
        """
        Load and check plugins.

        Args:
            plugins: Objects, modules, classes (instantiated without arguments), or names of entry
                points of the group `jetsync`.
            env: The environment variables; `None` means `os.environ`.

        Raises:
            ConfigurationError: A name is unknown, or a plugin is given twice, cannot be imported or
                does not fit the hooks.
            InvalidTypeError: *plugins* is a single name.
        """
        if isinstance(plugins, str):
            raise InvalidTypeError("plugins must be a list of plugins", argument="plugins")
        env = os.environ if env is None else env
        wanted: list[object] = list(plugins)
        added = _names(env, "JETSYNC_PLUGINS")
        if not wanted and not added:
            return cls()
        blocked = _names(env, "JETSYNC_BLOCK_PLUGINS")
        # All entry points are loaded before the first plugin is created, because plugins may open
        # resources. A blocked plugin is not even imported: the import may be why it is blocked.
        names = [each for each in (*wanted, *added) if isinstance(each, str)]
        found = {name: _from_entry_point(name) for name in names if name not in blocked}
        manager = pluggy.PluginManager("jetsync")
        manager.add_hookspecs(hookspecs)
        infos: list[PluginInfo] = []
        left_out: list[str] = []

        def add(asked: object) -> None:
            if isinstance(asked, str) and asked in blocked:
                left_out.append(asked)
                return
            plugin, name, source = _create(asked, found)
            if name in blocked:
                left_out.append(name)
                return
            if manager.has_plugin(name):
                raise ConfigurationError(
                    f"plugin {name!r} is given twice; two plugins of one class need different"
                    " `name` attributes"
                )
            hooks = check_implementations(manager, plugin, name)
            try:
                manager.register(plugin, name=name)
            except ValueError as exc:
                raise ConfigurationError(f"plugin {name!r} cannot be registered: {exc}") from exc
            infos.append(PluginInfo(name, hooks, source))

        try:
            for asked in wanted:
                add(asked)
            for name in added:
                # The plugin may have been passed as an argument, too.
                if not manager.has_plugin(name):
                    add(name)
        except BaseException as error:
            # Also after Ctrl-C, the plugins that were registered may have threads or files.
            cls(**_calls(manager, env)).give_up(error)
            raise
        return cls(
            infos=tuple(infos),
            blocked=tuple(dict.fromkeys(left_out)),
            **_calls(manager, env),
        )

    def close(self, timeout: float | None = 1.0) -> bool:
        """
        Deliver the queued events, then end the thread that delivers them. Safe to repeat.

        Args:
            timeout: Seconds to wait for the plugins.

        Returns:
            Whether all events were delivered in time.
        """
        return self.dispatcher is None or self.dispatcher.close(timeout)

    def give_up(self, error: BaseException) -> None:
        """
        Notify the plugins that the client was not created because of *error*.

        The plugins can then release their resources.
        """
        if self.dispatcher is not None:
            self.dispatcher.emit_later(ClosedEvent(error=error))
            self.close()

    def __repr__(self) -> str:
        return f"<Plugins {', '.join(info.name for info in self.infos) or 'none'}>"


def _calls(manager: pluggy.PluginManager, env: Mapping[str, str]) -> dict[str, Any]:
    """
    Build the calls of all implemented hooks, by the attributes of `Plugins`.
    """
    trace = env.get("JETSYNC_TRACE_HOOKS", "").strip().lower()
    traces = trace not in {"", "0", "false", "no", "off"}
    faults = FaultLog()

    def build(hook: str, builder: Callable[..., _Call], *more: object) -> _Call | None:
        steps = []
        # pluggy keeps them in reverse order.
        for impl in reversed(getattr(manager.hook, hook).get_hookimpls()):
            function = adapt(hook, impl.function)
            if traces:
                function = traced(impl.plugin_name, hook, function)
            steps.append((impl.plugin_name, function))
        return builder(hook, tuple(steps), *more) if steps else None

    calls: dict[str, Any] = {
        "prepare": build("jetsync_prepare_message", transform, check_readable),
        "received": build("jetsync_message_received", transform),
        "shared_headers": build("jetsync_shared_headers", collect_headers),
        "enter_publish": build("jetsync_publish", entering),
        "enter_batch_commit": build("jetsync_batch_commit", entering),
        "enter_fetch": build("jetsync_fetch", entering),
        "retry": build("jetsync_retry", first_delay),
        "status": build("jetsync_status", observe, faults),
        "ttl_marker": build("jetsync_ttl_marker", observe, faults),
        "faults": faults,
    }
    if calls["shared_headers"] is not None and calls["enter_publish"] is None:
        # Shared headers are collected inside a wrapped operation.
        calls["enter_publish"] = entering("jetsync_publish", ())
    # In the dispatcher's thread, SystemExit of a plugin must not keep events from the others.
    in_thread = build("jetsync_status", observe, faults, BaseException)
    if in_thread is not None:
        calls["dispatcher"] = Dispatcher(in_thread)
    return calls


def installed_plugins() -> dict[str, importlib.metadata.EntryPoint]:
    """
    Return the entry points of all installed plugins by name, sorted, without importing them.
    """
    entries = importlib.metadata.entry_points(group="jetsync")
    # If several have the same name, the first one counts.
    first = {entry.name: entry for entry in reversed(tuple(entries))}
    return dict(sorted(first.items()))


def declared_hooks(name: str) -> tuple[str, ...]:
    """
    Return the hooks that an installed plugin declares, sorted, without creating the plugin.

    So this also works for a plugin that needs configuration.

    Raises:
        ConfigurationError: The plugin is not installed or cannot be imported.
    """
    found = implemented(pluggy.PluginManager("jetsync"), _from_entry_point(name)).values()
    return tuple(sorted({hook for hook, options in found if options and hook in HOOKS}))


def _names(env: Mapping[str, str], variable: str) -> tuple[str, ...]:
    """
    Read names separated by commas; ignore spaces and repetitions.
    """
    names = (name.strip() for name in env.get(variable, "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _create(asked: object, found: Mapping[str, object]) -> tuple[object, str, str]:
    """
    Return the requested plugin, created if necessary, its name, and its module or class.
    """
    plugin = found[asked] if isinstance(asked, str) else asked
    if inspect.isclass(plugin):
        try:
            plugin = plugin()
        except Exception as exc:
            name = getattr(asked, "__name__", asked)
            raise ConfigurationError(
                f"plugin {name!r} cannot be created without arguments: {type(exc).__name__}: {exc}"
            ) from exc
    kind = type(plugin)
    if isinstance(plugin, types.ModuleType):
        name = source = plugin.__name__
    else:
        given = getattr(plugin, "name", None)
        name = given if isinstance(given, str) and given else kind.__name__
        source = f"{kind.__module__}:{kind.__qualname__}"
    return plugin, asked if isinstance(asked, str) else name, source


def _from_entry_point(name: str) -> object:
    installed = installed_plugins()
    if name not in installed:
        known = ", ".join(installed) or "none"
        raise ConfigurationError(f"there is no plugin {name!r}; installed: {known}")
    entry = installed[name]
    try:
        return entry.load()
    except Exception as exc:
        raise ConfigurationError(
            f"plugin {name!r} ({entry.value}) cannot be loaded: {type(exc).__name__}: {exc}"
        ) from exc
