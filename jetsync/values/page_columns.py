"""
The columns of a page as buffers for Arrow, made from the bytes of its messages.

Arrow splits the header blocks of a whole page itself, without an object for each message. The
compiled twin reads each block once, and needs a fraction of the time.
"""

from __future__ import annotations

import functools
from array import array
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jetsync._base.integers import LONGEST_DIGITS
from jetsync._base.speedups import with_twin
from jetsync.values.frame import join_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jetsync.values.frame import FrameRun

# Buffers of Arrow, or bytes objects.
Buffers: TypeAlias = "tuple[Any, ...]"

# The last lines of a header block are those of the server, then there are two empty ones. The name
# of each line, and its place counted from the end. The first three have a column.
_LINES: Final = {
    "subject": (b"Nats-Subject: ", 7),
    "sequence": (b"Nats-Sequence: ", 6),
    "timestamp": (b"Nats-Time-Stamp: ", 5),
    "pending": (b"Nats-Num-Pending: ", 4),
    "last": (b"Nats-Last-Sequence: ", 3),
}
_STREAM: Final = b"Nats-Stream: "
_STREAM_PLACE: Final = 8

_SHORTEST_TIME: Final = len("2026-11-20T16:38:27Z")
# Texts of times in this range are nanoseconds in 64 bits. Old versions of Arrow wrap others around.
_FIRST_TIME: Final = b"1678"
_TOO_LATE: Final = b"2262"

_FEWEST_LINES: Final = 9
"""The lines of a block: one of the publisher, six of the server, and two empty ones."""


@with_twin
def columns(runs: Sequence[FrameRun], names: Sequence[str]) -> dict[str, Buffers]:
    """
    Return the buffers of columns of a page.

    Args:
        runs: The messages; at least one run, and none is empty.
        names: The columns.

    Returns:
        The buffers of each column, in Arrow's layout and without those for null values. Offsets are
        C ints. ``data`` and ``subject`` have offsets and bytes, ``sequence`` and ``timestamp``
        64-bit integers. ``headers`` has the offsets of the maps, offsets and bytes of the names,
        the offsets of the lists, and offsets and bytes of the values. A column is left out if one
        of its values is not valid UTF-8, or if a block is not in the usual form. Such columns are
        made message by message.
        If the server's lines are malformed, which no server sends, Python decides for each column,
        and the compiled twin leaves out all except ``data``, which can lead to ProtocolError.
    """
    run = join_runs(runs, shifted)
    return _splitter().columns(run.data, run.bounds, names)


def shifted(bounds: array[int], by: array[int]) -> array[int]:
    """
    Return the sums of C ints.

    In Python, this took a third of the time of reading columns.

    Raises:
        ValueError: A sum is too large for a C int.
    """
    import pyarrow.compute as pc

    return _as_array(pc.add_checked(_as_arrow(bounds), _as_arrow(by)))


