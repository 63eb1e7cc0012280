"""
Read a consistent snapshot of the last messages of many subjects, in one or more requests.

:class:`LastPlan` splits a read that one request cannot answer. It continues if a message is removed
during the read, and finds the subjects whose message of the snapshot is gone.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Final

import attrs

from jetsync._api.context import Context
from jetsync._proto.direct_last import LastRead, chunks
from jetsync.errors import PermissionDeniedError, TooManySubjectsError
from jetsync.read.pages import PAGE_BYTES, PageReader, ReadPlan
from jetsync.values.codec import format_time, parse_time_ns
from jetsync.values.stream_config import RetentionPolicy
from jetsync.values.subjects import common_wildcard, has_wildcard

if TYPE_CHECKING:
    from jetsync._api.mirrors import Reading
    from jetsync.values.stored import StoredMessage
    from jetsync.values.stream_info import StreamInfo

# The most bytes of subjects in one request. Half of the server's `max_payload` is a limit too.
REQUEST_ROOM: Final = 256 << 10

# Up to this many subjects are looked up one by one. For more, the stream's subjects are listed.
FEW: Final = 16


@attrs.define(slots=False, eq=False)
class OnePage(ReadPlan):
    """
    One request for last messages; an empty answer is confirmed by the leader.

    Args:
        engine: The engine of the read.
        up_to_time: Read messages before this time; None for no limit.
    """

    engine: LastRead
    up_to_time: str | None = None

    @property
    def reading(self) -> Reading:
        """The kind of read, which decides which mirrors may answer."""
        now = self.engine.moment is None and self.up_to_time is None
        return "last" if now else "history"

    def recover(self, reader: PageReader) -> bool:
        """Return whether the page has to be requested again, because a replica has less."""
        if self.engine.verdict == "cut":
            raise TooManySubjectsError(stream=reader.stream)
        return self.engine.verdict == "nothing" and self.confirm_nothing(reader)

    def confirm_nothing(self, reader: PageReader) -> bool:
        """Ask the leader whether the page is really empty. Return whether a page follows."""
        engine = self.engine
        try:
            if self._has_any(reader):
                reader.try_again(wait=engine.tries > 0)
                return True
        except PermissionDeniedError:
            # A user who may not ask the leader has to trust the replica that answers.
            pass
        engine.confirm()
        return not engine.done

    def _has_any(self, reader: PageReader) -> bool:
        """Return whether the leader has any message that the last page should have had."""
        engine = self.engine
        names = [name for name in engine.part if not has_wildcard(name)]
        wildcards = [name for name in engine.part if has_wildcard(name)]
        if len(names) > FEW:
            listed = reader.info(common_wildcard(names)).state.subjects
            names = [name for name in names if name in listed]
        moment = math.inf if engine.moment is None else engine.moment
        before = math.inf if self.up_to_time is None else parse_time_ns(self.up_to_time)
        for subject in [*wildcards, *names]:
            first = reader.first_at_leader({"next_by_subj": subject, "seq": engine.position})
            if first is not None and first.sequence <= moment and first.timestamp_ns < before:
                return True
        return False


@attrs.define(slots=False, eq=False, kw_only=True)
class LastPlan(OnePage):
    """
    The requests of one read of many subjects.

    Args:
        context: Where to read.
        stream: The stream.
        subjects: Subjects and wildcards, each once.
        moment: The sequence up to which to look, at most the stream's last one.
        up_to_time: The time before which to look, instead of *moment*.
        finds_times: Whether the server finds messages by their time.
        page: Messages of one request at most.
        split: Whether to split a read that is too large for one request.
        reread: Whether to read missing subjects again.
    """

    engine: LastRead = attrs.field(init=False)
    _context: Context
    _stream: str
    _subjects: tuple[str, ...]
    _moment: int | None
    _finds_times: bool
    _page: int | None
    _split: bool
    _reread: bool

    # The last sequence of the stream when its subjects were listed, and its first one.
    _since: int | None = attrs.field(default=None, init=False)
    _first_sequence = 0
    # How many messages each subject had then.
    _counts: dict[str, int] = attrs.field(factory=dict, init=False)
    _is_checked = False
    missing: tuple[str, ...] = attrs.field(default=(), init=False)
    later: tuple[str, ...] = attrs.field(default=(), init=False)
    vanished: int = 0

    def __attrs_post_init__(self) -> None:
        self._wildcards = [*filter(has_wildcard, self._subjects)]
        self._room = min(REQUEST_ROOM, self._context.server.max_payload // 2)
        self.engine = LastRead(
            self._stream,
            [self._subjects],
            moment=self._moment,
            up_to_time=self.up_to_time,
            page=self._page,
            page_bytes=PAGE_BYTES,
        )
        if self._split and len(chunks(self._subjects, self._room)) > 1:
            # Always too large for one request, so it is split before the first one.
            self.engine.needs_split()
        elif self._moment is not None or self._page is not None:
            # All pages need the same moment, even if several servers answer them.
            self.engine.needs_moment()

    def extend(self, reader: PageReader) -> list[StoredMessage]:
        """
        Begin with a split or a fixed moment, or find the missing subjects at the end.

        If missing subjects are read again, return their current messages.
        """
        if self.recover(reader) or self._is_checked:
            return []
        self._is_checked = True
        return self._find_missing(reader)

    def recover(self, reader: PageReader) -> bool:
        """Handle the end of a page; return whether another request is needed."""
        engine = self.engine
        verdict = engine.verdict
        if verdict == "nothing":
            return self.confirm_nothing(reader)
        if verdict == "lagging":
            reader.wait_for_lag()
        elif verdict == "cut":
            self._begin_with_moment(reader)
        elif verdict == "too many" and self._split:
            self._list_and_split(reader)
        else:
            return False
        return not engine.done

    def _begin_with_moment(self, reader: PageReader) -> None:
        """Begin again with a fixed moment, because one page is not enough."""
        engine = self.engine
        if engine.moment is not None:
            engine.begin_again(engine.moment, self._time_after(engine.moment, reader))
            return
        before = self._last_before_time(reader)
        if before is None:
            # The moment is now. List the subjects, so that none of them can disappear unnoticed.
            self._list_and_split(reader)
        else:
            engine.begin_again(before, self.up_to_time)

    def _last_before_time(self, reader: PageReader) -> int | None:
        """Return the last sequence before `up_to_time`; None if it is after all messages."""
        if self.up_to_time is None:
            return None
        first = reader.first_at_leader({"start_time": self.up_to_time, "next_by_subj": ">"})
        return None if first is None else first.sequence - 1

    def _time_after(self, moment: int, reader: PageReader) -> str | None:
        """Return a time that separates *moment* from all later messages; None if unknown."""
        if not self._finds_times:
            return None
        try:
            first = reader.first_at_leader({"seq": moment + 1, "next_by_subj": ">"})
        except PermissionDeniedError:
            return None
        if first is not None:
            return format_time(first.timestamp_ns)
        state = reader.info().state
        if state.last_seq > moment or state.last_ts is None:
            return None
        # The info has microseconds. No other message was stored in the same microsecond.
        return format_time(state.last_ts + dt.timedelta(microseconds=1))

    def _list_and_split(self, reader: PageReader) -> None:
        """
        Request the subjects by name, in parts that a server accepts, with the same moment.

        The moment is fixed before the subjects are listed. So the list contains all subjects that
        had a message at that moment. Newer subjects in the list return no message.
        """
        moment = self.engine.moment
        if moment is None:
            moment = self._last_before_time(reader)
        filters: list[str | None] = [*self._wildcards]
        for each in filters or [None]:
            state = reader.info(each).state
            if self._since is None:
                # Servers read these two values before they list the subjects.
                self._since, self._first_sequence = state.last_seq, state.first_seq
            self._counts.update(state.subjects)
        assert self._since is not None
        moment = self._since if moment is None else min(moment, self._since)
        parts = chunks(sorted(self._names()), self._room) if moment else []
        if len(parts) > 1 and not self._split:
            raise TooManySubjectsError(stream=self._stream)
        time = self._time_after(moment, reader) if parts else None
        self.engine.begin_again(moment, time, parts)

    def _names(self) -> set[str]:
        """Return the subjects that are requested by name."""
        return set(self._subjects).difference(self._wildcards).union(self._counts)

    def _find_missing(self, reader: PageReader) -> list[StoredMessage]:
        """
        Find the subjects whose message of the snapshot is gone.

        If the plan rereads them, return their current messages.
        """
        engine, since = self.engine, self._since
        self.vanished = engine.vanished
        if not engine.moment or (since is None and not engine.vanished):
            return []
        reader.left = reader.seconds
        certain: set[str] = set()
        parts: list[tuple[str, ...]] = [self._subjects]
        if since is not None:
            parts = chunks(sorted(engine.absent), self._room)
            if engine.moment >= since:
                # All listed subjects had a message at that moment.
                certain = engine.absent.intersection(self._counts)
        after, came = engine.moment if since is None else since, engine.subjects()
        found = self._newer(parts, after, came, reader)
        missing = certain | found.keys()
        if missing != certain:
            new = self._new_subjects(missing - certain, reader)
            # Report at least one subject for each message that has certainly vanished.
            if len(missing) - len(new) >= engine.vanished:
                missing -= new
        self.vanished = max(self.vanished, len(missing))
        again = [message for name, message in found.items() if self._reread and name in missing]
        self.later = tuple(sorted(message.subject for message in again))
        self.missing = tuple(sorted(missing.difference(self.later)))
        return sorted(again, key=lambda message: message.sequence)

    def _new_subjects(self, names: set[str], reader: PageReader) -> set[str]:
        """
        Return the subjects whose first message was stored after the moment.

        This works only if the limit per subject is the only reason why the stream removes messages.
        A message that is deleted during the read goes unnoticed if a new one replaces it.
        """
        filters = self._wildcards
        if not names <= self._counts.keys() and (self._since is not None or not filters):
            filters = [*names] if len(names) <= FEW else [">"]
        counts: dict[str, int] = {}
        for each in filters:
            info = reader.info(each)
            counts.update(info.state.subjects)
        if _removes_otherwise(info, self._first_sequence):
            return set()
        most = info.config.max_msgs_per_subject or 0
        return {
            name
            for name in names.intersection(counts)
            if self._counts.get(name, 0) <= counts[name] and not 0 < most <= counts[name]
        }

    def _newer(
        self, parts: list[tuple[str, ...]], after: int, came: set[str], reader: PageReader
    ) -> dict[str, StoredMessage]:
        """
        Return the messages after a sequence, for subjects that had no message in the read.
        """
        found: dict[str, StoredMessage] = {}
        left = list(reversed(parts))
        while left:
            part = left.pop()
            engine = LastRead(self._stream, [part], after=after, page_bytes=PAGE_BYTES)
            try:
                with reader.page_time() as deadline:
                    messages = PageReader(
                        reader.context,
                        self._stream,
                        OnePage(engine),
                        name=reader.name,
                        seconds=deadline.remaining(),
                    ).read_all()
            except TooManySubjectsError:
                names = self._list(part, reader)
                half = (len(names) + 1) // 2
                left += chunks(names[:half], self._room) + chunks(names[half:], self._room)
                continue
            named = ((message.subject, message) for message in messages)
            found.update(each for each in named if each[0] not in came)
            if engine.vanished:
                # Newer messages have replaced some of these. Each part has its own moment, so only
                # messages that change while the server creates the page are read again.
                left.append(part)
        return found

    def _list(self, subjects: tuple[str, ...], reader: PageReader) -> list[str]:
        """Return the subjects that currently have messages in the stream."""
        listed: set[str] = set()
        for each in subjects:
            listed.update(reader.info(each).state.subjects if has_wildcard(each) else (each,))
        return sorted(listed)


def _removes_otherwise(info: StreamInfo, first_sequence: int) -> bool:
    """
    Return whether a stream may have removed messages for another reason than its limit per subject.

    Args:
        info: The stream.
        first_sequence: The first one before.
    """
    config = info.config
    if config.allow_msg_ttl or config.retention not in {None, RetentionPolicy.LIMITS}:
        return True
    limits = (config.max_age, config.max_bytes, config.max_msgs)
    return info.state.first_seq != first_sequence and any((limit or 0) > 0 for limit in limits)
