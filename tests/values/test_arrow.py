from __future__ import annotations

import datetime as dt
import sys

import pytest

from helpers.stored_pages import IDS, PAGES, run_of, said
from jetsync.errors import (
    ConfigurationError,
    InvalidArgumentError,
    ProtocolError,
)
from jetsync.values import arrow
from jetsync.values.stored import StoredMessage, StoredPage, page_of

NUMBERED = b"Nats-Num-Pending: 8\r\nNats-Last-Sequence: 4\r\n"
OWN = b"Nats-Subject: fake\r\nNats-Sequence: 9\r\nA: 1\r\nA: 2\r\nB:  x\r\n"
USUAL = [
    said(5, b"2026-11-20T16:38:27.709983862Z", more=NUMBERED),
    said(6, b"2026-11-20T16:38:28Z", "dg.\u00fc", own=OWN, more=NUMBERED),
    said((1 << 63) - 1, b"1969-12-31T23:59:59.5Z", more=NUMBERED),
]
ALL = ("headers", "timestamp", "sequence", "data", "subject")


def without_arrow(monkeypatch):
    """Let no import of pyarrow succeed, as if the extra were not installed."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arrow._made.cache_clear()


class TestColumnNames:
    @pytest.mark.parametrize(
        ("columns", "reason"),
        [
            (["subject", "body"], "no column 'body'.*subject, data, sequence, timestamp, headers"),
            (["data", "data"], "each column once"),
            ([], "each column once"),
            ("data", "each column once"),
            ([[]], r"no column \[\]"),
        ],
    )
    def test_an_unknown_column_is_refused_with_the_known_ones(self, columns, reason):
        """An unknown name raises an error with the known ones, with or without pyarrow."""
        with pytest.raises(InvalidArgumentError, match=reason):
            StoredPage([]).to_arrow(columns)

    def test_without_pyarrow(self, monkeypatch):
        """Without pyarrow, the error names the extra."""
        without_arrow(monkeypatch)
        with pytest.raises(ConfigurationError, match=r"pip install 'jetsync\[arrow\]'"):
            StoredPage([]).to_arrow()


@pytest.fixture
def pa():
    """Return pyarrow."""
    return pytest.importorskip("pyarrow")


def expected(page):
    """Return the rows of a page, message by message."""
    return [
        {
            "headers": list(message.headers.to_dict().items()),
            "timestamp": message.timestamp_ns,
            "sequence": message.sequence,
            "data": message.data,
            "subject": message.subject.encode("utf-8", "surrogateescape").decode(
                "utf-8", "replace"
            ),
        }
        for message in page
    ]


class TestBatch:
    @pytest.mark.parametrize(
        "page",
        [page_of([run_of(USUAL)]), page_of([run_of(USUAL[:1]), run_of(USUAL[1:])]), *PAGES],
        ids=["numbered", "numbered runs", *IDS],
    )
    def test_a_row_has_the_values_of_its_message(self, pa, page):
        """A row has the values of its message, whichever server or program wrote it."""
        messages = [message for message in page if message.sequence < 1 << 63]
        if len(messages) < len(page):
            with pytest.raises(OverflowError):
                page.to_arrow()
            page = StoredPage(messages)
        batch = page.to_arrow(ALL)
        batch.validate(full=True)
        columns = dict(zip(ALL, batch.columns, strict=True))
        columns["timestamp"] = columns["timestamp"].cast(pa.int64())
        assert pa.table(columns).to_pylist() == expected(page)

    def test_usual_columns(self, pa):
        """By default, a batch has all columns but the headers, with types that keep every digit."""
        schema = page_of([run_of(USUAL)]).to_arrow().schema
        assert schema == pa.schema(
            [
                ("subject", pa.string()),
                ("data", pa.binary()),
                ("sequence", pa.int64()),
                ("timestamp", pa.timestamp("ns", tz="UTC")),
            ]
        )
        assert StoredPage([]).to_arrow().schema == schema

    @pytest.mark.parametrize("column", ALL)
    def test_one_column(self, pa, column):
        """A batch of one column has the values of that column, page after page."""
        for page in (page_of([run_of(USUAL[:2])]), page_of([run_of(USUAL)])):
            assert page.to_arrow([column]).column(0) == page.to_arrow(ALL)[column]

    def test_no_object_for_a_message(self, pa, monkeypatch):
        """Messages as servers send them become columns without objects in between."""
        page = page_of([run_of(USUAL)])
        for name in ("subjects", "sequences", "timestamps_ns", "data", "__iter__"):
            monkeypatch.delattr(StoredPage, name)
        assert page.to_arrow()["sequence"].to_pylist() == [5, 6, (1 << 63) - 1]

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            (b"g.A", b"\xff.A"),
            (b"Nats-Subject", b"Nats-Subjekt"),
            (b"Nats-Num-Pending", b"Nats-New: 1\r\nNats-Num-Pending"),
        ],
    )
    def test_unusual_blocks(self, pa, right, wrong):
        """Blocks in another form are read header by header, or raise the same error."""
        block = USUAL[0].raw_headers.replace(right, wrong)
        message = StoredMessage.from_direct(block, b"x")
        run = run_of([message, *USUAL])
        try:
            rows = expected([message, *USUAL])
        except ProtocolError as error:
            with pytest.raises(ProtocolError, match=str(error)):
                page_of([run]).to_arrow()
        else:
            subjects = page_of([run]).to_arrow()["subject"].to_pylist()
            assert subjects == [row["subject"] for row in rows]

    def test_leap_second(self, pa):
        """A leap second is the time that the message says."""
        page = page_of([run_of([said(5, b"2016-12-31T23:59:60.25Z", more=NUMBERED)])])
        (moment,) = (
            page.to_arrow(["timestamp"]).column(0).cast(pa.timestamp("us", "UTC")).to_pylist()
        )
        assert (
            moment
            == page[0].timestamp
            == dt.datetime(2017, 1, 1, 0, 0, 0, 250_000, dt.timezone.utc)
        )
