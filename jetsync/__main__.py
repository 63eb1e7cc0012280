"""
`python -m jetsync`: the same as the `jetsync` command.
"""

from __future__ import annotations

from jetsync.cli import main

if __name__ == "__main__":
    main()
