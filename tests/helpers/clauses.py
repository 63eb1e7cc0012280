"""
The clauses of the specifications, the tests that are marked with them, and the pages about both.

Each file ``docs/specifications/*.toml`` has the clauses of one specification. The page with the
same name has their tables, which ``python tests/specifications --write`` renews.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import textwrap
from collections import Counter
from pathlib import Path

import attrs

if sys.version_info >= (3, 11):
    import tomllib
else:
    # pytest brings it.
    import tomli as tomllib

TESTS = Path(__file__).parents[1]
PAGES = TESTS.parent / "docs" / "specifications"
MODULE = TESTS.parent / "jetsync" / "cli" / "_clauses.py"
"""What `jetsync doctor` reads instead of the data, which is not installed."""

_MODULE_BEGIN = '''"""
The clauses of each specification by the servers that can do them.

`python tests/specifications --write` writes this file. Each server is the first version that can do
the clauses, unless the text ends with `only`. The numbers also count the clauses that are about the
client alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CLAUSES: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {'''

SPECIFICATIONS = {
    "AB": "atomic-batches",
    "FI": "fast-ingest",
    "SC": "consumers",
    "DG": "direct-get",
    "TTL": "ttl",
}
"""The page and the data of each specification, by the beginning of the ids of its clauses."""

STATUSES = {
    "yes": "jetsync does it, and a test shows it",
    "different": "jetsync does something else on purpose, and the row says why",
    "server": "the server does it, and jetsync needs to do nothing",
    "untested": "jetsync does it, and no test shows exactly this clause yet",
    "open": "jetsync does not do it yet",
}

VERSIONS = ("2.10", "2.11", "2.12", "2.14", "2.15")
"""The minor versions of servers that are tested; there was no 2.13."""

BEGIN, END = "<!-- {} -->", "<!-- {} end -->"


@attrs.frozen(kw_only=True)
class Clause:
    """
    One clause, as its table in a data file says.
    """

    id: str
    section: str
    """The section of the specification."""
    who: str
    """C: the client has to do something. S: the client meets it at a server."""
    clause: str
    """What the specification says."""
    since: str
    """The revision that brought it, or the date if the specification has no revisions."""
    older: str = ""
    """What older texts say instead."""
    server: str = ""
    """The first server that does it, as measured; empty if it is about the client alone."""
    status: str
    jetsync: str = ""
    """What jetsync does; empty if that is what the clause says."""
    names: list[str] = attrs.field(factory=list)
    """The public names."""
    why: str = ""
    """Why jetsync does not do what the clause says."""

    @property
    def servers(self):
        """
        The servers that do it, without remarks: the first one, those that alone do it, or none.
        """
        if self.server.endswith(" only"):
            return self.server
        found = re.match(r"\d+(\.\d+)+", self.server)
        return found[0] if found else "none"

    @property
    def first_version(self):
        """The first server as numbers; None if it is about the client, () if none does it."""
        if not self.server:
            return None
        found = re.match(r"(\d+)\.(\d+)", self.server)
        return tuple(map(int, found.groups())) if found else ()


@functools.cache
def clauses_of(specification):
    """
    Return the clauses of one specification, such as ``"AB"``, in the order of their ids.
    """
    path = PAGES / f"{SPECIFICATIONS[specification]}.toml"
    found = tomllib.loads(path.read_text("utf-8"))
    return [Clause(id=name, **fields) for name, fields in found.items()]


def all_clauses():
    """
    Return the clauses of all specifications.
    """
    return [clause for name in SPECIFICATIONS for clause in clauses_of(name)]


@functools.cache
def marked():
    """
    Return the names of the marked tests by the ids of the clauses.

    The files are parsed, because an import of all of them would take long. A mark on a class counts
    for each of its tests.
    """
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text("utf-8")
        if "mark.clause(" in source:
            place = path.relative_to(TESTS).as_posix()
            _collect(ast.parse(source).body, place, [], found)
    return found


def _collect(body, place, outer, found):
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        ids = outer + [each for mark in node.decorator_list for each in _ids(mark)]
        name = f"{place}::{node.name}"
        if isinstance(node, ast.ClassDef):
            _collect(node.body, name, ids, found)
        elif node.name.startswith("test_"):
            for each in ids:
                found.setdefault(each, []).append(name)


def _ids(decorator):
    """Return the ids of a decorator if it is the mark."""
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("mark.clause"):
        return [argument.value for argument in decorator.args]
    return []


# Pages.


def page_of(specification):
    """
    Return the page of one specification.
    """
    return PAGES / f"{SPECIFICATIONS[specification]}.md"


def tables_of(specification):
    """
    Return the generated parts of the page of one specification, by their names.
    """
    clauses = clauses_of(specification)
    return {
        "counts": _counts(clauses),
        "clauses": _clauses(clauses),
        "tests": _tests(clauses),
    }


def tables_of_index():
    """
    Return the generated parts of the page about all specifications.
    """
    every = all_clauses()
    head = ["specification", "clauses", *STATUSES]
    lines = [
        [f"[{title_of(name)}]({page})", *_numbers(clauses_of(name))]
        for name, page in ((name, f"{SPECIFICATIONS[name]}.md") for name in SPECIFICATIONS)
    ]
    lines.append(["all", *_numbers(every)])
    pages = [f"[{title_of(name)}]({SPECIFICATIONS[name]}.md)" for name in SPECIFICATIONS]
    return {
        "counts": _markdown(head, lines),
        "versions": _markdown(
            ["server", *pages],
            [
                [version, *(_held(clauses_of(name), version) for name in SPECIFICATIONS)]
                for version in VERSIONS
            ],
        ),
    }


def title_of(specification):
    """
    Return the heading of the page of one specification.
    """
    return re.search(r"^# (.*)$", page_of(specification).read_text("utf-8"), re.MULTILINE)[1]


def with_tables(text, tables):
    """
    Return the text of a page with its generated parts renewed.
    """
    for name, lines in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        new = "\n".join([begin, "", *lines, "", end])
        text, count = re.subn(
            f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, new=new: new, text, flags=re.DOTALL
        )
        assert count == 1, f"the page has {count} places for {name}"
    return text


def pages():
    """
    Yield each page with its generated parts.
    """
    yield PAGES / "index.md", tables_of_index()
    for name in SPECIFICATIONS:
        yield page_of(name), tables_of(name)


def module():
    """
    Return the text of :data:`MODULE`.
    """
    lines = []
    for name in SPECIFICATIONS:
        title, adr = re.fullmatch(r"(.*) \((.*)\)", title_of(name)).groups()
        lines += [
            f'    "{adr}, {title[0].lower()}{title[1:]}": (',
            f"        {len(clauses_of(name))},",
            "        {",
        ]
        for servers, ids in _by_servers(clauses_of(name)).items():
            text = f'            "{servers}": "{_ranges(ids)}",'
            if len(text) <= 100:
                lines.append(text)
                continue
            parts = textwrap.wrap(_ranges(ids), 80, drop_whitespace=False, break_on_hyphens=False)
            lines += [f'            "{servers}": (']
            lines += [f'                "{part}"' for part in parts]
            lines += ["            ),"]
        lines += ["        },", "    ),"]
    return "\n".join([_MODULE_BEGIN, *lines, "}", ""])


def _by_servers(clauses):
    """Return the ids of clauses by the servers that do them, the oldest servers first."""
    found = {}
    for clause in clauses:
        if clause.server:
            found.setdefault(clause.servers, []).append(clause.id)

    def order(servers):
        return servers == "none", [int(number) for number in re.findall(r"\d+", servers)], servers

    return {servers: found[servers] for servers in sorted(found, key=order)}


def _ranges(ids):
    """Return ids as text, with three or more in a row as ``AB-01 to AB-07``."""
    rows = []
    for each in ids:
        number = int(each.partition("-")[2])
        if rows and number == rows[-1][-1][0] + 1:
            rows[-1].append((number, each))
        else:
            rows.append([(number, each)])
    parts = []
    for row in rows:
        names = [name for _, name in row]
        parts += names if len(names) < 3 else [f"{names[0]} to {names[-1]}"]
    return ", ".join(parts)


def counts(clauses):
    """
    Return how many clauses have each status.
    """
    found = Counter(clause.status for clause in clauses)
    return {status: found[status] for status in STATUSES}


def holds_on(clause, version):
    """
    Return whether servers of a minor version can do what a clause says.
    """
    if clause.server.endswith(" only"):
        return version in clause.server
    first = clause.first_version
    return first is None or (first != () and first <= tuple(map(int, version.split("."))))


def _held(clauses, version):
    return f"{sum(holds_on(clause, version) for clause in clauses)} of {len(clauses)}"


def _numbers(clauses):
    return [str(len(clauses)), *(str(count) for count in counts(clauses).values())]


def _counts(clauses):
    rows = [
        [status, str(count), STATUSES[status]] for status, count in counts(clauses).items() if count
    ]
    return _markdown(["status", "clauses", "meaning"], rows)


def _clauses(clauses):
    lines = []
    sections = dict.fromkeys(clause.section for clause in clauses)
    for section in sections:
        rows = [
            [
                clause.id,
                _text(clause),
                clause.status,
                _answer(clause),
                clause.server or "any",
            ]
            for clause in clauses
            if clause.section == section
        ]
        lines += ["", f"### {section}", ""] if lines else [f"### {section}", ""]
        lines += _markdown(["id", "clause", "status", "jetsync", "from server"], rows)
    return lines


def _text(clause):
    since = f"Since {clause.since}" if clause.since[:2] == "20" else f"Revision {clause.since}"
    older = f"; older texts: {clause.older}" if clause.older else ""
    return f"{clause.clause} *{since}{older}.*"


def _answer(clause):
    names = ", ".join(f"`{name}`" for name in clause.names)
    said = clause.jetsync or ("" if names or clause.status == "server" else "As the clause says.")
    why = f"**Why:** {clause.why}" if clause.why else ""
    return " ".join(filter(None, (said, why, names)))


def _tests(clauses):
    rows = [
        [clause.id, ", ".join(f"`{name}`" for name in marked()[clause.id])]
        for clause in clauses
        if clause.id in marked()
    ]
    return _markdown(["id", "tests"], rows) if rows else ["None yet."]


def _markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]
