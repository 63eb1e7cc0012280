"""
A WSGI application that stores the path of each request.
"""

import os

from clients import NAME, client, store

import jetsync

shared = None
if os.environ.get("CONNECT_AT_IMPORT"):
    # If the server preloads the application, its first process connects.
    client()
if os.environ.get("SHARE"):
    shared = jetsync.connect(os.environ["NATS_URL"], after_fork="reconnect").jetstream()


def application(environ, start_response):
    """
    Store the path, and answer with the process and the sequence.
    """
    path = environ["PATH_INFO"]
    if shared is not None:
        text = f"{os.getpid()} {shared.publish(f'{NAME}.shared', path.encode()).sequence}"
    else:
        text = "no client" if path == "/nothing" else store(path)
    answer = text.encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(answer)))])
    return [answer]
