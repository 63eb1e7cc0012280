"""
Each row of the benchmarks does its work: messages are stored, delivered and acknowledged.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from benchmarks.jobs import Sample
    from jetsync.devserver import DevServer

# Behind everything else, so that the installed jetsync is tested.
sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import compare, growth, latency, objects, page, speed, threads
from benchmarks.jobs import SERVER_PID
from benchmarks.measure import Result, Settings, Stage, Worker
from benchmarks.peers import jetsync as jetsync_peer
from benchmarks.peers import raw_socket
from benchmarks.rows import JETSYNC, JETSYNC_UVLOOP, JOBS, RAW, ROWS, Contender, Row
from benchmarks.table import summary, to_json

# They run every benchmark with every client.
pytestmark = pytest.mark.thorough

SETTINGS = Settings(
    rounds=1, single=120, bulk=600, size=32, window=512, batch=100, storage="memory"
)

# Answers as a contender would that is not in Python. It counts each call as 0.25 s.
PROGRAM = """
import json, sys
print(json.dumps({"rows": ["concurrent"]}), flush=True)
for line in sys.stdin:
    count = json.loads(line)["count"]
    sample = {"count": count, "seconds": count / 4, "cpu": 1.0, "p50": 0.25, "p99": 0.25}
    print(json.dumps({**sample, "p999": None}), flush=True)
"""

# nats-py and natsrpy are left out: they do not wait as long as a busy machine may need.
PEERS = {"raw_socket": raw_socket.Peer, "jetsync": jetsync_peer.Peer}

PAIRS = [
    (row, contender)
    for row in (*ROWS, *latency.ROWS, *threads.ROWS)
    for contender in row.contenders
    # The variables of a contender are for a process of its own.
    if hasattr(PEERS.get(contender.peer), row.method) and not contender.environment
]


@pytest.mark.parametrize(
    ("row", "contender"),
    PAIRS,
    ids=lambda value: value.name if isinstance(value, Row) else value.label,
)
def test_contender_does_the_work_of_a_row(
    row: Row, contender: Contender, nats_server: DevServer
) -> None:
    """
    The work is done and measured, also beside a bulk publish.
    """
    sample = _sample(nats_server.url, row, contender)
    assert sample.seconds > 0
    assert (sample.p50 is not None) == row.latency
    assert (sample.background > 0) == bool(row.options.get("bulk"))


def test_every_job_is_compared_with_the_raw_socket(nats_server: DevServer) -> None:
    """
    The summary has a line with the share of the raw socket for each job.
    """
    rows = []
    for row in JOBS:
        results = [
            Result(contender, [_sample(nats_server.url, row, contender)])
            for contender in row.contenders
            if contender.label in {RAW.label, JETSYNC_UVLOOP.label}
        ]
        assert [each.contender.peer for each in results] == ["raw_socket", "jetsync"]
        share = to_json(row, results)["lines"][1]["times_raw"]
        assert share > 0
        rows.append((row, results))
    lines = summary(rows).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [row.name for row in JOBS]
    place = lines[0].index("share of raw")
    assert all(float(line[place:].split()[0]) >= 0 for line in lines[1:])


def test_summary_without_uvloop_shows_asyncio(nats_server: DevServer) -> None:
    """
    If uvloop is not installed, the summary shows jetsync on asyncio's own loop.
    """
    row = next(row for row in JOBS if row.name == "fetch")
    measured = Result(JETSYNC, [_sample(nats_server.url, row, JETSYNC)])
    lines = summary([(row, [measured, Result(JETSYNC_UVLOOP, [], "not here")])]).splitlines()
    assert lines[1].split()[:3] == ["fetch", f"{measured.rate:,.0f}", "msg/s"]


def test_jetsync_without_uvloop_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A line on uvloop is left out if uvloop is not installed, as with the other clients.
    """
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(ImportError, match="uvloop"):
        jetsync_peer.Peer("nats://127.0.0.1:1", JETSYNC_UVLOOP.options)


def test_contender_that_ends_at_once_is_left_out() -> None:
    """
    The run says that the process of a contender ended, not that the contender lacks the row.
    """
    worker = Worker(replace(JETSYNC, command=(sys.executable, "-c", "")), "nats://127.0.0.1:1", 0)
    worker.close()
    assert worker.missing == "its process ended with status 0"


def test_run_with_processes_prints_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The controller starts the contenders, takes turns and writes the samples.
    """
    options = ["--rounds", "1", "--contenders", "raw,jetsync"]
    saved = tmp_path / "run.json"
    few = ["--rows", "fetch_batch_ack", "--single", "20", "--bulk", "200"]
    assert compare.main([*options, *few, "--json", str(saved)]) == 0
    printed = capsys.readouterr().out
    assert "share of raw" in printed
    assert "client + server" in printed
    assert '"times_raw"' in saved.read_text("utf-8")
    both = page.tables(json.loads(saved.read_text("utf-8")))
    assert list(both) == ["jobs", "variants"]
    assert "share of raw" in both["jobs"][0]
    row = both["variants"][2].split(" | ")
    assert row[0] == "| `fetch_batch_ack`"
    assert all(cell.endswith("µs") for cell in row[1:3])


def test_threads_of_another_interpreter_and_another_program_take_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Contenders with a command of their own have lines, unless the server contradicts them.
    """
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o700)
    saved = tmp_path / "threads.json"
    few = ["--rounds", "1", "--calls", "128", "--contenders", "Python other,nats.go"]
    others = ["--python", f"other={sys.executable}", "--go", str(program)]
    assert threads.main([*few, *others, "--json", str(saved)]) == 0
    assert "0 messages stored" in capsys.readouterr().out
    tables = page.tables(json.loads(saved.read_text("utf-8")))
    labels = ["jetsync, Python other", "jetsync, a client per thread, Python other"]
    # The program publishes nothing, so only its gets count.
    expected = {"threads_publish": labels, "threads_get_last": ["nats.go", *labels]}
    assert list(tables) == list(expected)
    for name, lines in tables.items():
        cells = [line.split(" | ")[:2] for line in lines[2:-2]]
        assert cells == [[f"| {n}", label] for n in (1, 4, 16, 64) for label in expected[name]]


