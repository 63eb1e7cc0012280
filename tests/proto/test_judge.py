"""
What a status means for the read whose pull it ends: all rows, for both readers.
"""

from __future__ import annotations

import pytest

from helpers.consuming import options
from jetsync._proto.consume import ConsumeEngine
from jetsync._proto.fetch import FetchEngine
from jetsync._proto.open_pulls import OpenPulls
from jetsync._proto.origin import Origin
from jetsync._proto.pull_request import Priorities, PullRequest
from jetsync._proto.status import STATUS_RULES, Effect, find_rule
from jetsync.errors import InvalidGroupError
from jetsync.events import PullOutcome

BATCH = 10
EXPIRES = 30.0
GROUP = Priorities(group="g")
SIZE = "409 Message Size Exceeds MaxBytes"

BOUNDED = {
    "done": (False, False, 3, 1, None),
    "waits": (True, False, 3, 1, None),
    "first, none found": (True, True, 0, 1, None),
    "first, some found": (True, True, 3, 1, None),
    "second, none found": (True, True, 0, 2, None),
    "second, some found": (True, True, 3, 2, None),
    "third, some found": (True, True, 3, 3, None),
    "with a pin": (True, False, 3, 1, "id"),
}
"""
Bounded reads: whether time is left, `no_wait`, messages found, which pull it is, and its pin id.
"""

ENDLESS = {
    "served": (BATCH - 1, 0.0, None),
    "expired": (BATCH, EXPIRES, None),
    "early and empty": (BATCH, 0.0, None),
    "with a pin": (BATCH - 1, 0.0, "id"),
}
"""
Endless reads: messages that the server did not deliver, the age of the pull, and its pin id.
"""

# The columns are the reads above in their order: eight bounded ones, four endless ones.
ROWS = """
404 No Messages                 | end  end   again end end end   end end   | end   end   later end
408 Request Timeout             | end  end   again end end again end end   | end   end   later end
408 Interest Expired            | end  end   again end end again end end   | end   end   later end
409 Batch Completed             | end  end   end   end end end   end end   | end   end   later end
409 Server Shutdown             | end  later later *   *   *     *   later | later later later later
409 Leadership Change           | end  later later *   *   *     *   later | later later later later
423 Nats-Wrong-Pin-Id           | end  later later *   *   *     *   again | later later later again
503                             | end  probe probe *   *   *     *   probe | probe probe probe probe
409 Exceeded MaxRequestBatch    | fail fail  fail  *   *   *     *   fail  | later later later later
409 Exceeded MaxRequestExpires  | fail fail  fail  *   *   *     *   fail  | later later later later
409 Exceeded MaxRequestMaxBytes | fail fail  fail  *   *   *     *   fail  | later later later later
409 Exceeded MaxWaiting         | fail fail  fail  *   *   *     *   fail  | later later later later
409 Something New               | fail fail  fail  *   *   *     *   fail  | later later later later
500                             | fail fail  fail  *   *   *     *   fail  | later later later later
409 Consumer Deleted            | fail fail  fail  *   *   *     *   fail  | fail  fail  fail  fail
409 Consumer is push based      | fail fail  fail  *   *   *     *   fail  | fail  fail  fail  fail
400 Bad Request                 | fail fail  fail  *   *   *     *   fail  | fail  fail  fail  fail
400 Bad Request - Not a Pinned  | fail fail  fail  *   *   *     *   fail  | fail  fail  fail  fail
412 Required Api Level          | fail fail  fail  *   *   *     *   fail  | fail  fail  fail  fail
"""


def rows(column, names):
    """
    Return each cell of a column as a status line, the name of the read, and the verdict.
    """
    for row in ROWS.strip().splitlines():
        cells = row.split("|")
        verdicts = cells[column].split()
        last = verdicts[2] if column == 1 else ""
        for name, verdict in zip(names, verdicts, strict=True):
            yield cells[0].strip(), name, last if verdict == "*" else verdict


def frame(pull, line, pending=None, size=None):
    """
    Return the frame of a status that ends a pull.
    """
    counts = ""
    if pending is not None:
        counts = f"Nats-Pending-Messages: {pending}\r\nNats-Pending-Bytes: {size or 0}\r\n"
    return (pull.subject, b"", f"NATS/1.0 {line}\r\n{counts}\r\n".encode(), b"")


