"""
Errors for wrong keywords and positions that name the right ones, for users who know nats-py.

Python refuses an unknown keyword before a function runs, so the function cannot say what the
argument is called here. The calls that nats-py also has therefore accept all keywords, and refuse
unknown ones themselves. They do the same with arguments by position that are keywords here. Neither
signatures nor type checkers show this. Without such arguments, no further function is called.

Calls that wait for no server, such as ``Client.publish``, do without: the parameters cost time.
"""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypedDict, TypeVar

from jetsync.errors import InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

F = TypeVar("F", bound="Callable[..., Any]")

# Arguments of nats-py, and what they are called here. Their spelling does not lead to these names.
_MEANT: Final = {
    "timeout": "expires",
    "batch": "max_messages",
    "batch_size": "max_messages",
    "cb": "handler",
    "callback": "handler",
    "payload": "data",
}


class NoKeywords(TypedDict):
    """The type of the catch-all: type checkers refuse every keyword."""


def hide_extra(function: F) -> F:
    """Leave the catch-alls out of the signature that ``help`` and editors show."""
    signature = inspect.signature(function)
    shown = [
        each
        for each in signature.parameters.values()
        if each.kind not in {each.VAR_KEYWORD, each.VAR_POSITIONAL}
    ]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def refuse(function: Callable[..., Any], unknown: Mapping[str, object]) -> NoReturn:
    """Raise InvalidTypeError, which is a TypeError, for the first unknown keyword of a call."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    name = next(iter(unknown))
    meant = _MEANT.get(name)
    near = [meant] if meant in known else difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the arguments are {', '.join(known)}"
    text = f"{function.__qualname__}() has no argument {name!r}; {hint}"
    raise InvalidTypeError(text, argument=name)


def refuse_position(method: Callable[..., Any]) -> NoReturn:
    """Raise InvalidTypeError for a call of a method with too many arguments by position."""
    parameters = inspect.signature(method).parameters.values()
    keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    others = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
    raise InvalidTypeError(
        f"{method.__qualname__}() takes {' and '.join(others) or 'nothing'} by position; give "
        f"other arguments by name: {', '.join(keywords)}"
    )
