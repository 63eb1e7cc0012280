"""
Mistakes that type checkers have to report. Checked by mypy and pyright, never run.

Both report an ignore comment that ignores nothing, so each line fails once it is accepted.
"""

from __future__ import annotations

import jetsync


def misspelled_keywords(js: jetsync.JetStream, stream: jetsync.Stream) -> None:
    """
    Keywords that do not exist, and arguments by position that are keywords.
    """
    js.create_stream("S", nmae="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    js.update_stream("S", max_mgs=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    stream.update(subject=["a"])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    js.create_consumer("S", "w", ackwait=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    stream.create_consumer("w", ack_wiat=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    stream.consumer("w").fetch(5, timeout=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    stream.consumer("w").consume(max_bytes="9")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.consumer("w").consume(on_error="retry")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.consumer("w").consume().wait(2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.consumer("w").fetch(5, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    js.publish("a", b"", {"name": "value"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    js.key_value("B").put("key", b"", 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    js.create_key_value("B", histroy=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    jetsync.connect(conect_timeout=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    jetsync.ConnectOptions().evolve(nmae="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def wrong_words_and_types(js: jetsync.JetStream, stream: jetsync.Stream) -> None:
    """
    Values that an enumeration or a field does not have.
    """
    jetsync.ConsumerConfig(deliver_policy="nwe")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    jetsync.StreamConfig(name="S", storage="disk")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    jetsync.KeyValueConfig(bucket="B", storage="disk")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    js.create_stream("S", retention="limit")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    js.create_stream("S", subjects="a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.create_consumer("w", ack_policy="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.ordered_consumer(deliver_policy="nwe")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    jetsync.connect(connect_timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    jetsync.connect(loop="trio")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def received_values(message: jetsync.Message, stored: jetsync.StoredMessage) -> None:
    """
    Messages that were received cannot be changed.
    """
    message.data = b"x"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    message.raw_headers = None  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    message.headers = jetsync.Headers()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    stored.data = b"x"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
