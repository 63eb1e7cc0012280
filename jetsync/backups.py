"""
Backups of streams in folders, in the format of the ``nats`` command line.

A folder has ``backup.json``, the configuration and the state of the stream, and ``stream.tar.s2``,
the data as the server sent it. jetsync adds ``SHA256SUMS``, which ``sha256sum -c`` reads, too. The
data is moved, never decompressed (:mod:`jetsync._proto.snapshot`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import attrs

from jetsync import errors
from jetsync._api import streams as _stream_admin
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.failures import raise_failure
from jetsync._base.fields import check_function, config_of
from jetsync._base.files import new_folder, synced
from jetsync._base.turn import refuse_request
from jetsync._io.listener import Listener
from jetsync._io.mailbox import Mailbox
from jetsync._io.requests import Request
from jetsync._proto import frames
from jetsync._proto.snapshot import ArchiveFrames, Incoming
from jetsync.errors.answers import from_api_error
from jetsync.values.codec import from_wire, to_wire
from jetsync.values.server_info import decode_json
from jetsync.values.server_versions import require
from jetsync.values.stream_config import StreamConfig
from jetsync.values.stream_info import StreamInfo, StreamState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds

__all__ = ["StreamBackup", "read_backup"]

ABOUT: Final = "backup.json"
DATA: Final = "stream.tar.s2"
SUMS: Final = "SHA256SUMS"

# Seconds without progress by default.
PATIENCE: Final = 60.0

# Seconds to wait for the answer to a restore, as the `nats` command line does: servers before 2.15
# build the stream when they have all data. If the connection is lost, the wait ends before.
BUILDING: Final = 3600.0

# Bytes per second that servers before 2.15 check at least before they send a backup.
SLOWEST_CHECK: Final = 10e6

# Bytes of a chunk, as in the `nats` command line, and bytes of a restore that are in flight.
CHUNK: Final = 128 << 10
WINDOW: Final = 8 << 20

# Bytes that are read from a file at once.
PIECE: Final = 1 << 20

# Seconds to stop a restore that failed, and to remove what it has left.
UNDO: Final = 10.0

# Confirmed bytes after which a server has certainly made the stream, if it does so before the end.
# The first block of the data has 1 MiB.
MADE: Final = 4 << 20

# The code of the answer if there is a stream of that name.
NAME_IN_USE: Final = 10130


@attrs.frozen(kw_only=True)
class StreamBackup:
    """
    A backup of a stream in a folder.
    """

    path: Path
    """The folder."""

    config: StreamConfig
    """The configuration of the stream, with its name."""

    state: StreamState
    """The contents of the stream when the backup began."""

    size: int
    """Bytes of the data in the folder, which is compressed."""

    format: Literal["tar", "archive"]
    """
    The format of the data: ``"tar"`` from servers before 2.15, and ``"archive"`` from later ones.
    Servers before 2.15 cannot restore an archive.
    """

    digest: str | None = None
    """The SHA-256 of the data in hex. None if the folder has no file ``SHA256SUMS``."""

    document: Mapping[str, Any] = attrs.field(repr=False)
    """The content of ``backup.json``."""


class BackupOptions(TypedDict, total=False):
    """
    The options of :meth:`Stream.backup` as keywords, for type checkers.
    """

    consumers: bool
    check: bool
    timeout: Seconds | None
    on_progress: Callable[[int, int], object] | None


def read_backup(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    on_progress: Callable[[int, int], object] | None = None,
) -> StreamBackup:
    """
    Read what is in the folder of a backup, without a server.

    Backups of the ``nats`` command line have no ``SHA256SUMS``. Then only the structure of the data
    is verified, so the call finds data that is cut off, but not each changed byte.

    Args:
        path: The folder.
        verify: Whether to read all data and compare it with ``SHA256SUMS``.
        on_progress: Called with the number of bytes that were read, and the total.

    Raises:
        BackupDamagedError: The files are damaged or incomplete.
        OSError: A file is missing or cannot be read.
    """
    check_function("on_progress", on_progress)
    folder = Path(path)
    about = (folder / ABOUT).read_bytes()
    with (folder / DATA).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        sums = _read_sums(folder)
        data_sum = sums.get(DATA)
        if sums.get(ABOUT, _sum(about)) != _sum(about):
            raise errors.BackupDamagedError(path, f"{ABOUT} is not as it was written")
        followed = ArchiveFrames()
        found = hashlib.sha256()
        done = 0
        for piece in _pieces(file):
            followed.feed(piece)
            if not verify:
                break
            found.update(piece)
            done += len(piece)
            if on_progress is not None:
                on_progress(done, size)
    if followed.problem is not None:
        raise errors.BackupDamagedError(path, followed.problem)
    if followed.format is None or (verify and not followed.is_complete):
        raise errors.BackupDamagedError(path, f"{DATA} is cut off")
    if verify and data_sum not in {None, found.hexdigest()}:
        raise errors.BackupDamagedError(path, f"{DATA} is not as it was written")
    try:
        document = decode_json(about)
        config, state = document["config"], document["state"]
        return StreamBackup(
            path=folder,
            config=from_wire(StreamConfig, config),
            state=from_wire(StreamState, state),
            size=size,
            format=followed.format,
            digest=data_sum,
            document=document,
        )
    except (errors.ProtocolError, KeyError) as error:
        reason = f"{ABOUT} has no configuration and state of a stream"
        raise errors.BackupDamagedError(path, reason) from error


def _pieces(file: BinaryIO, size: int = PIECE) -> Iterator[bytes]:
    return iter(lambda: file.read(size), b"")


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_sums(folder: Path) -> dict[str, str]:
    """Return the digests in ``SHA256SUMS`` by file; none if there is no such file."""
    try:
        text = (folder / SUMS).read_text("ascii")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise errors.BackupDamagedError(folder, f"{SUMS} is not text") from error
    sums = {line[66:]: line[:64] for line in text.splitlines()}
    if sums.keys() != {ABOUT, DATA}:
        raise errors.BackupDamagedError(folder, f"{SUMS} does not name {ABOUT} and {DATA}")
    return sums


def back_up(
    context: Context,
    stream: str,
    path: str | os.PathLike[str],
    *,
    consumers: bool = True,
    check: bool = False,
    timeout: Seconds | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> StreamBackup:
    """
    Write a backup of a stream; see :meth:`Stream.backup`.
    """
    context.connection.check()
    check_function("on_progress", on_progress)
    seconds = PATIENCE if timeout is None else as_seconds(timeout)
    # In a cluster, no server answers if the stream does not exist.
    first = context.default_timeout if timeout is None else seconds
    request: dict[str, Any] = {"no_consumers": not consumers, "chunk_size": CHUNK}
    refuse_request()
    if check:
        request["jsck"] = True
        state = _stream_admin.info(context, stream, Deadline.after(first)).state
        first += state.bytes / SLOWEST_CHECK
    receiver = _Receiver(context, stream, seconds, on_progress)
    new_folder(path, lambda folder: receiver.run(folder, request, Deadline.after(first)))
    return read_backup(path, verify=False)


class _Receiver:
    """
    The data of one backup, as it arrives; one thread.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        seconds: float,
        on_progress: Callable[[int, int], object] | None,
    ) -> None:
        self._context = context
        self._stream = stream
        self._seconds = seconds
        self._on_progress = on_progress
        # The server sends no more than its window, so the mailbox needs no limit.
        self._box = Mailbox(context.connection.new_inbox().encode(), collect_denials=True)
        self._epoch = 0

    def run(self, folder: Path, request: Mapping[str, Any], deadline: Deadline) -> None:
        """Write the files; *deadline* is that of the first answer."""
        listener = Listener(self._context.lane, self._box)
        with (folder / DATA).open("xb") as file:
            try:
                self._epoch = listener.write(b"", Deadline.after(self._seconds))
                document = self._ask(request, deadline)
                data_sum = self._write(file, document)
            except (
                errors.ConnectionLostError,
                errors.DisconnectedError,
                errors.RequestTimeoutError,
            ) as error:
                raise errors.BackupError(self._stream, str(error)) from error
            finally:
                # The server stops sending.
                listener.end()
            synced(file)
        about = json.dumps(document, indent=2, ensure_ascii=False).encode()
        sums = f"{_sum(about)}  {ABOUT}\n{data_sum}  {DATA}\n".encode()
        for name, content in ((SUMS, sums), (ABOUT, about)):
            with (folder / name).open("xb") as file:
                file.write(content)
                synced(file)

    def _ask(self, request: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        """Ask the server to send the data, and return the description of the stream."""
        asked = {"deliver_subject": self._box.interest.decode(), **request}
        endpoint = f"STREAM.SNAPSHOT.{self._stream}"
        answer = self._context.api(endpoint, asked, deadline, stream=self._stream)
        if not (isinstance(answer.get("config"), dict) and isinstance(answer.get("state"), dict)):
            raise errors.ProtocolError(f"the answer to {endpoint} has no configuration or no state")
        return {"config": answer["config"], "state": answer["state"]}

    def _write(self, file: BinaryIO, document: Mapping[str, Any]) -> str:
        """Write the data to a file, and return its digest."""
        incoming, followed, found = Incoming(), ArchiveFrames(), hashlib.sha256()
        expected = from_wire(StreamState, document["state"]).bytes
        while not incoming.over:
            self._wait()
            replies = []
            for frame in self._box.drain():
                if data := incoming.take(frame):
                    # Before the ack: the server sends no more than can be written.
                    file.write(data)
                    found.update(data)
                    followed.feed(data)
                    replies.append(frame[1])
            if acks := frames.ack_block(filter(None, replies), b""):
                self._context.lane.write(acks, Deadline.after(self._seconds), self._epoch)
            if self._on_progress is not None and not incoming.over:
                self._on_progress(followed.size, max(expected, followed.size))
        problem = incoming.failure or followed.problem
        if problem is None and not followed.is_complete:
            problem = "the server has not sent all data"
        if problem is not None:
            raise errors.BackupError(self._stream, problem)
        if self._on_progress is not None:
            self._on_progress(followed.size, followed.size)
        return found.hexdigest()

    def _wait(self) -> None:
        """Wait for chunks; raise if none will come."""
        box, lane = self._box, self._context.lane
        is_there = lane.wait(box, Deadline.after(self._seconds))
        if box.frames:
            return
        for subject, denial in box.take_denials():
            if subject.startswith(f"$JS.SNAPSHOT.ACK.{self._stream}.".encode()):
                raise_failure(denial)
        if box.failure is not None:
            raise_failure(box.failure)
        if box.take_lost() >= self._epoch:
            raise errors.BackupError(self._stream, "the connection was lost")
        if not is_there:
            self._context.connection.probe()
            raise errors.RequestTimeoutError(
                f"STREAM.SNAPSHOT.{self._stream}", self._seconds, what="no data arrived"
            )


def restore(
    context: Context,
    path: str | os.PathLike[str],
    name: str | None,
    fields: Mapping[str, Any],
    *,
    verify: bool,
    timeout: Seconds | None,
    on_progress: Callable[[int, int], object] | None,
) -> StreamInfo:
    """
    Restore a stream from a backup; see :meth:`JetStream.restore_stream`.
    """
    context.connection.check()
    check_function("on_progress", on_progress)
    seconds = PATIENCE if timeout is None else as_seconds(timeout)
    refuse_request()
    backup = read_backup(path, verify=verify)
    before = backup.config.name or ""
    wanted = config_of(StreamConfig, before if name is None else name, fields, "restore_stream()")
    _stream_admin.validate_config(wanted)
    if backup.format == "archive":
        require("the format of this backup", "2.15", context.server.version)
    elif wanted.name != before:
        raise errors.InvalidArgumentError(
            f"the backup has the format of servers before 2.15, which cannot be restored under"
            f" another name than {before!r}",
            argument="name",
        )
    # None leaves a field out, so the server uses its default.
    kept = backup.document["config"].items()
    config = {key: value for key, value in kept if fields.get(key, value) is not None}
    config |= to_wire(wanted)
    return _Restore(context, backup, config, seconds, on_progress).run()


class _Restore:
    """
    One restore; one thread.
    """

    def __init__(
        self,
        context: Context,
        backup: StreamBackup,
        config: Mapping[str, Any],
        seconds: float,
        on_progress: Callable[[int, int], object] | None,
    ) -> None:
        self._context = context
        self._backup = backup
        self._config = config
        self._name: str = config["name"]
        self._seconds = seconds
        self._on_progress = on_progress
        # The subject that takes the chunks, and the connection that carries them.
        self._target = b""
        self._epoch: int | None = None
        self._in_flight: deque[tuple[Request, int]] = deque()
        self._flying = self._done = 0
        # When the server made the stream, or None if it had not, after the first data. It tells the
        # stream from another one of the name. Empty before, or if the user may not ask for it.
        self._seen: tuple[str | None, ...] = ()
        # The server's answer, if it has refused the data.
        self._refusal: errors.ApiError | None = None
        # Whether the end was sent, after all data.
        self._has_ended = False

    def run(self) -> StreamInfo:
        """Restore the stream, and return its description."""
        try:
            self._begin()
            with (self._backup.path / DATA).open("rb") as file:
                self._send(file)
            return self._finish()
        except BaseException as error:
            is_unknown = isinstance(error, errors.RequestTimeoutError) or getattr(
                error, "sent", False
            )
            if not (self._target or is_unknown):
                raise
            outcome = self._undo()
            if isinstance(error, errors.JetSyncError):
                raise errors.RestoreError(
                    self._name, str(error), outcome=outcome, done=self._done
                ) from error
            raise
        finally:
            for request, _ in self._in_flight:
                request.end()

    def _begin(self) -> None:
        """Ask the server to restore the stream."""
        document = {"config": self._config, "state": self._backup.document["state"]}
        answer = self._context.api(
            f"STREAM.RESTORE.{self._name}",
            document,
            Deadline.after(self._seconds),
            stream=self._name,
        )
        self._target = str(answer.get("deliver_subject")).encode()

    def _send(self, file: BinaryIO) -> None:
        session, in_flight = self._context.connection.session, self._in_flight
        size = min(CHUNK, self._context.server.max_payload)
        for chunk in _pieces(file, size):
            if self._flying >= WINDOW:
                # Half of them at once: each wait for a single answer costs as much as for many.
                while self._flying > WINDOW // 2:
                    self._settle()
            request = Request(session, self._target)
            in_flight.append((request, len(chunk)))
            self._flying += len(chunk)
            block = frames.pub(self._target, request.address, chunk)
            # Chunks must not overtake others, so they all use one connection.
            request.send(block, Deadline.after(self._seconds), self._epoch)
            self._epoch = request.epoch
        while in_flight:
            self._settle()

    def _settle(self) -> None:
        """Wait until the server has confirmed the oldest chunk."""
        request, size = self._in_flight[0]
        self._context.lane.wait(request, Deadline.after(self._seconds))
        try:
            answer = request.answer()
        except errors.NoRespondersError as error:
            # A server ends a restore after 5 seconds without a chunk, or when it shuts down.
            raise errors.ConnectionLostError(
                subject=error.subject, reason="the server has ended the restore"
            ) from error
        if answer is None:
            self._context.connection.probe()
            raise errors.RequestTimeoutError(
                self._target.decode(), self._seconds, what="no chunk was confirmed"
            )
        if answer[3]:
            self._read(answer[3])
        self._in_flight.popleft()
        self._flying -= size
        self._done += size
        if self._on_progress is not None:
            self._on_progress(self._done, self._backup.size)
        if self._done - size < MADE <= self._done:
            # The user may not have the permission.
            with contextlib.suppress(errors.JetSyncError):
                self._seen = (self._look(Deadline.after(self._seconds))[0],)

    def _read(self, data: bytes) -> dict[str, Any]:
        """Return an answer; raise if it is an error."""
        answer = decode_json(data)
        if "error" in answer:
            self._refusal = from_api_error(answer["error"], self._name)
            raise self._refusal
        return answer

    def _finish(self) -> StreamInfo:
        """Tell the server that this was all, and return its description of the stream."""
        deadline = Deadline.after(max(self._seconds, BUILDING))
        self._has_ended = True
        frame = self._context.connection.exchange(
            self._target, None, b"", deadline, epoch=self._epoch
        )
        answer = self._read(frame[3])
        answer.pop("type", None)
        return _stream_admin.stream_info(answer)

    # After a failure

    def _undo(self) -> Literal["nothing", "part", "unknown"]:
        """
        Stop the restore, remove what it has made, and return what the server has then.

        Servers from 2.15 on keep what they have stored of an archive. In a cluster, all servers
        keep an empty stream if the client goes away, and those from 2.15 on also after an error.
        """
        if not self._target:
            # In a cluster, the server may have made an empty stream.
            return "part"
        if self._has_ended and self._refusal is None:
            return "unknown"
        deadline = Deadline.after(min(self._seconds, UNDO))
        try:
            is_known = self._refusal is not None or self._stop(deadline)
            if self._refusal is not None and self._refusal.err_code == NAME_IN_USE:
                # Another client has made the stream meanwhile.
                return "nothing"
            return "nothing" if self._remove(is_known, deadline) else "part"
        except errors.JetSyncError:
            return "part"

    def _stop(self, deadline: Deadline) -> bool:
        """
        Stop the restore, and return whether the server has not ended it before.
        """
        while True:
            try:
                self._stop_once(deadline)
            except errors.NoRespondersError:
                return False
            except errors.ConnectionLostError:
                # Ctrl-C that cuts off a chunk ends the connection, perhaps only now. The server
                # waits for the next one.
                if deadline.expired():
                    raise
            else:
                return True

    def _stop_once(self, deadline: Deadline) -> None:
        connection, lane = self._context.connection, self._context.lane
        if self._backup.format == "archive":
            # The data is cut off here, so the server refuses it, and says if it was the name.
            frame = connection.exchange(self._target, None, b"", deadline)
            with contextlib.suppress(errors.ApiError):
                self._read(frame[3])
        else:
            # A server before 2.12 would first build the stream from the data so far. So the first
            # of these says whether the server still listens. A chunk without a reply subject ends
            # the restore at once.
            connection.exchange(self._target, None, b"\0", deadline)
            lane.write(frames.pub(self._target, b"", b"\0"), deadline)
            connection.flush(deadline)

    def _remove(self, is_known: bool, deadline: Deadline) -> bool:  # noqa: FBT001
        """
        Delete the stream if this restore has made it, and return whether nothing of it is left.

        *is_known* says whether the server has ended the restore just now. A cluster reserves the
        name until then.
        """
        created, cluster = self._look(deadline)
        context = self._context
        is_single = cluster is None and context.server.cluster is None and context.domain is None
        if created is None:
            # A cluster may make an empty stream later.
            if is_single or not is_known:
                return is_single
        elif self._backup.format == "tar":
            # Servers make this stream last. So it is another one, or a cluster has made an empty
            # one because it has ended the restore.
            return is_known
        elif created not in self._seen and not (is_known and not (is_single and self._seen)):
            return is_known
        with contextlib.suppress(errors.StreamNotFoundError):
            _stream_admin.delete(context, self._name, deadline)
        return True

    def _look(self, deadline: Deadline) -> tuple[str | None, str | None]:
        """Return when the stream was made, and the name of its cluster; None if there is none."""
        endpoint = f"STREAM.INFO.{self._name}"
        try:
            answer = self._context.api(endpoint, None, deadline, stream=self._name)
        except errors.StreamNotFoundError:
            return None, None
        cluster = answer.get("cluster")
        name = cluster.get("name") if isinstance(cluster, dict) else None
        return str(answer.get("created")), name
