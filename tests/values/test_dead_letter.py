from __future__ import annotations

import base64
import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jetsync
from jetsync.publish.encode import outbound_header_pairs
from jetsync.values.dead_letter import LONGEST_REASON, dead_letter, reason_of
from jetsync.values.headers import encode_headers

HEADERS = b"NATS/1.0\r\nTrace: 7\r\nTrace: 8\r\nNats-Msg-Id: order-1\r\nNats-TTL: 60\r\n\r\n"


def letter(**changes):
    """
    Return a dead letter, and the message that a stream would store for it.
    """
    about = {
        "stream": "ORDERS",
        "consumer": "worker",
        "sequence": 17,
        "timestamp_ns": 5,
        "deliveries": 3,
        "subject": "orders.eu",
        "raw_headers": HEADERS,
        "data": b"a sofa",
        "reason": "no such product",
    }
    made = dead_letter("dead.orders", **{**about, **changes})
    headers = made.headers.copy()
    headers.add("Nats-Msg-Id", made.msg_id)
    return made, jetsync.StoredMessage("DEAD", made.subject, 1, 9, headers, made.data)


class TextlessError(Exception):
    """
    An error of an application that cannot be shown.
    """

    def __str__(self):
        raise TypeError("no text")


class TestDeadLetter:
    def test_payload_and_headers(self):
        """
        A dead letter has the payload, the original headers and those about the message. Headers
        that the server would act on have another name.
        """
        made, _ = letter()
        assert (made.subject, made.data, made.ttl, made.expect) == (
            "dead.orders",
            b"a sofa",
            None,
            None,
        )
        assert made.headers.to_dict() == {
            "Trace": ["7", "8"],
            "Jetsync-Dead-Letter-Header-Nats-Msg-Id": ["order-1"],
            "Jetsync-Dead-Letter-Header-Nats-TTL": ["60"],
            "Jetsync-Dead-Letter-Stream": ["ORDERS"],
            "Jetsync-Dead-Letter-Sequence": ["17"],
            "Jetsync-Dead-Letter-Subject": ["orders.eu"],
            "Jetsync-Dead-Letter-Deliveries": ["3"],
            "Jetsync-Dead-Letter-Consumer": ["worker"],
            "Jetsync-Dead-Letter-Reason": ["no such product"],
        }

    def test_headers_are_renamed_in_any_case(self):
        """
        A server may read the names of its headers in any case.
        """
        made, _ = letter(raw_headers=b"NATS/1.0\r\nnats-rollup: all\r\n\r\n")
        assert "nats-rollup" not in made.headers
        assert made.headers["Jetsync-Dead-Letter-Header-nats-rollup"] == "all"

    def test_its_id_names_the_message(self):
        """
        The id is the same whenever the message is given up, and differs for another stream of the
        same name.
        """
        first = letter()[0].msg_id
        assert letter(deliveries=9, reason="other")[0].msg_id == first
        for change in (
            {"sequence": 18},
            {"consumer": "other"},
            {"stream": "X"},
            {"timestamp_ns": 6},
        ):
            assert letter(**change)[0].msg_id != first

    def test_headers_that_cannot_be_sent(self):
        """
        A dead letter can be sent whatever the headers of the message are, and keeps their bytes.
        """
        block = b"NATS/1.0\r\nGood: 1\r\nBad: \xff\r\nB d: \x01\r\n\r\n"
        made, _ = letter(raw_headers=block, subject="orders.\udcff", reason="a\r\nb\x07 \udcff")
        assert made.headers.get("Good") == "1"
        assert "Bad" not in made.headers
        assert base64.b64decode(made.headers["Jetsync-Dead-Letter-Raw-Headers"]) == block
        assert made.headers["Jetsync-Dead-Letter-Subject"] == "not valid: orders.\\xff"
        assert made.headers["Jetsync-Dead-Letter-Reason"] == "a b? ?"
        "".join(f"{name}{value}" for name, value in made.headers.items()).encode()

    def test_a_message_without_headers(self):
        """
        A message without headers has only those of the dead letter.
        """
        made, _ = letter(raw_headers=None)
        assert all(name.startswith("Jetsync-Dead-Letter-") for name in made.headers)

    def test_a_long_reason_is_cut_off(self):
        """
        The reason has at most 600 bytes and ends between characters.
        """
        reason = letter(reason="ü" * 10_000)[0].headers["Jetsync-Dead-Letter-Reason"]
        assert len(reason.encode()) <= LONGEST_REASON
        assert reason.endswith("ü...")

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (jetsync.DeadLetter("expired"), "expired"),
            (jetsync.DeadLetter(), "DeadLetter"),
            (ValueError("no price"), "ValueError: no price"),
            (KeyError(), "KeyError"),
            (TextlessError(), "TextlessError"),
        ],
    )
    def test_the_reason_of_an_error(self, error, reason):
        """
        A `DeadLetter` says the reason itself. Other errors are named.
        """
        assert reason_of(error) == reason

    def test_the_exception_can_be_copied(self):
        """
        `DeadLetter` can be pickled and copied, as all errors.
        """
        error = jetsync.DeadLetter("expired")
        assert str(pickle.loads(pickle.dumps(error))) == str(copy.copy(error)) == "expired"


