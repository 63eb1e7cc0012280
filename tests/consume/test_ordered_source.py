from __future__ import annotations

from jetsync._proto.ordered import OrderedCursor
from jetsync.consume.ordered_source import OrderedSource


def test_the_place_is_the_message_that_was_handed_out_last():
    """
    The next consumer begins after the last message that was handed out, not that has arrived.
    """
    cursor = OrderedCursor({}, "R")
    source = OrderedSource(None, "S", None, cursor, -1)
    cursor.next_config(source.last)
    cursor.admit([(b"a", b"$JS.ACK.S.R_1.1.%d.1.1700000000.0" % 5, None, b"")])
    assert (source.last, source._last_time) == (None, None)
    source.place[:] = b"$JS.ACK.S.R_1.1.5.1.1700000000.0", 1
    assert (source.last, source._last_time) == (5, 1_700_000_000)
    assert cursor.next_config(source.last)["opt_start_seq"] == 6
