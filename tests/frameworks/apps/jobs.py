"""
Store messages from child processes, which are made by the start method of the command line.
"""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from clients import NAME, store

import jetsync


def leave(options: jetsync.ConnectOptions, code: int) -> None:
    """
    Connect, store a message and end the process with an exit code.
    """
    client = jetsync.connect(options=options)
    client.jetstream().publish(f"{NAME}.leave", b"%d" % code)
    sys.exit(code)


def idle(code: int) -> None:
    """
    End the process with an exit code.
    """
    sys.exit(code)


def refused(client: jetsync.Client) -> None:
    """
    Use the client of the parent process.
    """
    try:
        client.jetstream().publish(f"{NAME}.refused", b"")
    except jetsync.ForkedProcessError:
        sys.exit(7)


def main(method: str) -> None:
    """
    Use each way to run a function in a child process.
    """
    context = multiprocessing.get_context(method)
    options = jetsync.ConnectOptions(servers=os.environ["NATS_URL"])
    with jetsync.connect(options=options) as client:
        js = client.jetstream()
        js.publish(f"{NAME}.parent", b"first")
        with context.Pool(3) as pool:
            stored = pool.map(store, map(str, range(30)))
            pool.close()
            pool.join()
        with ProcessPoolExecutor(3, mp_context=context) as executor:
            stored += executor.map(store, map(str, range(30)))
        print("stored", len(set(stored)))
        children = [
            context.Process(target=leave, args=(options, 3)),
            context.Process(target=idle, args=(5,)),
        ]
        if method == "fork":
            children.append(context.Process(target=refused, args=(client,)))
        for child in children:
            child.start()
        for child in children:
            child.join()
            print("exit code", child.exitcode)
        js.publish(f"{NAME}.parent", b"last")


if __name__ == "__main__":
    main(sys.argv[1])