class TestReplay:
    def test_it_has_the_original_subject_payload_and_headers(self):
        """
        The message to put back is the original, under a new id. Of the headers that the server acts
        on, it has the time-to-live.
        """
        made, stored = letter()
        again = jetsync.replay(stored)
        assert (again.subject, again.data) == ("orders.eu", b"a sofa")
        assert again.headers.to_dict() == {"Trace": ["7", "8"], "Nats-TTL": ["60"]}
        assert again.msg_id == f"{made.msg_id}/replay"

    def test_without_headers(self):
        """
        A message without headers is put back without headers.
        """
        assert jetsync.replay(letter(raw_headers=None)[1]).headers is None

    def test_a_letter_of_a_copied_stream(self):
        """
        A letter whose stream is a copy of another one has headers of servers, which the message to
        put back lacks.
        """
        made, _ = letter()
        headers = jetsync.Headers([*made.headers.items(), ("Nats-Msg-Id", made.msg_id)])
        for name in ("Nats-Stream-Source", "Nats-Sequence", "Nats-Last-Sequence", "Nats-Stream"):
            headers.add(name, "1")
        stored = jetsync.StoredMessage("COPY", made.subject, 1, 9, headers, made.data)
        again = jetsync.replay(stored)
        assert again.headers.to_dict() == {"Trace": ["7", "8"], "Nats-TTL": ["60"]}

    def test_the_letter_of_a_letter_leads_back_to_it(self):
        """
        A dead letter whose own handler gives up can be put back in two steps.
        """
        first, stored = letter()
        block = "".join(f"{name}: {value}\r\n" for name, value in stored.headers.items())
        _, second = letter(
            subject="dead.orders", raw_headers=b"NATS/1.0\r\n" + block.encode() + b"\r\n"
        )
        again = jetsync.replay(second)
        assert again.subject == "dead.orders"
        assert again.headers == first.headers

    def test_another_message_is_refused(self):
        """
        A message that is no dead letter is refused, and so is one whose subject is not valid.
        """
        plain = jetsync.StoredMessage("DEAD", "dead.orders", 1, 9, None, b"x")
        with pytest.raises(jetsync.InvalidArgumentError, match="is not a dead letter"):
            jetsync.replay(plain)
        with pytest.raises(jetsync.InvalidSubjectError):
            jetsync.replay(letter(subject="orders. x")[1])


BYTES = (b"\x00", b"\r", b"\n", b"\r\n", b":", b" ", b"\t", b"\xff", b"\xed\xa0\x80", b"\x7f", b"a")
LINES = (b"Nats-TTL: 1", b"Jetsync-Dead-Letter-Stream: x", b"Jetsync-Dead-Letter-Header-A: b")
ODD = st.lists(st.sampled_from(BYTES + LINES)).map(b"".join)


@given(block=ODD, subject=ODD, reason=ODD)
def test_a_dead_letter_can_be_made_of_any_message(block, subject, reason):
    """
    Whatever bytes a message has as headers and subject, its dead letter can be sent. It is put back
    to its subject, or refused.
    """
    name, why = (each.decode("utf-8", "surrogateescape") for each in (subject, reason))
    made, _ = letter(raw_headers=b"NATS/1.0\r\n" + block + b"\r\n\r\n", subject=name, reason=why)
    sent = encode_headers(outbound_header_pairs(made))
    stored = jetsync.StoredMessage("DEAD", "dead.orders", 1, 9, None, b"", raw_headers=sent)
    try:
        again = jetsync.replay(stored)
    except jetsync.InvalidSubjectError:
        return
    assert again.subject == name
    encode_headers(outbound_header_pairs(again))
