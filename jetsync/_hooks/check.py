"""
What a plugin's functions must look like, checked once when the plugin is loaded.

pluggy checks less than a plugin's author needs: it calls an unmarked function by the name of a hook
nothing at all, and lets an argument with a default that exists nowhere pass. Here every slip that
would make a hook silently not run, or fail at the first message, is refused with a sentence.
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
"""The hooks that are wrapped around an operation; the others are called."""

ARGUMENTS: Final = {
    hook: tuple(inspect.signature(getattr(hookspecs, hook)).parameters) for hook in HOOKS
}
"""The arguments of each hook, in the order in which they are passed."""


def check_implementations(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    """
    Refuse a plugin whose functions do not fit the hooks; it is not registered yet.

    Args:
        manager: it knows how a function is marked.

        plugin: the object to look at.

        name: what to call it in the error.

    Raises:
        ConfigurationError: it implements no hook, or does so wrongly.
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
                # The plugin's author says that this hook may be one of another version.
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
    Return *function* as one that takes all arguments of *hook*, by position and in its order.

    A function that already does is returned as it is: the usual case costs no extra call.
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
        # A module that is called jetsync_something, or a constant.
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
            f"{where} goes around an operation: mark it with @hookimpl(wrapper=True)"
            " and yield once, where the operation is to run"
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
