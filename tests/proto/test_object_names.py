from __future__ import annotations

import pytest

from jetsync import errors
from jetsync._proto.object_names import (
    ChunkIndex,
    chunks_of,
    decode_digest,
    decode_name,
    documents_of,
    encode_digest,
    encode_name,
    stream_of,
)


class TestNames:
    def test_streams_and_subjects_are_those_of_other_clients(self):
        """The stream and the subjects of an object store are those of other clients (ADR-20)."""
        assert stream_of("b") == "OBJ_b"
        assert chunks_of("b", "n1") == "$O.b.C.n1"
        assert documents_of("b", encode_name("a/b c")) == "$O.b.M.YS9iIGM="

    @pytest.mark.parametrize("name", ["a", "ab", "abc", "a/b", "ü", "日本", " ", "x" * 1024, "?>~"])
    def test_a_name_comes_back_with_and_without_padding(self, name):
        """A name comes back from its subject, also if another client left its padding out."""
        token = encode_name(name)
        assert not set("./+ *>").intersection(token)
        assert decode_name(token) == decode_name(token.rstrip("=")) == name

    def test_what_is_not_base64_is_its_own_name(self):
        """The last part of a subject that is not Base64 is its own name."""
        assert decode_name("a*b") == "a*b"

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("", errors.InvalidNameError),
            ("\ud800", errors.InvalidNameError),
            (b"a", errors.InvalidTypeError),
            (None, errors.InvalidTypeError),
        ],
    )
    def test_invalid_names_are_refused(self, name, error):
        """A name is text that is not empty and can be encoded."""
        with pytest.raises(error):
            encode_name(name)

    def test_a_store_has_the_name_of_a_bucket(self):
        """The name of an object store has letters, digits, hyphens and underscores."""
        with pytest.raises(errors.InvalidBucketError):
            stream_of("a.b")


class TestDigests:
    @pytest.mark.parametrize("prefix", ["SHA-256=", "sha-256=", "Sha-256="])
    @pytest.mark.parametrize("padding", ["=", ""])
    def test_digests_of_other_clients_are_read(self, prefix, padding):
        """A digest is read with and without padding, and with its hash in lower case."""
        digest = bytes(range(32))
        text = encode_digest(digest)
        assert text == "SHA-256=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
        assert decode_digest(prefix + text[8:].rstrip("=") + padding) == digest

    @pytest.mark.parametrize("text", ["", "SHA-512=AAEC", "SHA-256", "SHA-256=a*b", "AAEC"])
    def test_other_digests_are_none(self, text):
        """A digest of another hash, or one that is not Base64, is None."""
        assert decode_digest(text) is None


class TestChunkIndex:
    def test_it_finds_chunks_of_different_sizes(self):
        """The index finds the chunk of each byte, also if chunks have different sizes."""
        index = ChunkIndex()
        for sequence, size in ((7, 3), (9, 0), (12, 1), (13, 4)):
            index.add(sequence, size)
        assert (len(index), index.size) == (4, 8)
        found = [index.find(offset) for offset in range(8)]
        assert found == [(0, 0, 7)] * 3 + [(2, 3, 12)] + [(3, 4, 13)] * 4
