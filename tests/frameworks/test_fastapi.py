from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

KINDS = ["thread", "task", "loop"]
REQUESTS = 60


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_each_worker_of_fastapi_stores_and_closes_its_client(
    start, port, get, stream, ended_well, loop
):
    """
    Endpoints in threads and coroutines store messages. At the end, each worker closes its client.
    """
    program = start("uvicorn", "api:app", *("--port", port), *("--workers", 2), *("--loop", loop))
    program.wait_for("Application startup complete", 2)
    paths = [f"{kind}/{number}" for number in range(REQUESTS // 3) for kind in KINDS]
    with ThreadPoolExecutor(8) as pool:
        answers = [" ".join(words).strip('"').split() for words in pool.map(get, paths)]

    assert program.stop() in {0, -15}, program.output
    ended_well(program)
    assert len(re.findall("client closed True", program.output)) == 2
    assert sorted(int(sequence) for _, sequence in answers) == list(range(1, REQUESTS + 1))
    assert stream.info().state.messages == REQUESTS
