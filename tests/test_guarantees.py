"""
The page of guarantees names tests that exist.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "guarantees.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`((?:\w+/)*test_\w+\.py(?:::\w+)*)`", PAGE)))


@functools.cache
def body_of(path):
    """
    Return the statements of a test file.
    """
    return ast.parse((TESTS / path).read_text("utf-8")).body


@pytest.mark.parametrize("name", NAMED)
def test_the_named_tests_exist(name):
    """
    A test that the page names can be found.
    """
    path, *names = name.split("::")
    body = body_of(path)
    for wanted in names:
        found = [node for node in body if getattr(node, "name", "") == wanted]
        assert found, wanted
        body = found[0].body
