"""
The command: ``python -m benchmarks [COMMAND] [options]``; ``--help`` shows the options of each.
"""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "compare": "benchmarks.compare",
    "growth": "benchmarks.growth",
    "latency": "benchmarks.latency",
    "page": "benchmarks.page",
    "threads": "benchmarks.threads",
}
"""The module of each command; its ``main`` takes the other arguments. The first is the default."""


def main() -> int:
    """
    Run the command that the first argument names.
    """
    given = sys.argv[1:]
    name = given.pop(0) if given and given[0] in COMMANDS else next(iter(COMMANDS))
    status: int = importlib.import_module(COMMANDS[name]).main(given)
    return status


if __name__ == "__main__":
    sys.exit(main())
