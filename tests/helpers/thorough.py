"""
Cases of which only some run with each `tox run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping


def thorough_except(cases: Mapping[str, Any], *always: str) -> list[Any]:
    """
    Return the cases as parameters of a test, and mark all but the named ones as thorough.
    """
    assert cases.keys() >= set(always)
    return [
        pytest.param(case, id=name, marks=() if name in always else pytest.mark.thorough)
        for name, case in cases.items()
    ]
