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
from typing import TYPE_CHECKING, TypeVar

import attrs
import pluggy

from jetsync import hookspecs
from jetsync._hooks.calls import (
    FaultLog,
    Step,
    collect_headers,
    entering,
    first_delay,
    observe,
    transform,
    wrap,
)
from jetsync._hooks.check import HOOKS, adapt, check_implementations
from jetsync._hooks.dispatcher import Dispatcher
from jetsync._hooks.trace import enable, traced
from jetsync.errors import ConfigurationError, InvalidTypeError
from jetsync.events import ClosedEvent
from jetsync.values.outbound import check_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from jetsync._hooks.calls import Entered, Transform, Wrap
    from jetsync.events import Operation, StatusEvent
    from jetsync.values.headers import SharedHeaders
    from jetsync.values.message import Message
    from jetsync.values.outbound import OutboundMessage
    from jetsync.values.stored import StoredMessage
    from jetsync.values.ttl import MarkerReason

_Call = TypeVar("_Call")

ENTRY_POINT_GROUP = "jetsync"


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


@attrs.frozen
class InstalledPlugin:
    """
    An entry point of the group `jetsync`, loaded or not.
    """

    name: str
    value: str
    """The object of the entry point, as `module:attribute`."""

    distribution: str | None = None
    version: str | None = None


class Plugins:
    """
    The plugins of one client, with one attribute per hook. Any thread.

    The attribute is `None` if no plugin implements the hook. Events of the loop thread go to
    `dispatcher`, which is `None` if `status` is.

    Args:
        infos: The loaded plugins, in the order of loading.
        steps: The implementations of each hook, in the order of calling.
        blocked: The requested plugins that were left out.
    """

    __slots__ = (
        "blocked",
        "dispatcher",
        "enter_fetch",
        "enter_publish",
        "infos",
        "prepare",
        "received",
        "retry",
        "shared_headers",
        "status",
        "ttl_marker",
        "wrap_batch_commit",
        "wrap_fetch",
        "wrap_publish",
    )

    def __init__(
        self,
        infos: tuple[PluginInfo, ...] = (),
        steps: Mapping[str, tuple[Step, ...]] | None = None,
        blocked: tuple[str, ...] = (),
    ) -> None:
        self.infos: tuple[PluginInfo, ...] = infos
        self.blocked: tuple[str, ...] = blocked
        known = {} if steps is None else steps
        faults = FaultLog()

        def build(hook: str, builder: Callable[..., _Call], *more: object) -> _Call | None:
            found = known.get(hook)
            return builder(hook, found, *more) if found else None

        self.prepare: Callable[[OutboundMessage], OutboundMessage] | None
        self.received: Transform | None
        self.wrap_publish: Wrap | None
        self.wrap_batch_commit: Wrap | None
        self.wrap_fetch: Wrap | None
        self.enter_publish: Callable[[Operation], Entered] | None
        self.enter_fetch: Callable[[Operation], Entered] | None
        self.status: Callable[[StatusEvent], None] | None
        self.ttl_marker: Callable[[Message | StoredMessage, MarkerReason], None] | None
        self.retry: Callable[[Operation, Exception, int], float | None] | None
        self.shared_headers: Callable[[Operation], SharedHeaders | None] | None

        self.prepare = build("jetsync_prepare_message", transform, check_readable)
        self.received = build("jetsync_message_received", transform)
        self.wrap_publish = build("jetsync_publish", wrap)
        self.wrap_batch_commit = build("jetsync_batch_commit", wrap)
        self.wrap_fetch = build("jetsync_fetch", wrap)
        self.enter_publish = build("jetsync_publish", entering)
        self.enter_fetch = build("jetsync_fetch", entering)
        self.status = build("jetsync_status", observe, faults)
        self.ttl_marker = build("jetsync_ttl_marker", observe, faults)
        self.retry = build("jetsync_retry", first_delay)
        self.shared_headers = build("jetsync_shared_headers", collect_headers)
        if self.shared_headers is not None and self.wrap_publish is None:
            # Shared headers are collected inside a wrapped operation.
            self.wrap_publish = wrap("jetsync_publish", ())
            self.enter_publish = entering("jetsync_publish", ())
        self.dispatcher: Dispatcher | None = (
            None if self.status is None else Dispatcher(self.status)
        )

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
        left_out: list[str] = []
        manager = pluggy.PluginManager("jetsync")
        manager.add_hookspecs(hookspecs)
        # All names are resolved before the first plugin is created, because plugins may open
        # resources.
        found: dict[str, object] = {}
        for asked in [*wanted, *added]:
            # A blocked plugin is not even imported: the import may be why it is blocked.
            if isinstance(asked, str) and asked not in blocked and asked not in found:
                found[asked] = _from_entry_point(asked)
        trace = _is_set(env)
        try:
            for position, asked in enumerate([*wanted, *added]):
                if isinstance(asked, str) and asked in blocked:
                    left_out.append(asked)
                    continue
                if position >= len(wanted) and manager.has_plugin(str(asked)):
                    # The environment names a plugin that was also passed as an argument.
                    continue
                plugin, name = _resolve(asked, found)
                if name in blocked:
                    left_out.append(name)
                elif not manager.has_plugin(name):
                    check_implementations(manager, plugin, name)
                    _register(manager, plugin, name)
                else:
                    raise ConfigurationError(
                        f"plugin {name!r} is given twice; two plugins of one class need different"
                        " `name` attributes"
                    )
        except BaseException as error:
            cls((), _steps(manager, trace=trace)).give_up(error)
            raise
        infos = tuple(_describe(manager, plugin, name) for name, plugin in _listed(manager))
        return cls(infos, _steps(manager, trace=trace), tuple(dict.fromkeys(left_out)))

    def describe(self) -> tuple[PluginInfo, ...]:
        """
        Return the loaded plugins, in the order of loading.
        """
        return self.infos

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


