"""
The data of backups: the frames of S2, and the chunks that a server sends.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import helpers
from jetsync._proto.snapshot import ArchiveFrames, Incoming

BACKUPS = Path(helpers.__file__).parent / "backup_files"
MAGIC = b"\xff\x06\x00\x00S2sTwO"


def frame(kind, body):
    """
    Return a frame of S2.
    """
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def plain(data):
    """
    Return a frame with data that is not compressed, and a checksum that nothing looks at.
    """
    return frame(1, b"crc!" + data)


def followed(*pieces):
    """
    Return the frames of some data.
    """
    frames = ArchiveFrames()
    for piece in pieces:
        frames.feed(piece)
    return frames


class TestArchiveFrames:
    @pytest.mark.parametrize(("name", "size"), [("nats-tar", 16384), ("nats-archive", 1088)])
    @pytest.mark.parametrize("step", [1, 3, 7, 100, 1 << 20])
    def test_backups_of_servers_are_followed_in_pieces_of_any_size(self, name, size, step):
        """The size, which is that of an S2 reader, and the format do not depend on the pieces."""
        data = (BACKUPS / name / "stream.tar.s2").read_bytes()
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        frames = followed(*pieces)
        assert (frames.problem, frames.is_complete) == (None, True)
        assert (f"nats-{frames.format}", frames.size) == (name, size)

    @pytest.mark.parametrize("name", ["nats-tar", "nats-archive"])
    def test_data_that_is_cut_off_is_not_complete(self, name):
        """Wherever a frame is cut, the data is not complete."""
        data = (BACKUPS / name / "stream.tar.s2").read_bytes()
        ends = [end for end in range(len(data)) if followed(data[:end]).is_complete]
        # Only where a frame ends.
        assert len(ends) <= 2

    def test_sizes_are_those_of_the_decompressed_data(self):
        """Plain frames, compressed frames and frames to skip are told apart."""
        compressed = frame(0, b"crc!" + b"\x80\x80\x04" + bytes(40))
        frames = followed(MAGIC, plain(b"x" * 100), compressed, frame(0xFE, bytes(9)), MAGIC)
        assert (frames.size, frames.format, frames.is_complete) == (100 + (1 << 16), "tar", True)

    @pytest.mark.parametrize(
        "data",
        [
            b"this is no backup",
            plain(b"no identifier"),
            MAGIC + frame(2, b"reserved"),
            MAGIC + frame(1, b"crc"),
            MAGIC + frame(0, b""),
        ],
    )
    def test_other_data_is_refused(self, data):
        """Data without the identifier, or with a frame that no reader may skip, is refused."""
        frames = followed(data, bytes(100))
        assert frames.problem is not None
        assert not frames.is_complete


def chunk(data, number=None):
    """
    Return a message with a chunk.
    """
    reply = b"" if number is None else b"$JS.SNAPSHOT.ACK.S.x.%d.%d" % (len(data), number)
    return (b"_INBOX.1", reply, None, data)


def end(header=None):
    """
    Return the message that ends the data.
    """
    return (b"_INBOX.1", b"", header, b"")


class TestIncoming:
    @pytest.mark.parametrize("header", [None, b"NATS/1.0 204\r\n\r\n"])
    def test_the_end_has_status_204_or_none(self, header):
        """The data of the chunks is returned in order, and the end is no failure."""
        incoming = Incoming()
        taken = [incoming.take(each) for each in (chunk(b"a", 1), chunk(b"bc", 2), chunk(b"d"))]
        assert (taken, incoming.over) == ([b"a", b"bc", b"d"], False)
        assert incoming.take(end(header)) == b""
        assert (incoming.over, incoming.failure) == (True, None)

    @pytest.mark.parametrize(
        ("header", "words"),
        [
            (b"NATS/1.0 408 No Flow Response\r\n\r\n", "got no acknowledgement"),
            (b"NATS/1.0 500 disk failed\r\n\r\n", "500 disk failed"),
        ],
    )
    def test_other_statuses_are_failures(self, header, words):
        """A status other than 204 says why the server ended the backup."""
        incoming = Incoming()
        incoming.take(chunk(b"a", 1))
        incoming.take(end(header))
        assert incoming.over
        assert words in incoming.failure

    @pytest.mark.parametrize(
        "chunks",
        [
            [chunk(b"a", 2)],
            [chunk(b"a", 1), chunk(b"b", 3)],
            [chunk(b"a", 1), chunk(b"b", 1)],
            [chunk(b"a"), chunk(b"b")],
            [(b"_INBOX.1", b"$JS.SNAPSHOT.ACK.S.x.9.1", None, b"a")],
        ],
    )
    def test_missing_chunks_are_noticed(self, chunks):
        """A chunk with another number or size, or after the last one, is a failure."""
        incoming = Incoming()
        for each in chunks:
            incoming.take(each)
        assert (incoming.over, incoming.failure) == (True, "chunks are missing")
        assert incoming.take(chunk(b"x", 4)) == b""
