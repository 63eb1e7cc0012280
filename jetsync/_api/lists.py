"""
Read the lists of the JetStream API, page by page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jetsync._base.integers import read_count
from jetsync._base.log import get_logger
from jetsync.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds

_logger = get_logger("jetsync.management")

# How many answers in a row may bring nothing new. A list from which entries are deleted meanwhile
# is read back page by page, so a few such answers are normal.
MOST_REPEATS: Final = 64

# How many entries a list may have in excess of twice its first total, because others are created
# meanwhile.
MOST_CREATED: Final = 100_000


class Progress:
    """
    Ends the read of a list whose pages do not lead to its end.

    Args:
        endpoint: The list endpoint, for the error.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._repeats = self._known = 0
        self._most: int | None = None

    def check(self, size: int, known: int, total: int) -> None:
        """
        Raise ProtocolError unless the list comes closer to its end. Not for its last page.

        Args:
            size: How many entries the last page had.
            known: How many different entries have arrived so far.
            total: How many there are, as the last answer says.
        """
        if self._most is None:
            self._most = 2 * total + MOST_CREATED
        self._repeats = self._repeats + 1 if known == self._known else 0
        self._known = known
        if not size:
            reason = f"the page after {known} of {total} entries is empty"
        elif self._repeats > MOST_REPEATS:
            reason = f"{self._repeats} pages after {known} of {total} entries have no new entry"
        elif known > self._most:
            reason = f"it has {known} entries so far, many more than its first total"
        else:
            return
        raise ProtocolError(f"the server does not end the list {self._endpoint}: {reason}")


class Page(NamedTuple):
    """
    One answer of a list endpoint.
    """

    names: list[str]
    entries: list[Any]
    # What the server knows of and cannot describe now.
    missing: list[Any]
    # How many entries the list has, and how many are on a page.
    total: int
    limit: int

    @classmethod
    def read(cls, answer: Mapping[str, Any], endpoint: str) -> Page:
        """Read the answer of an endpoint; raises ProtocolError."""
        key = "consumers" if endpoint.startswith("CONSUMER") else "streams"
        entries = answer.get(key) or []
        try:
            missing = [*(answer.get("missing") or ()), *(answer.get("offline") or ())]
            names = [_name_of(entry) for entry in entries]
        except (TypeError, KeyError, AttributeError) as error:
            raise ProtocolError(f"{key!r} of the answer to {endpoint} is not a list") from error
        total = read_count(answer.get("total") or 0, "the total of a list")
        limit = read_count(answer.get("limit") or 256, "the limit of a list")
        return cls(names, entries, missing, total, limit)


def pages(
    context: Context,
    endpoint: str,
    filters: Mapping[str, Any],
    timeout: Seconds | None,
    *,
    stream: str | None = None,
) -> Generator[Any, None, None]:
    """
    Yield the entries of a list endpoint, requesting each page when its first entry is needed.

    Pages are addressed by offset, which shifts when entries are created or deleted meanwhile. So
    each page after the first begins with the last entry of the previous one. If it begins with an
    unknown entry, the read goes back by one page. No entry is yielded twice, and an entry that
    exists all the time is not missed.

    Raises ProtocolError if the server repeats its pages, sends an empty one before the end, or does
    not end the list.

    Args:
        context: Where to ask.
        endpoint: The list endpoint.
        filters: Further fields of the request.
        timeout: Seconds for each page; ``None`` means the context's default.
        stream: The stream that errors name.
    """
    seen: set[str] = set()
    progress = Progress(endpoint)
    offset = 0
    overlaps = False
    while True:
        asked = {**filters, "offset": offset}
        answer = context.api(endpoint, asked, context.deadline(timeout), stream=stream)
        names, entries, missing, total, limit = Page.read(answer, endpoint)
        if missing:
            _logger.warning("list_incomplete", endpoint=endpoint, missing=missing)
        if overlaps and offset > 0 and (not names or names[0] not in seen):
            offset = max(0, min(offset, total) - limit)
            progress.check(1, len(seen), total)
            continue
        for name, entry in zip(names, entries, strict=True):
            if name not in seen:
                seen.add(name)
                yield entry
        offset += len(entries)
        if offset >= total or (missing and not entries):
            return
        progress.check(len(entries), len(seen), total)
        # Pages of one entry cannot overlap, because the list would never end.
        overlaps = len(entries) > 1
        offset -= overlaps


def _name_of(entry: Any) -> str:
    """Return the name in an entry: a name, or the description of a stream or a consumer."""
    if isinstance(entry, str):
        return entry
    return str(entry["name"] if "name" in entry else entry["config"]["name"])
