"""
Store dead letters, and check where they go.

A dead letter is stored before its message is terminated. If the process dies in between, the
message comes up again, and the id of the dead letter prevents a second one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetsync import errors, events
from jetsync._base.log import get_logger
from jetsync._proto.pull_request import ConsumeOptions
from jetsync.publish.one import publish_one
from jetsync.values.consumer_config import AckPolicy
from jetsync.values.subjects import overlap

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline
    from jetsync._proto.push import PushOptions
    from jetsync.values.consumer_config import ConsumerConfig
    from jetsync.values.outbound import OutboundMessage
    from jetsync.values.pub_acks import PubAck

_logger = get_logger("jetsync.dead_letters")


def check_target(
    context: Context,
    stream: str,
    config: ConsumerConfig,
    subject: str,
    deadline: Deadline,
    *,
    argument: str = "dead_letter",
) -> KnownStream | None:
    """
    Check that a stream can store dead letters, and that the consumer does not get them again.

    Returns the stream, or None if the user may not look it up. Errors call the subject *argument*.

    Raises:
        NoStreamResponseError: No stream stores the subject.
        InvalidArgumentError: Dead letters would be delivered to the consumer, or the stream does
            not confirm that it has stored a message.
    """
    try:
        known = context.streams.find(subject, deadline, fresh=True)
    except errors.PermissionDeniedError:
        return None
    except errors.NoStreamResponseError:
        raise errors.NoStreamResponseError(subject, argument=argument) from None
    filters = config.filter_subjects or [config.filter_subject or ">"]
    if known.name == stream and any(overlap(subject, each) for each in filters):
        raise errors.InvalidArgumentError(
            f"the consumer would get its own dead letters: stream {stream!r} stores {subject!r}. "
            "Give a subject of another stream, or one that the consumer's filters exclude",
            argument=argument,
        )
    if known.config.no_ack or known.config.sealed:
        what = "sends no acks (no_ack)" if known.config.no_ack else "is sealed"
        raise errors.InvalidArgumentError(
            f"stream {known.name!r} cannot keep dead letters, because it {what}",
            argument=argument,
        )
    return known


def is_limited(config: ConsumerConfig) -> bool:
    """Return whether the server gives up a message after a number of deliveries."""
    return (config.max_deliver or 0) > 0 and config.ack_policy is not AckPolicy.NONE


def warn_if_unlimited(consumer: str, stream: str, config: ConsumerConfig) -> None:
    """Log a warning if no number of failures makes a message a dead letter."""
    if not is_limited(config):
        _logger.warning("dead_letter_without_max_deliver", consumer=consumer, stream=stream)


def warn_if_buffered(
    stream: str,
    consumer: str,
    config: ConsumerConfig,
    wanted: ConsumeOptions | PushOptions,
) -> bool:
    """
    Log a warning if messages use up their deliveries in the buffer; return whether it did.

    The deliveries of the consumer are limited.
    """
    if not isinstance(wanted, ConsumeOptions):
        cure = "lower max_ack_pending"
    elif not wanted.threads:
        cure = "give a handler"
    elif wanted.max_bytes is not None or wanted.max_messages > wanted.threads:
        cure = "leave max_messages and max_bytes out"
    else:
        return False
    _logger.warning(
        "deliveries_used_in_buffer",
        stream=stream,
        consumer=consumer,
        max_deliver=config.max_deliver,
        reason="each delivery counts, also that of a message that waits in the buffer of a worker "
        f"when it stops or dies; {cure}",
    )
    return True


def store(context: Context, letter: OutboundMessage, about: dict[str, Any]) -> PubAck | None:
    """
    Store a dead letter, and report it. Returns None if it is not stored, or not known to be.

    Plugins see it as a publish, but do not prepare it: it is a copy of what the stream has.

    Args:
        context: The context of the request.
        letter: The dead letter.
        about: Fields of the event, without the subject of the dead letter and the error.
    """
    fields = {**about, "dead_letter": letter.subject}
    ack = failure = None
    try:
        ack = publish_one(context, letter, context.deadline(None), prepare=False)
    except errors.JetSyncError as error:
        failure = error
    shown = {name: value for name, value in fields.items() if name != "reason"}
    if ack is None:
        _logger.error("dead_letter_failed", **shown, exc_info=failure)
    else:
        _logger.warning("dead_letter_stored", **shown, duplicate=ack.duplicate)
    if context.plugins.status is not None:
        context.plugins.status(events.DeadLetterEvent(**fields, error=failure))
    return ack
