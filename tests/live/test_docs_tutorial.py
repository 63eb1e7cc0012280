"""
A reader who follows only the tutorial ends with the plugin that is in `examples/`.

The tutorial's blocks become one shell script. Blocks with a caption are files or additions to a
file, and those in `shell` are commands. The script runs in an empty folder and makes its own
virtual environment, with the interpreter that runs the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# They make virtual environments.
pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugins" / "tutorial.md").read_text("utf-8")
EXAMPLE = ROOT / "examples" / "jetsync-stamp"

BLOCK = re.compile(
    r"^(?P<fence>```+)\{code-block\} (?P<language>\w+)\n"
    r"(?::caption: (?P<path>[^\n,]+)(?P<added>, at the end)?\n\n)?"
    r"(?P<text>.*?)\n(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
END = "END-OF-THE-FILE"


def script():
    """
    Return the tutorial as a shell script.
    """
    lines = ["set -e"]
    for block in BLOCK.finditer(PAGE):
        # A caption is Markdown, in which two underscores would make text bold.
        path, text = (block["path"] or "").replace("\\_", "_"), block["text"]
        if path:
            # Two empty lines before unindented code, as everywhere, and one before a method.
            text = "\n" + text if block["added"] else text
            lines += [
                f"mkdir -p $(dirname {path})",
                f"cat {'>>' if block['added'] else '>'} {path} <<'{END}'\n{text}\n{END}",
            ]
        elif block["language"] == "shell":
            lines.append(text)
    return "\n".join(lines) + "\n"


def files_of(folder):
    """
    Return the files of a plugin with their contents, without files that tools create.
    """
    left = {".venv", "__pycache__", ".pytest_cache", "build"}
    return {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not left.intersection(path.relative_to(folder).parts)
        and not any(part.endswith(".egg-info") for part in path.relative_to(folder).parts)
    }


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """
    The folder in which the script followed the tutorial, and its output.
    """
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    folder = tmp_path_factory.mktemp("tutorial")
    made = subprocess.run(
        [sys.executable, "-m", "venv", folder / "venv"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"this Python makes no virtual environments: {made.stdout[-200:]}")
    shutil.rmtree(folder / "venv")
    # As in a fresh clone, without the results of earlier builds.
    clone = tmp_path_factory.mktemp("jetsync")
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, clone)
    shutil.copytree(ROOT / "jetsync", clone / "jetsync")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JETSYNC_", "PYTHON", "PYTEST", "COVERAGE", "VIRTUAL_ENV"))
    }
    environment["JETSYNC"] = str(clone)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(
        ["bash", "-c", script()],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder / "jetsync-stamp", done.stdout


@pytest.mark.live
@pytest.mark.timeout(400)
def test_the_tutorial_ends_with_a_working_plugin(followed):
    """
    The plugin is installed, its tests pass, its hooks are listed, and its calls are shown.
    """
    _, output = followed

    assert re.search(r"^=+ 7 passed in ", output, re.MULTILINE), output
    listed = next(line for line in output.splitlines() if line.startswith("stamp "))
    hooks = "jetsync_message_received, jetsync_prepare_message, jetsync_shared_headers"
    assert listed.split(maxsplit=3) == ["stamp", "0.1.0", "installed", hooks]
    shown = [line for line in output.splitlines() if line.startswith("jetsync.hooks: stamp ")]
    assert [re.split(r"[ (]", line)[2] for line in shown] == [
        "jetsync_shared_headers",
        "jetsync_prepare_message",
    ]
    # The output that the page shows, except for the durations.
    without_time = [re.sub(r"\[\d+ us\]", "[n us]", line) for line in shown]
    assert all(line in re.sub(r"\[\d+ us\]", "[n us]", PAGE) for line in without_time)


@pytest.mark.live
@pytest.mark.timeout(400)
def test_the_example_equals_the_tutorial(followed):
    """
    Each file is equal, so the page and the code to copy never differ.
    """
    folder, _ = followed

    assert files_of(folder) == files_of(EXAMPLE)
