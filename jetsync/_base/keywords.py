"""
Errors for keywords that a call does not have, but that other clients call so.

Python refuses an unknown keyword before a function runs. So the calls that users of other clients
know under the same name take all keywords and refuse the unknown ones by themselves. Neither
signatures nor type checkers show this, and a call without unknown keywords calls nothing more.
"""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypedDict, TypeVar

from jetsync.errors import InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

F = TypeVar("F", bound="Callable[..., Any]")

# Arguments of nats-py, and what they are called here. By spelling alone, none of them is found.
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


def closed(function: F) -> F:
    """Leave the catch-all out of the signature that ``help`` and editors show."""
    signature = inspect.signature(function)
    shown = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
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
