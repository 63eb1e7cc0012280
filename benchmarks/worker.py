"""
The process of one contender: ``python -m benchmarks.worker <peer> <url> <options>``.

It connects, says that it is ready, and then does one job per line of its standard input. Whatever
it answers is one line of JSON; a peer that is not installed answers ``{"missing": ...}`` and ends.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

from benchmarks.jobs import Job


def main(peer_name: str, url: str, options_text: str) -> int:
    """
    Serve the jobs of one contender.
    """
    # The answers have a channel of their own: a peer that prints must not spoil them.
    answers = sys.stdout
    sys.stdout = sys.stderr

    def answer(what: dict[str, object]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    try:
        module = importlib.import_module(f"benchmarks.peers.{peer_name}")
        peer = module.Peer(url, json.loads(options_text))
    except (ImportError, AttributeError) as error:
        answer({"missing": str(error)})
        return 1
    answer({"rows": [name for name in dir(peer) if not name.startswith("_")]})
    for line in sys.stdin:
        job = Job.from_json(line)
        try:
            answer(asdict(getattr(peer, job.row)(job)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on without this peer
            answer({"failed": f"{type(error).__name__}: {error}"})
    peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
