"""
The requests about streams that :class:`JetStream` and :class:`Stream` share.

Every function takes a deadline, because it is one part of a public call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync import errors
from jetsync._api.lists import Progress
from jetsync._base.integers import read_count
from jetsync.values.codec import from_wire, parse_time, to_wire
from jetsync.values.server_versions import STREAM_NEEDS, check_reply, explain_refusal
from jetsync.values.stream_info import StreamInfo
from jetsync.values.subjects import validate_filter, validate_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.values.stream_config import StreamConfig

REPLACED: Final = "the stream was deleted, and another one has its name"
"""The description of the error of a read that would continue in another stream of that name."""

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
) -> StreamInfo:
    """
    Request the description of a stream, with the subjects that match *subjects_filter*.
    """
    return read_info(
        context,
        name,
        lambda request: request(deadline),
        subjects_filter=subjects_filter,
        deleted_details=deleted_details,
    )


def position(context: Context, name: str, deadline: Deadline) -> tuple[int, dt.datetime | None]:
    """
    Request the last sequence of a stream, and when the stream was created.

    :func:`info` needs six times as many calls, for the some seventy fields of the same answer.
    """
    answer = context.api(
        f"STREAM.INFO.{validate_name('stream', name)}", None, deadline, stream=name
    )
    state, created = answer.get("state"), answer.get("created")
    if not isinstance(state, dict) or not isinstance(created, str):
        raise errors.ProtocolError(f"the description of stream {name!r} has no state or no time")
    return read_count(state.get("last_seq"), "last_seq"), parse_time(created)


def read_info(
    context: Context,
    name: str,
    run: Callable[[Callable[[Deadline], dict[str, Any]]], dict[str, Any]],
    *,
    subjects_filter: str | None = None,
    deleted_details: bool = False,
) -> StreamInfo:
    """
    Request the description of a stream and, page by page, the subjects that match a filter.

    *run* is called with each request and gives it a deadline. A list of 1 million subjects takes 10
    requests, and the server lists and sorts all subjects for each of them, in about 1 s.
    """
    endpoint = f"STREAM.INFO.{validate_name('stream', name)}"
    request: dict[str, Any] = {}
    if deleted_details:
        request["deleted_details"] = True
    if subjects_filter is not None:
        request["subjects_filter"] = validate_filter(subjects_filter)

    def ask(body: dict[str, Any]) -> dict[str, Any]:
        return run(lambda deadline: context.api(endpoint, body or None, deadline, stream=name))

    answer = ask(request)
    found = stream_info(answer)
    if subjects_filter is None:
        return found
    subjects = dict(found.state.subjects)
    offset, size, progress = 0, len(subjects), Progress(endpoint)
    while (offset := offset + size) < read_count(answer.get("total") or 0, "the total of a list"):
        progress.check(size, len(subjects), answer["total"])
        answer = ask({"subjects_filter": subjects_filter, "offset": offset})
        more = stream_info(answer).state.subjects
        subjects.update(more)
        size = len(more)
    return attrs.evolve(found, state=attrs.evolve(found.state, subjects=subjects))


def delete(context: Context, name: str, deadline: Deadline) -> None:
    """
    Delete a stream with its messages and consumers.
    """
    context.api(f"STREAM.DELETE.{validate_name('stream', name)}", None, deadline, stream=name)