class _Splitter:
    """
    Splits the blocks of a page with pyarrow; any thread.
    """

    def __init__(self) -> None:
        import pyarrow as pa
        import pyarrow.compute

        self._pa: Any = pa
        self._compute: Any = pyarrow.compute
        self._places: Final = _numbers(range(_STREAM_PLACE + 1))
        text = pa.py_buffer(b"NATS/1.0")
        ends = pa.py_buffer(array("i", [0, len(text)]))
        self._first_line: Final = pa.Array.from_buffers(pa.binary(), 1, [None, ends, text])[0]
        self._zero: Final = _numbers([0])
        self._true: Final = pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\1")])

    def columns(self, data: bytes, bounds: array[int], names: Sequence[str]) -> dict[str, Buffers]:
        """Return what :func:`columns` returns."""
        pa, pc = self._pa, self._compute
        # Three parts for each message: headers, payload, and the bytes up to the next one.
        parts = pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        )
        thirds = _multiples(3, len(bounds) // 3)
        found: dict[str, Buffers] = {}
        if "data" in names:
            found["data"] = tuple(parts[1:].take(thirds).buffers()[1:])
        wanted = [name for name in (*_LINES, "headers") if name in names]
        if not wanted:
            return found
        blocks = parts.take(thirds)
        if not pc.all(pc.ends_with(blocks, b"\r\n\r\n")).as_py():
            # The lines are counted from the end.
            return found
        lines = pc.split_pattern(blocks, b"\r\n")
        if pc.min(pc.list_value_length(lines)).as_py() < _FEWEST_LINES:
            return found
        # In another order, a line that looks right may not be the last one with its name.
        added = {name: self._line(lines, place) for name, (_, place) in _LINES.items()}
        if not all(
            pc.all(pc.starts_with(line, _LINES[name][0])).as_py() for name, line in added.items()
        ):
            return found
        for name in wanted:
            try:
                if name == "headers":
                    buffers = self._headers(lines, thirds)
                else:
                    buffers = self._values(added[name], name)
            except pa.ArrowInvalid:
                # A text that is not UTF-8, a leap second, or something that no server sends.
                continue
            if buffers:
                found[name] = buffers
        return found

    def _values(self, lines: Any, name: str) -> Buffers:
        """Return the buffers of a column, of one line of each message; none if one is unusual."""
        pa, pc = self._pa, self._compute
        values = pc.binary_replace_slice(lines, 0, len(_LINES[name][0]), b"")
        if name == "subject":
            return tuple(values.cast(pa.string()).buffers()[1:])
        # Numbers and times are ASCII, so they need no check for UTF-8.
        values = values.view(pa.string())
        # Arrow also reads other forms of numbers and times.
        if name == "sequence":
            longest = pc.max(pc.binary_length(values)).as_py()
            if longest > LONGEST_DIGITS or not pc.all(pc.ascii_is_decimal(values)).as_py():
                return ()
            values = values.cast(pa.int64())
        else:
            is_utc = pc.all(pc.ends_with(values, "Z")).as_py()
            if not is_utc or pc.min(pc.binary_length(values)).as_py() < _SHORTEST_TIME:
                return ()
            # As bytes, because a text that is not valid UTF-8 could not be compared.
            extremes = pc.min_max(values.view(pa.binary()))
            if not _FIRST_TIME <= extremes["min"].as_py() <= extremes["max"].as_py() < _TOO_LATE:
                return ()
            values = values.cast(pa.timestamp("ns", "UTC"))
        return tuple(values.buffers()[1:])

    def _headers(self, lines: Any, thirds: Any) -> Buffers:
        """Return the buffers of the headers; none if a block is not in the usual form."""
        pa, pc = self._pa, self._compute
        own = self._own_lines(lines, thirds)
        if own is None:
            return ()
        count = len(own.values)
        if not count:
            none = bytes(4)
            return bytes(4 * (len(lines) + 1)), none, b"", none, none, b""
        pairs = pc.split_pattern(own.values, b":", max_splits=1).values
        if len(pairs) < 2 * count:  # A line has no colon.
            return ()
        evens = _multiples(2, count)
        names, values = pairs.take(evens), pairs[1:].take(evens)
        # There are few different names, so checks of these cost little.
        encoded = names.dictionary_encode()
        different = encoded.dictionary.cast(pa.string())
        if any(name[:1] in {"", " ", "\t"} for name in different.to_pylist()):
            return ()
        # Equal numbers are equal names of one message.
        numbers = pc.add(
            pc.multiply(pc.list_parent_indices(own), _numbers([len(different)], "q")[0]),
            encoded.indices.cast(pa.int64()),
        )
        map_ends, list_ends = own.offsets, _multiples(1, count + 1)
        is_next = pc.not_equal(numbers[1:], numbers[:-1])
        if pc.any(pc.invert(is_next)).as_py():
            # Values of one name that follow one another become one list.
            is_first = pa.concat_arrays([self._true, is_next])
            firsts = pc.indices_nonzero(is_first).cast(pa.int32())
            passed = pc.cumulative_sum(is_first.cast(pa.int32()))
            map_ends = pa.concat_arrays([self._zero, passed]).take(map_ends)
            list_ends = pa.concat_arrays([firsts, _numbers([count])])
            names, numbers = names.take(firsts), numbers.take(firsts)
        # Most messages have their headers in one order, so the numbers rise.
        if pc.any(pc.less(numbers[1:], numbers[:-1])).as_py() and (
            pc.count_distinct(numbers).as_py() < len(numbers)
        ):
            return ()
        return (
            map_ends.buffers()[1],
            *names.buffers()[1:],
            list_ends.buffers()[1],
            *self._without_space(values).cast(pa.string()).buffers()[1:],
        )

    def _own_lines(self, lines: Any, thirds: Any) -> Any:
        """Return lists of the publishers' lines; None if a block is not in the usual form."""
        pa, pc = self._pa, self._compute
        starts, ends = lines.offsets[:-1], lines.offsets[1:]
        streams, subjects = (self._line(lines, place) for place in (_STREAM_PLACE, 7))
        if not all(
            pc.all(each).as_py()
            for each in (
                pc.equal(lines.values.take(starts), self._first_line),
                pc.starts_with(streams, _STREAM),
                # A publisher's last line may have no end, so that the server's is part of it.
                pc.equal(pc.count_substring(streams, _STREAM), self._places[1]),
                # The last such text is where the own headers end.
                pc.equal(pc.count_substring(subjects, _STREAM), self._places[0]),
            )
        ):
            return None
        # Three lists for each message: the first line, its own lines, and those of the server.
        places = array("i", bytes(4 * (3 * len(lines) + 1)))
        places[0::3] = _as_array(lines.offsets)
        places[1::3] = _as_array(pc.add(starts, self._places[1]))
        places[2::3] = _as_array(pc.subtract(ends, self._places[_STREAM_PLACE]))
        lists = pa.Array.from_buffers(
            lines.type, 3 * len(lines), [None, pa.py_buffer(places)], children=[lines.values]
        )
        return lists[1:].take(thirds)

    def _line(self, lines: Any, place: int) -> Any:
        """Return a line of each message, counted from the end."""
        return lines.values.take(self._compute.subtract(lines.offsets[1:], self._places[place]))

    def _without_space(self, values: Any) -> Any:
        """Return values without the space after the colon."""
        pc = self._compute
        is_spaced = pc.starts_with(values, b" ")
        shorter = pc.binary_replace_slice(values, 0, 1, b"")
        return shorter if pc.all(is_spaced).as_py() else pc.if_else(is_spaced, shorter, values)


_splitter = functools.lru_cache(maxsize=1)(_Splitter)


def _as_array(numbers: Any) -> array[int]:
    """Return an Arrow array of 32-bit integers as an array."""
    found = array("i")
    found.frombytes(memoryview(numbers.buffers()[1])[: 4 * len(numbers)])
    return found


def _multiples(factor: int, count: int) -> Any:
    """Return the first *count* multiples of *factor*."""
    return _at_least(factor, max(count - 1, 1).bit_length())[:count]


# Kept, because a program reads many pages of similar sizes.
@functools.lru_cache(maxsize=16)
def _at_least(factor: int, bits: int) -> Any:
    return _numbers(range(0, factor << bits, factor))


def _numbers(values: Iterable[int], code: str = "i") -> Any:
    """
    Return an Arrow array of 32-bit integers, or of 64-bit integers if *code* is ``q``.

    pyarrow makes arrays and scalars of Python objects too. It then imports pandas if that is
    installed, which takes half a second.
    """
    return _as_arrow(array(code, values))


def _as_arrow(numbers: array[int]) -> Any:
    """Return the integers as an Arrow array, without a copy."""
    import pyarrow as pa

    kind = pa.int32() if numbers.typecode == "i" else pa.int64()
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