def fetched(line, name):
    """
    Return what a fetch does after a status.
    """
    left, no_wait, found, attempt, pin = BOUNDED[name]
    pulls = OpenPulls(b"_INBOX.c", Origin("S", "C"))
    pins = {} if pin is None else {"g": pin}
    request = PullRequest(
        max_messages=BATCH, expires=EXPIRES, no_wait=no_wait, priorities=GROUP, pin_id=pin
    )
    engine = FetchEngine(pulls, request, pins, now=0.0, wait=EXPIRES, subject=b"NEXT")
    engine._attempt, engine.admitted = attempt, found
    pull = pulls.open(request, 0.0)
    now = 0.0 if left else EXPIRES
    ((_, outcome),) = engine.receive([frame(pull, line)], now)
    assert (outcome is PullOutcome.FAILED) is (engine.error is not None)
    assert (outcome is PullOutcome.RETRIED) is engine.is_due
    assert (pin is not None and not pins) is (pin is not None and line.startswith("423"))
    if not engine.is_due:
        return "end" if engine.error is None else "fail"
    if engine.probe_due(now) is not None:
        assert engine.next_pull(now) is None
        return "probe"
    return "later" if engine.next_pull(now) is None else "again"


def consumed(line, pending, age, pin, *, size=None, **changes):
    """
    Return what a consumption does after a status.
    """
    pulls = OpenPulls(b"_INBOX.c", Origin("S", "C"))
    pins = {} if pin is None else {"g": pin}
    plan = options(max_messages=BATCH, expires=EXPIRES, priorities=GROUP, **changes)
    engine = ConsumeEngine(pulls, plan, pins)
    pull = pulls.open(engine.next_pull(0.0), 0.0)
    pulls.sent(pull, 1)
    ((status, outcome),) = engine.receive([frame(pull, line, pending, size)], age)
    assert (outcome is PullOutcome.FAILED) is engine.is_ending
    if engine.is_ending:
        return "fail"
    assert (outcome is PullOutcome.ENDED) is (status.effect is Effect.ENDED)
    assert (pin is not None and not pins) is (status.code == 423 and pin is not None)
    if engine.probe_due(age) is not None:
        return "probe"
    if engine.next_pull(age) is None:
        return "later"
    return "end" if outcome is PullOutcome.ENDED else "again"


def test_every_rule_has_a_row():
    """Every rule that ends a pull has a row, or the test of its own below."""
    lines = {line for line, *_ in rows(1, BOUNDED)} | {SIZE}
    found = {find_rule(int(line[:3]), line[4:]) for line in lines}
    # The rules for groups are alike, so one row is enough for them.
    alike = {rule for rule in STATUS_RULES if rule.error is InvalidGroupError}
    ending = {rule for rule in STATUS_RULES if rule.effect is not Effect.ALIVE}
    assert ending - alike <= found
    assert found & alike


@pytest.mark.parametrize(("line", "name", "verdict"), [*rows(1, BOUNDED)])
def test_bounded_reads(line, name, verdict):
    """A fetch ends, raises or pulls again as its row says."""
    assert fetched(line, name) == verdict


@pytest.mark.parametrize(("line", "name", "verdict"), [*rows(2, ENDLESS)])
def test_endless_reads(line, name, verdict):
    """A consumption ends or pulls again, at once or after a pause, as its row says."""
    assert consumed(line, *ENDLESS[name]) == verdict


@pytest.mark.parametrize("name", BOUNDED)
def test_a_message_that_does_not_fit_ends_a_bounded_read(name):
    """A fetch ends without an error if the next message is too large for it."""
    assert fetched(SIZE, name) == "end"


@pytest.mark.parametrize(
    ("size", "most", "verdict"),
    [
        (None, None, "fail"),
        (400, None, "fail"),
        (300, None, "end"),
        (200, 200, "fail"),
        (100, 200, "end"),
        (400, 200, "end"),
    ],
)
def test_a_message_that_does_not_fit_ends_an_endless_read_if_it_never_will(size, most, verdict):
    """A consumption fails only if a pull for as many bytes as possible ended empty."""
    limits = {"max_bytes": 400, "threshold": 200, "max_batch_bytes": most}
    pending = None if size is None else BATCH
    assert consumed(SIZE, pending, 0.0, None, size=size, **limits) == verdict
