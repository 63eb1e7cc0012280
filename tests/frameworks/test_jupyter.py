from __future__ import annotations

CELLS = [
    """
import os

import jetsync

client = jetsync.connect(os.environ["NATS_URL"])
js = client.jetstream()
stream = js.stream(os.environ["STREAM"])
client
""",
    """
report = js.publish_many((f"{stream.name}.a", b"%d" % number) for number in range(100))
report.count
""",
    """
worker = stream.create_consumer("worker")
seen = []
with worker.consume(lambda message: seen.append(int(message.data)), stop_after=50) as running:
    running.wait(timeout=20)
sorted(seen) == list(range(50))
""",
    """
[int(message.data) for message in worker.fetch(50, expires=10)] == list(range(50, 100))
""",
    """
# The limit of this notebook interrupts the kernel, as the stop button does.
try:
    worker.next(expires=300)
except KeyboardInterrupt:
    outcome = "interrupted"
outcome
""",
    """
js.publish(f"{stream.name}.a", b"after").sequence
""",
    """
stream.info()
""",
]
RESULTS = ["<Client", "100", "True", "True", "'interrupted'", "101", "StreamInfo("]


def test_a_kernel_runs_a_notebook_and_survives_an_interrupt(
    tmp_path, monkeypatch, nats_server, stream
):
    """
    A kernel, whose main thread runs an event loop, executes a notebook and survives an interrupt.
    """
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("NATS_URL", nats_server.url.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("STREAM", stream.name)
    cells = [nbformat.v4.new_code_cell(text.strip()) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(notebook, timeout=10, interrupt_on_timeout=True, kernel_name="python3")
    client.execute(cwd=str(tmp_path))

    results = [cell.outputs[-1].data["text/plain"] for cell in notebook.cells]
    assert [result[: len(text)] for result, text in zip(results, RESULTS, strict=True)] == RESULTS
    assert notebook.cells[-1].outputs[-1].data["text/html"].startswith("<table>")
    assert stream.info().state.messages == 101
