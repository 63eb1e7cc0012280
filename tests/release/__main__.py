"""
Build every distribution, and check each file as its users get it.

``tox run -e release`` runs this in some minutes. The sdists and wheels of jetsync and its plugins
are built into ``dist/``, and the wheel of jetsync with its compiled core into ``dist/local/``. Each
of them is installed into an empty environment, where the code of its README has to run, and the
tests of each sdist run from the unpacked sdist. The compiled wheel is also installed for every
other interpreter that is present. Arguments name the distributions to install, instead of all.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path, PurePosixPath

import attrs

from jetsync.devserver import DevServer

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
VARIANT = Path(__file__).with_name("variant.py")
LOCAL = DIST / "local"
"""For a file that no package index accepts, because it runs only on systems like this one."""

sys.path.insert(0, str(ROOT / "tests"))

# Found by the line above.
from helpers import interpreters  # noqa: E402
from helpers.doc_pages import broken_links, script_of  # noqa: E402


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
    """The arguments of pytest that select tests of a few minutes."""
    beside: frozenset[str] = frozenset()
    """Top-level modules beside the package."""
    needs: tuple[str, ...] = ()
    """The names of other plugins that it needs."""
    needs_java: bool = False
    """Whether the code of the README needs Java. Without Java it is skipped."""

    @property
    def package(self) -> str:
        """The only top-level package."""
        return self.name.replace("-", "_")

    def file(self, ending: str) -> Path:
        """The built file with this ending."""
        (found,) = (LOCAL if ending == COMPILED else DIST).glob(f"{self.package}-[0-9]*{ending}")
        return found

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of all files."""
        return (COMPILED, WHEEL, SDIST) if self is CORE else (WHEEL, SDIST)


CORE = Distribution(
    "jetsync",
    ".",
    "[cli,server]",
    "-n 2 -m 'not thorough and not soak and not frameworks'"
    " --ignore=tests/live --ignore=tests/soak --ignore=tests/specifications",
)
PLUGINS = (
    Distribution("jetsync-celery", "plugins/jetsync-celery"),
    Distribution(
        "jetsync-django",
        "plugins/jetsync-django",
        tests="--ignore=tests/test_django_suite.py",
        needs=("jetsync-queue",),
    ),
    Distribution("jetsync-groups", "plugins/jetsync-groups"),
    Distribution("jetsync-locks", "plugins/jetsync-locks"),
    Distribution("jetsync-otel", "plugins/jetsync-otel"),
    Distribution("jetsync-queue", "plugins/jetsync-queue", "[cli]"),
    Distribution("jetsync-retry", "plugins/jetsync-retry"),
    Distribution("jetsync-schema", "plugins/jetsync-schema", "[json]"),
    Distribution("jetsync-services", "plugins/jetsync-services", "[cli]"),
    Distribution(
        "jetsync-spark",
        "plugins/jetsync-spark",
        "[pyspark]",
        "-m 'not spark and not soak'",
        frozenset({"pyspark_jetsync.py"}),
        needs_java=True,
    ),
)
WHEEL, SDIST = "-py3-none-any.whl", ".tar.gz"
NO_GIL = sysconfig.get_config_var("Py_GIL_DISABLED")
THIS = f"cp{sys.version_info.major}{sys.version_info.minor}"
TAG = f"{THIS}-{THIS}t" if NO_GIL else "cp310-abi3"
COMPILED = f"-{TAG}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl"
"""The compiled wheel serves CPython 3.10 and later, or this version if it has no GIL."""


def main() -> None:
    """
    Check everything, and end at the first failure.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        build(copy_of_the_repository(work / "source"), work / "unpacked")
        for each in (CORE, *PLUGINS):
            for ending in each.endings[:-1]:
                check_wheel(each, ending)
            check_sdist(each)
        chosen = [each for each in (CORE, *PLUGINS) if each.name in (sys.argv[1:] or [each.name])]
        for each in chosen:
            for ending in each.endings:
                check_installed(each, ending, work / f"{each.package}{ending}")
        if CORE in chosen:
            check_interpreters(work)


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


def build(source: Path, unpacked: Path) -> None:
    """
    Build an sdist of each distribution, a wheel for any system from each sdist, and a compiled one
    from that of jetsync.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
    for each in (CORE, *PLUGINS):
        run(*command, DIST, source / each.folder, env=environment(JETSYNC_BUILD="pure"))
    with tarfile.open(CORE.file(SDIST)) as sdist:
        sdist.extractall(unpacked, filter="data")
    (folder,) = unpacked.iterdir()
    run(*command, LOCAL, "--wheel", folder, env=environment(JETSYNC_BUILD="compiled"))
    files = sorted(path for path in DIST.rglob("*") if path.is_file())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    say(f"built {len(files)} files; twine accepts their metadata")


