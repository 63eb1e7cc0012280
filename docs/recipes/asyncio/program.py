"""
Publish and consume in a program that runs an event loop.
"""

from __future__ import annotations

import asyncio

import jetsync


async def work(message: jetsync.Message) -> None:
    """
    Process a message without blocking the event loop.
    """
    await asyncio.sleep(0.01)


async def main() -> None:
    """
    Use a thread for each call that waits.
    """
    client = await asyncio.to_thread(jetsync.connect)
    try:
        js = client.jetstream()
        stream = await asyncio.to_thread(
            js.create_or_update_stream, "ORDERS", subjects=["orders.>"]
        )
        orders = (asyncio.to_thread(js.publish, f"orders.{n}", f"order {n}") for n in range(100))
        acks = await asyncio.gather(*orders)
        print(len(acks), "stored")

        worker = await asyncio.to_thread(stream.create_consumer, "worker")
        loop = asyncio.get_running_loop()

        def handle(message: jetsync.Message) -> None:
            asyncio.run_coroutine_threadsafe(work(message), loop).result()

        running = worker.consume(handle, threads=8, ack="auto", stop_after=100)
        await asyncio.to_thread(running.wait)
        print(running.statistics().received, "handled")
    finally:
        await asyncio.to_thread(client.close)


asyncio.run(main())
