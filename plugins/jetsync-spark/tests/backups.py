"""
Backups of streams, made and restored with the messages that the ``nats`` command line sends.
"""

from __future__ import annotations

import json

__all__ = ["backup_of", "restore"]

CHUNK = 64 << 10
"""Bytes of a message of a backup."""


def backup_of(client, stream):
    """
    Return a backup of a stream and its consumers: the server's description, and the data.
    """
    inbox = client.new_inbox()
    with client.subscribe(inbox) as chunks:
        client.flush()
        asked = {"deliver_subject": inbox, "chunk_size": CHUNK, "no_consumers": False}
        about = _ask(client, f"$JS.API.STREAM.SNAPSHOT.{stream}", json.dumps(asked).encode())
        data = []
        while True:
            chunk = chunks.next(timeout=10.0)
            assert chunk is not None, "the server stopped sending the backup"
            if not chunk.data:
                return {"config": about["config"], "state": about["state"]}, data
            data.append(chunk.data)
            if chunk.reply:
                client.publish(chunk.reply, b"")


def restore(client, backup, **changed):
    """
    Restore a backup as a stream, which must not exist.

    Args:
        client: A client of the server.
        backup: A result of :func:`backup_of`.
        changed: Fields of the configuration that differ, such as the name.
    """
    about, data = backup
    asked = {**about, "config": {**about["config"], **changed}}
    name = asked["config"]["name"]
    to = _ask(client, f"$JS.API.STREAM.RESTORE.{name}", json.dumps(asked).encode())
    for chunk in data:
        client.request(to["deliver_subject"], chunk, timeout=10.0)
    answer = client.request(to["deliver_subject"], b"", timeout=10.0)
    assert "error" not in json.loads(answer.data), answer.data


def _ask(client, subject, data):
    answer = json.loads(client.request(subject, data, timeout=10.0).data)
    assert "error" not in answer, answer
    return answer
