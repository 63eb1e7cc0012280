"""
Ship orders until SIGTERM.
"""

from __future__ import annotations

import json
import logging
import os
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from threading import Thread
from typing import Any

import jetsync

ATTEMPTS = int(os.environ.get("ATTEMPTS", "5"))
DEAD_LETTERS = "dead.orders"
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


def handle(message: jetsync.Message) -> None:
    """
    Handle an order, or give it up if no attempt can succeed.
    """
    try:
        order = message.json()
        order["article"]
    except (ValueError, LookupError, TypeError) as error:
        raise jetsync.DeadLetter(f"not an order: {error!r}") from error
    ship(order)


def keep_dead_letters(orders: jetsync.Stream) -> None:
    """
    Store dead letters of orders that the server has given up, until the client is closed.
    """
    for message in orders.dead_letters("shipping", DEAD_LETTERS):
        log.error("order %s is a dead letter, because no worker acknowledged it", message.sequence)


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
        orders = client.jetstream().stream("ORDERS")
        worker = orders.create_or_update_consumer("shipping", ack_wait=60, max_deliver=ATTEMPTS)
        Thread(target=keep_dead_letters, args=[orders], daemon=True).start()
        running = worker.consume(
            handle, threads=THREADS, ack="auto", keep_alive=True, dead_letter=DEAD_LETTERS
        )
        serve_health(health, client, running)
        log.info("ready")
        running.wait()
        if running.error is not None:
            raise running.error  # For example, the consumer was deleted. The supervisor restarts.


if __name__ == "__main__":
    main()
