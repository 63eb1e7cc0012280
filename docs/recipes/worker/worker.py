"""
Ship orders until SIGTERM.
"""

from __future__ import annotations

import json
import logging
import os
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from threading import Thread
from typing import Any

import jetsync

ATTEMPTS = int(os.environ.get("ATTEMPTS", "5"))
HEALTH_HOST = os.environ.get("HEALTH_HOST", "127.0.0.1")
HEALTH_PORT = int(os.environ.get("HEALTH_PORT", "8080"))
THREADS = int(os.environ.get("THREADS", "4"))
STOP_TIMEOUT = float(os.environ.get("STOP_TIMEOUT", "8"))

log = logging.getLogger("shipping")


def ship(order: dict[str, Any]) -> None:
    """
    Do the work. Any exception means that it may succeed later.
    """
    log.info("shipped %s", order["article"])


def handle(js: jetsync.JetStream, message: jetsync.Message) -> None:
    """
    Handle an order, or move it to the dead letters.
    """
    if message.metadata.delivered > ATTEMPTS:
        move(js, message, f"failed {ATTEMPTS} times")
        return
    try:
        order = message.json()
        order["article"]
    except (ValueError, LookupError, TypeError) as error:
        move(js, message, f"not an order: {error!r}")
    else:
        ship(order)


def move(js: jetsync.JetStream, message: jetsync.Message, reason: str) -> None:
    """
    Store a message with its reason in the stream DEAD, once, and let the server never redeliver it.
    """
    origin = f"{message.metadata.stream}-{message.sequence}"
    headers = {"Dead-Reason": reason, "Dead-Origin": origin}
    js.publish(f"dead.{message.subject}", message.data, headers=headers, msg_id=origin)
    message.term(reason)
    log.error("moved %s to the dead letters: %s", origin, reason)


def serve_health(server: HTTPServer, client: jetsync.Client, running: jetsync.Consumption) -> None:
    """
    Answer each request: 200 if the worker is connected and handles messages, 503 otherwise.
    """

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            statistics = running.statistics()
            state = {
                "connected": client.is_connected,
                "consuming": not running.closed,
                "received": statistics.received,
                "failures": statistics.failures,
            }
            self.send_response(200 if client.is_connected and not running.closed else 503)
            self.end_headers()
            self.wfile.write(json.dumps(state).encode())

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    server.RequestHandlerClass = Health
    Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    """
    Run until SIGTERM or Ctrl-C.
    """
    logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")
    # If the port is taken, the worker ends here, before it has received an order.
    health = ThreadingHTTPServer((HEALTH_HOST, HEALTH_PORT), BaseHTTPRequestHandler)
    options = jetsync.ConnectOptions.from_env().evolve(
        name="shipping", retry_on_failed_connect=True, connect_timeout=30
    )
    with (
        jetsync.connect(options=options) as client,
        client.stop_on_signal(timeout=STOP_TIMEOUT),
    ):
        js = client.jetstream()
        worker = js.stream("ORDERS").create_or_update_consumer("shipping", ack_wait=60)
        running = worker.consume(partial(handle, js), threads=THREADS, ack="auto", keep_alive=True)
        serve_health(health, client, running)
        log.info("ready")
        running.wait()
        if running.error is not None:
            raise running.error  # For example, the consumer was deleted. The supervisor restarts.


if __name__ == "__main__":
    main()
