"""
Reports and infos as tables in notebooks.
"""

from __future__ import annotations

import datetime as dt
from html.parser import HTMLParser

import pytest

import jetsync
from jetsync.values.codec import from_wire

EVIL = "<script>alert('&')</script>"


class Tags(HTMLParser):
    """
    The tags and the text of a piece of HTML, in which every tag is closed.
    """

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words = set(), [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def info():
    """
    The description of a stream, with hostile text in each place.
    """
    return from_wire(
        jetsync.StreamInfo,
        {
            "config": {"name": "S", "description": EVIL, "metadata": {EVIL: EVIL}},
            "created": "2026-08-06T18:00:00Z",
            "state": {"messages": 3, "subjects": {EVIL: 3}},
            "domain": EVIL,
            EVIL: EVIL,
        },
    )


def test_text_is_escaped(info):
    """
    Text from servers and publishers is shown literally, wherever it is.
    """
    shown = Tags(info._repr_html_())

    assert shown.tags == {"table", "caption", "tbody", "tr", "th", "td"}
    assert shown.words.count(EVIL) == 5


def test_nested_objects_and_times(info):
    """
    Objects are tables in the table; times are readable, and empty fields are left out.
    """
    words = Tags(info._repr_html_()).words

    assert words[:5] == ["StreamInfo", "config", "name", "S", "description"]
    assert str(dt.datetime(2026, 8, 6, 18, tzinfo=dt.timezone.utc)) in words
    assert "mirror" not in words


def test_payloads_and_long_lists():
    """
    A report shows the first failures, and of payloads only the size.
    """
    failures = tuple(
        jetsync.PublishFailure(
            number, jetsync.OutboundMessage(f"a.{EVIL}", "secret"), ValueError(EVIL)
        )
        for number in range(3000)
    )

    html = jetsync.PublishReport(7, 0, 1, 9, failures)._repr_html_()

    words = Tags(html).words
    assert "secret" not in html
    assert "and 2,980 more" in words
    assert sum("PublishFailure(index=" in word for word in words) == 20


def test_every_report_and_info_is_a_table():
    """
    Every public report, info, state and configuration is a table.
    """
    ends = ("Info", "Report", "Statistics", "Status", "State", "Config")
    found = [name for name in jetsync.__all__ if name.endswith(ends)]

    assert len(found) > 15
    assert [name for name in found if not hasattr(getattr(jetsync, name), "_repr_html_")] == []
