"""
The script that records traces for traceassert: ``tests/specifications/traces.py``.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from helpers.thorough import thorough_except
from helpers.waiting import LATE

pytestmark = pytest.mark.live

SCRIPT = Path(__file__).parent / "traces.py"

USES = {
    "fastbatch": [".100.ok.1.0.$FI", ".100.ok.500.2.$FI"],
    "single": [".fail.1.2.$FI"],
    "fast-end": [".10.fail.1.0.$FI", ".10.fail.51.3.$FI"],
    "fast-headers": [".fail.5.1.$FI"],
    "fast-ping": [".3.4.$FI", ".4.2.$FI"],
    "fast-gap-ok": [".3.1.$FI", ".21.2.$FI"],
    "fast-gap-fail": [".3.1.$FI", ".4.1.$FI"],
    "fast-expect-ok": [".ok.4.3.$FI"],
    "atomic": [],
    "pulls": [],
    "reads": [],
}
"""Ends of reply subjects that each trace has."""


def run(*arguments):
    """
    Run the script, and return its process.
    """
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60 + LATE, check=False)


def seconds(stamp):
    """
    Return the time of a line as a number.
    """
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def read(path):
    """
    Return the header, the frames and the footer of a trace.
    """
    header, *frames, footer = map(json.loads, path.read_text("utf-8").splitlines())
    return header, frames, footer


GROUPS = {
    "two": ["fast-gap-ok", "atomic"],
    "others": sorted(set(USES) - {"fast-gap-ok", "atomic"}),
}


@pytest.mark.parametrize("names", thorough_except(GROUPS, "two"))
def test_traces(names, tmp_path):
    """
    A trace begins with its format and has numbered frames in the order of time, from the handshake
    to the last answer. Each message from the server has the number of a subscription, and the
    footer shows that the trace is complete.
    """
    done = run(tmp_path, *names)

    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {f"{n}.expanded.json" for n in names}
    for name in names:
        header, frames, footer = read(tmp_path / f"{name}.expanded.json")
        assert (header["format"], header["version"]) == ("traceassert-expanded", 2)
        assert footer["footer"]["duration"] > 0
        assert [frame["line"] for frame in frames] == list(range(2, len(frames) + 2))
        assert [(frame["dir"], frame["verb"]) for frame in frames[:2]] == [
            ("from_server", "INFO"),
            ("to_server", "CONNECT"),
        ]
        assert json.loads(base64.b64decode(frames[1]["payload"]))["name"] == f"jetsync {name}"
        times = [seconds(frame["at"]) for frame in frames]
        assert times == sorted(times)
        subscribed = {frame["sid"] for frame in frames if frame["verb"] == "SUB"}
        messages = [frame for frame in frames if frame["verb"] in {"MSG", "HMSG"}]
        assert messages
        assert {frame["sid"] for frame in messages} <= subscribed
        replies = [frame["reply"] for frame in frames if "reply" in frame]
        assert [end for end in USES[name] if not any(r.endswith(end) for r in replies)] == []
        sent = [frame for frame in frames if frame["verb"] == "HPUB"]
        if name == "atomic":
            assert [(f["header"]["Nats-Batch-Sequence"], f.get("payload")) for f in sent[:2]] == [
                (["1"], "MA=="),
                (["2"], "MQ=="),
            ]


def test_a_use_that_does_not_exist(tmp_path):
    """
    The script names a use that it does not know, and writes nothing.
    """
    done = run(tmp_path / "out", "single", "nonsense")

    assert done.returncode == 2
    assert "there is no use nonsense" in done.stderr
    assert not (tmp_path / "out").exists()
