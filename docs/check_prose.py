"""
Check the prose of Markdown files: words to avoid, and the length of sentences.

    python docs/check_prose.py [FILE ...]

Without files, it checks all pages of the documentation, the README files and the changelog. Code,
code in backticks, addresses and options of directives are left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

ROOT = Path(__file__).parents[1]

LONGEST = 30
"""Words in a sentence. The aim is 20."""

WORDS = {
    r"comes? again|come back\b": "is redelivered, or returns",
    r"stands?(?! for\b| out\b)": "is",
    r"on (the|its|their) way": "in flight",
    r"anew": "again",
    r"goes on|go on(?! to\b)": "continues",
    r"\w*manieth": "that many times",
    r"nobody|somebody|anybody": "name the actor: the server, a caller, another client",
    r"blanks?": "space",
    r"(is|are|was|were) told": "receives, or learns",
    r"behind (it|them|these|those|the last|the first|that)": "after",
    r"whoever|whatever (is|was|has|comes)": "name the subject",
    r"by and by|hence|thus|thereof|therein|whilst|albeit": "a plain word",
    r"utili[sz]es?|leverag(e|es|ing)": "use",
    r"in order to": "to",
    r"obviously|of course|basically|simply": "leave it out",
    r"note that|please": "leave it out",
    r"e\.g\.|i\.e\.": "for example, that is",
}
"""Patterns of whole words, and what to write instead."""

CLAUSE = re.compile(r"(What|Who|Whoever) .*\.$")
"""A sentence whose subject is a clause. Questions and headings may start like this."""

PROSE = {"note", "tip", "warning", "important"}
"""Directives with backticks whose content is prose."""

_WORDS = {re.compile(rf"\b(?:{word})", re.IGNORECASE): hint for word, hint in WORDS.items()}
_END = re.compile(r"(?<=[.!?])[)\"']*\s+(?=[A-Z0-9`*(\"']|jetsync|nats-py)")
_DIRECTIVE = re.compile(r"^(:{3,}(\{[\w-]+\}.*)?|:[\w-]+:.*)$", re.MULTILINE)
_parser = MarkdownIt("commonmark").enable("table")


def texts(source: str, line: int = 1) -> Iterator[tuple[int, str]]:
    """
    Yield the paragraphs, headings, cells and list items with the line in which each starts.
    """
    # The prose in directives with colons is like that around them.
    for token in _parser.parse(_DIRECTIVE.sub("", source)):
        place = line + (token.map[0] if token.map else 0)
        if token.type == "inline":
            yield place, text_of(token)
        elif token.type == "fence" and token.info.strip("{}") in PROSE:
            yield from texts(token.content, place + 1)


def text_of(inline: Token) -> str:
    """
    Return the text. Code in backticks is one word, and roles such as `{doc}` have none.
    """
    pieces = []
    for token in inline.children or ():
        if token.type == "text":
            pieces.append(re.sub(r"\{[\w:]+\}$", "", token.content))
        elif token.type == "code_inline":
            pieces.append("`code`")
        elif token.type in {"softbreak", "hardbreak"}:
            pieces.append(" ")
        elif token.type == "image":
            pieces.append(f" {token.content} ")
    return "".join(pieces).strip()


def complaints(source: str) -> Iterator[tuple[int, str]]:
    """
    Yield what to change, with the line of the paragraph.
    """
    for line, text in texts(source):
        for pattern, hint in _WORDS.items():
            for found in pattern.finditer(text):
                if not text[found.end() : found.end() + 1].isalnum():
                    yield line, f"{found[0]!r}: {hint}"
        for sentence in _END.split(text):
            length = len(re.findall(r"[\w`'%.-]*\w[\w`'%.-]*", sentence))
            if length > LONGEST:
                yield line, f"{length} words in one sentence: {sentence}"
            if CLAUSE.match(sentence):
                yield line, f"a clause is the subject: {sentence}"


def pages() -> list[Path]:
    """
    Return all files that are checked.
    """
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
    found += [ROOT / "SECURITY.md"]
    found += sorted(ROOT.glob("docs/**/*.md")) + sorted(ROOT.glob("plugins/*/README.md"))
    found += [ROOT / "benchmarks" / "README.md", *sorted(ROOT.glob("examples/*/README.md"))]
    return [page for page in found if "_build" not in page.parts]


def main(given: list[str]) -> int:
    """
    Print the complaints. Return 1 if there are any.
    """
    count = 0
    for page in [Path(name) for name in given] or pages():
        for line, what in complaints(page.read_text("utf-8")):
            count += 1
            sys.stdout.write(f"{page}:{line}: {what}\n")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
