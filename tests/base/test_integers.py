from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync._base.integers import integer_text, parse_integer


@pytest.mark.parametrize(
    "text", ["", "+", "1.0", "1e3", " 1", "1 ", "0x1", "--1", "NaN", "\u0661", "1_0"]
)
def test_only_digits_with_a_sign_are_an_integer(text):
    """Only digits with an optional sign are an integer."""
    with pytest.raises(ValueError, match="is not an integer"):
        parse_integer(text)


@given(st.integers())
def test_encoding_and_decoding_returns_the_same_integer(number):
    """Encoding and decoding returns the same integer, with and without a sign."""
    assert integer_text(number) == str(number)
    assert parse_integer(integer_text(number)) == number
    assert parse_integer(f"{number:+d}") == number


def test_integers_of_any_length_are_not_rounded():
    """Integers have any length, and nothing is rounded."""
    number = -(10**20_000 - 7)
    assert parse_integer(integer_text(number)) == number
