"""
The data of backups of streams: its chunks as a server sends them, and its frames.

This module uses no socket, no clock and no threads.

A server answers ``STREAM.SNAPSHOT`` and then sends the data in chunks to a subject of the client.
The reply subject of a chunk takes its acknowledgement, and ends with the chunk's size and number.
The last chunk has no reply subject. An empty message is the end: with the status 204, or without a
status if there was one chunk only. Any other status is a failure.

Seen on servers 2.10.26 to 2.15.1:

- 8 MiB may wait for acks. The field ``window_size`` changes that from some release of 2.12 on.
  Server 2.12.0 does not know it, and refuses unknown fields. So jetsync leaves it out.
- Servers before 2.12 wait 2 seconds for an ack, later ones 5 seconds, and then end the backup with
  ``408 No Flow Response``.
- Servers before 2.12 send what one read of the data returned, so their chunks may be short. If one
  of them cannot read a message block, it leaves the rest out and still sends 204. Only the check
  (``jsck``) finds this before. Servers from 2.15 on ignore that field, because they check each
  message when they read it.
- The data is compressed by S2. Servers before 2.15 put their files into a tar archive. Servers from
  2.15 on write an archive of messages, which earlier ones cannot restore. They restore both.
- The checksums of a tar archive depend on the stream's name, so servers refuse another name, once
  they have all data. They restore an archive of messages under any name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from jetsync.values.headers import Headers

if TYPE_CHECKING:
    from jetsync.values.frame import Frame

# The identifiers at the begin of S2 and of Snappy, which S2 readers accept, too.
_MAGIC: Final = (b"\xff\x06\x00\x00S2sTwO", b"\xff\x06\x00\x00sNaPpY")

# The first bytes of an archive of messages, once it is decompressed.
_ARCHIVE: Final = b"NATSARC1"

# Bytes of the beginning of a frame that are looked at: its head, a checksum, and the beginning of
# the first block, which has the size of the decompressed block and the identifier of the archive.
_LOOK: Final = 4 + 4 + 24

_COMPRESSED: Final = 0x00
_UNCOMPRESSED: Final = 0x01
_FIRST_SKIPPABLE: Final = 0x80

Format = Literal["tar", "archive"]


class ArchiveFrames:
    """
    Follows the frames of the data without decompressing it. A frame has about 1 MiB of data.
    """

    def __init__(self) -> None:
        #: The bytes of the decompressed data so far.
        self.size: int = 0
        #: The format of the data; None until the first frame was read.
        self.format: Format | None = None
        #: Why the data is no backup; None as long as it may be one.
        self.problem: str | None = None
        self._begun = False
        # The beginning of the current frame, and how many bytes of it are still to come.
        self._head = b""
        self._left = 0

    @property
    def is_complete(self) -> bool:
        """Whether the data ends with a whole frame."""
        return self.problem is None and self.format is not None and not (self._head or self._left)

    def feed(self, data: bytes | memoryview) -> None:
        """Follow the next bytes."""
        at, end = 0, len(data)
        while at < end and self.problem is None:
            if self._left:
                step = min(self._left, end - at)
                self._left -= step
            else:
                # First the four bytes of the head, which say how many more to look at.
                wanted = self._wanted()
                step = min(wanted - len(self._head), end - at)
                self._head += bytes(data[at : at + step])
                if len(self._head) == self._wanted() >= 4:
                    self._read_head()
            at += step

    def _wanted(self) -> int:
        if len(self._head) < 4:
            return 4
        return min(_LOOK, 4 + int.from_bytes(self._head[1:4], "little"))

    def _read_head(self) -> None:
        """Note the frame of which the beginning is complete."""
        head, self._head = self._head, b""
        kind, length = head[0], int.from_bytes(head[1:4], "little")
        self._left = 4 + length - len(head)
        if not self._begun:
            self._begun = True
            if head not in _MAGIC:
                self.problem = "the data does not begin as that of a backup"
        elif kind < _FIRST_SKIPPABLE and (kind > _UNCOMPRESSED or length < 4):
            self.problem = f"the data has an unknown frame (kind {kind}, {length} bytes)"
        elif kind == _UNCOMPRESSED:
            self.size += length - 4
            self._note_format(head)
        elif kind == _COMPRESSED:
            self.size += _varint(head[8:])
            self._note_format(head)

    def _note_format(self, head: bytes) -> None:
        if self.format is None:
            self.format = "archive" if _ARCHIVE in head else "tar"


def _varint(data: bytes) -> int:
    """Return the number at the beginning of some bytes."""
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return number


class Incoming:
    """
    The chunks of one backup, in the order in which they arrive.
    """

    def __init__(self) -> None:
        #: Whether the end has come.
        self.over: bool = False
        #: Why the backup failed; None while it has not.
        self.failure: str | None = None
        # The number of the last chunk, and whether it was the one without a reply subject.
        self._number = 0
        self._had_last = False

    def take(self, frame: Frame) -> bytes:
        """Return the data of a message; empty at the end, and after a failure."""
        _, reply, header, data = frame
        if self.over:
            return b""
        if not data:
            self._end(header)
        elif self._had_last or not self._is_next(reply, len(data)):
            self._fail("chunks are missing")
        else:
            return data
        return b""

    def _is_next(self, reply: bytes, size: int) -> bool:
        if not reply:
            self._had_last = True
            return True
        self._number += 1
        return reply.endswith(b".%d.%d" % (size, self._number))

    def _end(self, header: bytes | None) -> None:
        code, description, _ = (None, "", None) if header is None else Headers.parse(header)
        if code is None or code == 204:
            self.over = True
        elif code == 408:
            self._fail(
                f"the server ended it ({code} {description}), because it got no acknowledgement for"
                " seconds: the network, the disk or this program was too slow"
            )
        else:
            self._fail(f"the server ended it ({code} {description})")

    def _fail(self, reason: str) -> None:
        self.over, self.failure = True, reason
