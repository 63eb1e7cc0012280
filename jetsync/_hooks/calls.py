"""
Build the functions that call the implementations of a hook, once, when the plugins are loaded.

pluggy finds the implementations and their order. The calls are built here, because pluggy's general
call is too slow for a hook that runs once per message. Each builder gets at least one step and
returns a plain function. Many threads may call it at once. No lock is held while plugins run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from jetsync._base.deadline import as_seconds
from jetsync._base.log import get_logger
from jetsync._base.turn import outside
from jetsync._hooks.errors import PluginError
from jetsync.errors import InvalidHeaderError
from jetsync.values.headers import MSG_ID, Headers, SharedHeaders

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from jetsync.events import Operation

T = TypeVar("T")
M = TypeVar("M")

# Prefixes of headers that apply to one message. If messages shared an id, for example, the stream
# would drop all but the first as duplicates. In lower case.
NOT_SHARED: Final = (MSG_ID.lower(), "nats-expected-", "nats-batch-")

_log = get_logger("jetsync.plugins")


# One implementation of a hook: its plugin, and the function with the arguments of the hook.
Step: TypeAlias = "tuple[str, Callable[..., Any]]"


class Transform(Protocol):
    """
    Pass a message through the plugins and return the resulting message.
    """

    def __call__(self, message: M, /) -> M: ...


class FaultLog:
    """
    Log errors that no call raises, once for each plugin, hook and class of error. Thread-safe.

    A plugin that fails for every event or message would otherwise flood the log.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, type[BaseException]], object] = {}

    def report(self, plugin: str, hook: str, error: BaseException) -> None:
        """
        Log *error*, unless this hook of the plugin has failed with the same class of error before.

        The class of a `PluginError` is that of its cause.
        """
        kind = type(error.__cause__ or error) if isinstance(error, PluginError) else type(error)
        mine = object()
        # One call into C, so of two threads only one stores its object.
        if self._seen.setdefault((plugin, hook, kind), mine) is mine:
            text = f"{type(error).__name__}: {error}"
            _log.error("plugin_failed", plugin=plugin, hook=hook, error=text, exc_info=error)


class Blaming:
    """
    Turn an ``Exception`` inside a ``with`` block into the ``PluginError`` of a plugin.
    """

    __slots__ = ("_hook", "_plugin")

    def __init__(self, plugin: str, hook: str) -> None:
        self._plugin = plugin
        self._hook = hook

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, PluginError):
            raise plugin_error(self._plugin, self._hook, error) from error


def plugin_error(plugin: str, hook: str, error: BaseException) -> PluginError:
    """
    Make the error for a caller after a plugin raised *error*; raise it `from` *error*.
    """
    return PluginError(plugin=plugin, hook=hook, reason=f"{type(error).__name__}: {error}")


def transform(
    hook: str, steps: Sequence[Step], check: Callable[[Any], None] | None = None
) -> Transform:
    """
    Build the call of a hook that passes a message through the plugins.

    Args:
        hook: Name of the hook.
        steps: Its implementations.
        check: Raises for a message that plugins should not have to handle.

    Returns:
        A function that passes a message through the plugins and returns the result. It raises
        `PluginError` if a plugin raises or returns an object of another class.
    """

    def run(message: M, /) -> M:
        for plugin, function in steps:
            if check is not None:
                check(message)
            try:
                changed = function(message)
            except PluginError:
                raise
            except Exception as exc:
                raise plugin_error(plugin, hook, exc) from exc
            if changed is None:
                continue
            if not isinstance(changed, type(message)):
                reason = f"returned {type(changed).__name__}, not {type(message).__name__}"
                raise PluginError(plugin=plugin, hook=hook, reason=reason)
            message = changed
        return message

    return run


def observe(
    hook: str,
    steps: Sequence[Step],
    faults: FaultLog,
    caught: type[BaseException] = Exception,
) -> Callable[..., None]:
    """
    Build the call of a hook that only observes; it logs errors of the class *caught*.
    """

    def run(*arguments: object) -> None:
        for plugin, function in steps:
            try:
                outside(function, *arguments)
            except caught as exc:  # An observer must not stop the traffic.
                faults.report(plugin, hook, exc)

    return run


def collect_headers(
    hook: str, steps: Sequence[Step]
) -> Callable[[Operation], SharedHeaders | None]:
    """
    Build the call of `jetsync_shared_headers`, which merges the headers of all plugins.

    If several plugins return the same name, the values of the first one count. The headers of one
    plugin form a group.
    """

    def run(operation: Operation) -> SharedHeaders | None:
        parts: list[Headers] = []
        for plugin, function in steps:
            with Blaming(plugin, hook):
                given = outside(function, operation)
                if given is None:
                    continue
                own = SharedHeaders(given)
                for name in own:
                    if name.lower().startswith(NOT_SHARED):
                        raise InvalidHeaderError(name, "it applies to one message only")
            known = {name for part in parts for name in part}
            parts.append(Headers(pair for pair in own.items() if pair[0] not in known))
        return SharedHeaders(*parts) if any(parts) else None

    return run


