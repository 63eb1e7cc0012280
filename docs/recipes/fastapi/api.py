"""
Store the orders that are posted, and show the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request
from pydantic import BaseModel

import jetsync


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """
    Connect when a worker starts, and close the client when it ends.
    """
    client = await asyncio.to_thread(jetsync.connect)
    app.state.js = client.jetstream()
    app.state.orders = await asyncio.to_thread(app.state.js.stream, "ORDERS")
    yield
    await asyncio.to_thread(client.close)


app = FastAPI(lifespan=lifespan)


class Order(BaseModel):
    """
    The body of a request: an order.
    """

    article: str
    count: int = 1


@app.post("/orders/{region}", status_code=201)
def create_order(
    region: str,
    order: Order,
    request: Request,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> dict[str, object]:
    """
    Publish an order. FastAPI calls a plain function in a thread, so it may block.
    """
    try:
        ack = request.app.state.js.publish(
            f"orders.{region}", order.model_dump_json(), msg_id=idempotency_key
        )
    except jetsync.InvalidArgumentError as error:
        raise HTTPException(400, str(error)) from error
    except (ConnectionError, TimeoutError, jetsync.NoStreamResponseError) as error:
        # The order may be stored. With the same key, a second request does not store it again.
        raise HTTPException(503, str(error)) from error
    return {"sequence": ack.sequence, "duplicate": ack.duplicate}


@app.get("/orders/{region}/last")
async def last_order(region: str, request: Request) -> Order:
    """
    Return the last order. The call waits in a thread, so that the event loop can continue.
    """
    stream = request.app.state.orders
    try:
        message = await asyncio.to_thread(stream.get_last, f"orders.{region}")
    except jetsync.MessageNotFoundError as error:
        raise HTTPException(404, "no order yet") from error
    return Order.model_validate_json(message.data)
