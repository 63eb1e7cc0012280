"""
What an object store knows about an object, and the document that stores it (ADR-20).
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync._base.html import html_table
from jetsync._base.integers import read_count
from jetsync._proto.object_names import decode_name
from jetsync.errors import InvalidSubjectError, InvalidTypeError
from jetsync.values.headers import FixedHeaders, Headers
from jetsync.values.server_info import decode_json
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ObjectInfo", "ObjectLink"]

# The time of a document is never used. Other clients write Go's zero time, and some of them cannot
# read a document without it.
NO_TIME: Final = "0001-01-01T00:00:00Z"

_NO_HEADERS: Final = FixedHeaders()


@attrs.frozen
class ObjectLink:
    """
    The target of a link.
    """

    bucket: str
    """The object store of the target."""

    name: str | None = None
    """The name of the target. None if the target is the whole object store."""


@attrs.frozen(kw_only=True)
class ObjectInfo:
    """
    An object in an object store, or a link (ADR-20).
    """

    # For notebooks.
    _repr_html_ = html_table

    bucket: str
    """The object store."""

    name: str
    """The name."""

    nuid: str
    """The id of the put that stored the data; empty if the description has no valid one."""

    size: int = 0
    """The size in bytes; 0 for a link."""

    chunks: int = 0
    """The number of messages with data."""

    modified: dt.datetime
    """When the object was changed last, in UTC, by the server's clock."""

    revision: int
    """The stream sequence of this description. Every change of the object increases it."""

    digest: str | None = None
    """``SHA-256=`` and the SHA-256 hash of the data in Base64; None for a link."""

    description: str | None = None
    """Free text."""

    headers: Headers = attrs.field(factory=Headers, hash=False)
    """Headers of the object."""

    metadata: dict[str, str] = attrs.field(factory=dict, hash=False)
    """Any key-value pairs."""

    chunk_size: int | None = None
    """The size of the largest chunk in bytes, if the client that stored the object has noted it."""

    link: ObjectLink | None = None
    """The target if this is a link."""

    is_deleted: bool = False
    """Whether the object was deleted."""

    is_padded: bool = attrs.field(default=True, repr=False, eq=False)
    """Whether the subject of the description has the padding of Base64. Some clients omit it."""

    document: dict[str, Any] = attrs.field(factory=dict, repr=False, eq=False)
    """The JSON document in the store, with the fields that jetsync does not know."""


def read_info(
    bucket: str, subject: str, sequence: int, modified: dt.datetime, data: bytes
) -> ObjectInfo:
    """
    Return the description in the message of a document; see :func:`describe`.

    Raises:
        ProtocolError: The document cannot be read.
    """
    return describe(bucket, subject, sequence, modified, decode_json(data))


def describe(
    bucket: str,
    subject: str,
    sequence: int,
    modified: dt.datetime,
    document: dict[str, Any],
) -> ObjectInfo:
    """
    Return the description in a document.

    Other clients write the same fields in other ways, so only a document whose counts are not
    numbers is refused. The name is that of the subject, where readers look for the object.

    Raises:
        ProtocolError: The document cannot be read.
    """
    token = subject.rpartition(".")[2]
    options, metadata = document.get("options"), document.get("metadata")
    options = options if isinstance(options, dict) else {}
    link = options.get("link")
    return ObjectInfo(
        bucket=bucket,
        name=decode_name(token),
        nuid=_nuid(document.get("nuid")),
        size=read_count(document.get("size") or 0, "the size of an object"),
        chunks=read_count(document.get("chunks") or 0, "the number of an object's chunks"),
        modified=modified,
        revision=sequence,
        digest=_text(document.get("digest")),
        description=_text(document.get("description")),
        headers=_headers(document.get("headers")),
        metadata={}
        if not isinstance(metadata, dict)
        else {name: each for name, each in metadata.items() if isinstance(each, str)},
        chunk_size=read_count(options.get("max_chunk_size") or 0, "the size of chunks") or None,
        link=None
        if not isinstance(link, dict)
        else ObjectLink(_text(link.get("bucket")) or bucket, _text(link.get("name"))),
        is_deleted=document.get("deleted") is True,
        is_padded=len(token) % 4 == 0,
        document=document,
    )


def complete(document: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """
    Return a document as it is stored: with changes, and without the fields that are None.

    Fields that jetsync does not know are kept.
    """
    fields = {**document, "mtime": NO_TIME, **changes}
    return {name: value for name, value in fields.items() if value is not None}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _nuid(value: Any) -> str:
    """Return an id; empty if it cannot be one, as ``>``, which would name all chunks of a store."""
    try:
        return validate_subject(value)
    except (InvalidSubjectError, InvalidTypeError):
        return ""


def _headers(value: Any) -> FixedHeaders:
    if not isinstance(value, dict):
        return _NO_HEADERS
    pairs = [
        (name, each)
        for name, values in value.items()
        for each in (values if isinstance(values, list) else [values])
        if isinstance(each, str)
    ]
    headers = FixedHeaders()
    # Other clients may have written what cannot be sent as the header of a message.
    headers._pairs = pairs  # noqa: SLF001
    return headers