def check_wheel(each: Distribution, ending: str) -> None:
    """
    Check that a wheel has its package, its licence, its types, its compiled core if it is for one
    system, and nothing else.
    """
    with zipfile.ZipFile(each.file(ending)) as wheel:
        names = wheel.namelist()
        (licence,) = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
        expect(wheel.read(licence) == (ROOT / "LICENSE").read_bytes(), f"{licence} differs")
    top = {PurePosixPath(name).parts[0] for name in names}
    top -= {name for name in top if name.endswith(".dist-info")}
    expect(top == {each.package, *each.beside}, f"the wheel of {each.name} has {sorted(top)}")
    expect(f"{each.package}/py.typed" in names, f"the wheel of {each.name} lacks py.typed")
    compiled = [name for name in names if re.search(r"\.(so|pyd|dylib|dll)$", name)]
    expect(len(compiled) == (ending == COMPILED), f"{each.file(ending).name} has {compiled}")
    leftovers = [name for name in names if re.search(r"\.(py[co]|[ch])$|(^|/)tests?/", name)]
    expect(not leftovers, f"the wheel of {each.name} has {leftovers}")


def check_sdist(each: Distribution) -> None:
    """
    Check that an sdist has its licence, its tests, the source of the compiled core and nothing that
    is compiled.
    """
    with tarfile.open(each.file(SDIST)) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {"LICENSE", "README.md", "pyproject.toml", "tests/conftest.py"}
    if each is CORE:
        needed |= {"setup.py", "jetsync/_speedups.c"}
    expect(needed <= names, f"the sdist of {each.name} lacks {sorted(needed - names)}")
    compiled = [name for name in names if re.search(r"\.(so|pyd|dylib|dll)$", name)]
    expect(not compiled, f"the sdist of {each.name} has {compiled}")


def check_installed(each: Distribution, ending: str, folder: Path) -> None:
    """
    Install a file into an empty environment, and use it as its README says.
    """
    start = time.monotonic()
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", python)
    # Plugins are tested with both variants of jetsync: their wheels with the pure wheel, and their
    # sdists with one that is compiled.
    core = [f"{CORE.file(ending)}[server]"]
    core += [str(other.file(ending)) for other in PLUGINS if other.name in each.needs]
    built = {"env": environment(JETSYNC_BUILD="compiled")}
    run(*pip, "install", *core, f"{each.file(ending)}{each.extras}", **built)
    run(*pip, "check")
    run(python, VARIANT, "pure" if ending == WHEEL else "compiled", cwd=folder, env=environment())
    run(python, "-W", "error", "-c", f"import {each.package}", cwd=folder)
    if each is CORE:
        run(folder / "bin" / "jetsync", "--version", cwd=folder)
    check_readme(each, python, folder)
    if ending == SDIST:
        run(*pip, "install", *core, f"{each.file(ending)}[test]", **built)
        with tarfile.open(each.file(ending)) as sdist:
            sdist.extractall(folder, filter="data")
        (unpacked,) = folder.glob(f"{each.package}-*")
        said = run(folder / "bin" / "pytest", *shlex.split(each.tests), cwd=unpacked)
        say(f"{each.name}, tests of the sdist: {said.splitlines()[-1].strip('= ')}")
    shutil.rmtree(folder)
    say(f"{each.file(ending).name} works, {time.monotonic() - start:.0f} s")


def check_interpreters(work: Path) -> None:
    """
    Install one and the same compiled wheel for each interpreter that is present, and use it.
    """
    wheel = CORE.file(COMPILED)
    found = {} if NO_GIL else interpreters.on_path()
    for version, path in found.items():
        name = "{}.{}".format(*version)
        folder = work / f"python{name}"
        python = folder / "bin" / "python"
        run(path, "-m", "venv", "--without-pip", folder)
        run(
            sys.executable,
            "-m",
            "pip",
            "--quiet",
            "--python",
            python,
            "install",
            f"{wheel}[server]",
        )
        run(python, VARIANT, "compiled", cwd=folder, env=environment())
        check_readme(CORE, python, folder)
        shutil.rmtree(folder)
        say(f"{wheel.name} works on Python {name}")
    missing = ["{}.{}".format(*each) for each in interpreters.SUPPORTED if each not in found]
    if missing:
        say(f"SKIPPED: {wheel.name} was not tested on Python {', '.join(missing)}")


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
        run(python, script, cwd=folder, env=environment(PATH=path, NATS_URL=server.url))


def has_java() -> bool:
    """
    Return whether Spark would find Java.
    """
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").exists() if home else shutil.which("java") is not None


def environment(**changes: str) -> dict[str, str]:
    """
    Return this process's environment with some changes, and without those that choose a variant.
    """
    chosen = {"JETSYNC_BUILD", "JETSYNC_SPEEDUPS"}
    return {**{name: value for name, value in os.environ.items() if name not in chosen}, **changes}


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