def test_cpu_of_client_and_server_is_shown_for_each_contender() -> None:
    """
    A cell has both times, and is empty if the contender did not take part.
    """
    line = {"rate": 1.0, "cpu_per_message": 2e-6, "server_per_message": 3.25e-6}
    rows = [{"row": "fetch", "lines": [{"contender": "nats.go", **line}]}]
    lines = page.cpu(rows)
    head, cells = lines[0].split(" | "), lines[2].split(" | ")
    assert dict(zip(head, cells, strict=True))["nats.go"] == "2.0 + 3.2"
    assert cells[1:4] == ["", "", ""]


def test_clients_are_compared_with_go_in_the_run_of_the_other_tables() -> None:
    """
    A value above 1 is faster, for rates and for the times of single calls.
    """
    rates = {
        "jetsync, uvloop": 3.0,
        "jetsync (pure Python)": 2.0,
        "raw socket": 8.0,
        "nats.go": 4.0,
    }
    lines = [
        {"contender": label, "rate": rate, "p50": None, "cpu_per_message": 1e-6}
        for label, rate in rates.items()
    ]
    absent = {"contender": "nats-py", "rate": None, "p50": None}
    calls = [{**line, "p50": 1 / line["rate"], "rate": 1.0} for line in lines]
    rows = [{"row": "fetch", "lines": [*lines, absent]}, {"row": "publish", "lines": calls}]
    assert page.go(rows)[2:] == [
        "| `fetch` | 0.75 | 0.50 | 2.00 |",
        "| `publish` | 0.75 | 0.50 | 2.00 |",
    ]


def test_tables_with_go_need_it_in_each_row() -> None:
    """
    The saved run has all tables. Without nats.go in one row, it has none that needs it.
    """
    run = json.loads(speed.RUN.read_text("utf-8"))
    assert list(page.tables(run)) == ["jobs", "variants", "go", "cpu"]
    lines = run["rows"][0]["lines"]
    lines[:] = [line for line in lines if line["contender"] != "nats.go"]
    assert list(page.tables(run)) == ["jobs", "variants"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it for each thread")
def test_server_cpu_is_measured(nats_server: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A sample has the CPU time of the server, and none if the server is not known.
    """
    assert _sample(nats_server.url, JOBS[0], RAW).server is None
    monkeypatch.setenv(SERVER_PID, str(nats_server.pids[0]))
    server = _sample(nats_server.url, JOBS[0], RAW).server
    assert server is not None
    assert server > 0


def test_unknown_row_is_refused() -> None:
    """
    The error names the row.
    """
    with pytest.raises(SystemExit, match="there is no row nothing"):
        compare.find("publish,nothing")


@pytest.mark.parametrize(
    ("group", "lines"),
    [("bucket", {"get", "put", "keys", "watch"}), ("stream", {"consume", "scan", "get_last"})],
)
def test_figures_are_printed_and_written_to_a_file(
    group: str, lines: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The figures of a group are printed as a table and written to a file.
    """
    path = tmp_path / "growth.json"
    assert growth.main(["--groups", group, "--values", "1000", "--json", str(path)]) == 0
    (table,) = json.loads(path.read_text())["tables"]
    figures = {figure["name"]: figure for figure in table["figures"]["1000"]}
    assert lines <= set(figures)
    assert all(figure["seconds"] > 0 for figure in figures.values())
    printed = capsys.readouterr().out
    assert all(f"| `{name}` | " in printed for name in figures)


def _sample(url: str, row: Row, contender: Contender) -> Sample:
    """
    Let one contender do a row in this process, and check what the server has afterwards.
    """
    stage = Stage(url, row, SETTINGS)
    try:
        peer = PEERS[contender.peer](url, contender.options)
        try:
            job = stage.job(contender)
            sample: Sample = getattr(peer, row.method)(job)
            assert not stage.check(job, sample)
            return sample
        finally:
            peer.close()
    finally:
        stage.close()


def test_picture_of_the_start_page_shows_the_saved_runs() -> None:
    """
    The picture in the documentation is the one that `python -m benchmarks.speed` draws.
    """
    assert speed.PICTURE.read_text("utf-8") == speed.draw(speed.jobs())


def test_objects_are_put_and_got_by_each_client() -> None:
    """
    The benchmark of object stores has a row for putting and one for getting.
    """
    rows = objects.run(["32MiB"], 1, None)

    assert [(row["size"], row["kind"]) for row in rows] == [("32MiB", "put"), ("32MiB", "get")]
    assert all(row[peer]["rate"] > 0 for row in rows for peer in ("jetsync", "nats-py"))
    assert len(objects.table(rows).splitlines()) == 4
