"""
Run tests of the compiled functions with AddressSanitizer and UndefinedBehaviorSanitizer.

``tox run -e sanitize`` builds the extension with both sanitizers into a copy of the package, and
runs the unit tests of its functions and a minute of the fuzzer. ``-- --live`` runs live tests and
parts of the chaos campaign instead: reads, consumers and publishers, and servers that send junk.

Without a compiler that has the sanitizers, the command says so and ends with success.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

UNIT = [
    "base/test_makers.py", "base/test_speedups_arguments.py", "fuzz", "io/test_shortcut.py",
    "proto/test_ack_runs.py", "proto/test_frames.py", "proto/test_page_runs.py",
    "proto/test_pipeline.py", "publish/test_encode.py", "publish/test_publisher.py",
    "publish/test_stage.py", "values/test_message.py", "values/test_page_columns.py",
    "values/test_stored.py",
]  # fmt: skip
LIVE = [
    "live/consume/test_fetch.py", "live/consume/test_consumption.py", "live/publish/test_one.py",
    "live/publish/test_many.py", "live/publish/test_publisher.py", "live/read/test_pages.py",
]  # fmt: skip
PARTS = ("hostile", "reconnects")
"""The parts of the chaos campaign in which servers send junk."""

FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"

# Reads after the end of a block. Without a report of it, the run would prove nothing.
CONTROL = "import ctypes; ctypes.string_at(ctypes.cdll.LoadLibrary(None).malloc(8), 1 << 16)"
WHICH = "import jetsync._base.speedups as s; print(s.VARIANT, s._compiled and s._compiled.__file__)"


def show(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def runtime(compiler: str, name: str) -> str | None:
    """Return the path of a library of the compiler; None if it is not there."""
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return found if Path(found).is_absolute() else None


def build(place: Path, compiler: str) -> bool:
    """Copy the package to *place*, with the sanitized extension; return whether it was built."""
    shutil.copytree(
        ROOT / "jetsync",
        place / "jetsync",
        ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"),
    )
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    subprocess.run(
        [*command, "--build-lib", str(place), "--build-temp", str(place / "temp")],
        cwd=ROOT,
        env={**os.environ, "CC": compiler, "CFLAGS": FLAGS, "LDFLAGS": FLAGS},
        check=True,
    )
    return any((place / "jetsync").glob("_speedups*"))


def sanitized(place: Path, libraries: list[str]) -> dict[str, str]:
    """Return the environment in which Python runs with the sanitizers."""
    environment = {key: value for key, value in os.environ.items() if key != "JETSYNC_SPEEDUPS"}
    return {
        **environment,
        "LD_PRELOAD": ":".join(libraries),
        # Python's own allocator would hide which block a byte belongs to.
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(place),
        # Python does not free everything at its end.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        # Everything is slower.
        "JETSYNC_TEST_LATE": os.environ.get("JETSYNC_TEST_LATE", "20"),
    }


def main() -> int:
    """Build, run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="tox run -e sanitize --", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of the fuzzer, and of each part")
    parser.add_argument("--live", action="store_true", help="run live tests and chaos instead")
    asked = parser.parse_args()
    compiler = os.environ.get("CC") or "gcc"
    # C++ libraries such as pyarrow raise exceptions, for which the sanitizer needs theirs.
    libraries = [
        runtime(compiler, name) if shutil.which(compiler) else None
        for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    if None in libraries:
        show(f"skipped: the compiler {compiler} is not there, or has no sanitizers")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if not build(place, compiler):
            show("the extension was not built")
            return 1
        environment = sanitized(place, libraries)

        def run(*command: str | Path, **options) -> subprocess.CompletedProcess:
            # Not from the project's folder, which has a package that is not sanitized.
            return subprocess.run(
                [sys.executable, *map(str, command)],
                cwd=place, env=environment, check=False, **options,
            )  # fmt: skip

        which = run("-c", WHICH, capture_output=True, text=True)
        show(which.stdout.strip() or which.stderr)
        if not re.match(rf"compiled {re.escape(str(place))}", which.stdout):
            return 1
        control = run("-c", CONTROL, capture_output=True, text=True)
        if "AddressSanitizer" not in control.stderr:
            show(f"the sanitizer does not report a read after the end:\n{control.stderr}")
            return 1
        seconds = str(asked.seconds)
        pytest = ["-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT]
        pytest += ["-p", "no:cacheprovider"]
        if asked.live:
            # A part has a share of the campaign's time, so it gets a number of trials.
            trials = str(max(1, round(asked.seconds / 3)))
            steps = [[*pytest, *(TESTS / name for name in LIVE)]]
            steps += [[TESTS / "chaos", "--part", part, "--trials", trials] for part in PARTS]
        else:
            steps = [
                [*pytest, *(TESTS / name for name in UNIT)],
                [TESTS / "fuzz", "--streams", str(1 << 40), "--seconds", seconds],
            ]
        failed = 0
        for step in steps:
            status = run(*step).returncode
            show(f"{'passed' if status == 0 else f'failed with {status}'}: {step[-1]}")
            failed += status != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
