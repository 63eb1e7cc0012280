"""
Check the functions of a plugin once, when it is loaded.

pluggy ignores an unmarked function with the name of a hook, and accepts an unknown argument that
has a default. Here every mistake that would keep a hook from running, or make it fail at the first
message, raises an error with an explanation.
"""

from __future__ import annotations

import difflib
import inspect
import types
from typing import TYPE_CHECKING, Any, Final

from jetsync import hookspecs
from jetsync.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pluggy

HOOKS: Final = tuple(name for name in hookspecs.__all__ if name.startswith("jetsync_"))
"""The names of all hooks, sorted."""

WRAPPERS: Final = frozenset({"jetsync_batch_commit", "jetsync_fetch", "jetsync_publish"})
"""The hooks that wrap an operation."""

ARGUMENTS: Final = {
    hook: tuple(inspect.signature(getattr(hookspecs, hook)).parameters) for hook in HOOKS
}
"""The arguments of each hook, in the order of the call."""


def check_implementations(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    """
    Raise unless the functions of a plugin fit the hooks.

    Args:
        manager: Reads the marks of functions.
        plugin: The plugin, which is not registered yet.
        name: Name of the plugin, for the error.

    Raises:
        ConfigurationError: The plugin implements no hook, or implements one wrongly.
    """
    implemented = 0
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is None:
            if attribute.startswith("jetsync_"):
                _check_unmarked(plugin, attribute, name)
            continue
        hook = options.get("specname") or attribute
        if hook not in HOOKS:
            if options.get("optionalhook"):
                # The author declares that this hook may belong to another version.
                continue
            raise ConfigurationError(f"plugin {name!r}: {_unknown(hook)}")
        _check_function(hook, getattr(plugin, attribute), options, f"plugin {name!r}: {hook}")
        implemented += 1
    if not implemented:
        raise ConfigurationError(
            f"plugin {name!r} implements no hook; there are {', '.join(HOOKS)}"
        )


def adapt(hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return a function that takes all arguments of *hook* by position.

    If *function* already does, it is returned itself and costs no extra call.
    """
    wanted = tuple(inspect.signature(function).parameters)
    offered = ARGUMENTS[hook]
    if wanted == offered:
        return function
    positions = tuple(offered.index(argument) for argument in wanted)

    def call(*arguments: object) -> Any:
        return function(*[arguments[position] for position in positions])

    return call


def _check_unmarked(plugin: object, attribute: str, name: str) -> None:
    found = inspect.getattr_static(plugin, attribute, None)
    if not isinstance(found, (types.FunctionType, types.MethodType, staticmethod, classmethod)):
        # A module or a constant whose name starts with jetsync_.
        return
    if attribute in HOOKS:
        raise ConfigurationError(
            f"plugin {name!r}: {attribute} is not marked with @jetsync.hookimpl and would never run"
        )
    raise ConfigurationError(f"plugin {name!r}: {_unknown(attribute)}")


def _check_function(
    hook: str, function: Callable[..., Any], options: pluggy.HookimplOpts, where: str
) -> None:
    if options.get("hookwrapper"):
        raise ConfigurationError(f"{where} is an old-style wrapper; use @hookimpl(wrapper=True)")
    wrapper = bool(options.get("wrapper"))
    if hook in WRAPPERS and not wrapper:
        raise ConfigurationError(
            f"{where} wraps an operation: mark it with @hookimpl(wrapper=True)"
            " and yield once, where the operation runs"
        )
    if hook not in WRAPPERS and wrapper:
        raise ConfigurationError(f"{where} has nothing to wrap: mark it with @hookimpl alone")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{where} is async; hooks are plain functions that may block")
    if wrapper != inspect.isgeneratorfunction(function):
        raise ConfigurationError(
            f"{where} does not yield" if wrapper else f"{where} yields, but it is not a wrapper"
        )
    offered = ARGUMENTS[hook]
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in offered or parameter.kind in _REFUSED:
            raise ConfigurationError(
                f"{where} declares {parameter}, which does not exist;"
                f" its arguments are {', '.join(offered)}"
            )


# Arguments are matched by name and passed by position.
_REFUSED: Final = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def _unknown(hook: str) -> str:
    near = difflib.get_close_matches(hook, HOOKS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(HOOKS)}"
    return f"there is no hook {hook}; {hint}"
