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


def check_implementations(
    manager: pluggy.PluginManager, plugin: object, name: str
) -> tuple[str, ...]:
    """
    Raise unless the functions of a plugin fit the hooks.

    Args:
        manager: Reads the marks of functions.
        plugin: The plugin, which is not registered yet.
        name: Name of the plugin, for the error.

    Returns:
        The hooks that the plugin implements, sorted.

    Raises:
        ConfigurationError: The plugin implements no hook, or implements one wrongly.
    """
    hooks = implemented(manager, plugin)
    for attribute, (hook, options) in hooks.items():
        where = f"plugin {name!r}: {hook}"
        if hook not in HOOKS:
            near = difflib.get_close_matches(hook, HOOKS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(HOOKS)}"
            raise ConfigurationError(f"plugin {name!r}: there is no hook {hook}; {hint}")
        if options is None:
            raise ConfigurationError(
                f"{where} never runs, because it is not marked with @jetsync.hookimpl"
            )
        _check_function(hook, getattr(plugin, attribute), options, where)
    if not hooks:
        raise ConfigurationError(
            f"plugin {name!r} implements no hook; there are {', '.join(HOOKS)}"
        )
    return tuple(sorted({hook for hook, _ in hooks.values()}))


def implemented(
    manager: pluggy.PluginManager, plugin: object
) -> dict[str, tuple[str, pluggy.HookimplOpts | None]]:
    """
    Find the functions of a plugin that are marked as implementations, or named like one.

    Optional hooks that this version does not have are left out.

    Returns:
        By attribute: the name of the hook, and the options of the mark, None without a mark.
    """
    found: dict[str, tuple[str, pluggy.HookimplOpts | None]] = {}
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is not None:
            hook = options.get("specname") or attribute
            if hook in HOOKS or not options.get("optionalhook"):
                found[attribute] = hook, options
        elif attribute.startswith("jetsync_") and isinstance(
            # Not a module or a constant whose name starts with jetsync_.
            inspect.getattr_static(plugin, attribute, None),
            (types.FunctionType, types.MethodType, staticmethod, classmethod),
        ):
            found[attribute] = attribute, None
    return found


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


def _check_function(
    hook: str, function: Callable[..., Any], options: pluggy.HookimplOpts, where: str
) -> None:
    wrapper = bool(options.get("wrapper"))
    yields = inspect.isgeneratorfunction(function)
    arguments = ", ".join(ARGUMENTS[hook])
    faults = {
        "is an old-style wrapper; use @hookimpl(wrapper=True)": options.get("hookwrapper"),
        "wraps an operation: mark it with @hookimpl(wrapper=True) and yield once, where the"
        " operation runs": hook in WRAPPERS and not wrapper,
        "has nothing to wrap: mark it with @hookimpl alone": wrapper and hook not in WRAPPERS,
        "is async, but hooks are plain functions, which may block": (
            inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        ),
        "does not yield": wrapper and not yields,
        "yields, but it is not a wrapper": yields and not wrapper,
    }
    for parameter in inspect.signature(function).parameters.values():
        faults[f"declares {parameter}, but the hook's arguments are {arguments}"] = (
            parameter.name not in ARGUMENTS[hook] or parameter.kind in _REFUSED
        )
    for fault, is_there in faults.items():
        if is_there:
            raise ConfigurationError(f"{where} {fault}")


# Arguments are matched by name and passed by position.
_REFUSED: Final = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
