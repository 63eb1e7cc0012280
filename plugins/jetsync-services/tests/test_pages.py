"""
The code of the README and of the documentation's page runs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jetsync.testing import eventually
from jetsync_services import call, ping

pytest.importorskip("helpers.doc_pages", reason="only in the repository")

from helpers.doc_pages import run_page

HERE = Path(__file__).parents[1]
PAGES = [HERE / "README.md", HERE.parents[1] / "docs" / "plugins" / "services.md"]


@pytest.mark.live
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_of_jetsync_services_runs(page, tmp_path):
    """
    The page's blocks run without an error.
    """
    run_page(page, tmp_path)


@pytest.mark.live
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_program_for_systemd_and_docker_runs(nats_server, caller):
    """
    The program answers requests until SIGTERM, and exits with 143.
    """
    file = HERE.parents[1] / "docs" / "plugins" / "services-program" / "prices.py"
    program = subprocess.Popen([sys.executable, str(file)], env={"NATS_URL": nats_server.url})
    try:
        eventually(lambda: ping(caller, "prices") or program.poll() is not None, timeout=90)
        assert program.poll() is None
        assert call(caller, "prices.get", b'"chair"', timeout=30).json() == 30
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 143
    finally:
        program.kill()
