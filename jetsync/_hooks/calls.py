"""
How the implementations of one hook are called, built once when the plugins are loaded.

pluggy decides which implementations there are and in which order; calling them is done here,
because a hook that runs once per message can not afford a general call: each builder below returns
one plain function that has everything it needs in its closure. A builder is given at least one
step.

No plugin is called with a lock held, and every function may be called by many threads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import attrs

from jetsync._base.deadline import as_seconds
from jetsync._base.log import PLUGIN_FAILED, get_logger
from jetsync._hooks.errors import PluginError
from jetsync.errors import InvalidHeaderError
from jetsync.values.headers import MSG_ID, Headers, SharedHeaders

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from jetsync.events import Operation

T = TypeVar("T")
M = TypeVar("M")

NOT_SHARED: Final = (MSG_ID, "Nats-Expected-", "Nats-Batch-")
"""
How the names of headers begin that no two messages may share: with one id, all but the first would
be dropped as duplicates.
"""

_log = get_logger("jetsync.plugins")


@attrs.frozen
class Step:
    """
    Hold one implementation of a hook: whose it is, and the function with the hook's own arguments.
    """

    plugin: str
    function: Callable[..., Any]


class Wrap(Protocol):
    """
    Run *call* inside the wrappers of a hook and return what they leave of its result.
    """

    def __call__(self, operation: Operation, call: Callable[[], T]) -> T: ...


class Transform(Protocol):
    """
    Hand a message from plugin to plugin and return what they leave of it.
    """

    def __call__(self, message: M, /) -> M: ...


class FaultLog:
    """
    Log the errors of code that only observes, each kind once.

    A handler that fails at every event would otherwise bury the application's own log. A kind is
    the plugin, the hook and the class of the error. Thread-safe.
    """

    __slots__ = ("_lock", "_seen")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._seen: set[tuple[str, str, type[BaseException]]] = set()

    def report(self, plugin: str, hook: str, error: BaseException) -> None:
        """
        Log *error*, unless this plugin's hook has failed with the same class of error before.
        """
        kind = (plugin, hook, type(error))
        with self._lock:
            if kind in self._seen:
                return
            self._seen.add(kind)
        _log.error(
            PLUGIN_FAILED,
            plugin=plugin,
            hook=hook,
            error=f"{type(error).__name__}: {error}",
            exc_info=error,
        )


def plugin_error(plugin: str, hook: str, error: BaseException) -> PluginError:
    """
    Make the error that a caller sees when a plugin raised *error*; raise it `from` that.
    """
    return PluginError(plugin=plugin, hook=hook, reason=f"{type(error).__name__}: {error}")


def transform(
    hook: str, steps: Sequence[Step], check: Callable[[Any], None] | None = None
) -> Transform:
    """
    Build the call of a hook that hands a message from plugin to plugin.

    Args:
        hook: its name.
        steps: its implementations.
        check: raises where the message is nothing that a plugin should have to look at.

    Returns:
        A function from a message to what the plugins leave of it. It raises `PluginError` where a
        plugin raises, or returns something that is not a message of the same class.
    """

    def transformed(function: Callable[..., Any], plugin: str) -> Transform:
        def run(message: M, /) -> M:
            if check is not None:
                check(message)
            try:
                changed = function(message)
            except PluginError:
                raise
            except Exception as exc:
                raise plugin_error(plugin, hook, exc) from exc
            if changed is None:
                return message
            if not isinstance(changed, type(message)):
                reason = f"returned {type(changed).__name__}, not {type(message).__name__}"
                raise PluginError(plugin=plugin, hook=hook, reason=reason)
            return changed

        return run

    runs = tuple(transformed(step.function, step.plugin) for step in steps)
    if len(runs) == 1:
        return runs[0]

    def run_all(message: M, /) -> M:
        for run in runs:
            message = run(message)
        return message

    return run_all


def observe(hook: str, steps: Sequence[Step], faults: FaultLog) -> Callable[..., None]:
    """
    Build the call of a hook that only observes: it never raises an `Exception`.
    """
    pairs = tuple((step.function, step.plugin) for step in steps)

    def run(*arguments: object) -> None:
        for function, plugin in pairs:
            try:
                function(*arguments)
            except Exception as exc:  # noqa: BLE001 - traffic goes on whatever an observer does
                faults.report(plugin, hook, exc)

    return run


def collect_headers(
    hook: str, steps: Sequence[Step]
) -> Callable[[Operation], SharedHeaders | None]:
    """
    Build the call of `jetsync_shared_headers`: what the plugins give is put together.

    Of a name that several plugins give, the first one's values count. What one plugin gives belongs
    together.
    """
    pairs = tuple((step.function, step.plugin) for step in steps)

    def run(operation: Operation) -> SharedHeaders | None:
        parts: list[Headers] = []
        for function, plugin in pairs:
            try:
                given = function(operation)
                if given is None:
                    continue
                own = SharedHeaders(given)
                _check_shared(own)
            except PluginError:
                raise
            except Exception as exc:
                raise plugin_error(plugin, hook, exc) from exc
            known = {name for part in parts for name in part}
            parts.append(Headers(pair for pair in own.items() if pair[0] not in known))
        return SharedHeaders(*parts) if any(parts) else None

    return run


def _check_shared(headers: Headers) -> None:
    """
    Refuse headers that servers act on and that can be true of one message only.
    """
    for name in headers:
        if name.startswith(NOT_SHARED):
            raise InvalidHeaderError(name, "it belongs to one message, and can not be shared")


def first_delay(
    hook: str, steps: Sequence[Step]
) -> Callable[[Operation, Exception, int], float | None]:
    """
    Build the call of `jetsync_retry`: the first plugin that answers decides.
    """
    pairs = tuple((step.function, step.plugin) for step in steps)

    def run(operation: Operation, error: Exception, attempt: int) -> float | None:
        for function, plugin in pairs:
            try:
                answer = function(operation, error, attempt)
                if answer is not None:
                    return as_seconds(answer, hook)
            except PluginError:
                raise
            except Exception as exc:
                raise plugin_error(plugin, hook, exc) from exc
        return None

    return run


def wrap(hook: str, steps: Sequence[Step]) -> Wrap:
    """
    Build the call of a wrapper hook; the first step is the outermost wrapper.

    An error of the operation passes through the wrappers. A wrapper replaces it by raising another
    one `from` it (or `from None`), and replaces the result, or an error, by returning something
    other than `None`. Falling off its end leaves the outcome as it is, so that a wrapper that
    forgets to return or to raise again can not make a failed publish look like a success. An error
    that is born in a wrapper becomes `PluginError`, and the wrappers around it see that.
    """
    enter = entering(hook, steps)

    def run(operation: Operation, call: Callable[[], T]) -> T:
        entered = enter(operation)
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - what stands in its place is raised
            return entered.leave(None, error)  # type: ignore[no-any-return]
        return entered.leave(result, None)  # type: ignore[no-any-return]

    return run


def entering(hook: str, steps: Sequence[Step]) -> Callable[[Operation], Entered]:
    """
    Build the first half of a wrapper hook, for operations that are not one call.

    A fetch is over when its messages have been taken, and a window when its last ack came: the
    caller enters, goes about its work, and leaves with the outcome. The rules are those of
    :func:`wrap`.
    """
    pairs = tuple((step.function, step.plugin) for step in steps)

    def enter(operation: Operation) -> Entered:
        entered = Entered(hook)
        for function, plugin in pairs:
            generator = function(operation)
            try:
                _start(generator, plugin, hook)
            except BaseException as error:
                entered.leave(None, error)
                raise
            entered.started.append((generator, plugin))
        return entered

    return enter


class Entered:
    """
    Wrappers that have been entered and wait for the outcome; used by one thread at a time.
    """

    __slots__ = ("_hook", "started")

    def __init__(self, hook: str) -> None:
        self._hook = hook
        self.started: list[tuple[Generator[None, Any, Any], str]] = []

    def leave(self, result: Any, error: BaseException | None) -> Any:
        """
        Let the wrappers see the outcome, the innermost first, and return or raise what they leave.
        """
        while self.started:
            generator, plugin = self.started.pop()
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
            # The traceback holds this frame and this frame would hold the error: a cycle.
            del error


def _start(generator: Generator[None, Any, Any], plugin: str, hook: str) -> None:
    try:
        next(generator)
    except StopIteration:
        raise PluginError(plugin=plugin, hook=hook, reason="did not yield") from None
    except PluginError:
        raise
    except Exception as exc:
        raise plugin_error(plugin, hook, exc) from exc


def _finish(
    generator: Generator[None, Any, Any],
    plugin: str,
    hook: str,
    result: object,
    error: BaseException | None,
) -> object:
    """
    Let one wrapper see the outcome; return what it puts in its place, or `None` to keep it.
    """
    try:
        if error is None:
            generator.send(result)
        else:
            generator.throw(error)
    except StopIteration as stop:
        return stop.value
    except PluginError:
        raise
    except Exception as exc:
        if isinstance(error, StopIteration) and exc.__cause__ is error:
            # A generator can not let a StopIteration through (PEP 479); nobody replaced it.
            return None
        if error is not None and _stands_for(exc, error):
            raise
        raise plugin_error(plugin, hook, exc) from exc
    generator.close()
    raise PluginError(plugin=plugin, hook=hook, reason="yielded more than once")


def _stands_for(raised: BaseException, error: BaseException) -> bool:
    """
    Tell whether *raised* is the operation's *error*, or was deliberately put in its place.

    `raise ... from` says that it is meant. An error that merely happens while the operation's error
    is being handled has it as its context only.
    """
    if raised is error or raised.__cause__ is error:
        return True
    return raised.__suppress_context__ and raised.__cause__ is None and raised.__context__ is error
