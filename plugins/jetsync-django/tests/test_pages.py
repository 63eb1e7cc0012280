"""
The code of the README and of the documentation's page runs, and the page lists all options.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import django
import pytest

pytest.importorskip("helpers.doc_pages", reason="only in the repository")

from helpers.doc_pages import run_page

HERE = Path(__file__).parents[1]
PAGES = [HERE / "README.md", HERE.parents[1] / "docs" / "plugins" / "django.md"]
TEXT = PAGES[1].read_text("utf-8")


@pytest.mark.live
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_of_jetsync_django_runs(page, tmp_path):
    """
    The page's blocks run without an error.
    """
    # A script `django.py` would hide the package.
    script = tmp_path / f"page_{page.name}"
    shutil.copy(page, script)
    run_page(script, tmp_path)


def block(caption):
    """
    Return the code of the page below a caption, for the server and the version of Django here.
    """
    found = re.search(
        rf"^:caption: {re.escape(caption)}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE
    )
    return found[1] if django.VERSION >= (6,) else found[1].replace("django.tasks", "django_tasks")


@pytest.mark.live
def test_a_new_project_has_a_worker_and_a_cache(nats_server, tmp_path):
    """
    The steps of the page lead from nothing to a worker that runs a task, which uses the cache.
    """

    def run(*command, **options):
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings"}
        given = {"cwd": tmp_path / "shop", "env": environment, "text": True}
        return subprocess.Popen([sys.executable, *command], **{**given, **options})

    assert run("-m", "django", "startproject", "shop", cwd=tmp_path, env=None).wait(60) == 0
    package = tmp_path / "shop" / "shop"
    server = nats_server.url
    settings = block("shop/settings.py").replace("nats://127.0.0.1:4222", server)
    if django.VERSION < (6,):
        settings += 'INSTALLED_APPS += ["django_tasks"]\n'
    with (package / "settings.py").open("a", encoding="utf-8") as file:
        file.write(settings)
    (package / "tasks.py").write_text(block("shop/tasks.py"), "utf-8")
    assert run("manage.py", "check", "--fail-level", "WARNING").wait(60) == 0

    worker = run("manage.py", "jetsync_worker", "--threads", "4")
    try:
        code = block("python manage.py shell")
        shell = run("manage.py", "shell", "-c", code, stdout=subprocess.PIPE)
        output, _ = shell.communicate(timeout=90)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
    expected = re.search(r"^This prints `(.*)`\.$", TEXT, re.MULTILINE)[1]
    assert output.strip().splitlines()[-1] == expected


def table_after(text):
    """
    Return the options in the first table of the page after a text.
    """
    return re.findall(
        r"^\| `([A-Z_]+|--[a-z-]+)[ `]",
        TEXT.partition(text)[2].partition("\n\n")[2].partition("\n\n")[0],
        re.MULTILINE,
    )


def test_the_page_lists_all_options():
    """
    The tables of the page have the options of caches, of backends and of the command.
    """
    from django.core.management import load_command_class

    from jetsync_django.cache.bucket import OPTIONS as OF_CACHES
    from jetsync_django.tasks.options import OPTIONS as OF_TASKS

    command = load_command_class("jetsync_django", "jetsync_worker")
    own = set(command.create_parser("manage.py", "jetsync_worker")._option_string_actions)
    own -= set(
        type("Plain", (command.__class__.__base__,), {})()
        .create_parser("", "")
        ._option_string_actions
    )

    assert sorted(table_after("the `OPTIONS` of a cache")) == sorted(OF_CACHES)
    assert sorted(table_after("the `OPTIONS` of the backend")) == sorted(OF_TASKS)
    assert sorted(table_after("it ends with an error.")) == sorted(own)
