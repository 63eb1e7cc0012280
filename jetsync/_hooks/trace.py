"""
Write a line to stderr for each hook call if `JETSYNC_TRACE_HOOKS` is set.

Traced functions replace those of the plugins when the plugins are loaded, so without the variable
tracing costs nothing.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from jetsync._hooks.check import WRAPPERS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# Characters shown of a value: enough for a subject, and few enough for one line.
_WIDTH: Final = 60


def traced(plugin: str, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return *function* with a line for each call: plugin, hook, arguments, outcome, microseconds.

    A wrapper hook writes two lines: one when it starts and one when the operation has ended.
    """

    @contextlib.contextmanager
    def lines(arguments: tuple[object, ...]) -> Iterator[list[object]]:
        shown = f"{plugin} {hook}({', '.join(map(_brief, arguments))})"
        start = time.perf_counter()
        results: list[object] = []
        if hook in WRAPPERS:
            _write(shown, "started", start)
        try:
            yield results
        except BaseException as exc:
            _write(shown, f"raised {_brief(exc)}", start)
            raise
        _write(shown, f"returned {_brief(results[0])}", start)

    @functools.wraps(function)
    def call(*arguments: object) -> Any:
        with lines(arguments) as results:
            results.append(function(*arguments))
        return results[0]

    @functools.wraps(function)
    def wrapper(*arguments: object) -> Generator[None, Any, Any]:
        with lines(arguments) as results:
            results.append((yield from function(*arguments)))
        return results[0]

    return wrapper if hook in WRAPPERS else call


def _write(call: str, outcome: str, start: float) -> None:
    micros = (time.perf_counter() - start) * 1e6
    # A closed stderr must not fail the traced call.
    with contextlib.suppress(Exception):
        sys.stderr.write(f"jetsync.hooks: {call} {outcome} [{micros:.0f} us]\n")


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
