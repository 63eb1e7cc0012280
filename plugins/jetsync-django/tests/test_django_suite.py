"""
Django's own tests of caches and sessions, on the cache of this plugin.

They are in Django's sdist, which pip downloads once into the user's cache folder. Without network,
the test is skipped, except in the tox environment `django`, where it fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import django
import pytest

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jetsync"
VERSION = django.get_version()

# Of 79 tests of a cache, three are about the number of entries, which is not limited.
MOST_SKIPPED = 3
# Sessions have async tests since Django 5.1.
LEAST_RUN = 190 if django.VERSION >= (5, 1) else 135


@pytest.fixture(scope="session")
def django_tests() -> Path:
    """
    The folder `tests` of the sdist of the installed Django.
    """
    # Old ones begin with a capital letter.
    pattern = f"[Dd]jango-{VERSION}/tests"
    if not [*FOLDER.glob(pattern)]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        limits = ["--retries", "1", "--timeout", "15"]
        done = subprocess.run(
            [*pip, *limits, "--no-binary", ":all:", "--dest", str(FOLDER), f"django=={VERSION}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode and "JETSYNC_DJANGO_TESTS" not in os.environ:
            pytest.skip(f"Django's sdist cannot be downloaded: {done.stderr}")
        assert done.returncode == 0, done.stderr
        (sdist,) = FOLDER.glob(f"[Dd]jango-{VERSION}.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(FOLDER, filter="data")
    (folder,) = FOLDER.glob(pattern)
    return folder


@pytest.mark.live
@pytest.mark.timeout(600)
def test_the_cache_passes_the_tests_of_django(django_tests, nats_server):
    """
    The tests that Django runs with each of its caches, and those of sessions in caches, pass.

    Like Redis, a bucket has no limit for the number of entries, so those tests skip themselves.
    """
    done = subprocess.run(
        [
            *(sys.executable, str(Path(__file__).with_name("django_suite.py"))),
            *(str(django_tests), nats_server.url),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert int(re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)[1]) >= LEAST_RUN
    assert int(re.search(r"^OK \(skipped=(\d+)\)", done.stderr, re.MULTILINE)[1]) <= MOST_SKIPPED
