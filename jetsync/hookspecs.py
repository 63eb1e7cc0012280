"""
The hooks of jetsync: what plugins may implement.

A plugin is any object or module with functions that are named after a hook and marked with
`jetsync.hookimpl`. An implementation declares the arguments it wants, by name; it may leave out
those it does not need. Names that do not exist are refused when the plugin is loaded.

Three kinds of hooks:

- *transform*: each plugin in turn is given what the plugin before it left, and may replace or veto;
- *wrapper*: a generator around an operation, marked `@hookimpl(wrapper=True)`, with one `yield`;
- *observe*: told what happened, can change nothing.

Plugins run in pluggy's order: the plugin that was loaded last runs first, `tryfirst=True` and
`trylast=True` move an implementation within that order, and the first wrapper is the outermost.

All hooks run in threads of the user or in the one named worker thread for events, never on the
thread that moves the bytes and never with a lock held. Any hook may therefore call any blocking
method of the client, and must be ready to be called by several threads at once.

This file imports nothing but pluggy at run time, so that a plugin's module loads quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from collections.abc import Generator

    from jetsync.events import (
        BatchCommitOperation,
        DirectReadOperation,
        FetchOperation,
        Operation,
        PublishOperation,
        StatusEvent,
    )
    from jetsync.values.headers import HeadersInput
    from jetsync.values.message import Message
    from jetsync.values.outbound import OutboundMessage
    from jetsync.values.stored import StoredMessage
    from jetsync.values.ttl import MarkerReason

__all__ = [
    "hookimpl",
    "jetsync_batch_commit",
    "jetsync_fetch",
    "jetsync_message_received",
    "jetsync_prepare_message",
    "jetsync_publish",
    "jetsync_retry",
    "jetsync_shared_headers",
    "jetsync_status",
    "jetsync_ttl_marker",
]

hookspec = pluggy.HookspecMarker("jetsync")

hookimpl = pluggy.HookimplMarker("jetsync")
"""Mark a function as the implementation of a hook."""


# --------------------------------------------------------------------------------------------------
# Publishing
# --------------------------------------------------------------------------------------------------


@hookspec
def jetsync_prepare_message(message: OutboundMessage) -> OutboundMessage | None:
    """
    Change, replace or veto a message before it is encoded.

    A plugin may add headers, set a message id or a time to live, or change the subject; the next
    plugin sees the message as this one left it. Every publish path asks: `publish`, `publish_many`,
    a `Publisher`, atomic and fast batches, and the writes of a key-value bucket.

    Args:
        message: the message as it would be sent now.

    *Thread*: the thread that publishes.

    *When*: once per message, inside the operation's wrapper hooks, before a byte is sent. A retry
    sends the prepared message again and does not ask a second time.

    *Returns*: a message to send instead, or `None` to keep the one given.

    *If it raises*: the message is not sent; the operation fails with `PluginError`, which names the
    plugin. In a bulk publish only this message fails.

    *Cost*: nothing without a plugin; otherwise one function call per message and plugin.
    """


@hookspec
def jetsync_shared_headers(
    operation: PublishOperation | BatchCommitOperation,
) -> HeadersInput | None:
    """
    Give the same headers to all messages of an operation: a publish, a window or a batch.

    They are encoded once, which makes this the cheap way to mark many messages, with the identity
    of a span for example. What one plugin gives belongs together: a message that has one of these
    headers itself, in whatever case, keeps its own and gets none of that plugin's. What several
    plugins give is put together; of a name that several give, the first one's values count.

    Args:
        operation: what the messages belong to: the very object that `jetsync_publish` is given, or
            the description of a batch as it begins, with a `size` of 0 and the `batch_id` that its
            `jetsync_batch_commit` will be given.

    *Thread*: the thread that publishes the operation's first message.

    *When*: once per operation: of a publish or a window after its wrappers were entered, of a batch
    as its first message is added; always before `jetsync_prepare_message` sees the first message,
    which has these headers by then.

    *Returns*: headers, or `None` for none. Those that can be true of one message only are refused
    as an error of the plugin: `Nats-Msg-Id`, `Nats-Expected-...` and `Nats-Batch-...`.

    *If it raises*: the call that publishes fails with `PluginError`, and nothing of the operation
    is sent; `publish_many` ends, with a `PublishManyError` where it has sent something before. The
    next message asks again.

    *Cost*: nothing without a plugin; otherwise one function call per operation, and the bytes of
    the headers per message.
    """


@hookspec
def jetsync_publish(operation: PublishOperation) -> Generator[None, Any, Any]:
    """
    Wrap a single publish, or one window of a bulk publish.

    A wrapper yields once: the operation runs at the `yield`, which gives its result or raises its
    error. The result is a `PubAck`, or the `WindowResult` of a window, also of one that is cut
    short by an iterable that raises for example.

    Args:
        operation: what is asked for.

    *Thread*: the thread that publishes. A window of a `Publisher` is entered by the thread that
    publishes its first message, and left by the publisher's own thread: what belongs to a thread,
    such as a context variable, does not get from one to the other.

    *When*: around all attempts of a single publish, from before its message is prepared until it is
    acknowledged or given up; around each window of `publish_many` and of a `Publisher`, from before
    its first message is prepared until its last one has ended. `flush` and `close` of a `Publisher`
    end a window early.

    *Returns*: a result to hand on instead of the operation's own, or `None` to keep the outcome as
    it is, be it a result or an error.

    *If it raises*: an error of the operation that passes through, or one raised `from` it, reaches
    the caller as it is. Any other error becomes `PluginError`; one raised after the `yield` does
    not undo the publish. `publish_many` ends with it, as a `PublishManyError` where messages have
    failed after others were sent; the `PluginError` has a `report`, too. Where a window of a
    `Publisher` is left there is no call to fail: such an error is logged and counted in the
    publisher's `report_errors`.

    *Cost*: nothing without a plugin; otherwise one generator per publish or window, not per message
    of a window.
    """
    return (yield)


@hookspec
def jetsync_batch_commit(operation: BatchCommitOperation) -> Generator[None, Any, Any]:
    """
    Wrap the commit of an atomic or a fast batch.

    A wrapper yields once: the commit runs at the `yield`, which gives its `BatchAck` or raises its
    error.

    Args:
        operation: which batch, and how many messages it has.

    *Thread*: the thread that commits.

    *When*: around the commit; adding messages to a batch is not part of it. The one call of
    `publish_batch` is a commit as a whole.

    *Returns*: a `BatchAck` to hand on instead, or `None` to keep the outcome as it is, be it a
    result or an error.

    *If it raises*: before the `yield`, the batch is not committed and the call fails with
    `PluginError`. After it, an error of the commit that passes through, or one raised `from` it,
    reaches the caller as it is, any other becomes `PluginError` and does not undo the commit.

    *Cost*: nothing without a plugin; otherwise one generator per batch.
    """
    return (yield)


# --------------------------------------------------------------------------------------------------
# Consuming and reading
# --------------------------------------------------------------------------------------------------


@hookspec
def jetsync_fetch(
    operation: FetchOperation | DirectReadOperation,
) -> Generator[None, Any, Any]:
    """
    Wrap a fetch, a next, one pull of a consume, or one direct read.

    A wrapper yields once: the operation runs at the `yield`, which gives its result or raises its
    error.

    Args:
        operation: what is asked for: a `FetchOperation` or a `DirectReadOperation`.

    *Thread*: the thread that fetches or reads; for `consume` with a handler, the consumption's own
    thread.

    *When*: around `fetch`, `next`, each pull that `consume` issues, and each request of a direct
    read, so that a scan of many pages is wrapped once per page. A fetch is over when its last
    message was taken, or when its caller stopped taking.

    *Returns*: a result to hand on instead of the operation's own, or `None` to keep the outcome as
    it is, be it a result or an error. Where messages were handed over one by one, as in a fetch,
    they can not be taken back and a result changes nothing. The result of a page of many messages
    is how many it brought.

    *If it raises*: an error of the operation that passes through, or one raised `from` it, reaches
    the caller as it is. Any other error becomes `PluginError`.

    *Cost*: nothing without a plugin; otherwise one generator per request, not per message.
    """
    return (yield)


@hookspec
def jetsync_message_received(
    message: Message | StoredMessage,
) -> Message | StoredMessage | None:
    """
    Look at a message, or replace or veto it, before it is handed to the caller.

    Args:
        message: a `Message` of a consumer, or a `StoredMessage` of a direct read.

    *Thread*: the thread that takes the message: the one that iterates, or the handler's.

    *When*: once per message that is handed over, on every read path. A message that is fetched and
    never taken is not shown.

    *Returns*: a message of the same class to hand over instead, or `None` to keep the one given.

    *If it raises*: the call that takes the message fails with `PluginError`. The message is not
    acknowledged but given back: it is delivered again at once, and from its second delivery on
    after a pause that grows up to 30 seconds. A consumer without acknowledgements delivers nothing
    again: the message is lost, and those behind it are what iterating over the same batch once more
    gives.

    With ``ack_policy="all"``, where to acknowledge a message is to acknowledge all before it,
    ``consume`` ends there with that error, with a handler too. What is delivered next may come from
    behind the message, and takes it along when it is acknowledged: a program that goes on after the
    error decides that it may be left out. For the same reason a hook can not ``ack`` or ``term`` a
    message of such a consumer: that raises `ConflictingUseError`.

    *Cost*: nothing without a plugin; otherwise one function call per message and plugin. Headers
    and metadata are parsed on first use: a plugin that looks at them pays for that.
    """


@hookspec
def jetsync_ttl_marker(message: Message | StoredMessage, reason: MarkerReason) -> None:
    """
    Observe a limit marker: a message that a server left in place of an expired one (ADR-43).

    Args:
        message: the marker; its subject is the one that expired.

        reason: why the server left it.

    *Thread*: the thread that takes the message.

    *When*: once per marker that is read, on every read path, before the marker itself is handed
    over.

    *Returns*: nothing; what is returned is ignored.

    *If it raises*: the error is logged once per plugin and kind of error; the marker is handed
    over.

    *Cost*: nothing without a plugin; otherwise a look at the headers of each message that has any.
    """


# --------------------------------------------------------------------------------------------------
# What happens meanwhile
# --------------------------------------------------------------------------------------------------


@hookspec
def jetsync_status(event: StatusEvent) -> None:
    """
    Observe a pull status, a missed heartbeat, an event of the connection or a warning.

    Args:
        event: one typed event; see `jetsync.events` for the classes.

    *Thread*: events of a call come in the thread that makes the call. Events of the connection come
    in one worker thread named `jetsync-events`, one at a time and in order.

    *When*: after it happened. The call goes on, or the connection is repaired, without waiting.

    *Returns*: nothing; what is returned is ignored.

    *If it raises*: the error is logged once per plugin and kind of error; the other plugins are
    told all the same and the traffic goes on.

    *Cost*: nothing without a plugin; otherwise one object and one function call per event, and one
    thread per client. No event is made per message.
    """


# --------------------------------------------------------------------------------------------------
# Trying again
# --------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def jetsync_retry(operation: Operation, error: Exception, attempt: int) -> float | None:
    """
    Decide whether and when an operation that failed is tried again.

    As soon as one plugin implements this hook, it decides instead of the built-in rule (`retries`
    and `retry_wait` of the publishing methods). The client asks only where another try can do no
    harm: after errors that say that nothing is stored, and after an unknown outcome only where
    every message has an id, or a condition on the stream's last sequence. Nobody is asked about
    adding to a batch, about fast ingest, or about reading.

    Args:
        operation: what failed.

        error: why this attempt failed.

        attempt: how many attempts have been made so far, counted from 1.

    *Thread*: the thread that made the call; for messages of a `Publisher`, the publisher's own.

    *When*: after each attempt that failed, before the error is raised.

    *Returns*: how many seconds to wait before the next attempt, or `None` to leave the decision to
    the next plugin. The first answer counts; if there is none, the error is raised. An attempt that
    finds no connection waits for one, within what is left of `timeout`, or in a window for as long.

    *If it raises*: the operation fails with `PluginError`; where the outcome of an attempt is
    unknown it stays the error, and the `PluginError` is its `__cause__`.

    *Cost*: nothing while operations succeed.
    """
