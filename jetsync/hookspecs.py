"""
The hooks of jetsync: what plugins may implement.

A plugin is any object or module with functions that are named after a hook and marked with
`jetsync.hookimpl`. An implementation declares the arguments that it needs, by name. `connect`
rejects hooks and arguments that do not exist.

There are three kinds of hooks:

- *transform*: each plugin receives the message from the one before it, and may replace or veto it
- *wrapper*: a generator around an operation, marked `@hookimpl(wrapper=True)`, with one `yield`
- *observe*: receives what happened and cannot change it

Plugins run in pluggy's order. The plugin that was loaded last runs first, `tryfirst=True` and
`trylast=True` move an implementation within that order, and the first wrapper is the outermost.

Hooks run in threads of your code or in the worker thread for events, never on the loop thread.
While they run, no lock is held that other calls of the client need. So a hook may call any blocking
method of the client. Several threads may call a hook at the same time.

At run time this file imports only pluggy, so that a plugin's module loads quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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

hookspec: Final = pluggy.HookspecMarker("jetsync")

hookimpl: Final = pluggy.HookimplMarker("jetsync")
"""Mark a function as the implementation of a hook."""


# --------------------------------------------------------------------------------------------------
# Publishing
# --------------------------------------------------------------------------------------------------


@hookspec
def jetsync_prepare_message(message: OutboundMessage) -> OutboundMessage | None:
    """
    Change, replace or veto a message before it is encoded.

    A plugin may add headers, set a message ID or a time-to-live, or change the subject. The next
    plugin receives the changed message. The hook is called on every publish path: `publish`,
    `publish_many`, a `Publisher`, atomic and fast batches, and writes to a key-value bucket.

    Args:
        message: the message with the changes of the plugins that were called before.

    *Thread*: the publishing thread.

    *When*: once per message, before it is sent, inside the wrappers of `jetsync_publish`. The
    messages of a batch are prepared before the wrappers of its commit. A retry sends the prepared
    message again without calling the hook.

    *Returns*: the message to send instead, or `None` to keep the given one.

    *If it raises*: the message is not sent and the operation fails with `PluginError`, which names
    the plugin. In `publish_many` and in a `Publisher`, only this message fails.

    *Cost*: nothing without a plugin. Otherwise one function call per message and plugin.
    """


@hookspec
def jetsync_shared_headers(
    operation: PublishOperation | BatchCommitOperation,
) -> HeadersInput | None:
    """
    Give the same headers to all messages of an operation.

    An operation is a single publish, a call of `publish_many`, a `Publisher`, or a batch. The
    headers are encoded once, so this is a cheap way to mark many messages, for example with
    the identity of a span. The headers of one plugin belong together: if a message already has one
    of them, it gets none of that plugin's headers. The case of header names is ignored. The headers
    of several plugins are merged. If several plugins set the same name, the values of the plugin
    that runs first apply.

    Args:
        operation: the same object that `jetsync_publish` receives, or a description of the batch
            with a `size` of 0 and the `batch_id` that `jetsync_batch_commit` receives later.

    *Thread*: the publishing thread, or the one that creates the `Publisher`. For a batch, the
    thread that adds its first message.

    *When*: once per operation, after the wrappers of `jetsync_publish` have begun. For a batch,
    when its first message is added, before the wrappers of its commit. It always precedes
    `jetsync_prepare_message` for the first message, which already has these headers.

    *Returns*: headers, or `None` for none. Headers that are only valid for one message are an error
    of the plugin: `Nats-Msg-Id`, `Nats-Expected-...` and `Nats-Batch-...`.

    *If it raises*: the call that publishes, or that creates the `Publisher`, fails with
    `PluginError`, and nothing is sent. In a batch, jetsync calls the hook again for the next
    message.

    *Cost*: nothing without a plugin. Otherwise one function call per operation, and the bytes of
    the headers per message.
    """


@hookspec
def jetsync_publish(operation: PublishOperation) -> Generator[None, Any, Any]:
    """
    Wrap a single publish, a call of `publish_many`, or the life of a `Publisher`.

    A wrapper yields once. The operation runs at the `yield`, which returns its result or raises its
    error. The result is a `PubAck`, the `PublishReport` of `publish_many`, or the
    `PublisherStatistics` of a `Publisher` that has ended. While a bulk publish runs,
    `jetsync_status` gets a `PublishCountsEvent` at most once a second, and a last one before the
    wrappers end.

    Args:
        operation: the subject, the number of messages and the options of the publish.

    *Thread*: the publishing thread. For a `Publisher`, the thread that creates it enters the
    wrapper, and the publisher's own thread leaves it. Thread-local state such as a context variable
    is not shared.

    *When*: around all attempts of a single publish, from before its message is prepared until it is
    acknowledged or has failed. Around a call of `publish_many`, which may have no messages. Around
    a `Publisher`, from its creation until it is closed and all of its messages are acknowledged or
    have failed. `close` waits for the end of the wrapper.

    *Returns*: a result that replaces the operation's result or error, or `None` to keep the
    outcome. For a `Publisher`, a result only reaches the wrappers around this one.

    *If it raises*: an error of the operation that passes through, or an error raised `from` it,
    reaches the caller unchanged. Any other error becomes `PluginError`. An error raised before the
    `yield` fails the call that publishes, or that creates the `Publisher`, and nothing is sent. An
    error raised after the `yield` does not undo the publish. The `PluginError` of `publish_many`
    has a `report`. If some messages have failed, the call ends with a `PublishManyError` instead.
    At the end of a `Publisher` no call can raise the error. It is logged once per plugin and class
    of error, and counted in the publisher's `report_errors`.

    *Cost*: nothing without a plugin. Otherwise one generator per operation, not per message of a
    bulk publish.
    """
    return (yield)


@hookspec
def jetsync_batch_commit(operation: BatchCommitOperation) -> Generator[None, Any, Any]:
    """
    Wrap the commit of an atomic or a fast batch.

    A wrapper yields once. The commit runs at the `yield`, which returns its `BatchAck` or raises
    its error.

    Args:
        operation: the batch and the number of its messages.

    *Thread*: the thread that commits.

    *When*: around the commit, but not around the calls of `add` before it. `publish_batch` is
    wrapped as a whole.

    *Returns*: a `BatchAck` that replaces the result or error, or `None` to keep the outcome.

    *If it raises*: before the `yield`, the batch is not committed and the call fails with
    `PluginError`. After the `yield`, an error of the commit that passes through, or an error raised
    `from` it, reaches the caller unchanged. Any other error becomes `PluginError` and does not undo
    the commit.

    *Cost*: nothing without a plugin. Otherwise one generator per batch.
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
    Wrap a `fetch`, a `next`, one pull of `consume`, or one request of a direct read.

    A wrapper yields once. The operation runs at the `yield`, which returns its result or raises its
    error.

    Args:
        operation: the options of the fetch or read.

    *Thread*: the thread that fetches or reads. For `consume` with a handler, the consumption's own
    thread.

    *When*: around `fetch`, `next`, each pull of `consume`, and each request of a direct read. The
    hook wraps each page of a `scan` separately. A fetch ends when its last message has been taken,
    or when the caller stops taking messages.

    *Returns*: for `get_message`, `get_last`, `get_next` and `get_at`, a `StoredMessage` that
    replaces the operation's result or error, or `None` to keep the outcome. `KeyValue.get`
    uses the replacement too. For other operations, a result has no effect, because the caller
    receives their messages one by one. For a page of a direct read, `yield` returns the number of
    messages.

    *If it raises*: if the wrapper lets the operation's error through, or raises its own error
    `from` it, the caller gets that error unchanged. Any other error becomes `PluginError`.

    *Cost*: nothing without a plugin. Otherwise one generator per request, not per message.
    """
    return (yield)


@hookspec
def jetsync_message_received(
    message: Message | StoredMessage,
) -> Message | StoredMessage | None:
    """
    Inspect, replace or veto a message before it is handed to the caller.

    Args:
        message: a `Message` of a consumer, or a `StoredMessage` of a direct read.

    *Thread*: the thread that takes the message: the iterating thread, or the handler's.

    *When*: once per message that is handed over, on every read path. The hook is not called for
    fetched messages that are never taken.

    *Returns*: a message of the same class to hand over instead, or `None` to keep the given one.

    *If it raises*: the call that takes the message fails with `PluginError`. The message is
    negatively acknowledged. After the first delivery, the server redelivers it immediately. After
    later deliveries, it waits 1, 2, 4, ... seconds, at most 30. A consumer without acknowledgements
    does not redeliver: the message is lost, and iterating over the same batch again yields the
    messages after it. If the message is meant for a handler, no call can raise the error. It is
    then logged once per plugin and class of error, and `jetsync_status` gets a `HandlerErrorEvent`
    each time.

    With `ack_policy="all"`, acknowledging a message acknowledges all messages before it. A
    consumption therefore ends with the `PluginError` as its `error`, also with a handler. The next
    delivery may be a later message, and acknowledging it acknowledges the vetoed message too. A
    program that continues after the error may therefore skip the vetoed message. For the same
    reason a hook cannot `ack` or `term` a message of such a consumer: the call raises
    `ConflictingUseError`.

    *Cost*: nothing without a plugin. Otherwise one function call per message and plugin. Headers
    and metadata are parsed on first use, so a plugin that reads them pays for the parsing.
    """


@hookspec
def jetsync_ttl_marker(message: Message | StoredMessage, reason: MarkerReason) -> None:
    """
    Observe a limit marker, which the server stores when a subject's last message expires (ADR-43).

    Args:
        message: the marker, on the subject of the expired message.

        reason: why the server stored it.

    *Thread*: the thread that takes the message.

    *When*: once per marker that is read, on every read path, before the marker itself is handed
    over.

    *Returns*: nothing. A return value is ignored.

    *If it raises*: the error is logged once per plugin and class of error, and the marker is handed
    over.

    *Cost*: nothing without a plugin. Otherwise a look at the headers of each message that has any.
    """


# --------------------------------------------------------------------------------------------------
# Events
# --------------------------------------------------------------------------------------------------


@hookspec
def jetsync_status(event: StatusEvent) -> None:
    """
    Observe a pull status, a missed heartbeat, a connection event or a warning.

    Args:
        event: an object of one of the classes in `jetsync.events`.

    *Thread*: events of a pull, a handler, a retry or a bulk publish arrive in the thread that runs
    it. For a `Publisher`, this is its own thread. Connection events and most others arrive in one
    worker thread named `jetsync-events`, one at a time and in order.

    *When*: after the event. In the worker thread, the hook delays only later events. In another
    thread, the call continues when the hook has returned.

    *Returns*: nothing. A return value is ignored.

    *If it raises*: the error is logged once per plugin and class of error. The other plugins still
    receive the event and the traffic continues.

    *Cost*: nothing without a plugin. Otherwise one object and one function call per event, and one
    thread per client. There are no events per message.
    """


# --------------------------------------------------------------------------------------------------
# Retries
# --------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def jetsync_retry(operation: Operation, error: Exception, attempt: int) -> float | None:
    """
    Decide whether and when a failed operation is retried.

    If a plugin implements this hook, it replaces the built-in rule (`retries` and `retry_wait` of
    the publishing methods). The hook is called only if a retry is safe: after errors that mean that
    nothing is stored. After an unknown outcome, it is called only if every message has an ID or
    expects the stream's last sequence. It is not called for adding to a batch, for fast ingest, or
    for reads. If the ack of a single publish is late, it is called with the error of an unknown
    outcome. The message is then sent again, and the first ack counts.

    Args:
        operation: the failed operation.

        error: why this attempt failed.

        attempt: how many attempts have been made so far, counted from 1.

    *Thread*: the calling thread. For messages of a `Publisher`, the publisher's own thread.

    *When*: after each failed or late attempt that may be repeated safely, before the error is
    raised.

    *Returns*: the number of seconds to wait before the next attempt, or `None` to leave the
    decision to the next plugin. The first answer counts. If no plugin answers, the error is raised.
    Without a connection, an attempt waits for one, at most for the rest of `timeout`. In a bulk
    publish, each attempt waits at most for the whole `timeout`.

    *If it raises*: the operation fails with `PluginError`. If the outcome of an attempt is unknown,
    the call raises the error for the unknown outcome, with the `PluginError` as its `__cause__`.

    *Cost*: nothing while operations succeed.
    """
