"""
Streams over the JetStream API: the calls that both :class:`JetStream` and :class:`Stream` offer.

Every function takes the deadline of the public call that it is a part of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync._api.requests import config_of, pages
from jetsync._base.fields import whole_number
from jetsync._base.integers import read_count
from jetsync.errors import (
    ApiError,
    InvalidArgumentError,
    InvalidJsonError,
    MessageNotFoundError,
    NotSupportedError,
    StreamNameInUseError,
    StreamNotFoundError,
)
from jetsync.values.codec import from_wire, to_wire
from jetsync.values.stream_config import StreamConfig
from jetsync.values.stream_info import StreamInfo
from jetsync.values.subjects import validate_filter, validate_name
from jetsync.values.support import STREAM_NEEDS, check_reply, explain_refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline, Seconds

# The code of a deletion that finds no message; reads get 10037.
SEQUENCE_NOT_FOUND: Final = 10043
DELETE_FAILED: Final = 10057

# What a file store answers with DELETE_FAILED if it has no message with the sequence.
_MISSING: Final = ("stream store EOF", "no message found", "deleted message")

# Fields of an answer that do not describe the stream.
_ENVELOPE: Final = ("type", "total", "offset", "limit", "did_create")


def stream_info(answer: Mapping[str, Any]) -> StreamInfo:
    """
    Return the stream that an answer describes.
    """
    described = {key: value for key, value in answer.items() if key not in _ENVELOPE}
    return from_wire(StreamInfo, described)


def create(
    context: Context,
    config: StreamConfig,
    deadline: Deadline,
    action: str = "CREATE",
    *,
    keep_partial: bool = True,
) -> StreamInfo:
    """
    Create a stream, or do nothing if it exists with the same configuration.

    Without *keep_partial*, a stream is deleted again if its server ignored a field.
    """
    name = validate_config(config)
    asked = to_wire(config)
    server = context.server.version
    try:
        answer = context.api(f"STREAM.{action}.{name}", asked, deadline, stream=name)
    except InvalidJsonError as error:
        reason = explain_refusal(error, asked, STREAM_NEEDS, server)
        if reason is None:
            raise
        raise reason from error
    done = "created" if action == "CREATE" else "updated"
    made = stream_info(answer)
    returned, done = answer.get("config") or {}, f"stream {name!r} was {done}"
    try:
        check_reply(STREAM_NEEDS, asked, returned, server=server, done=done)
    except NotSupportedError as error:
        if answer.get("did_create") and not keep_partial:
            delete(context, name, deadline)
            error.args = (f"{error}, and deleted again",)
        raise
    return made


def update(context: Context, config: StreamConfig, deadline: Deadline) -> StreamInfo:
    """
    Replace the whole configuration of an existing stream.
    """
    return create(context, config, deadline, "UPDATE")


def create_or_update(context: Context, config: StreamConfig, deadline: Deadline) -> StreamInfo:
    """
    Create a stream, or replace the whole configuration of the existing one.
    """
    try:
        return update(context, config, deadline)
    except StreamNotFoundError:
        pass
    try:
        return create(context, config, deadline)
    except StreamNameInUseError:
        # Another client created it between the two requests, with another configuration.
        return update(context, config, deadline)


def changed_config(
    context: Context,
    given: str | StreamConfig,
    fields: Mapping[str, Any],
    deadline: Deadline,
    what: str,
) -> StreamConfig:
    """
    Return the configuration that an update sends.

    Args:
        context: Where to read the current configuration.
        given: The whole configuration, or the name of the stream whose current one is changed.
        fields: The fields to change.
        deadline: The deadline of the public call.
        what: The public call, for errors.
    """
    # Checks the fields before anything is sent.
    whole = config_of(StreamConfig, given, fields, what)
    if isinstance(given, str):
        return attrs.evolve(info(context, given, deadline).config, **fields)
    return whole


def validate_config(config: StreamConfig) -> str:
    """
    Check the names and subjects of a configuration, and return the name of the stream.

    Raises:
        InvalidArgumentError: There is no name, or the name or a subject is not valid.
    """
    if config.name is None:
        raise InvalidArgumentError("a stream needs a name", argument="name")
    for subject in config.subjects or ():
        validate_filter(subject)
    for source in [config.mirror, *(config.sources or ())]:
        if source is not None and source.filter_subject:
            validate_filter(source.filter_subject)
    return validate_name("stream", config.name)


def info(
    context: Context,
    name: str,
    deadline: Deadline,
    *,
    subjects_filter: str | None = None,
    deleted_details: bool = False,
) -> StreamInfo:
    """
    Ask for a stream; with ``subjects_filter``, in as many requests as its subjects take.
    """
    endpoint = f"STREAM.INFO.{validate_name('stream', name)}"
    request: dict[str, Any] = {}
    if deleted_details:
        request["deleted_details"] = True
    if subjects_filter is not None:
        request["subjects_filter"] = validate_filter(subjects_filter)
    answer = context.api(endpoint, request or None, deadline, stream=name)
    found = stream_info(answer)
    if subjects_filter is None:
        return found
    subjects = dict(found.state.subjects)
    offset = len(subjects)
    while 0 < offset < read_count(answer.get("total") or 0, "the total of a list"):
        page = {"subjects_filter": subjects_filter, "offset": offset}
        answer = context.api(endpoint, page, deadline, stream=name)
        more = stream_info(answer).state.subjects
        if not more:
            break
        subjects.update(more)
        offset += len(more)
    return attrs.evolve(found, state=attrs.evolve(found.state, subjects=subjects))


def delete(context: Context, name: str, deadline: Deadline) -> None:
    """
    Delete a stream with its messages and consumers.
    """
    context.api(f"STREAM.DELETE.{validate_name('stream', name)}", None, deadline, stream=name)


def purge(
    context: Context,
    name: str,
    deadline: Deadline,
    *,
    subject: str | None = None,
    sequence: int | None = None,
    keep: int | None = None,
) -> int:
    """
    Remove messages and return how many were removed.
    """
    request: dict[str, Any] = {} if subject is None else {"filter": validate_filter(subject)}
    if sequence is not None:
        request["seq"] = whole_number("sequence", sequence, 0)
    if keep is not None:
        if sequence is not None:
            raise InvalidArgumentError(
                "sequence and keep exclude each other: give one of them", argument="keep"
            )
        request["keep"] = whole_number("keep", keep, 0)
    endpoint = f"STREAM.PURGE.{validate_name('stream', name)}"
    answer = context.api(endpoint, request or None, deadline, stream=name)
    return read_count(answer.get("purged", 0), "the number of purged messages")


def delete_message(
    context: Context, name: str, sequence: int, deadline: Deadline, *, secure: bool
) -> None:
    """
    Delete one message; with *secure*, overwrite it on disk.
    """
    request = {"seq": whole_number("sequence", sequence), "no_erase": not secure}
    endpoint = f"STREAM.MSG.DELETE.{validate_name('stream', name)}"
    try:
        context.api(endpoint, request, deadline, stream=name)
    except ApiError as error:
        if error.err_code != SEQUENCE_NOT_FOUND and (
            error.err_code != DELETE_FAILED or error.description not in _MISSING
        ):
            raise
        raise MessageNotFoundError(
            code=error.code,
            err_code=error.err_code,
            description=f"message {sequence} not found",
            stream=name,
        ) from None


def names(context: Context, subject: str | None, timeout: Seconds | None) -> Iterator[str]:
    """
    Return an iterator over the names of streams, in pages of 1024.
    """
    return pages(
        context, "STREAM.NAMES", "streams", _by_subject(subject), name_of=str, timeout=timeout
    )


def infos(context: Context, subject: str | None, timeout: Seconds | None) -> Iterator[StreamInfo]:
    """
    Return an iterator over streams, in pages of 256.
    """
    filters = _by_subject(subject)
    found = pages(context, "STREAM.LIST", "streams", filters, name_of=_name_of, timeout=timeout)
    return map(stream_info, found)


def _by_subject(subject: str | None) -> dict[str, Any]:
    return {} if subject is None else {"subject": validate_filter(subject)}


def _name_of(entry: Mapping[str, Any]) -> str:
    return str(entry["config"]["name"])
