"""
Errors that several threads may get.
"""

from __future__ import annotations

import pytest

from jetsync._base.failures import raise_failure, raised_at
from jetsync.errors import ConnectionClosedError


def test_each_raise_is_of_a_copy():
    """
    Each raise has its own traceback, and the same text, attributes and cause.
    """
    failure = ConnectionClosedError("it is over", sent=True)
    failure.__cause__ = ValueError("why")
    raised = []
    for _ in range(2):
        with pytest.raises(ConnectionClosedError, match="it is over") as caught:
            raise_failure(failure)
        raised.append(caught.value)
    assert failure.__traceback__ is None
    assert raised[0] is not raised[1]
    for error in raised:
        assert error.sent
        assert error.__cause__ is failure.__cause__


def test_where_an_error_was_raised():
    """
    The place of an error is the line that raised it, however deep that is. A new error has none.
    """

    def inner():
        raise LookupError

    def outer():
        inner()

    with pytest.raises(LookupError) as caught:
        outer()
    assert raised_at(caught.value).tb_frame.f_code is inner.__code__
    assert raised_at(LookupError()) is None
