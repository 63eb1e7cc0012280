"""
What `jetsync permissions` prints, and the tables of the documentation.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from jetsync.cli._app import jetsync as app
from jetsync.cli._roles import ROLES, Line, Role

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "permissions.md"


def run(arguments):
    """
    Run `jetsync permissions`.
    """
    return CliRunner().invoke(app, ["permissions", *arguments.split()])


def allowed(arguments):
    """
    Return the subjects that a user may publish to.
    """
    done = run(f"{arguments} --json")
    assert done.exit_code == 0, done.output
    return json.loads(done.output)["permissions"]["publish"]["allow"]


class TestBlock:
    def test_a_block(self):
        """
        The block names each subject once, and says what it is for.
        """
        done = run("worker ORDERS billing --inbox _INBOX.billing")
        assert done.exit_code == 0
        assert done.output.splitlines() == [
            "permissions {",
            "  publish {",
            "    allow: [",
            '      "$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing"  # pull messages',
            '      "$JS.API.CONSUMER.INFO.ORDERS.billing"      # look it up, see if it is gone',
            '      "$JS.ACK.ORDERS.billing.>"                  # acknowledge',
            '      "$JS.ACK.*.*.ORDERS.billing.>"              # acknowledge, newer form',
            "    ]",
            "  }",
            "  subscribe {",
            "    allow: [",
            '      "_INBOX.billing.>"  # receive answers and messages',
            "    ]",
            "  }",
            "}",
        ]

    def test_the_page_has_it(self):
        """
        The page shows this block.
        """
        text = PAGE.read_text("utf-8")
        shown = re.search(r"\$ jetsync (permissions .*)\n((?:.*\n)*?)```", text)
        assert CliRunner().invoke(app, shown[1].split()).output == shown[2]

    def test_several_values(self):
        """
        Arguments and options that may be repeated give a line for each value.
        """
        assert allowed("publisher orders.> refunds.>") == ["orders.>", "refunds.>"]
        lines = allowed("kv-reader users --key eu.* --key us.* --watch")
        assert [each for each in lines if each.endswith(".eu.*")] == [
            "$JS.API.DIRECT.GET.KV_users.$KV.users.eu.*",
            "$JS.API.CONSUMER.CREATE.KV_users.*.$KV.users.eu.*",
        ]
        assert len([each for each in lines if each.endswith(".us.*")]) == 2
        assert allowed("publisher a b a") == ["a", "b"]

    def test_a_monitor(self):
        """
        It may list streams and consumers, or look up those that are named.
        """
        less = "monitor --no-account --no-lookups"
        assert allowed(less) == [
            "$JS.API.STREAM.LIST",
            "$JS.API.STREAM.INFO.*",
            "$JS.API.CONSUMER.LIST.*",
            "$JS.API.CONSUMER.INFO.*.*",
        ]
        assert allowed(f"{less} --stream A --stream B") == [
            "$JS.API.STREAM.INFO.A",
            "$JS.API.STREAM.INFO.B",
            "$JS.API.CONSUMER.LIST.A",
            "$JS.API.CONSUMER.LIST.B",
            "$JS.API.CONSUMER.INFO.A.*",
            "$JS.API.CONSUMER.INFO.B.*",
        ]
        assert allowed(f"{less} --stream A --consumer w") == [
            "$JS.API.STREAM.INFO.A",
            "$JS.API.CONSUMER.INFO.A.w",
        ]
        # The monitor lists the consumers of streams that it has listed.
        assert "$JS.API.CONSUMER.LIST.*" in allowed("monitor --consumer w")

    def test_a_domain(self):
        """
        With a domain, requests, writes of keys and newer acknowledgements name it.
        """
        assert allowed("worker ORDERS billing --domain hub") == [
            "$JS.hub.API.CONSUMER.MSG.NEXT.ORDERS.billing",
            "$JS.hub.API.CONSUMER.INFO.ORDERS.billing",
            "$JS.ACK.ORDERS.billing.>",
            "$JS.ACK.hub.*.ORDERS.billing.>",
        ]
        assert "$JS.hub.API.$KV.users.>" in allowed("kv-writer users --domain hub")

    def test_a_prefix(self):
        """
        A prefix replaces that of the API.
        """
        assert allowed("kv-writer users --prefix hub.js") == [
            "hub.js.STREAM.INFO.KV_users",
            "hub.js.$KV.users.>",
        ]
        assert allowed("administrator --prefix hub.js") == ["hub.js.>"]

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ("worker a.b c", "invalid stream name 'a.b'"),
            ("worker a b*", "invalid consumer name 'b*'"),
            ("kv-reader a.b", "invalid bucket name 'a.b'"),
            ("publisher a..b", "invalid subject 'a..b'"),
            ("kv-reader a --key >.a", "invalid subject '>.a'"),
            ("publisher a --inbox a.*", "invalid subject 'a.*'"),
            ("publisher a --domain a.b", "invalid domain name 'a.b'"),
            ("publisher a --domain a --prefix b", "give either a domain or a prefix"),
            ("publisher", "Missing argument 'SUBJECT...'"),
            ("workr a b", "Did you mean 'worker'?"),
        ],
    )
    def test_invalid_values(self, arguments, error):
        """
        A name or a subject that is not valid is an error, and nothing is printed.
        """
        done = run(arguments)
        assert done.exit_code
        assert error in done.output
        assert "permissions {" not in done.output


def when(line: Line) -> str:
    """
    Return when a role has a line, as a table says it.
    """
    options = " ".join(f"--{name}" for name in (line.option or "").split())
    if line.unless is None:
        return f"`{options}`" if options else "always"
    unless = " ".join(f"--{name}" for name in line.unless.split())
    return f"{f'`{options}` ' if options else ''}without `{unless}`"


def table_of(role: Role) -> str:
    """
    Return the table of a role.
    """
    given = {"api": "$JS.API", "inbox": "_INBOX", "domain": "*", "write": ""}
    found: dict[str, list[str]] = {}
    for line in role.lines:
        subject = line.subject
        for name in re.findall(r"\{([\w-]+)\}", subject):
            subject = subject.replace(f"{{{name}}}", given.get(name, f"<{name}>"))
        row = f"| {line.operation} | `{subject}` | {line.why} |"
        found.setdefault(row, []).append(when(line))
    rows = ["| permission | subject | the program needs it to | with |", "|---|---|---|---|"]
    return "\n".join([*rows, *(f"{row} {', '.join(each)} |" for row, each in found.items())])


@pytest.mark.parametrize("name", ROLES)
def test_the_page_has_the_table(name):
    """
    The page has a section for each role, with its sentence and its permissions.
    """
    role = ROLES[name]
    text = PAGE.read_text("utf-8")
    section = text.partition(f"### {name}\n")[2].partition("\n##")[0]
    assert section.strip().startswith(role.about)
    found = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    assert found == table_of(role)
