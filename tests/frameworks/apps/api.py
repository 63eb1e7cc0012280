"""
A FastAPI application with a client for its lifetime.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI, Request

import jetsync


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """
    Connect at the start, and close the client at the end.
    """
    connect = jetsync.connect
    client = await anyio.to_thread.run_sync(connect, os.environ["NATS_URL"])
    app.state.js = client.jetstream()
    yield
    await anyio.to_thread.run_sync(client.close)
    print("client closed", client.is_closed)


app = FastAPI(lifespan=lifespan)


def store(request: Request, data: str) -> str:
    """
    Publish a message.
    """
    ack = request.app.state.js.publish(f"{os.environ['STREAM']}.{os.getpid()}", data.encode())
    return f"{os.getpid()} {ack.sequence}"


@app.get("/thread/{data}")
def in_thread(request: Request, data: str) -> str:
    """
    Store a message in a thread of FastAPI's pool.
    """
    return store(request, data)


@app.get("/task/{data}")
async def in_task(request: Request, data: str) -> str:
    """
    Store a message from a coroutine, which waits in a thread.
    """
    return await anyio.to_thread.run_sync(store, request, data)


@app.get("/loop/{data}")
async def in_loop(request: Request, data: str) -> str:
    """
    Store a message in the thread of the server's event loop, which has to wait meanwhile.
    """
    return store(request, data)
