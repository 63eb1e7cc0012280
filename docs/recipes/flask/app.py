"""
Store the orders that are posted.
"""

from __future__ import annotations

import functools

from flask import Flask, request

import jetsync

app = Flask(__name__)


@functools.cache
def jetstream() -> jetsync.JetStream:
    """
    Return the JetStream context of this process. The first call connects.
    """
    return jetsync.connect().jetstream()


@app.post("/orders/<region>")
def create_order(region: str) -> tuple[dict[str, object], int]:
    """
    Publish the body of the request, once for each idempotency key.
    """
    key = request.headers.get("Idempotency-Key")
    ack = jetstream().publish(f"orders.{region}", request.get_data(), msg_id=key)
    return {"sequence": ack.sequence, "duplicate": ack.duplicate}, 201


@app.errorhandler(jetsync.InvalidArgumentError)
def refuse(error: Exception) -> tuple[dict[str, object], int]:
    """
    Answer 400. The request is invalid, for example because the region contains a space.
    """
    return {"error": str(error)}, 400


@app.errorhandler(ConnectionError)
@app.errorhandler(TimeoutError)
@app.errorhandler(jetsync.NoStreamResponseError)
def try_later(error: Exception) -> tuple[dict[str, object], int]:
    """
    Answer 503. The order may be stored.

    A second request with the same key does not store it again.
    """
    return {"error": str(error)}, 503
