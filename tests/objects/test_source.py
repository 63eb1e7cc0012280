from __future__ import annotations

import array
import ctypes
import io
import os
import threading

import pytest

import jetsync
from jetsync.objects.source import Source


class Counting(io.BytesIO):
    """A file that only replaces ``read``, as one that reports progress may do."""

    count = 0

    def read(self, size=-1):
        found = super().read(size)
        self.count += len(found)
        return found


class Slow(io.RawIOBase):
    """A file that returns at most three bytes, as a pipe may do."""

    def __init__(self, data):
        super().__init__()
        self._data = data

    def read(self, size=-1):
        found, self._data = self._data[: min(size, 3)], self._data[min(size, 3) :]
        return found


def parts(data, size):
    """Return the chunks, all read into one buffer."""
    source, buffer, found = Source(data), memoryview(bytearray(size)), []
    while count := source.read(buffer):
        found.append(bytes(buffer[:count]))
    return found


DATA = bytes(range(10))


class TestChunks:
    @pytest.mark.parametrize("size", [1, 3, 5, 10, 11])
    @pytest.mark.parametrize(
        "source",
        [
            lambda: DATA,
            lambda: bytearray(DATA),
            lambda: memoryview(DATA),
            lambda: io.BytesIO(DATA),
            lambda: Counting(DATA),
            lambda: io.BufferedReader(io.BytesIO(DATA)),
            lambda: Slow(DATA),
            lambda: [DATA],
            lambda: iter([DATA[:1], b"", DATA[1:8], bytearray(DATA[8:])]),
            lambda: [bytes([each]) for each in DATA],
        ],
    )
    def test_all_chunks_but_the_last_have_one_size(self, source, size):
        """Chunks have the given size, whatever pieces the data comes in."""
        expected = [DATA[at : at + size] for at in range(0, len(DATA), size)]
        assert parts(source(), size) == expected

    @pytest.mark.parametrize("source", [b"", "", io.BytesIO(), [], [b"", b""]])
    def test_no_data_has_no_chunks(self, source):
        """Empty data has no chunks."""
        assert parts(source, 5) == []

    def test_text_is_utf_8(self):
        """Text is stored as UTF-8."""
        assert parts("äb", 2) == ["ä".encode(), b"b"]

    def test_views_of_other_items_are_bytes(self):
        """A view of items that are longer than a byte is read as bytes."""
        view = memoryview(bytes(8)).cast("I")
        assert Source(view).size == 8
        assert parts(view, 5) == [bytes(5), bytes(3)]

    @pytest.mark.parametrize("kind", [ctypes.c_ubyte, ctypes.c_char, ctypes.c_byte])
    def test_views_of_other_formats_are_bytes(self, kind):
        """A view of items of one byte is read as bytes, whatever their format is."""
        assert parts(memoryview((kind * 10).from_buffer_copy(DATA)), 6) == [DATA[:6], DATA[6:]]
        assert parts([memoryview((kind * 10).from_buffer_copy(DATA))], 6) == [DATA[:6], DATA[6:]]

    @pytest.mark.parametrize("code", ["B", "b", "i"])
    def test_a_view_is_not_copied(self, code):
        """A view is read where it is, whatever its format, so it needs no memory of its own."""
        items = array.array(code, bytes(8))
        source, buffer = Source(memoryview(items)), memoryview(bytearray(8))
        items[0] = 1
        assert source.read(buffer) == 8
        assert buffer == items.tobytes()

    def test_a_pipe_fills_chunks(self):
        """A file that returns less than was asked for is read until the chunk is full."""
        read_end, write_end = os.pipe()
        with io.FileIO(read_end) as file, io.FileIO(write_end, "w") as pipe:
            source, buffer = Source(file), memoryview(bytearray(6))
            writer = threading.Thread(target=lambda: [pipe.write(DATA[:3]), pipe.write(DATA[3:6])])
            writer.start()
            assert source.read(buffer) == 6
            writer.join()
            assert bytes(buffer) == DATA[:6]

    @pytest.mark.skipif(os.name == "nt", reason="needs pipes that do not block")
    def test_a_file_that_does_not_block_is_refused(self):
        """A file without data at the moment is refused, because its end would look the same."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        refused = pytest.raises(jetsync.InvalidTypeError, match="readinto")
        with io.FileIO(read_end) as file, io.FileIO(write_end, "w"), refused:
            parts(file, 5)

    def test_the_read_method_of_a_subclass_is_used(self):
        """A file class that replaces ``read`` is read with it."""
        file = Counting(DATA)
        parts(file, 4)
        assert file.count == len(DATA)

    def test_a_reused_buffer_is_copied(self):
        """An iterable may yield one buffer again and again."""

        def pieces():
            buffer = bytearray(3)
            for number in range(3):
                buffer[:] = bytes([number]) * 3
                yield buffer

        assert parts(pieces(), 2) == [b"\0\0", b"\0\1", b"\1\1", b"\2\2", b"\2"]

    @pytest.mark.parametrize("source", [5, None, {"a": b"b"}, object()])
    def test_other_objects_are_refused(self, source):
        """Data of another type is refused before anything is read."""
        with pytest.raises(jetsync.InvalidTypeError):
            Source(source)

    @pytest.mark.parametrize("source", [io.StringIO("text"), ["text"], [5], [None]])
    def test_pieces_that_are_not_bytes_are_refused(self, source):
        """A text file, and items that are not bytes, are refused when they are read."""
        with pytest.raises(jetsync.InvalidTypeError):
            parts(source, 5)


class TestSize:
    def test_it_is_known_for_data_and_files(self, tmp_path):
        """The size is that of the data, or that of the rest of a file."""
        file = io.BytesIO(DATA)
        file.seek(4)
        assert (Source(DATA).total(), Source("ä").total()) == (10, 2)
        assert (Source(file).total(), file.tell()) == (6, 4)
        path = tmp_path / "f"
        path.write_bytes(DATA)
        with path.open("rb", buffering=0) as opened:
            assert Source(opened).total() == 10

    def test_it_is_not_known_for_others(self):
        """The size of an iterable, and that of a pipe, is not known."""
        assert Source([DATA]).total() is None
        assert Source(Slow(DATA)).total() is None
