from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

from helpers.waiting import eventually

REQUESTS = 40


def test_the_development_server_of_django_stores_after_a_reload(
    start, port, get, stream, ended_well
):
    """
    The threads of the development server store messages, before and after it reloads its code.

    The reloader ends the old process with `sys.exit(3)`.
    """
    program = start(
        *("django", "runserver", f"127.0.0.1:{port}", "--settings", "site_settings"),
        *("--skip-checks",),
    )
    program.wait_for("Quit the server")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(get, map(str, range(REQUESTS))))

    def is_reloading():
        # Repeated, because the reloader does not see a change before its first look.
        (start.folder / "site_urls.py").touch()
        return "changed, reloading" in program.output

    eventually(is_reloading)
    program.wait_for("Quit the server", 2)
    with ThreadPoolExecutor(8) as pool:
        answers += pool.map(get, map(str, range(REQUESTS)))

    assert program.stop(signal.SIGINT) == 0, program.output
    ended_well(program)
    assert len({process for process, _ in answers}) == 2
    assert sorted(int(sequence) for _, sequence in answers) == list(range(1, 2 * REQUESTS + 1))
    assert stream.info().state.messages == 2 * REQUESTS
