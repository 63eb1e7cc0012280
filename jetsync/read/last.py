"""
Reading the last messages of many subjects at one moment, more of them than one request may have.

A :class:`LastReader` splits what a server finds too much, goes on when a message is removed under
the server's hands, and finds out which subjects are missing from the moment.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from typing import TYPE_CHECKING, Any, Final

from jetsync._api import streams as _stream_admin
from jetsync._base.deadline import Deadline
from jetsync._proto.direct_last import LastRead, chunks
from jetsync.errors import (
    PermissionDeniedError,
    RequestTimeoutError,
    TooManySubjectsError,
)
from jetsync.read.pages import PAGE_BYTES, RETRY_WAIT, PageReader, repeated
from jetsync.values.codec import format_time, parse_time_ns
from jetsync.values.stream_config import RetentionPolicy
from jetsync.values.subjects import has_wildcard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._api.context import Context
    from jetsync._api.mirrors import Reading
    from jetsync.values.frame import Frame
    from jetsync.values.stored import StoredMessage
    from jetsync.values.stream_info import StreamInfo

REQUEST_ROOM: Final = 256 << 10
"""Bytes of names in one request at most; and no more than half of what the server takes."""

NAME: Final = "get_last_for"

FEW: Final = 16
"""Subjects that are looked up one by one, rather than in a list of all there are."""


class LastPages(PageReader[LastRead]):
    """
    Pages of the last messages of subjects; one without a message is confirmed by the leader.
    """

    up_to_time: str | None = None
    """The time before which to look, if one was asked for."""

    @property
    def reading(self) -> Reading:
        """What a mirror has to have in order to answer."""
        now = self.engine.moment is None and self.up_to_time is None
        return "last" if now else "history"

    def recovers(self) -> bool:
        """Return whether the read can continue after the server said that there is nothing."""
        if not self.engine.nothing:
            return False
        try:
            if self._is_there_any():
                self.try_again(wait=self._tries > 0)
            else:
                self.engine.confirm()
        except PermissionDeniedError:
            # Who may only read directly has to take the word of servers.
            self.engine.confirm()
        return not self.engine.done

    def _is_there_any(self) -> bool:
        """Return whether the leader has any message that the last page should have had."""
        engine = self.engine
        names = [name for name in engine.part if not has_wildcard(name)]
        wildcards = [name for name in engine.part if has_wildcard(name)]
        if len(names) > FEW:
            with self.spending() as deadline:
                listed = self.info(deadline, _above(names)).state.subjects
            names = [name for name in names if name in listed]
        before = None if self.up_to_time is None else parse_time_ns(self.up_to_time)
        for subject in [*wildcards, *names]:
            first = self.first_at_leader({"next_by_subj": subject, "seq": engine.position})
            if (
                first is not None
                and (engine.moment is None or first.sequence <= engine.moment)
                and (before is None or first.timestamp_ns < before)
            ):
                return True
        return False

    def info(self, deadline: Deadline, subjects: str | None = None) -> StreamInfo:
        """Ask the leader for the stream, with its subjects that a wildcard matches."""
        return repeated(
            lambda until: _stream_admin.info(
                self.context, self.stream, until, subjects_filter=subjects
            ),
            deadline,
        )


class LastReader(LastPages):
    """
    The pages of one read of many subjects; see :class:`~jetsync.read.pages.PageReader`.

    Args:
        context: Where to read.
        stream: The stream.
        subjects: Subjects and wildcards, each once.
        moment: The sequence up to which to look, not behind the stream's last one.
        up_to_time: The time before which to look, in its place.
        page: Messages of one request at most.
        split: Whether to narrow what is too much for one request.
        reread: Whether to read subjects again that are missing.
        seconds: How long to wait for one page.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        subjects: tuple[str, ...],
        *,
        moment: int | None,
        up_to_time: str | None,
        page: int | None,
        split: bool,
        reread: bool,
        seconds: float,
    ) -> None:
        engine = LastRead(
            stream,
            [subjects],
            moment=moment,
            up_to_time=up_to_time,
            page=page,
            page_bytes=PAGE_BYTES,
            doubts=True,
        )
        super().__init__(context, stream, engine, name=NAME, seconds=seconds)
        self._subjects = subjects
        self.up_to_time = up_to_time
        self._page = page
        self._may_split = split
        self._rereads = reread
        self._room = min(REQUEST_ROOM, context.server.max_payload // 2)
        self._since: int | None = None
        """The last sequence of the stream right before its subjects were listed."""

        self._first_sequence = 0
        self._counts: dict[str, int] = {}
        """The subjects that the stream had then, and how many messages of each."""

        self._is_checked = False
        self.missing: tuple[str, ...] = ()
        self.later: tuple[str, ...] = ()
        self.vanished = 0
        if split and len(chunks(subjects, self._room)) > 1:
            # Too much for one request in any case; it is split before the first one.
            engine.done = engine.too_many = True
        elif moment is not None or page is not None:
            # All pages shall be of one moment, whoever answers them.
            engine.done = engine.cut = True

    def rest(self) -> Sequence[Frame]:
        """Return the frames that the engine still holds."""
        return self.engine.release()

    def more(self) -> bool:
        """Return whether another page follows."""
        return self.recovers()

    def recovers(self) -> bool:
        """Return whether the read can continue after the server said that there is nothing."""
        engine = self.engine
        if engine.nothing:
            super().recovers()
        elif engine.lagging:
            self._wait_for_lag()
        elif engine.cut:
            self._begin_anew()
        elif engine.too_many and self._may_split:
            self._split()
        else:
            return False
        self._page_received = 0
        return not self.engine.done

    def _next(self) -> list[StoredMessage]:
        run = super()._next()
        if not run and self._error is None and not self._is_checked:
            self._is_checked = True
            try:
                run = self._look_for_missing()
            except Exception as error:  # noqa: BLE001  (raised at the end, as any other)
                self._error = error
        return run

    def _wait_for_lag(self) -> None:
        """Wait a little, as the server that answered has not got to the moment yet."""
        with self.spending() as deadline:
            if deadline.remaining() <= self._lag_wait:
                raise RequestTimeoutError(self._where.decode(), self.seconds)
            time.sleep(self._lag_wait)
        self._lag_wait = min(2.0 * self._lag_wait, RETRY_WAIT)

    def _begin_anew(self) -> None:
        """Fix the moment, as one page is not enough, or as it is not now."""
        engine = self.engine
        if engine.moment is not None:
            engine.begin_anew(engine.moment, self._time_behind(engine.moment))
            return
        before = self._before_time()
        if before is None:
            # Now: what is there now is listed, so that nothing of it can be lost unseen.
            self._split()
        else:
            engine.begin_anew(before, self.up_to_time)

    def _before_time(self) -> int | None:
        """Return the last sequence before the time that was asked for, if it was and has come."""
        if self.up_to_time is None:
            return None
        first = self._first_since({"start_time": self.up_to_time})
        return None if first is None else first.sequence - 1

    def _time_behind(self, moment: int) -> str | None:
        """Return a time that only messages behind a sequence have reached, if it can be told."""
        try:
            first = self._first_since({"seq": moment + 1})
        except PermissionDeniedError:
            # Who may only read directly has to take the word of servers.
            return None
        if first is not None:
            return format_time(first.timestamp_ns)
        with self.spending() as deadline:
            state = self.info(deadline).state
        if state.last_seq > moment or state.last_ts is None:
            return None
        # The last digits of its time are not told; nothing else was stored in that microsecond.
        return format_time(state.last_ts + dt.timedelta(microseconds=1))

    def _first_since(self, where: dict[str, Any]) -> StoredMessage | None:
        """Return the leader's first message from somewhere on."""
        return self.first_at_leader({**where, "next_by_subj": ">"})

    def _split(self) -> None:
        """
        Ask for the subjects by name, as many at once as a server takes, all at one moment.

        The moment is fixed before the subjects are listed: what is listed then has all that the
        moment has, and a subject that is new since simply has no message yet.
        """
        moment = self.engine.moment
        if moment is None:
            moment = self._before_time()
        wildcards: list[str | None] = [*filter(has_wildcard, self._subjects)]
        for wildcard in wildcards or [None]:
            with self.spending() as deadline:
                state = self.info(deadline, wildcard).state
            if self._since is None:
                # Servers note these before they list the subjects.
                self._since, self._first_sequence = state.last_seq, state.first_seq
            self._counts.update(state.subjects)
        assert self._since is not None
        moment = self._since if moment is None else min(moment, self._since)
        parts = chunks(sorted(self._names()), self._room) if moment else []
        if len(parts) > 1 and not self._may_split:
            raise TooManySubjectsError(stream=self.stream)
        self.engine = LastRead(
            self.stream,
            parts,
            moment=moment,
            time=self._time_behind(moment) if parts else None,
            page=self._page,
            page_bytes=PAGE_BYTES,
            doubts=True,
        )

    def _names(self) -> set[str]:
        """Return the subjects that are asked for by name."""
        return {name for name in self._subjects if not has_wildcard(name)}.union(self._counts)

    def _look_for_missing(self) -> list[StoredMessage]:
        """
        Find out which subjects had a message at the moment that is gone; return what they have now
        if they are to be read again.
        """
        engine, since = self.engine, self._since
        self.vanished = engine.vanished
        if not engine.moment or (since is None and not engine.vanished):
            return []
        came = engine.subjects()
        certain: set[str] = set()
        parts: list[tuple[str, ...]] = [self._subjects]
        if since is not None:
            absent = self._names() - came
            parts = chunks(sorted(absent), self._room)
            if engine.moment >= since:
                # All that was listed then had a message at the moment.
                certain = absent.intersection(self._counts)
        deadline = Deadline.after(self.seconds)
        found = self._newer(parts, engine.moment if since is None else since, came, deadline)
        missing = certain | found.keys()
        if missing != certain:
            new = self._new_ones(missing - certain, deadline)
            # As many as are known to have vanished are named in any case.
            if len(missing) - len(new) >= engine.vanished:
                missing -= new
        self.vanished = max(self.vanished, len(missing))
        self.missing = tuple(sorted(missing))
        if not self._rereads:
            return []
        again = [message for name, message in found.items() if name in missing]
        self.later = tuple(sorted(message.subject for message in again))
        self.missing = tuple(sorted(missing.difference(self.later)))
        return sorted(again, key=lambda message: message.sequence)

    def _new_ones(self, names: set[str], deadline: Deadline) -> set[str]:
        """
        Return those subjects of which the stream has lost nothing: they were written since for the
        first time.

        That can be told of a stream that loses messages by its limits alone. What somebody deletes
        while the read is under way shows only if nothing is written in its place.
        """
        filters = [*filter(has_wildcard, self._subjects)]
        if not names <= self._counts.keys() and (self._since is not None or not filters):
            filters = [*names] if len(names) <= FEW else [">"]
        counts: dict[str, int] = {}
        for each in filters:
            info = self.info(deadline, each)
            counts.update(info.state.subjects)
        config = info.config
        limits = (config.max_age, config.max_bytes, config.max_msgs)
        if (
            config.allow_msg_ttl
            or config.retention not in {None, RetentionPolicy.LIMITS}
            or (
                info.state.first_seq != self._first_sequence
                and any(limit and limit > 0 for limit in limits)
            )
        ):
            return set()
        most = config.max_msgs_per_subject or 0
        return {
            name
            for name in names.intersection(counts)
            if self._counts.get(name, 0) <= counts[name] and not 0 < most <= counts[name]
        }

    def _newer(
        self, parts: list[tuple[str, ...]], after: int, came: set[str], deadline: Deadline
    ) -> dict[str, StoredMessage]:
        """
        Return what subjects have that did not come, if it is behind a sequence.
        """
        found: dict[str, StoredMessage] = {}
        left = list(reversed(parts))
        while left:
            part = left.pop()
            engine = LastRead(self.stream, [part], after=after, page_bytes=PAGE_BYTES, doubts=True)
            reader = SinglePage(
                self.context, self.stream, engine, name=self.name, seconds=deadline.remaining()
            )
            try:
                messages = reader.everything()
            except TooManySubjectsError:
                names = self._list(part, deadline)
                half = (len(names) + 1) // 2
                left += chunks(names[:half], self._room) + chunks(names[half:], self._room)
                continue
            named = ((message.subject, message) for message in messages)
            found.update(each for each in named if each[0] not in came)
            if engine.vanished:
                # Lost again, to messages that are newer still. Each part has a moment of its own,
                # so that only what changes while its one page is made has to be read once more.
                left.append(part)
        return found

    def _list(self, subjects: tuple[str, ...], deadline: Deadline) -> list[str]:
        """Return the subjects that the stream has now."""
        listed: set[str] = set()
        for each in subjects:
            if has_wildcard(each):
                listed.update(self.info(deadline, each).state.subjects)
            else:
                listed.add(each)
        return sorted(listed)


class SinglePage(LastPages):
    """
    A read that has to do with one page, and says so if that is too little.
    """

    def recovers(self) -> bool:
        """Return whether the read can continue after the server cut it short."""
        if self.engine.cut:
            raise TooManySubjectsError(stream=self.stream)
        return super().recovers()


def _above(names: Sequence[str]) -> str:
    """Return a wildcard that matches all of some subjects."""
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    common = itertools.takewhile(lambda tokens: len({*tokens}) == 1, levels)
    return ".".join([*(tokens[0] for tokens in common), ">"])
