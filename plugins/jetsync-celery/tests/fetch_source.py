"""
Fetch and unpack the tests of the installed version of a package, from its source distribution.

    python tests/fetch_source.py PACKAGE FOLDER
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def main() -> None:
    """
    Unpack its folder ``t``, unless the folder has it already.
    """
    package, target = sys.argv[1], Path(sys.argv[2])
    version = importlib.metadata.version(package)
    if (target / f"{version}.txt").exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--no-binary", ":all:", "--dest", folder, f"{package}=={version}"),
            ],
            check=True,
        )
        (archive,) = Path(folder).glob(f"{package}-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        # Not the package itself: the installed one is what is tested.
        shutil.move(str(Path(folder) / f"{package}-{version}" / "t"), target)
    (target / f"{version}.txt").touch()


if __name__ == "__main__":
    main()