def first_delay(
    hook: str, steps: Sequence[Step]
) -> Callable[[Operation, Exception, int], float | None]:
    """
    Build the call of `jetsync_retry`. The first plugin that returns a delay decides.
    """

    def run(operation: Operation, error: Exception, attempt: int) -> float | None:
        for plugin, function in steps:
            with Blaming(plugin, hook):
                answer = outside(function, operation, error, attempt)
                if answer is not None:
                    return as_seconds(answer, hook)
        return None

    return run


def entering(hook: str, steps: Sequence[Step]) -> Callable[[Operation], Entered]:
    """
    Build the first half of a wrapper hook; the first step is the outermost wrapper.

    An operation may span several calls. A fetch ends when its last message was taken, and a
    publisher when it was closed and all of its messages have ended. The caller enters, does its
    work, and leaves with the outcome. :meth:`Entered.run` does both around one call.

    An error of the operation passes through the wrappers. A wrapper replaces it by raising another
    error `from` it (or `from None`). It replaces a result or an error by returning something other
    than `None`. A wrapper that returns `None` keeps the outcome, so forgetting to re-raise does not
    turn a failed publish into a success. Any other error of a wrapper becomes `PluginError` for the
    wrappers around it.
    """

    def step(plugin: str, generator: Generator[None, Any, Any]) -> None:
        with Blaming(plugin, hook):
            if outside(next, generator, step) is step:
                raise PluginError(plugin=plugin, hook=hook, reason="did not yield")

    def enter(operation: Operation) -> Entered:
        entered = Entered(hook)
        for plugin, function in steps:
            generator = function(operation)
            entered.guard(step, plugin, generator)
            entered.started.append((plugin, generator))
        return entered

    return enter


class Entered:
    """
    Wrappers that have been entered and wait for the outcome. One thread at a time may use them.
    """

    __slots__ = ("_hook", "started")

    def __init__(self, hook: str) -> None:
        self._hook = hook
        self.started: list[tuple[str, Generator[None, Any, Any]]] = []

    def run(self, call: Callable[[], T]) -> T:
        """
        Run *call* inside the wrappers. Return its result, or the one that replaces it.
        """
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it or its replacement is raised.
            return self.leave(None, error)  # type: ignore[no-any-return]
        return self.leave(result, None)  # type: ignore[no-any-return]

    def guard(self, call: Callable[..., T], *arguments: Any) -> T:
        """
        Return the result of *call*. If it fails, also by Ctrl-C, the wrappers learn the outcome.
        """
        try:
            return call(*arguments)
        except BaseException as error:
            self.leave(None, error)
            raise

    def leave(self, result: Any, error: BaseException | None) -> Any:
        """
        Pass the outcome to the wrappers, innermost first. Return or raise the final outcome.
        """
        while self.started:
            plugin, generator = self.started.pop()
            try:
                replaced = _finish(generator, plugin, self._hook, result, error)
            except BaseException as exc:  # noqa: BLE001 - as above
                error = exc
            else:
                if replaced is not None:
                    result, error = replaced, None
        if error is None:
            return result
        try:
            raise error
        finally:
            # Otherwise the traceback, this frame and the error would form a cycle.
            del error


def _finish(
    generator: Generator[None, Any, Any],
    plugin: str,
    hook: str,
    result: object,
    error: BaseException | None,
) -> object:
    """
    Pass the outcome to one wrapper; return its replacement, or `None` to keep the outcome.
    """
    try:
        if error is None:
            outside(generator.send, result)
        else:
            outside(generator.throw, error)
    except StopIteration as stop:
        return stop.value
    except Exception as exc:
        if isinstance(error, StopIteration) and exc.__cause__ is error:
            # A StopIteration cannot leave a generator (PEP 479), so this is the same error.
            return None
        if isinstance(exc, PluginError) or (error is not None and _is_deliberate(exc, error)):
            raise
        raise plugin_error(plugin, hook, exc) from exc
    generator.close()
    raise PluginError(plugin=plugin, hook=hook, reason="yielded more than once")


def _is_deliberate(raised: BaseException, error: BaseException) -> bool:
    """
    Return whether *raised* is the operation's *error*, or replaces it deliberately.

    `raise ... from` shows the intention. An error that merely happens while the operation's error
    is handled has it as its context only.
    """
    if raised is error or raised.__cause__ is error:
        return True
    return raised.__suppress_context__ and raised.__cause__ is None and raised.__context__ is error
