"""
The functions in Python and their compiled twins do the same; `tox run -e fuzz` is the long form.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fuzz.twins import CASES, Cut, DifferenceError, check

from helpers.variants import COMPILED, NOT_COMPILED, PYTHON

pytestmark = pytest.mark.skipif(not COMPILED, reason=NOT_COMPILED)

SECONDS = 3.0
"""How long the short form runs. It has at least LEAST streams, also on a busy machine."""
LEAST = 2000


def test_both_variants_do_the_same():
    """Results, errors, pushed frames and state of both variants are equal on random input."""
    rng, seed = random.Random(), 0
    end = time.monotonic() + SECONDS
    while seed < LEAST or time.monotonic() < end:
        check(rng, seed, PYTHON, COMPILED)
        seed += 1


def test_every_function_has_a_case():
    """Each function with a compiled twin is called by the cases."""
    called = set()

    def noting(name):
        def call(*arguments):
            called.add(name)
            return PYTHON[name](*arguments)

        return call

    noted, rng = {name: noting(name) for name in PYTHON}, random.Random()
    for seed in range(1000):
        check(rng, seed, PYTHON, noted)
    assert called == set(PYTHON)
    assert {name for name, _, share in CASES if share} == {name for name, _, _ in CASES}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda end, wanted, strays: (end + 1, wanted, strays),
        lambda end, wanted, strays: (end, 0, strays),
        lambda end, wanted, strays: (end, wanted, 0),
    ],
)
def test_a_difference_names_its_seed(wrong):
    """If one variant returns something else, the error has the seed and both results."""

    def cut(*arguments):
        return wrong(*PYTHON["cut"](*arguments))

    rng, other = random.Random(), {**PYTHON, "cut": cut}

    def check_all(seeds):
        for seed in seeds:
            check(rng, seed, PYTHON, other)

    with pytest.raises(DifferenceError, match=r"(?s)seed \d+.*Python: .*compiled: ") as caught:
        check_all(range(1000))
    seed = int(str(caught.value).split()[1].rstrip(","))
    with pytest.raises(DifferenceError):
        check_all([seed])
    check(rng, seed, PYTHON, PYTHON)


@pytest.mark.thorough
def test_the_campaign(tmp_path):
    """The campaign names its seed and what it ran, and ends with success without a difference."""
    command = [sys.executable, str(Path(__file__).parent), "--seed", "7", "--streams", "500"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "from seed 7" in done.stdout
    assert "500 streams" in done.stdout
    assert "0 differences" in done.stdout


def test_a_stream_is_drawn_from_its_seed_only():
    """The same seed gives the same input."""
    case = Cut()
    assert str(case.draw(random.Random(5))) == str(case.draw(random.Random(5)))