def installed_plugins() -> tuple[InstalledPlugin, ...]:
    """
    List the installed plugins by name, without importing them.
    """
    found: dict[str, InstalledPlugin] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        plugin = InstalledPlugin(entry.name, entry.value)
        if entry.dist is not None:
            plugin = attrs.evolve(
                plugin, distribution=entry.dist.metadata["Name"], version=entry.dist.version
            )
        found.setdefault(entry.name, plugin)
    return tuple(found[name] for name in sorted(found))


def declared_hooks(name: str) -> tuple[str, ...]:
    """
    Return the hooks that an installed plugin declares, sorted, without creating the plugin.

    So this also works for a plugin that needs configuration.

    Raises:
        ConfigurationError: The plugin is not installed or cannot be imported.
    """
    found = _from_entry_point(name)
    manager = pluggy.PluginManager("jetsync")
    hooks = set()
    for attribute in dir(found):
        options = manager.parse_hookimpl_opts(found, attribute)
        if options is not None:
            hooks.add(options.get("specname") or attribute)
    return tuple(sorted(hooks.intersection(HOOKS)))


def _names(env: Mapping[str, str], variable: str) -> tuple[str, ...]:
    """
    Read names separated by commas; ignore spaces and repetitions.
    """
    names = (name.strip() for name in env.get(variable, "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _is_set(env: Mapping[str, str]) -> bool:
    return env.get("JETSYNC_TRACE_HOOKS", "").strip().lower() not in {"", "0", "false", "no", "off"}


def _resolve(asked: object, found: Mapping[str, object]) -> tuple[object, str]:
    """
    Return the requested plugin, created if necessary, and its name.
    """
    if isinstance(asked, str):
        return _instance(found[asked], asked), asked
    plugin = _instance(asked, getattr(asked, "__name__", repr(asked)))
    if isinstance(plugin, types.ModuleType):
        return plugin, plugin.__name__
    name = getattr(plugin, "name", None)
    return plugin, name if isinstance(name, str) and name else type(plugin).__name__


def _from_entry_point(name: str) -> object:
    entries = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    for entry in entries:
        if entry.name == name:
            try:
                return entry.load()
            except Exception as exc:
                raise ConfigurationError(
                    f"plugin {name!r} ({entry.value}) cannot be loaded: {type(exc).__name__}: {exc}"
                ) from exc
    known = ", ".join(sorted({entry.name for entry in entries})) or "none"
    raise ConfigurationError(f"there is no plugin {name!r}; installed: {known}")


def _instance(plugin: object, name: str) -> object:
    if not inspect.isclass(plugin):
        return plugin
    try:
        return plugin()
    except Exception as exc:
        raise ConfigurationError(
            f"plugin {name!r} cannot be created without arguments: {type(exc).__name__}: {exc}"
        ) from exc


def _register(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    try:
        manager.register(plugin, name=name)
    except (ValueError, pluggy.PluginValidationError) as exc:
        raise ConfigurationError(f"plugin {name!r} cannot be registered: {exc}") from exc


def _listed(manager: pluggy.PluginManager) -> Iterator[tuple[str, object]]:
    for name, plugin in manager.list_name_plugin():
        if plugin is not None:
            yield name, plugin


def _describe(manager: pluggy.PluginManager, plugin: object, name: str) -> PluginInfo:
    callers = manager.get_hookcallers(plugin) or []
    hooks = tuple(sorted(caller.name for caller in callers if caller.name in HOOKS))
    if isinstance(plugin, types.ModuleType):
        return PluginInfo(name, hooks, plugin.__name__)
    kind = type(plugin)
    return PluginInfo(name, hooks, f"{kind.__module__}:{kind.__qualname__}")


def _steps(manager: pluggy.PluginManager, *, trace: bool) -> dict[str, tuple[Step, ...]]:
    """
    Return the implementations of each hook, in the order of calling.
    """
    if trace:
        enable()
    steps: dict[str, tuple[Step, ...]] = {}
    for hook in HOOKS:
        # pluggy keeps them in reverse order.
        found = reversed(getattr(manager.hook, hook).get_hookimpls())
        steps[hook] = tuple(
            Step(
                impl.plugin_name,
                traced(impl.plugin_name, hook, adapt(hook, impl.function))
                if trace
                else adapt(hook, impl.function),
            )
            for impl in found
        )
    return steps
