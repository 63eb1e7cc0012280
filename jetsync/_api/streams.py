"""
The requests about streams that :class:`JetStream` and :class:`Stream` share.

Every function takes a deadline, because it is one part of a public call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync import errors
from jetsync._base.integers import read_count
from jetsync.values.codec import from_wire, to_wire
from jetsync.values.stream_info import StreamInfo
from jetsync.values.subjects import validate_filter, validate_name
from jetsync.values.support import STREAM_NEEDS, check_reply, explain_refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.values.stream_config import StreamConfig

# Fields of an answer that do not describe the stream.
_ENVELOPE: Final = ("total", "offset", "limit", "did_create")


def stream_info(answer: Mapping[str, Any]) -> StreamInfo:
    """
    Return the description of a stream in an answer.
    """
    given: Any = answer
    if isinstance(given, dict):
        given = {key: value for key, value in given.items() if key not in _ENVELOPE}
    return from_wire(StreamInfo, given)


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

    Without *keep_partial*, delete the new stream again if the server ignored a field.
    """
    name = validate_config(config)
    asked = to_wire(config)
    server = context.server.version
    try:
        answer = context.api(f"STREAM.{action}.{name}", asked, deadline, stream=name)
    except errors.InvalidJsonError as error:
        reason = explain_refusal(error, asked, STREAM_NEEDS, server)
        if reason is None:
            raise
        raise reason from error
    done = "created" if action == "CREATE" else "updated"
    made = stream_info(answer)
    returned, done = answer.get("config") or {}, f"stream {name!r} was {done}"
    try:
        check_reply(STREAM_NEEDS, asked, returned, server=server, done=done)
    except errors.NotSupportedError as error:
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


def validate_config(config: StreamConfig) -> str:
    """
    Check the names and subjects of a configuration, and return the name of the stream.

    Raises:
        InvalidArgumentError: There is no name, or the name or a subject is not valid.
    """
    if config.name is None:
        raise errors.InvalidArgumentError("a stream needs a name", argument="name")
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
    page_deadlines: bool = False,
) -> StreamInfo:
    """
    Request the description of a stream.

    With *subjects_filter*, this also requests the stream's subjects, page by page. With
    *page_deadlines*, each page after the first gets the default timeout of the context. The reason
    is that the server lists and sorts all subjects for each page, which takes 1 to 2 s for
    1 million subjects.
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
        if page_deadlines:
            deadline = context.deadline(None)
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
