"""
What the command line prints.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest

import jetsync
from jetsync import cli
from jetsync.cli import _output
from jetsync.cli._output import message_dict


class TestVisible:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain, ü and 漢字", "plain, ü and 漢字"),
            ("\x1b[31mred", "\\x1b[31mred"),
            ("a\x00\x07\x7f", "a\\x00\\x07\\x7f"),
            ("\x9b2J", "\\x9b2J"),
            ("\u202egnp.exe", "\\u202egnp.exe"),
            ("one\r\ntwo\t3", "one\\r\\ntwo\\t3"),
            ("\udcff", "\\udcff"),
            ("\u2028\u200b\ufeff\u200f", "\\u2028\\u200b\\ufeff\\u200f"),
            ("\U000e0041", "\\U000e0041"),
            ("a\xa0b\u3000c", "a\xa0b\u3000c"),
        ],
    )
    def test_control_characters_are_shown_as_escapes(self, text, shown):
        """
        Characters that a terminal would act on are shown as escapes.
        """
        assert _output.visible(text) == shown

    def test_line_ends_and_tabs_stay_in_a_text_of_several_lines(self):
        """
        In a text of several lines, line ends and tabs stay; a lone carriage return does not.
        """
        assert _output.visible("a\tb\nc\rd", lines=True) == "a\tb\nc\\rd"

    def test_bytes_that_are_not_text_are_shown_as_escapes(self):
        """
        Bytes that are not text are shown as escapes.
        """
        assert _output.visible(_output.payload(b"\xff\x1bz")) == "\\xff\\x1bz"

    def test_tables_and_json(self, capsys):
        """
        Both outputs escape control characters in foreign text, and JSON keeps the value.
        """
        evil = "\x1b]0;title\x07 \x9b2J \u202e \udcff \u2028 \U000e0041 [red]:smile:[/] \\"
        _output.print_table(("a",), [(evil,)])
        _output.print_pairs([(evil, evil)])
        _output.say(evil)
        _output.say(evil, style="bold")
        _output.print_json({"evil": evil})
        _output.print_json_line({"evil": evil})

        lines = capsys.readouterr().out
        assert not any(
            unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
            for each in lines.replace("\n", "")
        )
        assert lines.count("[red]:smile:[/]") == 7
        assert json.loads(lines.splitlines()[-1]) == {"evil": evil}

    def test_raw_to_a_terminal(self, monkeypatch, capfd):
        """
        A terminal gets no raw bytes, other outputs do.
        """
        _output.write_raw(b"\x1b[31m\n")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        _output.write_raw(b"\x1b[31m\n")

        assert capfd.readouterr().out == "\x1b[31m\n\\x1b[31m\n"


class TestOutput:
    def test_everything_is_printed_by_the_output_module(self):
        """
        Only the output module prints, so no command can forget to escape.
        """
        folder = Path(cli.__file__).parent
        calls = re.compile(r"\b(?:click\.(?:s?echo|secho|confirm|prompt)|(?<![\w.])print)\(")
        printing = {path.name for path in folder.glob("*.py") if calls.search(path.read_text())}
        assert printing == {"_output.py"}

    @pytest.mark.parametrize(
        ("count", "text"),
        [
            (-1, "unlimited"),
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536 * 1024, "1.5 MiB"),
            (5 * 1024**3, "5 GiB"),
            (5 * 1024**4, "5 TiB"),
            (5 * 1024**5, "5120 TiB"),
        ],
    )
    def test_bytes_are_shown_in_the_largest_unit_that_fits(self, count, text):
        """
        Bytes are shown in the largest unit that fits.
        """
        assert _output.size(count) == text

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0s"),
            (0.25, "250ms"),
            (1.5, "1.5s"),
            (90, "1m30s"),
            (5400, "1h30m"),
            (7 * 86_400, "7d"),
            (86_401.1, "1d1.1s"),
        ],
    )
    def test_durations_are_shown_as_they_may_be_written(self, seconds, text):
        """
        Durations are shown as they may be written.
        """
        assert _output.duration(seconds) == text

    def test_a_limit_of_minus_one_is_shown_as_no_limit(self):
        """
        Minus one is shown as no limit.
        """
        assert _output.limit(-1) == "unlimited"
        assert _output.limit(12_345) == "12,345"

    def test_text_of_others_is_no_markup(self, capsys):
        """
        Subjects and payloads are printed literally, and not cut if the output is not a terminal.
        """
        long = "x" * 200

        _output.print_table(("a", "b"), [("[bold]not[/bold]", long)])
        _output.print_pairs([("name", "[red]"), ("nothing", None), ("empty", "")])

        output = capsys.readouterr().out
        assert "[bold]not[/bold]" in output
        assert long in output
        assert "[red]" in output
        assert "nothing" not in output
        assert "empty" not in output


def test_json_of_a_message_reads_its_headers_once(monkeypatch):
    """
    The JSON of a message has all headers, without a search for each of their names.
    """
    monkeypatch.delattr(jetsync.Headers, "get_all")
    headers = jetsync.Headers((f"H{number % 9_000}", str(number)) for number in range(9_500))
    time = dt.datetime(2026, 8, 6, tzinfo=dt.timezone.utc)

    found = message_dict("S", 1, "s", time, headers, b"")["headers"]

    assert len(found) == 9_000
    assert (found["H0"], found["H600"]) == (["0", "9000"], ["600"])
