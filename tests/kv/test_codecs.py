"""
Codecs of keys and values, without a server.
"""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import jetsync
from jetsync import Base64Codec, ChainCodec, JsonCodec, PathCodec
from jetsync._proto.keys import check_key, check_pattern
from jetsync.kv.codecs import Codecs

CHAIN = ChainCodec(PathCodec(), Base64Codec())

# Each row was printed by kvcodec of orbit.go: the key, the stored key, and the stored filter.
ORBIT = [
    (Base64Codec(), "Acme Inc.contact", "QWNtZSBJbmM.Y29udGFjdA", "QWNtZSBJbmM.Y29udGFjdA"),
    (Base64Codec(), "ü", "w7w", "w7w"),
    (Base64Codec(), "/users/123", "L3VzZXJzLzEyMw", "L3VzZXJzLzEyMw"),
    (Base64Codec(), "a.*.c", "YQ.Kg.Yw", "YQ.*.Yw"),
    (PathCodec(), "/users/123", "_root_.users.123", "_root_.users.123"),
    (PathCodec(), "user/profile", "user.profile", "user.profile"),
    (PathCodec(), "/", "_root_", "_root_"),
    (PathCodec(), "_root_x/y", "_root_x.y", "_root_x.y"),
    (CHAIN, "/users/123", "X3Jvb3Rf.dXNlcnM.MTIz", "X3Jvb3Rf.dXNlcnM.MTIz"),
    (CHAIN, "user/profile", "dXNlcg.cHJvZmlsZQ", "dXNlcg.cHJvZmlsZQ"),
    (CHAIN, "/", "X3Jvb3Rf", "X3Jvb3Rf"),
]


@pytest.mark.parametrize(("codec", "key", "stored", "pattern"), ORBIT)
def test_keys_are_those_of_orbit_go(codec, key, stored, pattern):
    """
    Keys and patterns are stored as kvcodec of orbit.go stores them, and are read again.
    """
    assert codec.encode_key(key) == stored
    assert codec.encode_filter(key) == pattern
    assert codec.decode_key(stored) == key


PARTS = st.text(min_size=1, max_size=6) | st.sampled_from(["*", ">", "_root_", "a", "/"])
KEYS = st.lists(PARTS, min_size=1, max_size=4)


@pytest.mark.parametrize("codec", [Base64Codec(), PathCodec(), CHAIN, ChainCodec(PathCodec())])
@given(parts=KEYS, separator=st.sampled_from("./"))
@example(parts=["_root_", "x"], separator="/")
@example(parts=["_root_"], separator="/")
@example(parts=["", "a"], separator="/")
@example(parts=["a", ""], separator="/")
@example(parts=["\ud800"], separator=".")
def test_a_key_comes_back_or_is_refused(codec, parts, separator):
    """
    Each accepted key is valid for servers and comes back as it was; others raise InvalidKeyError.
    """
    key = separator.join(parts)
    codecs = Codecs(keys=codec)
    try:
        stored = codecs.stored_key(key)
    except jetsync.InvalidKeyError:
        return
    assert check_key(stored) == stored
    assert codecs.shown_key(stored) == key


@given(parts=KEYS)
def test_patterns_match_the_keys_that_they_matched(parts):
    """
    A pattern keeps its wildcards, and its other parts are those of the keys.
    """
    codecs = Codecs(keys=Base64Codec())
    try:
        pattern = codecs.stored_pattern(".".join(parts))
    except jetsync.InvalidKeyError:
        return
    assert check_pattern(pattern) == pattern
    stored = pattern.split(".")
    assert len(stored) == len(".".join(parts).split("."))
    for part, own in zip(".".join(parts).split("."), stored, strict=True):
        assert own == (part if part in {"*", ">"} else Base64Codec().encode_key(part))


@pytest.mark.parametrize(
    ("codec", "key", "reason"),
    [
        (Base64Codec(), "", "its codec makes '' of it: it is empty"),
        (Base64Codec(), "a..b", "its codec makes 'YQ..Yg' of it: it begins or ends with a dot"),
        (Base64Codec(), "\ud800", "it cannot be encoded as UTF-8"),
        (PathCodec(), "a.b", "a path cannot contain a dot"),
        (PathCodec(), "a/", "a path cannot end with a slash"),
        (PathCodec(), "a//b", "a path cannot end with a slash, or have two in a row"),
        (PathCodec(), "_root_/x", "its codec would return it as '/x'"),
        (PathCodec(), "a b", "its codec makes 'a b' of it: use letters, digits"),
        (CHAIN, "a.b", "codec 0, PathCodec: a path cannot contain a dot"),
        (ChainCodec(Base64Codec(), PathCodec()), "a.b", "codec 1, PathCodec: a path cannot"),
    ],
)
def test_the_error_of_a_refused_key_gives_the_reason(codec, key, reason):
    """
    The error names the key as the caller gave it, and says why it is refused.
    """
    with pytest.raises(jetsync.InvalidKeyError) as caught:
        Codecs(keys=codec).stored_key(key)
    assert caught.value.name == key
    assert caught.value.reason.startswith(reason)


@given(st.binary())
def test_base64_values_come_back(value):
    """
    Any bytes come back, and padded base64 is read, too.
    """
    codec = Base64Codec()
    stored = codec.encode("k", value)

    assert codec.decode("k", stored) == value
    assert b"=" not in stored
    assert codec.decode("k", stored + b"=" * (-len(stored) % 4)) == value


