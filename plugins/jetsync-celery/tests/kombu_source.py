"""
Fetch and unpack the source distribution of the installed version of kombu.

    python tests/kombu_source.py FOLDER
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
    Unpack it, unless the folder has it already.
    """
    target = Path(sys.argv[1])
    version = importlib.metadata.version("kombu")
    if (target / f"{version}.txt").exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--no-binary", ":all:", "--dest", folder, f"kombu=={version}"),
            ],
            check=True,
        )
        (archive,) = Path(folder).glob("kombu-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(str(Path(folder) / f"kombu-{version}"), target)
    (target / f"{version}.txt").touch()


if __name__ == "__main__":
    main()
