"""
A WSGI application that stores the path of each request.
"""

import os

from clients import client, store

if os.environ.get("CONNECT_AT_IMPORT"):
    # If the server preloads the application, its first process connects.
    client()


def application(environ, start_response):
    """
    Store the path, and answer with the process and the sequence.
    """
    path = environ["PATH_INFO"]
    answer = ("no client" if path == "/nothing" else store(path)).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(answer)))])
    return [answer]
