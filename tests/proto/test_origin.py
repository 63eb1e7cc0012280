from __future__ import annotations

import pytest

from jetsync._proto import origin
from jetsync._proto.origin import Origin, Strays

SHORT = b"$JS.ACK.S.C.1.2.3.4.5"
LONG = b"$JS.ACK._.hash.S.C.1.2.3.4.5"


def frames(*replies):
    """Return messages with these reply subjects."""
    return [(b"orders", reply, None, b"") for reply in replies]


class TestOrigin:
    def test_a_message_in_either_form_is_recognised(self):
        """The longer form is recognised too, and is the expected one from then on."""
        own = Origin("S", "C")
        for reply, prefix in [
            (SHORT, b"$JS.ACK.S.C."),
            (LONG, b"$JS.ACK._.hash.S.C."),
            (LONG + b".more", b"$JS.ACK._.hash.S.C."),
            (SHORT, b"$JS.ACK.S.C."),
        ]:
            assert own.sends(reply)
            assert own.prefix == prefix

    @pytest.mark.parametrize(
        "reply",
        [
            b"",
            b"reply",
            b"$JS.ACK.S.C",
            b"$JS.ACK.S.CC.1.2.3.4.5",
            b"$JS.ACK.SS.C.1.2.3.4.5",
            b"$JS.ACK.C.S.1.2.3.4.5",
            b"$JS.ACK._.hash.S.D.1.2.3.4.5",
            b"$JS.ACK._.hash.S.C.1.2.3.4.x",
            b"x" + SHORT,
        ],
    )
    def test_other_reply_subjects_are_not(self, reply):
        """A reply subject of another consumer, or of none, changes nothing."""
        own = Origin("S", "C")
        assert not own.sends(reply)
        assert own.prefix == b"$JS.ACK.S.C."


@pytest.mark.usefixtures("variant")
class TestOwn:
    @pytest.mark.parametrize(
        ("replies", "expected"),
        [
            ([], True),
            ([SHORT], True),
            ([SHORT, b"$JS.ACK.S.C.1.10.10.4.5", b"$JS.ACK.S.C.1.9.9.4.5"], True),
            ([SHORT, b"", SHORT], False),
            ([b"$JS.ACK.S.C", SHORT], False),
            ([SHORT, b"$JS.ACK.S.D.1"], False),
            ([SHORT, b"\xff"], False),
        ],
    )
    def test_all_frames_have_the_prefix(self, replies, expected):
        """One frame of another consumer is enough for a closer look."""
        assert origin.are_own(frames(*replies), b"$JS.ACK.S.C.") is expected


def test_a_report_counts_since_the_last_one():
    """Each report has what was noted since the one before, and the first sample stays."""
    strays = Strays()
    strays.note("foreign", [])
    assert not strays.fresh
    strays.note("foreign", frames(b"a", b"b"))
    strays.note("surplus", frames(b"c"))
    assert strays.fresh
    assert strays.report() == {"foreign": 2, "surplus": 1}
    assert not strays.fresh
    strays.note("foreign", frames(b"d"))
    assert strays.report() == {"foreign": 1, "surplus": 0}
    assert strays.samples == {"foreign": (b"orders", b"a"), "surplus": (b"orders", b"c")}
