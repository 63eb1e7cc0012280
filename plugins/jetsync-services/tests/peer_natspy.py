"""
The side of nats-py: a program that serves `NAME.echo` and `NAME.faulty`, asks services and calls.

    peer_natspy.py serve URL NAME | ask URL VERB NAME | call URL SUBJECT DATA
"""

from __future__ import annotations

import asyncio
import json
import sys

import nats
from nats.micro import add_service
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

KINDS = {"PING": ServicePing, "INFO": ServiceInfo, "STATS": ServiceStats}


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
    await request.respond_error(code="500", description="handler error")


async def serve(client, name):
    """
    Serve until standard input ends.
    """
    service = await add_service(client, name=name, version="1.0.0", metadata={"peer": "nats-py"})
    await service.add_endpoint(name="echo", subject=f"{name}.echo", handler=echo)
    await service.add_endpoint(name="faulty", subject=f"{name}.faulty", handler=faulty)
    await client.flush()
    out({"ready": True, "id": service.id})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await service.stop()


async def ask(client, verb, name):
    """
    Print the documents of a service.
    """
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish(f"$SRV.{verb}.{name}", reply=inbox)
    try:
        while True:
            answer = await answers.next_msg(timeout=2)
            out(KINDS[verb].from_dict(json.loads(answer.data)).to_dict())
    except nats.errors.TimeoutError:
        pass


async def call(client, subject, data):
    """
    Print the answer to a request.
    """
    answer = await client.request(subject, data.encode(), timeout=10)
    out({"data": answer.data.decode(), "headers": answer.headers or {}})


async def main():
    """
    Run the command.
    """
    command, url, *arguments = sys.argv[1:]
    client = await nats.connect(url)
    try:
        await {"serve": serve, "ask": ask, "call": call}[command](client, *arguments)
    finally:
        await client.close()


if __name__ == "__main__":
    asyncio.run(main())
