"""
A scripted connection that routes frames to subscriptions and records what was written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from jetsync._base.reprs import tolerant_repr
from jetsync.values.headers import Headers, encode_headers
from jetsync.values.subjects import overlap

if TYPE_CHECKING:
    from jetsync.typing import Frame

_VERBS_WITH_PAYLOAD = {b"PUB", b"HPUB"}


@tolerant_repr
@attrs.frozen
class Command:
    """
    One command that a client wrote.

    The verb is ``PUB``, ``SUB``, ``UNSUB``, ``CONNECT``, ``PING`` or ``PONG``.
    """

    verb: str
    """The verb, in capitals. An ``HPUB`` is a ``PUB`` with a `header`."""

    subject: str = ""
    """The subject of the message or subscription."""

    reply: str = ""
    """The reply subject; empty if there is none."""

    header: bytes | None = None
    """The raw header block; ``None`` if there is none."""

    data: bytes = b""
    """The payload; for other verbs, the rest of the line."""

    sid: str = ""
    """The subscription id of ``SUB`` and ``UNSUB``."""

    @property
    def headers(self) -> Headers:
        """
        The headers, parsed.
        """
        return Headers() if self.header is None else Headers.parse(self.header)[2]


@tolerant_repr
class ScriptedTransport:
    """
    Play the server for a protocol engine, a part of jetsync that does no I/O.

    `write` records the bytes that a client would send, in one call or in pieces. `commands`
    contains the parsed commands. `deliver` passes a frame to the functions (sinks) that subscribed
    to its subject. `on` registers a function that answers messages published to a matching subject.

    No method blocks, reads a clock or starts threads. Use it from one thread at a time.
    """

    def __init__(self) -> None:
        self.written: bytearray = bytearray()
        """Every byte that was written, in order."""
        self.commands: list[Command] = []
        """Every complete line or message that was written, parsed, in order."""
        self._parsed = 0
        self._sids = itertools.count(1)
        self._sinks: dict[int, tuple[str, Callable[[Frame], object]]] = {}
        self._answers: list[tuple[str, Callable[[Command], Iterable[Frame] | None]]] = []

    # -- the client's side ------------------------------------------------------------------------

    def subscribe(self, subject: str, sink: Callable[[Frame], object]) -> int:
        """
        Route frames for *subject*, wildcards allowed, to *sink*, and write the ``SUB`` line.

        Returns:
            The subscription id, for `unsubscribe` and for `deliver`.
        """
        sid = next(self._sids)
        self._sinks[sid] = (subject, sink)
        self.write(f"SUB {subject}  {sid}\r\n".encode())
        return sid

    def unsubscribe(self, sid: int) -> None:
        """
        Stop routing to a subscription, and write the ``UNSUB`` line.
        """
        self._sinks.pop(sid, None)
        self.write(f"UNSUB {sid}\r\n".encode())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """
        Record bytes that a client sends, and run the functions registered with `on`.

        Raises:
            ValueError: The bytes are not valid commands of a client.
        """
        self.written += data
        for command in self._parse():
            self.commands.append(command)
            if command.verb == "PUB":
                self._answer(command)

    # -- the server's side ------------------------------------------------------------------------

    def deliver(
        self,
        subject: str,
        data: bytes = b"",
        *,
        reply: str = "",
        headers: bytes | Mapping[str, str] | None = None,
        sid: int | None = None,
    ) -> int:
        r"""
        Pass a frame to every subscription whose subject matches, or to the subscription *sid*.

        The messages of a pull need *sid*, because their subjects are those of the stream. The
        statuses of a pull have the subject of its inbox.

        Args:
            subject: The frame's subject.
            data: Its payload.
            reply: Its reply subject.
            headers: A mapping, or a raw block such as ``b"NATS/1.0 404 No Messages\r\n\r\n"``.
            sid: The subscription to deliver to, whatever its subject.

        Returns:
            How many subscriptions received the frame.
        """
        block = encode_headers(headers.items()) if isinstance(headers, Mapping) else headers
        frame: Frame = (subject.encode(), reply.encode(), block, bytes(data))
        return self.feed(frame, sid=sid)

    def feed(self, frame: Frame, *, sid: int | None = None) -> int:
        """
        Deliver a ready-made frame, as `deliver` does.
        """
        if sid is not None:
            chosen = [self._sinks[sid][1]] if sid in self._sinks else []
        else:
            subject = frame[0].decode()
            chosen = [sink for wanted, sink in self._sinks.values() if overlap(wanted, subject)]
        for sink in chosen:
            sink(frame)
        return len(chosen)

    def on(self, subject: str, answer: Callable[[Command], Iterable[Frame] | None]) -> None:
        """
        Answer messages published to *subject*, wildcards allowed.

        *answer* returns frames, and each frame is delivered to the subscriptions that match its
        subject. If several functions match, only the first is called.
        """
        self._answers.append((subject, answer))

    # -- what was written -------------------------------------------------------------------------

    def published(self, subject: str = ">") -> list[Command]:
        """
        Return the messages published to *subject*, wildcards allowed, oldest first.
        """
        return [c for c in self.commands if c.verb == "PUB" and overlap(subject, c.subject)]

    @property
    def subscriptions(self) -> dict[int, str]:
        """
        The open subscriptions: id to subject.
        """
        return {sid: subject for sid, (subject, _) in self._sinks.items()}

    def clear(self) -> None:
        """
        Forget all bytes and commands that were written so far. Nothing else changes.
        """
        del self.written[: self._parsed]
        self._parsed = 0
        self.commands.clear()

    def __repr__(self) -> str:
        return (
            f"<ScriptedTransport subscriptions={len(self._sinks)} commands={len(self.commands)} "
            f"written={len(self.written)}>"
        )

    # -- inside -----------------------------------------------------------------------------------

    def _answer(self, command: Command) -> None:
        for subject, answer in self._answers:
            if overlap(subject, command.subject):
                for frame in answer(command) or ():
                    self.feed(frame)
                return

    def _parse(self) -> list[Command]:
        """
        Parse the complete commands. The next write completes a partial one.
        """
        found: list[Command] = []
        while True:
            eol = self.written.find(b"\r\n", self._parsed)
            if eol < 0:
                return found
            words = bytes(self.written[self._parsed : eol]).split()
            if not words:
                raise ValueError("an empty line was written")
            verb = words[0].upper()
            end = eol + 2
            body = b""
            if verb in _VERBS_WITH_PAYLOAD:
                size = int(words[-1])
                if len(self.written) < end + size + 2:
                    return found
                body = bytes(self.written[end : end + size])
                if self.written[end + size : end + size + 2] != b"\r\n":
                    raise ValueError(f"the payload of {words!r} is not {size} bytes long")
                end += size + 2
            self._parsed = end
            found.append(_command(verb, words[1:], body))


def _command(verb: bytes, words: list[bytes], body: bytes) -> Command:
    text = [word.decode() for word in words]
    if verb == b"PUB":
        return Command("PUB", text[0], text[1] if len(text) == 3 else "", None, body)
    if verb == b"HPUB":
        middle = int(text[-2])
        reply = text[1] if len(text) == 4 else ""
        return Command("PUB", text[0], reply, body[:middle], body[middle:])
    if verb == b"SUB":
        return Command("SUB", text[0], data=" ".join(text[1:-1]).encode(), sid=text[-1])
    if verb == b"UNSUB":
        return Command("UNSUB", data=" ".join(text[1:]).encode(), sid=text[0])
    if verb in {b"CONNECT", b"PING", b"PONG"}:
        return Command(verb.decode(), data=b" ".join(words))
    raise ValueError(f"{verb!r} is not a verb of the client protocol")
