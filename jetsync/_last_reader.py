"""
Reading the last messages of many subjects at one moment, more of them than one request may have.

A :class:`LastReader` splits what a server finds too much, goes on when a message is removed under
the server's hands, and finds out which subjects are missing from the moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetsync import _stream_admin
from jetsync._deadline import Deadline
from jetsync._message_get import leader_get
from jetsync._page_reader import PAGE_BYTES, PageReader, repeated
from jetsync._proto.direct_last import LastRead, chunks
from jetsync.errors import MessageNotFoundError, TooManySubjectsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._session import JetStreamSession
    from jetsync.stored import StoredMessage
    from jetsync.stream_info import StreamState
    from jetsync.typing import Frame

REQUEST_ROOM: Final = 256 << 10
"""Bytes of names in one request at most; and no more than half of what the server takes."""

NAME: Final = "get_last_for"


class LastReader(PageReader[LastRead]):
    """
    The pages of one read of many subjects; see :class:`~jetsync._page_reader.PageReader`.

    Args:
        session: Where to read.
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
        session: JetStreamSession,
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
        )
        super().__init__(session, stream, engine, name=NAME, seconds=seconds)
        self._subjects = subjects
        self._up_to_time = up_to_time
        self._page = page
        self._may_split = split
        self._rereads = reread
        self._room = min(REQUEST_ROOM, session.server.max_payload // 2)
        self._since: int | None = None
        """The last sequence of the stream right before its subjects were listed."""

        self._listed: frozenset[str] = frozenset()
        """The subjects that the stream had then."""

        self._is_checked = False
        self.missing: tuple[str, ...] = ()
        self.later: tuple[str, ...] = ()
        self.vanished = 0
        if split and len(chunks(subjects, self._room)) > 1:
            # Too much for one request in any case; it is split before the first one.
            engine.done = engine.too_many = True

    def rest(self) -> Sequence[Frame]:
        return self.engine.release()

    def more(self) -> bool:
        return self.recovers()

    def recovers(self) -> bool:
        engine = self.engine
        if engine.cut:
            engine.begin_anew(self._moment_now())
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

    def _moment_now(self) -> int:
        """Return the sequence up to which to look, as the leader knows it; 0 for nothing at all."""
        with self.spending() as deadline:
            if self._up_to_time is not None:
                first = {"start_time": self._up_to_time, "next_by_subj": ">"}
                try:
                    return (
                        repeated(
                            lambda until: leader_get(self.session, self.stream, first, until),
                            deadline,
                        ).sequence
                        - 1
                    )
                except MessageNotFoundError:
                    pass  # The time has not come yet: everything is before it.
            return self._state(deadline).last_seq

    def _state(self, deadline: Deadline, subjects: str | None = None) -> StreamState:
        """Return how the stream is, with its subjects that a wildcard matches."""
        return repeated(
            lambda until: _stream_admin.info(
                self.session, self.stream, until, subjects_filter=subjects
            ),
            deadline,
        ).state

    def _split(self) -> None:
        """
        Ask for the subjects by name, as many at once as a server takes, all at one moment.

        The moment is fixed before the subjects are listed: what is listed then has all that the
        moment has, and a subject that is new since simply has no message yet.
        """
        moment = self.engine.moment
        if moment is None and self._up_to_time is not None:
            moment = self._moment_now()
        exact = [name for name in self._subjects if not has_wildcard(name)]
        listed: set[str] = set()
        for each in self._subjects:
            if not has_wildcard(each):
                continue
            with self.spending() as deadline:
                state = self._state(deadline, each)
            # Servers note the last sequence before they list the subjects.
            if self._since is None:
                self._since = state.last_seq
            listed.update(state.subjects)
        if self._since is None:
            with self.spending() as deadline:
                self._since = self._state(deadline).last_seq
        self._listed = frozenset(listed)
        moment = self._since if moment is None else min(moment, self._since)
        names = sorted(listed.union(exact)) if moment else []
        self.engine = LastRead(
            self.stream,
            chunks(names, self._room),
            moment=moment,
            page=self._page,
            page_bytes=PAGE_BYTES,
        )

    def _look_for_missing(self) -> list[StoredMessage]:
        """
        Find out which subjects had a message at the moment that is gone; return what they have now
        if they are to be read again.
        """
        engine = self.engine
        self.vanished = engine.vanished
        if engine.moment is None:
            return []
        candidates: list[tuple[str, ...]]
        if self._since is not None:
            came = engine.subjects()
            names = sorted((self._listed.union(self._exact())) - came)
            if not names:
                return []
            since = self._since
            candidates = chunks(names, self._room)
        elif engine.vanished:
            came = engine.subjects()
            since = engine.moment
            candidates = [self._subjects]
        else:
            return []
        found = self._newer(candidates, since, came)
        missing = set(found)
        if self._since is not None and engine.moment >= self._since:
            # All that was listed then had a message at the moment.
            missing.update(self._listed - came)
        self.vanished = max(self.vanished, len(missing))
        if not self._rereads:
            self.missing = tuple(sorted(missing))
            return []
        self.later = tuple(sorted(found))
        self.missing = tuple(sorted(missing - set(found)))
        return sorted(found.values(), key=lambda message: message.sequence)

    def _exact(self) -> list[str]:
        return [name for name in self._subjects if not has_wildcard(name)]

    def _newer(
        self, parts: list[tuple[str, ...]], after: int, came: set[str]
    ) -> dict[str, StoredMessage]:
        """
        Return what subjects have that did not come, if it is behind a sequence.
        """
        found: dict[str, StoredMessage] = {}
        deadline = Deadline.after(self.seconds)
        left = list(reversed(parts))
        while left:
            part = left.pop()
            engine = LastRead(self.stream, [part], after=after, page_bytes=PAGE_BYTES)
            reader = PageReader(
                self.session, self.stream, engine, name=self.name, seconds=deadline.remaining()
            )
            try:
                messages = reader.everything()
            except TooManySubjectsError:
                # There are more of them by now.
                left += chunks(self._list(part, deadline), self._room)
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
                listed.update(self._state(deadline, each).subjects)
            else:
                listed.add(each)
        return sorted(listed)


def has_wildcard(subject: str) -> bool:
    """Return whether more than one subject may match."""
    return not {"*", ">"}.isdisjoint(subject.split("."))
