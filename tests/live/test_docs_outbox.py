"""
The functions of the page about two systems at once, in a process that is killed at each step.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import jetsync
from helpers.streams import payloads
from jetsync.devserver import DevServer

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "two-systems.md"

SALES = [f"sale-{number}" for number in range(2)]

KILLED = 9

DRIVER = f"""
import os, sys
url, last = sys.argv[1], int(sys.argv[2])
steps = 0

def step():
    global steps
    steps += 1
    if steps == last:
        os._exit({KILLED})

def killing(kind, name):
    call = getattr(kind, name)
    def killed(*args, **kwargs):
        step()
        result = call(*args, **kwargs)
        step()
        return result
    setattr(kind, name, killed)

for kind, name in (
    (jetsync.JetStream, "publish_batch"),
    (jetsync.JetStream, "publish"),
    (jetsync.Stream, "get_last"),
    (jetsync.Stream, "ordered_consumer"),
    (jetsync.OrderedConsumer, "fetch"),
):
    killing(kind, name)

with jetsync.connect(url) as client:
    js = client.jetstream()
    for sale in {SALES!r}:
        sell(js, "sofa", sale)
        relay(js, expires=0.2)
"""
"""What runs after the functions. It dies before or after one of their requests."""


def functions():
    """
    Return the functions of the page as source.
    """
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    found = [
        re.match(r"def .*?(?=^\S(?!ef ))", block, re.MULTILINE | re.DOTALL) for block in blocks
    ]
    return "import jetsync\n\n\n" + "\n".join(each[0] for each in found if each)


def run(url, last):
    """
    Run the sales and the relay, up to a step; return whether the process reached the end.
    """
    done = subprocess.run(
        [sys.executable, "-c", functions() + DRIVER, url, str(last)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in {0, KILLED}, done.stderr
    return done.returncode == 0


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_it_is_killed_at_each_step():
    """
    Wherever the process is killed, the next run makes up for it: each sale lowers the stock once,
    and is announced once, in order.
    """
    page = {}
    exec(functions(), page)
    with DevServer() as server, jetsync.connect(server.url) as client:
        js = client.jetstream()
        step, is_over = 0, False
        while not is_over:
            step += 1
            js.create_stream("SHOP", subjects=["shop.>"], allow_atomic=True, storage="memory")
            js.create_stream("RECEIPTS", subjects=["receipts.>"], storage="memory")
            js.publish("shop.stock.sofa", "10")
            is_over = run(server.url, step)
            for sale in SALES:
                page["sell"](js, "sofa", sale)
                page["relay"](js, expires=0.2)
            left = int(js.stream("SHOP").get_last("shop.stock.sofa").data)
            assert left == 10 - len(SALES), f"killed at step {step}"
            sold = [data.decode() for data in payloads(js.stream("RECEIPTS"))]
            assert sold == SALES, f"killed at step {step}"
            js.delete_stream("SHOP")
            js.delete_stream("RECEIPTS")
        assert step > 20
