"""
A JetStream domain that a test can make unreachable, as a leaf node does that loses its hub.
"""

from __future__ import annotations

import contextlib
import threading

import jetsync

PREFIX = "$JS.hub.API."


@contextlib.contextmanager
def domain_link(url):
    """
    Let the domain "hub" answer in the block, by passing its requests on to the server at *url*.
    """
    with jetsync.connect(url) as client, client.subscribe(f"{PREFIX}>") as requests:

        def forward():
            for request in requests:
                rest = request.subject.removeprefix(PREFIX)
                target = rest if rest.startswith("$KV.") else f"$JS.API.{rest}"
                client.publish(target, request.data, headers=request.headers, reply=request.reply)

        client.flush()
        thread = threading.Thread(target=forward, daemon=True)
        thread.start()
        yield
        requests.close()
        # The server has noticed the loss of the domain once it has answered.
        client.flush()
        thread.join(5.0)
