"""
The directive `exchange`: what a client and a server send, as a picture in the page's own colours.

    ```{exchange} A request and its reply
    > from your program to the server
    < from the server
    = what the server does
    - what your program does
    ```
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx

WIDTH, LEFT, RIGHT = 520, 24, 496
"""The size of the picture and the places of both lifelines."""

STEP, HEAD = 34, 46

STYLE = """
.exchange { max-width: 100%; height: auto; margin: 1rem 0; }
.exchange text { font: 12px system-ui, sans-serif; fill: var(--color-foreground-primary); }
.exchange .name { font-weight: 600; font-size: 13px; }
.exchange .note { font-style: italic; fill: var(--color-foreground-secondary); }
.exchange line { stroke: var(--color-foreground-border); }
.exchange .out { stroke: var(--color-brand-primary); fill: var(--color-brand-primary); }
.exchange .in { stroke: #3fa7a0; fill: #3fa7a0; }
""".strip()


def draw(title: str, lines: Iterable[str]) -> str:
    """
    Return the exchange as SVG. It takes its colours from the theme, so it follows dark mode.
    """
    steps = [(line[0], line[1:].strip()) for line in lines if line.strip()]
    height = HEAD + STEP * len(steps) + 10
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    pieces = [
        f'<svg class="exchange" xmlns="http://www.w3.org/2000/svg" {box} role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text class="name" x="{LEFT - 20}" y="18">your program</text>',
        f'<text class="name" x="{RIGHT + 20}" y="18" text-anchor="end">nats-server</text>',
    ]
    pieces += [
        f'<line x1="{x}" y1="26" x2="{x}" y2="{height - 2}" stroke-dasharray="3 3"/>'
        for x in (LEFT, RIGHT)
    ]
    for place, (kind, text) in enumerate(steps):
        pieces += _step(kind, escape(text), HEAD + place * STEP)
    return "\n".join([*pieces, "</svg>"])


def _step(kind: str, text: str, y: int) -> list[str]:
    """
    Return one arrow or note, whose text is at *y*.
    """
    middle = (LEFT + RIGHT) // 2
    arrow = y + 8
    if kind == ">":
        line = f'<line class="out" x1="{LEFT}" y1="{arrow}" x2="{RIGHT - 8}" y2="{arrow}"/>'
        head = f'<path class="out" d="M{RIGHT} {arrow}l-9 -4v8z"/>'
    elif kind == "<":
        line = f'<line class="in" x1="{LEFT + 8}" y1="{arrow}" x2="{RIGHT}" y2="{arrow}"/>'
        head = f'<path class="in" d="M{LEFT} {arrow}l9 -4v8z"/>'
    elif kind == "=":
        return [f'<text class="note" x="{RIGHT - 10}" y="{y + 8}" text-anchor="end">{text}</text>']
    elif kind == "-":
        return [f'<text class="note" x="{LEFT + 10}" y="{y + 8}">{text}</text>']
    else:
        msg = f"a line of an exchange starts with >, <, = or -, not with {kind!r}"
        raise ValueError(msg)
    return [f'<text x="{middle}" y="{y}" text-anchor="middle">{text}</text>', line, head]


def setup(app: Sphinx) -> dict[str, bool]:
    """
    Add the directive.
    """
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Exchange(SphinxDirective):
        """
        Draw an exchange.
        """

        has_content = True
        required_arguments = 1
        final_argument_whitespace = True

        def run(self) -> list[nodes.Node]:
            """Return the picture."""
            return [nodes.raw("", draw(self.arguments[0], self.content), format="html")]

    app.add_directive("exchange", Exchange)
    return {"parallel_read_safe": True}
