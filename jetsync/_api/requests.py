"""
What all management calls share: one request to the JetStream API, lists in pages, and arguments
that are either a configuration object or plain keywords.
"""

from __future__ import annotations

import difflib
import operator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from jetsync._base import log as _log
from jetsync._base.integers import read_count
from jetsync.errors import InvalidArgumentError, InvalidTypeError, ProtocolError
from jetsync.values.codec import ConfigModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds

__all__ = ["config_of", "evolve", "pages", "sequence_number"]

_Config = TypeVar("_Config", bound=ConfigModel)

_logger = _log.get_logger("jetsync.management")

LIST_INCOMPLETE: Final = "list_incomplete"
"""Log event: a cluster could not describe everything, because servers are down."""


def config_of(
    cls: type[_Config], config: _Config | None, fields: Mapping[str, Any], what: str
) -> _Config:
    """
    Return the configuration that a call was given: an object, plain keywords, or both.

    Keywords beside an object are laid over a copy of it.

    Raises:
        InvalidTypeError: neither was given, the object is something else, or a keyword is unknown.
    """
    if config is None:
        if not fields:
            raise InvalidTypeError(f"{what} needs a {cls.__name__} or its fields as keywords")
        config = cls()
    elif not isinstance(config, cls):
        raise InvalidTypeError(
            f"{what} needs a {cls.__name__}, not {type(config).__name__}", argument="config"
        )
    return evolve(config, fields)


def evolve(config: _Config, fields: Mapping[str, Any]) -> _Config:
    """
    Return a copy of a configuration with some fields changed.

    Raises:
        InvalidTypeError: there is no such field, or the value is of a wrong type.
        InvalidArgumentError: the value can not work.
    """
    known = {item.name for item in attrs.fields(type(config))} - {"_received"}
    unknown = sorted(set(fields) - known)
    if unknown:
        text = f"{type(config).__name__} has no field {', '.join(unknown)}"
        near = difflib.get_close_matches(unknown[0], sorted(known), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidTypeError(text + hint, argument=unknown[0])
    return attrs.evolve(config, **fields)


def sequence_number(value: int, name: str, *, minimum: int = 1) -> int:
    """
    Return a stream sequence or a count as an int.

    Raises:
        InvalidTypeError: it is no whole number.
        InvalidArgumentError: it is less than ``minimum``.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidTypeError(f"{name} must be an int, not {type(value).__name__}", argument=name)
    number = operator.index(value)
    if number < minimum:
        raise InvalidArgumentError(
            f"{name} must be at least {minimum}, not {number}", argument=name
        )
    return number


def pages(
    context: Context,
    endpoint: str,
    key: str,
    filters: Mapping[str, Any],
    *,
    name_of: Callable[[Any], str],
    timeout: Seconds | None,
    stream: str | None = None,
) -> Iterator[Any]:
    """
    Yield the entries of a list endpoint, asking for a page only when its first entry is wanted.

    A list is addressed by offset, so it shifts when something is made or deleted meanwhile. Each
    page after the first therefore begins with the last entry of the one before. If it begins with
    one that was not seen, the list is read again from a page earlier, until it does. Nothing is
    yielded twice, and what exists all the time is not missed.

    Args:
        context: Where to ask.
        endpoint: The list endpoint.
        key: Where in the answer the entries are.
        filters: Further fields of the request.
        name_of: Tells the name of an entry.
        timeout: Seconds for each page; ``None`` means the context's default.
        stream: The stream that errors name.
    """
    seen: set[str] = set()
    offset = 0
    overlaps = False
    while True:
        page = {**filters, "offset": offset}
        answer = context.api(endpoint, page, context.deadline(timeout), stream=stream)
        entries = answer.get(key) or []
        try:
            missing = [*(answer.get("missing") or ()), *(answer.get("offline") or ())]
            names = [name_of(entry) for entry in entries]
        except (TypeError, KeyError, AttributeError) as error:
            raise ProtocolError(f"the {key} of an answer are no list of them") from error
        if missing:
            _logger.warning(LIST_INCOMPLETE, endpoint=endpoint, missing=missing)
        total = read_count(answer.get("total") or 0, "the total of a list")
        limit = read_count(answer.get("limit") or 256, "the limit of a list")
        if overlaps and offset > 0 and (not names or names[0] not in seen):
            offset = max(0, min(offset, total) - limit)
            continue
        for name, entry in zip(names, entries, strict=True):
            if name not in seen:
                seen.add(name)
                yield entry
        offset += len(entries)
        if not entries or offset >= total:
            return
        # A page of one entry that is an overlap would not get on.
        overlaps = len(entries) > 1
        offset -= overlaps
