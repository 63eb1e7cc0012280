"""
The pages for users of other clients have the same ten tasks.

`test_docs_examples.py` runs the side of jetsync.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from helpers.doc_pages import script_of
from jetsync.devserver import DevServer

FOLDER = Path(__file__).parents[2] / "docs" / "coming-from"
PAGES = sorted(set(FOLDER.glob("*.md")) - {FOLDER / "index.md"})
TASKS = [
    "connect",
    "create",
    "publish one",
    "publish many",
    "consume",
    "acknowledge",
    "retry",
    "replay",
    "once",
    "shut down",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tasks_of_page(page):
    """
    Each page has the ten tasks in one order, each with the code of both clients.
    """
    text = page.read_text("utf-8")
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)

    assert len(sections) == len(TASKS)
    for section, task in zip(sections, TASKS, strict=True):
        title = section.splitlines()[0].lower()
        assert task in title
        assert re.findall(r"^```(\w+)", section, re.MULTILINE) == ["py", "python"], title


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_other_clients_code_is_python(page):
    """
    The blocks of the other client can be compiled.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compile(script_of(page, "py"), str(page), "exec", flags=flags)


@pytest.mark.live
def test_code_of_nats_py_runs(tmp_path):
    """
    The blocks of nats-py run inside a coroutine.
    """
    body = textwrap.indent(script_of(FOLDER / "nats-py.md", "py"), "    ")
    script = tmp_path / "nats_py.py"
    with DevServer() as server:
        body = body.replace("nats.connect()", f"nats.connect({server.url!r})")
        # A busy machine may need longer than the page says.
        body = body.replace("timeout=5", "timeout=60")
        body = body.replace("nc.jetstream()", "nc.jetstream(timeout=60)")
        script.write_text(f"import asyncio\n\nasync def main():\n{body}\nasyncio.run(main())\n")
        done = subprocess.run(
            [sys.executable, str(script)],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
