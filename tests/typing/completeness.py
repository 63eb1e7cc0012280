"""
Fail if pyright knows the types of too few public symbols: `python completeness.py 95`.

`pyright --verifytypes` alone fails unless it knows all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile


def main(least: float) -> int:
    """
    Print the score and the symbols without a known type; return the exit code.
    """
    command = ["pyright", "--outputjson", "--ignoreexternal", "--verifytypes", "jetsync"]
    # Elsewhere, so that pyright finds the installed package and not this checkout.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    found = json.loads(done.stdout)["typeCompleteness"]
    score = 100 * found["completenessScore"]
    print(f"types of {score:.1f} % of the public symbols are known, {least:g} % are needed")
    if score >= least:
        return 0
    for symbol in found["symbols"]:
        for problem in symbol["diagnostics"]:
            print(f"{symbol['name']}: {problem['message']}")
    return 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
