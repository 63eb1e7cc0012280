"""
Build every distribution, and check each file as its users get it.

``tox run -e release`` runs this in some minutes. The sdists and wheels of jetsync and its plugins
are built into ``dist/``. Each of them is installed into an empty environment, where the code of its
README has to run, and the tests of each sdist run from the unpacked sdist. Arguments name the
distributions to install, instead of all.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path, PurePosixPath

import attrs

from jetsync.devserver import DevServer

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"

sys.path.insert(0, str(ROOT / "tests"))

from helpers.doc_pages import broken_links, script_of  # noqa: E402 - found by the line above


@attrs.frozen
class Distribution:
    """
    One distribution, and what its README and its tests need.
    """

    name: str
    folder: str
    extras: str = ""
    """The extras that the code of the README needs."""
    tests: str = ""
    """The arguments of pytest that select tests of about a minute."""
    beside: frozenset[str] = frozenset()
    """Top-level modules beside the package."""
    needs_java: bool = False
    """Whether the code of the README needs Java. Without Java it is skipped."""

    @property
    def package(self) -> str:
        """The only top-level package."""
        return self.name.replace("-", "_")

    def file(self, ending: str) -> Path:
        """The built file with this ending."""
        (found,) = DIST.glob(f"{self.package}-[0-9]*{ending}")
        return found


CORE = Distribution("jetsync", ".", "[cli,server]", "-n 2 --ignore=tests/live --ignore=tests/soak")
PLUGINS = (
    Distribution("jetsync-otel", "plugins/jetsync-otel"),
    Distribution("jetsync-retry", "plugins/jetsync-retry"),
    Distribution("jetsync-schema", "plugins/jetsync-schema", "[json]"),
    Distribution(
        "jetsync-spark",
        "plugins/jetsync-spark",
        "[pyspark]",
        "-m 'not spark and not soak'",
        frozenset({"pyspark_jetsync.py"}),
        needs_java=True,
    ),
)
WHEEL, SDIST = ".whl", ".tar.gz"


def main() -> None:
    """
    Check everything, and end at the first failure.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        build(copy_of_the_repository(work / "source"))
        for each in (CORE, *PLUGINS):
            check_wheel(each)
            check_sdist(each)
        for each in (CORE, *PLUGINS):
            for ending in (WHEEL, SDIST):
                if each.name in (sys.argv[1:] or [each.name]):
                    check_installed(each, ending, work / f"{each.package}{ending}")


def copy_of_the_repository(target: Path) -> Path:
    """
    Copy the files that git knows or would add, so that no leftover of a build gets into a file.
    """
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in listed.split("\0"):
        # A file that was removed is listed until git knows that.
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    return target


def build(source: Path) -> None:
    """
    Build an sdist of each distribution, and a wheel from each sdist.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    for each in (CORE, *PLUGINS):
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, source / each.folder)
    files = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    say(f"built {len(files)} files; twine accepts their metadata")


def check_wheel(each: Distribution) -> None:
    """
    Check that a wheel has its package, its licence, its types, and nothing else.
    """
    with zipfile.ZipFile(each.file(WHEEL)) as wheel:
        names = wheel.namelist()
        (licence,) = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
        expect(wheel.read(licence) == (ROOT / "LICENSE").read_bytes(), f"{licence} differs")
    top = {PurePosixPath(name).parts[0] for name in names}
    top -= {name for name in top if name.endswith(".dist-info")}
    expect(top == {each.package, *each.beside}, f"the wheel of {each.name} has {sorted(top)}")
    expect(f"{each.package}/py.typed" in names, f"the wheel of {each.name} lacks py.typed")
    leftovers = [name for name in names if re.search(r"\.py[cod]$|(^|/)tests?/", name)]
    expect(not leftovers, f"the wheel of {each.name} has {leftovers}")


def check_sdist(each: Distribution) -> None:
    """
    Check that an sdist has its licence and its tests.
    """
    with tarfile.open(each.file(SDIST)) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    missing = {"LICENSE", "README.md", "pyproject.toml", "tests/conftest.py"} - names
    expect(not missing, f"the sdist of {each.name} lacks {sorted(missing)}")


def check_installed(each: Distribution, ending: str, folder: Path) -> None:
    """
    Install a file into an empty environment, and use it as its README says.
    """
    start = time.monotonic()
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", python)
    core = f"{CORE.file(ending)}[server]"
    run(*pip, "install", core, f"{each.file(ending)}{each.extras}")
    run(*pip, "check")
    run(python, "-W", "error", "-c", f"import {each.package}", cwd=folder)
    if each is CORE:
        run(folder / "bin" / "jetsync", "--version", cwd=folder)
    check_readme(each, python, folder)
    if ending == SDIST:
        run(*pip, "install", core, f"{each.file(ending)}[test]")
        with tarfile.open(each.file(ending)) as sdist:
            sdist.extractall(folder, filter="data")
        (unpacked,) = folder.glob(f"{each.package}-*")
        said = run(folder / "bin" / "pytest", *shlex.split(each.tests), cwd=unpacked)
        say(f"{each.name}, tests of the sdist: {said.splitlines()[-1].strip('= ')}")
    shutil.rmtree(folder)
    say(f"{each.file(ending).name} works, {time.monotonic() - start:.0f} s")


def check_readme(each: Distribution, python: Path, folder: Path) -> None:
    """
    Check the links of the installed README, and run its code.
    """
    code = f"import importlib.metadata as m; print(m.metadata({each.name!r})['Description'])"
    page = folder / "README.md"
    page.write_text(run(python, "-c", code, cwd=folder), "utf-8")
    broken = broken_links(page.read_text("utf-8"))
    expect(not broken, f"the README of {each.name} has links that do not work: {broken}")
    if each.needs_java and not has_java():
        say(f"SKIPPED: the code of the README of {each.name} needs Java 17 or newer")
        return
    script = folder / "readme.py"
    script.write_text(script_of(page), "utf-8")
    # As in an activated environment, because Spark starts its workers with the `python3` of PATH.
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    with DevServer() as server:
        environment = {**os.environ, "PATH": path, "NATS_URL": server.url}
        run(python, script, cwd=folder, env=environment)


def has_java() -> bool:
    """
    Return whether Spark would find Java.
    """
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").exists() if home else shutil.which("java") is not None


def run(*command: object, **options: object) -> str:
    """
    Run a command and return its output. Show it and end if the command fails.
    """
    arguments = [str(each) for each in command]
    done = subprocess.run(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    expect(done.returncode == 0, f"{shlex.join(arguments)}\n{done.stdout}")
    return done.stdout


def expect(condition: bool, otherwise: str) -> None:
    """
    End with a message unless the condition is true.
    """
    if not condition:
        sys.exit(f"FAILED: {otherwise}")


def say(text: str) -> None:
    """
    Print a line at once.
    """
    print(text, flush=True)


if __name__ == "__main__":
    main()
