from __future__ import annotations

import datetime as dt
import json

import pytest

import jetsync
from jetsync.objects.info import complete, read_info

TIME = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.timezone.utc)


def info(**document) -> jetsync.ObjectInfo:
    """Return the description in a document."""
    data = json.dumps(document).encode()
    return read_info("b", "$O.b.M.YQ==", 7, TIME, data)


class TestRead:
    def test_a_whole_document_is_read(self):
        """All fields of a document are read, and the time is that of the message."""
        found = info(
            name="a",
            description="d",
            headers={"h": ["1", "2"]},
            metadata={"k": "v"},
            options={"max_chunk_size": 1024},
            bucket="b",
            nuid="n",
            size=2000,
            mtime="2020-01-01T00:00:00Z",
            chunks=2,
            digest="SHA-256=x",
        )
        assert (found.bucket, found.name, found.nuid) == ("b", "a", "n")
        assert (found.size, found.chunks, found.chunk_size) == (2000, 2, 1024)
        assert (found.description, found.digest) == ("d", "SHA-256=x")
        assert found.headers.get_all("h") == ["1", "2"]
        assert found.metadata == {"k": "v"}
        assert found.revision == 7
        assert found.modified == TIME
        assert found.link is None
        assert not found.is_deleted

    @pytest.mark.parametrize("mtime", ["", "yesterday", None, 5, "0001-01-01T00:00:00Z"])
    def test_the_time_of_a_document_does_not_matter(self, mtime):
        """Other clients write times that are empty or in local time; none is read."""
        assert info(name="a", mtime=mtime).modified.year == 2023

    @pytest.mark.parametrize(("token", "name"), [("YQ==", "a"), ("YQ", "a"), ("YWJj", "abc")])
    def test_whether_the_subject_has_the_padding(self, token, name):
        """A description says whether its subject is the one that jetsync writes to."""
        found = read_info("b", f"$O.b.M.{token}", 7, TIME, b"{}")
        assert (found.name, found.is_padded) == (name, token != "YQ")

    def test_the_name_is_that_of_the_subject(self):
        """Readers find an object by its subject, so another name in the document does not count."""
        assert info(name="other").name == "a"

    def test_a_document_without_fields_has_the_name_of_its_subject(self):
        """Missing fields, and fields of another type, have defaults."""
        found = info(headers=5, metadata=["x"], options="o", digest="", deleted="yes")
        assert (found.name, found.nuid, found.size, found.chunks) == ("a", "", 0, 0)
        assert found.headers == {}
        assert found.metadata == {}
        assert found.digest is None
        assert not found.is_deleted

    def test_links_are_read(self):
        """A link has the object store and the name of its target, or only the object store."""
        link = {"bucket": "other", "name": "x"}
        assert info(options={"link": link}).link == jetsync.ObjectLink("other", "x")
        assert info(options={"link": {"bucket": "other"}}).link == jetsync.ObjectLink("other")

    @pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"size": -1}', b'{"chunks": "5"}'])
    def test_what_is_no_document_is_refused(self, data):
        """A document that is not JSON, or whose counts are not numbers, is refused."""
        with pytest.raises(jetsync.ProtocolError):
            read_info("b", "$O.b.M.YQ==", 1, TIME, data)


class TestWrite:
    def test_unknown_fields_are_kept(self):
        """A document that is written again keeps the fields that jetsync does not know."""
        document = {"name": "a", "future": {"x": 1}, "digest": "d", "mtime": ""}
        written = complete(document, size=5, digest=None)
        assert written == {
            "name": "a",
            "future": {"x": 1},
            "size": 5,
            "mtime": "0001-01-01T00:00:00Z",
        }

    def test_infos_can_be_compared_and_hashed(self):
        """Descriptions of one document are equal, and can be members of a set."""
        assert len({info(name="a", metadata={"k": "v"}) for _ in range(2)}) == 1
