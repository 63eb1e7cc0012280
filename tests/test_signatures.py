"""
Rules for the signatures of all public functions and methods.
"""

from __future__ import annotations

import enum
import inspect
import re

import pytest

import jetsync
from helpers.public_calls import public_functions

BY_POSITION = {
    "PublishFuture.result": "as concurrent.futures.Future.result",
    "PublishFuture.exception": "as concurrent.futures.Future.exception",
    "Acker.acknowledge_sync": "messages call it, not users, and pass every argument",
}
"""Functions that take these arguments by position, and the reasons."""


FUNCTIONS = dict(public_functions())


def is_keyword(parameter):
    """
    Return whether an argument must be a keyword: a time, an expected revision, or a switch.
    """
    return (
        parameter.name in {"timeout", "ttl", "last"}
        or isinstance(parameter.default, bool)
        or re.fullmatch(r"bool( \| None)?", str(parameter.annotation)) is not None
    )


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_times_revisions_and_switches_are_keywords(name):
    """
    A caller cannot mistake a revision for a time-to-live, or pass a bare `True`.
    """
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    by_position = [
        one.name
        for one in parameters
        if is_keyword(one) and one.kind not in {one.KEYWORD_ONLY, one.VAR_KEYWORD}
    ]
    assert bool(by_position) == (name in BY_POSITION), by_position


CLASSES = {
    name: value
    for name, value in ((name, getattr(jetsync, name)) for name in jetsync.__all__)
    if inspect.isclass(value) and value.__module__ == "jetsync"
}
CALLS = {**FUNCTIONS, **CLASSES}
"""Functions, methods, and constructors."""


def takes_any_keyword(function):
    """
    Return whether a call checks its keywords itself, or is a type that is never called.
    """
    if inspect.isclass(function) and (
        issubclass(function, (enum.Enum, dict)) or getattr(function, "_is_protocol", False)
    ):
        return True
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


@pytest.mark.parametrize(
    "name", sorted(name for name, function in CALLS.items() if not takes_any_keyword(function))
)
def test_a_wrong_keyword_names_a_public_call(name):
    """
    A `TypeError` about arguments names the public function, and no internal class.
    """
    function = CALLS[name]
    parameters = inspect.signature(function).parameters.values()
    # A missing argument would be the error of a call that refuses keywords by itself.
    needed = [
        one
        for one in parameters
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty
    ]
    arguments = [] if inspect.isclass(function) else [object() for _ in needed]
    with pytest.raises(TypeError) as caught:
        function(*arguments, misspelt=1)
    found = re.match(
        r"([\w.]+)\(\) (?:(?:got an unexpected|takes no) keyword|has no) argument",
        str(caught.value),
    )
    assert found, caught.value
    assert found[1].split(".")[0] in jetsync.__all__
