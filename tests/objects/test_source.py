from __future__ import annotations

import io

import pytest

import jetsync
from jetsync.objects.source import chunks_in, size_of


class Slow(io.RawIOBase):
    """A file that returns at most three bytes, as a pipe may do."""

    def __init__(self, data):
        super().__init__()
        self._data = data

    def read(self, size=-1):
        found, self._data = self._data[: min(size, 3)], self._data[min(size, 3) :]
        return found


def parts(data, size):
    """Return the chunks as bytes."""
    return [bytes(chunk) for chunk in chunks_in(data, size)]


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
        assert size_of(view) == 8
        assert parts(view, 5) == [bytes(5), bytes(3)]

    def test_a_reused_buffer_is_copied(self):
        """An iterable may yield one buffer again and again."""

        def pieces():
            buffer = bytearray(3)
            for number in range(3):
                buffer[:] = bytes([number]) * 3
                yield buffer

        # All chunks are kept, as they are while they wait for their acknowledgements.
        chunks = list(chunks_in(pieces(), 3))
        assert [bytes(chunk) for chunk in chunks] == [b"\0" * 3, b"\1" * 3, b"\2" * 3]

    @pytest.mark.parametrize("source", [5, None, {"a": b"b"}, object()])
    def test_other_objects_are_refused(self, source):
        """Data of another type is refused before anything is read."""
        with pytest.raises(jetsync.InvalidTypeError):
            chunks_in(source, 5)

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
        assert (size_of(DATA), size_of("ä"), size_of(file), file.tell()) == (10, 2, 6, 4)
        path = tmp_path / "f"
        path.write_bytes(DATA)
        with path.open("rb", buffering=0) as opened:
            assert size_of(opened) == 10

    def test_it_is_not_known_for_others(self):
        """The size of an iterable, and that of a pipe, is not known."""
        assert size_of([DATA]) is None
        assert size_of(Slow(DATA)) is None
