"""
Object stores: jetsync, nats-py and, if its program is given, nats.go put and get the same data.

    python -m benchmarks.objects [--rounds 3] [--sizes 1KiB,1MiB,200MB] [--go PROGRAM]

Up to 32 MiB, the data is in memory, and one process makes all calls. Above, it is in a file, and a
process makes one call. PROGRAM is called with ``obj-put URL BUCKET NAME FILE`` and ``obj-get URL
BUCKET NAME FILE``, for files only. Memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nats

import jetsync
from jetsync.devserver import DevServer

# Size in bytes, and calls of each kind in one round.
SIZES = {
    "1KiB": (1 << 10, 300),
    "1MiB": (1 << 20, 30),
    "32MiB": (32 << 20, 1),
    "200MB": (200_000_000, 1),
    "2GB": (2_000_000_000, 1),
}
IN_MEMORY = 32 << 20
BUCKET = "bench"


def with_jetsync(url: str, kind: str, size: int, calls: int, path: str) -> float:
    """
    Put or get with jetsync, and return the seconds.
    """
    data = bytes(size) if size <= IN_MEMORY else b""
    with jetsync.connect(url, request_timeout=60.0) as client:
        store = client.jetstream().object_store(BUCKET)
        begin = time.perf_counter()
        for _ in range(calls):
            if kind == "put":
                store.put("a", data) if data else store.put_file("a", path)
            elif data:
                assert len(store.get_bytes("a")) == size
            else:
                assert store.get_file("a", f"{path}.out").size == size
        return time.perf_counter() - begin


async def with_nats_py(url: str, kind: str, size: int, calls: int, path: str) -> float:
    """
    Put or get with nats-py, and return the seconds.
    """
    data = bytes(size) if size <= IN_MEMORY else b""
    client = await nats.connect(url)
    store = await client.jetstream(timeout=60).object_store(BUCKET)
    begin = time.perf_counter()
    for _ in range(calls):
        if kind == "put" and data:
            await store.put("a", data)
        elif kind == "put":
            with open(path, "rb") as file:  # noqa: ASYNC230, PTH123 - nats-py reads such a file
                await store.put("a", file)
        elif data:
            assert len((await store.get("a")).data or b"") == size
        else:
            with open(f"{path}.out", "wb") as file:  # noqa: ASYNC230, PTH123 - as above
                await store.get("a", writeinto=file)
    seconds = time.perf_counter() - begin
    await client.close()
    return seconds


def work(peer: str, *arguments: str) -> None:
    """
    Do the work of one process, and print the result.
    """
    url, kind, size, calls, path = arguments
    given = (url, kind, int(size), int(calls), path)
    if peer == "nats-py":
        with contextlib.suppress(ImportError):
            import uvloop

            uvloop.install()
        seconds = asyncio.run(with_nats_py(*given))
    else:
        seconds = with_jetsync(*given)
    sys.stdout.write(json.dumps({"seconds": seconds, "peak": peak_of("self")}))


def peak_of(pid: int | str) -> float:
    """
    Return the peak memory of a running process in MiB; 0 if it has ended.

    The figure of `getrusage` is at least that of the process that has started it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def measure(peer: str, go: str | None, *arguments: Any) -> dict[str, float]:
    """
    Run one process, and return its seconds and its peak memory in MiB.
    """
    url, kind, _, _, path = given = tuple(map(str, arguments))
    if peer != "nats.go":
        command = [sys.executable, "-m", "benchmarks.objects", "--work", peer, *given]
        found: dict[str, float] = json.loads(subprocess.check_output(command))
        return found
    file = path if kind == "put" else f"{path}.out"
    begin = time.perf_counter()
    child = subprocess.Popen(
        [str(go), f"obj-{kind}", url, BUCKET, "a", file, "-timeout", "600s"],
        stdout=subprocess.DEVNULL,
    )
    peak = 0.0
    while child.poll() is None:
        peak = max(peak, peak_of(child.pid))
        time.sleep(0.005)
    if child.returncode:
        # It has printed why. nats.go gives up if the server is slow.
        return {}
    return {"seconds": time.perf_counter() - begin, "peak": peak}


def run(sizes: list[str], rounds: int, go: str | None) -> list[dict[str, Any]]:
    """
    Measure all contenders in turns, and return a row for each size and kind of call.
    """
    rows = []
    for name in sizes:
        size, calls = SIZES[name]
        peers = ["jetsync", "nats-py", *(["nats.go"] if go and size > IN_MEMORY else [])]
        samples: dict[str, list[dict[str, float]]] = {}
        # A server for each size, so that no old data is left on the disk.
        with DevServer() as server, tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data"
            if size > IN_MEMORY:
                block = os.urandom(1 << 20)
                with path.open("wb") as file:
                    for at in range(0, size, len(block)):
                        file.write(block[: size - at])
            with jetsync.connect(server.url) as client:
                client.jetstream().create_object_store(BUCKET)
            for round_ in range(rounds):
                for number in range(len(peers)):
                    peer = peers[(number + round_) % len(peers)]
                    for kind in ("put", "get"):
                        found = measure(peer, go, server.url, kind, size, calls, path)
                        if found:
                            samples.setdefault(f"{kind} {peer}", []).append(found)
                        sys.stderr.write(f"{name} {kind} {peer}: {found}\n")
        for kind in ("put", "get"):
            row: dict[str, Any] = {"size": name, "kind": kind}
            for peer in peers:
                values = samples.get(f"{kind} {peer}")
                if values is None:
                    continue
                seconds = statistics.median(each["seconds"] for each in values) / calls
                row[peer] = {
                    "seconds": seconds,
                    "rate": size / seconds / 1e6,
                    "peak": statistics.median(each["peak"] for each in values),
                }
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """
    Return the rows as a table in Markdown.
    """
    lines = [
        "| size | call | jetsync | x nats-py | x nats.go | memory | nats-py's | nats.go's |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        own = row["jetsync"]
        small = own["seconds"] < 0.01
        cells = [
            f"{own['seconds'] * 1e6:,.0f} µs" if small else f"{own['rate']:,.0f} MB/s",
            *(
                f"{row[peer]['seconds'] / own['seconds']:.2f}" if peer in row else ""
                for peer in ("nats-py", "nats.go")
            ),
            *(
                f"{row[peer]['peak']:.0f} MiB" if peer in row else ""
                for peer in ("jetsync", "nats-py", "nats.go")
            ),
        ]
        lines.append(f"| {row['size']} | {row['kind']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """
    Run the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="1KiB,1MiB,32MiB,200MB", help=", ".join(SIZES))
    parser.add_argument("--go", help="a program over nats.go")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(*given.work)
    else:
        sys.stdout.write(table(run(given.sizes.split(","), given.rounds, given.go)) + "\n")


if __name__ == "__main__":
    main()
