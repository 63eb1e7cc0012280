"""
The side of natsio, with the commands of `peer_natspy.py`. It needs Python 3.13.
"""

from __future__ import annotations

import asyncio
import json
import sys

import natsio
from natsio.micro import InfoResponse, PingResponse, StatsResponse, add_service

KINDS = {"PING": PingResponse, "INFO": InfoResponse, "STATS": StatsResponse}


def out(value):
    """
    Print a line of JSON.
    """
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


async def echo(request):
    """
    Answer with the payload.
    """
    await request.respond(request.data)


async def faulty(request):
    """
    Answer with an error.
    """
    await request.respond_error("500", "handler error")


async def serve(client, name):
    """
    Serve until standard input ends.
    """
    service = add_service(client, name=name, version="1.0.0", metadata={"peer": "natsio"})
    service.add_endpoint("echo", echo, subject=f"{name}.echo")
    service.add_endpoint("faulty", faulty, subject=f"{name}.faulty")
    await client.flush()
    out({"ready": True, "id": service.id})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await service.stop()


async def ask(client, verb, name):
    """
    Print the documents of a service.
    """
    async for answer in client.request_many(f"$SRV.{verb}.{name}", timeout=10, stall=1):
        document = KINDS[verb].from_wire(json.loads(answer.payload))
        out(document.to_wire())


async def call(client, subject, data):
    """
    Print the answer to a request.
    """
    answer = await client.request(subject, data, timeout=10)
    out({"data": answer.payload.decode(), "headers": dict(answer.headers or {})})


async def main():
    """
    Run the command.
    """
    command, url, *arguments = sys.argv[1:]
    async with await natsio.connect(url) as client:
        await {"serve": serve, "ask": ask, "call": call}[command](client, *arguments)


if __name__ == "__main__":
    asyncio.run(main())
