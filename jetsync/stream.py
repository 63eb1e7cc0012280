"""
One stream: its configuration, its contents, its consumers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jetsync import _message_get, _stream_admin
from jetsync._management import sequence_number
from jetsync._subjects import validate_filter
from jetsync.errors import DirectNotSupportedError, InvalidArgumentError
from jetsync.events import DirectReadOperation
from jetsync.stream_consumers import StreamConsumers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync.stored import StoredMessage
    from jetsync.stream_config import StreamConfig
    from jetsync.stream_info import StreamInfo
    from jetsync.typing import Seconds

__all__ = ["Stream"]


class Stream(StreamConsumers):
    """
    A stream on a server.

    Made by :class:`~jetsync.JetStream`, not by hand. A handle holds no resources on the server and
    needs no closing; any number of threads may share one. Every call sends requests of its own and
    has a ``timeout`` in seconds for all of them together, ``None`` for the context's default.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        state = self._info.state
        return f"<Stream {self._name!r} {state.messages} messages up to {state.last_seq}>"

    @property
    def name(self) -> str:
        """
        The name of the stream.
        """
        return self._name

    @property
    def cached_info(self) -> StreamInfo:
        """
        What the server said last, on whichever call; asks nothing.
        """
        return self._info

    @property
    def config(self) -> StreamConfig:
        """
        The configuration as of :attr:`cached_info`. To change it, see :meth:`update`.
        """
        return self._info.config

    # The stream itself

    def info(
        self,
        subjects_filter: str | None = None,
        deleted_details: bool = False,  # noqa: FBT001, FBT002  (the documented signature)
        *,
        timeout: Seconds | None = None,
    ) -> StreamInfo:
        """
        Ask the server for the stream and keep the answer as :attr:`cached_info`.

        Args:
            subjects_filter: Also count the messages of each subject that this matches, ``">"`` for
                all, into ``info.state.subjects``. Servers give 100 000 subjects at a time; as many
                requests as that takes are sent.
            deleted_details: Also list the sequences of deleted messages in ``info.state.deleted``.
            timeout: Seconds for all requests together.

        Raises:
            StreamNotFoundError: the stream is gone.
        """
        self._info = _stream_admin.info(
            self._session,
            self._name,
            self._session.deadline(timeout),
            subjects_filter=subjects_filter,
            deleted_details=deleted_details,
        )
        return self._info

    def update(
        self, config: StreamConfig | None = None, *, timeout: Seconds | None = None, **fields: Any
    ) -> StreamInfo:
        """
        Change the configuration.

        A server replaces the whole configuration: what ``config`` leaves unset goes back to its
        default. With keywords alone the current configuration is read first and sent back with
        those changes, fields that this version does not know included. That is two requests, and a
        change that somebody else makes between them is lost.

        Args:
            config: The whole configuration; keywords are laid over a copy of it.
            timeout: Seconds for all requests together.
            **fields: Fields of :class:`StreamConfig` to change.

        Raises:
            NotSupportedError: the server left a field out; it did the rest of the update.
            ApiError: the server refused; nothing was changed.
        """
        deadline = self._session.deadline(timeout)
        wanted = _stream_admin.changed_config(self._session, config, fields, deadline, self._name)
        if wanted.name != self._name:
            raise InvalidArgumentError(
                f"the configuration is for stream {wanted.name!r}, this is {self._name!r}",
                argument="name",
            )
        self._info = _stream_admin.update(self._session, wanted, deadline)
        return self._info

    def delete(self, *, timeout: Seconds | None = None) -> None:
        """
        Delete the stream with its messages and consumers.

        Raises:
            StreamNotFoundError: it is gone already.
        """
        _stream_admin.delete(self._session, self._name, self._session.deadline(timeout))

    def purge(
        self,
        subject: str | None = None,
        sequence: int | None = None,
        keep: int | None = None,
        *,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Remove messages from the stream and return how many there were.

        Without arguments all of them. An explicit 0 is sent, and servers take it for "not given":
        ``keep=0`` removes every message of the subject or stream, as it says, **and so does**
        ``sequence=0``.

        Args:
            subject: Only messages under this subject or wildcard.
            sequence: Only messages before this sequence.
            keep: All but the last so many.
            timeout: Seconds for the request.

        Raises:
            InvalidArgumentError: both ``sequence`` and ``keep`` are given.
        """
        return _stream_admin.purge(
            self._session,
            self._name,
            self._session.deadline(timeout),
            subject=subject,
            sequence=sequence,
            keep=keep,
        )

    # Single messages

    def get_message(
        self, sequence: int, *, direct: bool | None = None, timeout: Seconds | None = None
    ) -> StoredMessage:
        """
        Read the message with a sequence.

        Args:
            sequence: Its place in the stream, from 1.
            direct: ``True`` insists on a direct get, which any replica answers; ``False`` on the
                leader; ``None`` uses a direct get where the stream allows it.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: it was removed, or was never there.
            DirectNotSupportedError: ``direct=True`` and the stream does not allow it.
        """
        request = {"seq": sequence_number(sequence, "sequence")}
        operation = DirectReadOperation(name="get_message", stream=self._name, sequence=sequence)
        return self._read(request, operation, direct=direct, timeout=timeout)

    def get_last(
        self, subject: str, *, direct: bool | None = None, timeout: Seconds | None = None
    ) -> StoredMessage:
        """
        Read the last message of a subject.

        Args:
            subject: The subject; a wildcard means the last message that matches.
            direct: As in :meth:`get_message`.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: there is none.
            DirectNotSupportedError: ``direct=True`` and the stream does not allow it.
        """
        request = {"last_by_subj": validate_filter(subject)}
        operation = DirectReadOperation(name="get_last", stream=self._name, subjects=(subject,))
        return self._read(request, operation, direct=direct, timeout=timeout)

    def get_next(
        self,
        subject: str,
        sequence: int = 1,
        *,
        direct: bool | None = None,
        timeout: Seconds | None = None,
    ) -> StoredMessage:
        """
        Read the first message of a subject at a sequence or after it.

        Args:
            subject: The subject or wildcard.
            sequence: Where to begin to look, from 1.
            direct: As in :meth:`get_message`.
            timeout: Seconds for all requests together.

        Raises:
            MessageNotFoundError: there is none.
            DirectNotSupportedError: ``direct=True`` and the stream does not allow it.
        """
        request = {
            "seq": sequence_number(sequence, "sequence"),
            "next_by_subj": validate_filter(subject),
        }
        operation = DirectReadOperation(
            name="get_next", stream=self._name, subjects=(subject,), sequence=sequence
        )
        return self._read(request, operation, direct=direct, timeout=timeout)

    def delete_message(
        self,
        sequence: int,
        secure: bool = False,  # noqa: FBT001, FBT002  (the documented signature)
        *,
        timeout: Seconds | None = None,
    ) -> None:
        """
        Delete the message with a sequence. Its place in the counting stays empty.

        Args:
            sequence: Its place in the stream, from 1.
            secure: Overwrite its bytes on disk with random ones, which is slower.
            timeout: Seconds for the request.

        Raises:
            MessageNotFoundError: it is gone already.
        """
        deadline = self._session.deadline(timeout)
        _stream_admin.delete_message(self._session, self._name, sequence, deadline, secure=secure)

    def _read(
        self,
        request: Mapping[str, Any],
        operation: DirectReadOperation,
        *,
        direct: bool | None,
        timeout: Seconds | None,
    ) -> StoredMessage:
        """
        Read one message in the way that is asked for, or that the stream allows.
        """
        deadline = self._session.deadline(timeout)
        by_direct = bool(self._info.config.allow_direct) if direct is None else direct
        subject = request.get("last_by_subj")
        body = b"" if subject is not None else json.dumps(request).encode()

        def read() -> StoredMessage:
            if by_direct:
                try:
                    return _message_get.direct_get(
                        self._session, self._name, body, deadline, subject=subject
                    )
                except DirectNotSupportedError:
                    if direct:
                        raise
            return _message_get.leader_get(self._session, self._name, request, deadline)

        wrap = self._session.plugins.wrap_fetch
        message = read() if wrap is None else wrap(operation, read)
        return _message_get.observed(self._session, message)
