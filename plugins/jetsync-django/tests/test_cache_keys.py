from __future__ import annotations

import re

import pytest

from jetsync_django.cache.keys import LONGEST, bucket_key


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        (":1:user", "=3A1=3Auser"),
        ("a.b/c-d_e", "a=2Eb/c-d_e"),
        ("é ", "=C3=A9=20"),
        ("a=b", "a=3Db"),
        ("", "="),
        ("*>", "=2A=3E"),
    ],
)
def test_keys_are_encoded_byte_by_byte(key, stored):
    """
    Characters that a bucket does not allow in a part of a key are stored as hexadecimal digits.
    """
    assert bucket_key(key) == stored


def test_every_key_becomes_one_legal_part_of_its_own():
    """
    No two keys share a stored key, also if they are long or no valid Unicode.
    """
    keys = [*map(chr, range(600)), "\ud800", "\ud801", "x" * LONGEST, "x" * (LONGEST + 1)]
    keys += ["y" * LONGEST * 100, "=" * 500, "", "=="]
    stored = [*map(bucket_key, keys)]

    assert len(set(stored)) == len(keys)
    assert all(re.fullmatch(r"[-/_=A-Za-z0-9]+", each) for each in stored)
    assert max(map(len, stored)) <= LONGEST