def test_base64_values_are_those_of_orbit_go():
    """
    Values are unpadded URL-safe base64; text is encoded as UTF-8.
    """
    assert Base64Codec().encode("k", b"\x00\xff") == b"AP8"
    assert Base64Codec().encode("k", "ü") == b"w7w"


@pytest.mark.parametrize("stored", [b"a", b"a+/b", b"YQ ==", b"YWJj\n", "ü".encode(), b"A==A"])
def test_other_values_are_not_base64(stored):
    """
    Bytes that are not URL-safe base64 raise an error; no character is skipped.
    """
    with pytest.raises(jetsync.InvalidArgumentError, match="not URL-safe base64"):
        Base64Codec().decode("k", stored)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_json_values_come_back(value):
    """
    Values of JSON come back as they were.
    """
    assert JsonCodec().decode("k", JsonCodec().encode("k", value)) == value


@pytest.mark.parametrize(
    "value", [b"x", {1, 2}, float("nan"), float("inf"), "\ud800", {("a",): 1}, object()]
)
def test_other_values_are_not_json(value):
    """
    A value that JSON does not have is refused, and the error keeps nothing of it.
    """
    with pytest.raises(jetsync.InvalidArgumentError, match="it cannot be") as caught:
        JsonCodec().encode("k", value)
    assert caught.value.__context__ is None


def test_a_chain_of_values_runs_backwards_to_decode():
    """
    A chain encodes from the first codec to the last one, and decodes from the last to the first.
    """
    chain = ChainCodec(JsonCodec(), Base64Codec())
    stored = chain.encode("k", {"a": "ü"})

    assert stored == Base64Codec().encode("k", '{"a":"ü"}')
    assert chain.decode("k", stored) == {"a": "ü"}
    with pytest.raises(jetsync.InvalidArgumentError, match="codec 1, Base64Codec: it is not URL"):
        chain.decode("k", b"!")
    with pytest.raises(jetsync.InvalidArgumentError, match="codec 0, JsonCodec: it is not JSON"):
        chain.decode("k", b"YQ")


def test_a_chain_needs_a_codec():
    """
    An empty chain is refused.
    """
    with pytest.raises(jetsync.InvalidArgumentError, match="at least one"):
        ChainCodec()


@pytest.mark.parametrize("key", ["_root_/x", "_root_"])
def test_a_key_among_patterns_comes_back_or_is_refused(key):
    """
    Where patterns are allowed, a key that its codec would return as another one is refused, too.
    """
    with pytest.raises(jetsync.InvalidKeyError, match="its codec would return it as '/"):
        Codecs(keys=PathCodec()).stored_pattern(key)


class Forgetful(Base64Codec):
    """
    A codec that returns nothing for patterns.
    """

    def encode_filter(self, pattern):
        """
        Forget to return the pattern.
        """


def test_a_chain_does_not_make_text_of_what_is_none():
    """
    If a codec returns no text, a chain of it is refused as the codec alone is.
    """
    for codec in (Forgetful(), ChainCodec(Forgetful())):
        with pytest.raises(jetsync.InvalidTypeError, match="must be text, not NoneType"):
            Codecs(keys=codec).stored_pattern("a.*")


class Rot:
    """
    A codec of keys that supports no patterns, and whose errors quote secrets.
    """

    def encode_key(self, key):
        """
        Fail for one key.
        """
        if key == "bad":
            raise ValueError("the secret is 1234")
        return key[::-1]

    def decode_key(self, key):
        """
        Return the key.
        """
        return key[::-1]


def test_a_codec_without_filters_takes_only_keys():
    """
    A pattern raises an error that names the codec; a key and all keys do not.
    """
    for codec in (Rot(), ChainCodec(Rot(), Base64Codec())):
        codecs = Codecs(keys=codec)
        assert codecs.stored_pattern(">") == ">"
        assert codecs.stored_pattern("abc") == codec.encode_key("abc")
        with pytest.raises(jetsync.InvalidKeyError, match="Rot has no encode_filter"):
            codecs.stored_pattern("a.*")


def test_texts_of_foreign_errors_are_not_quoted():
    """
    The error of a codec of your own is the cause; the text names only its class.
    """
    with pytest.raises(jetsync.InvalidKeyError) as caught:
        Codecs(keys=Rot()).stored_key("bad")
    assert caught.value.reason == "ValueError in its codec"
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("key", ["YQ==", "a/b", "a=b", "YR", "_w"])
def test_a_key_that_no_method_would_find_is_not_decoded(key):
    """
    A stored key that its codec would store under another key raises an error.
    """
    with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidKeyError)):
        Codecs(keys=Base64Codec()).shown_key(key)
    with pytest.raises(jetsync.InvalidKeyError, match=r"stores that as 'a\.b'"):
        Codecs(keys=PathCodec()).shown_key("a/b")


@pytest.mark.parametrize("codec", [Base64Codec(), PathCodec(), JsonCodec(), CHAIN])
def test_codecs_can_be_copied(codec):
    """
    A codec can be pickled and copied, and shows its parts.
    """
    assert repr(pickle.loads(pickle.dumps(codec))) == repr(copy.copy(codec)) == repr(codec)
    assert repr(CHAIN) == "ChainCodec(PathCodec(), Base64Codec())"
