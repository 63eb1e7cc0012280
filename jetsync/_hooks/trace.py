"""
Write a line to stderr for each hook call if `JETSYNC_TRACE_HOOKS` is set.

Traced functions replace those of the plugins when the plugins are loaded, so without the variable
tracing costs nothing.
"""

from __future__ import annotations

import enum
import functools
import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from jetsync._hooks.check import WRAPPERS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_LOGGER: Final = logging.getLogger("jetsync.hooks")

# Characters shown of a value: enough for a subject, and few enough for one line.
_WIDTH: Final = 60


class _Stderr(logging.Handler):
    """
    Write to the current `sys.stderr`, not to the one at import time.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 - a closed stderr must not fail the traced call
            self.handleError(record)


_HANDLER: Final = _Stderr()
_HANDLER.setFormatter(logging.Formatter("%(name)s: %(message)s"))


def enable() -> None:
    """
    Send the trace to stderr, whatever logging the application has configured. Safe to repeat.

    This is the only logger of the package with its own handler. It does not propagate, so each line
    is written once.
    """
    _LOGGER.setLevel(logging.DEBUG)
    _LOGGER.propagate = False
    if _HANDLER not in _LOGGER.handlers:
        _LOGGER.addHandler(_HANDLER)


def traced(plugin: str, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return *function* with a line for each call: plugin, hook, arguments, outcome, microseconds.

    A wrapper hook writes two lines: one when it starts and one when the operation has ended.
    """

    @functools.wraps(function)
    def call(*arguments: object) -> Any:
        start = time.perf_counter()
        try:
            result = function(*arguments)
        except BaseException as exc:
            _line(plugin, hook, arguments, f"raised {_brief(exc)}", start)
            raise
        _line(plugin, hook, arguments, f"returned {_brief(result)}", start)
        return result

    @functools.wraps(function)
    def wrapper(*arguments: object) -> Generator[None, Any, Any]:
        start = time.perf_counter()
        _line(plugin, hook, arguments, "started", start)
        try:
            result = yield from function(*arguments)
        except BaseException as exc:
            _line(plugin, hook, arguments, f"raised {_brief(exc)}", start)
            raise
        _line(plugin, hook, arguments, f"returned {_brief(result)}", start)
        return result

    return wrapper if hook in WRAPPERS else call


def _line(
    plugin: str, hook: str, arguments: tuple[object, ...], outcome: str, start: float
) -> None:
    micros = (time.perf_counter() - start) * 1e6
    shown = ", ".join(_brief(argument) for argument in arguments)
    _LOGGER.debug("%s %s(%s) %s [%.0f us]", plugin, hook, shown, outcome, micros)


def _brief(value: object) -> str:
    """
    Show enough of a value to recognise it, but never a payload.
    """
    kind = type(value).__name__
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{kind}.{value.name}"
    if isinstance(value, BaseException):
        return f"{kind}: {value}"[:_WIDTH]
    for label in ("subject", "name", "kind"):
        text = getattr(value, label, None)
        if isinstance(text, str):
            return f"{kind}({str.__str__(text)[:_WIDTH]})"
    return kind
