"""
Tests with a real server, which jetsync's fixtures start.
"""

from functools import partial

import pytest
import worker


@pytest.fixture
def dead(js):
    yield js.create_stream("DEAD", subjects=["dead.>"], storage="memory")
    js.delete_stream("DEAD")


@pytest.fixture
def run(js, stream):
    def run(data, deliveries=1):
        js.publish(f"{stream.name}.eu", data)
        consumer = stream.create_consumer("shipping")
        handler = partial(worker.handle, js)
        running = consumer.consume(handler, ack="auto", stop_after=deliveries)
        assert running.wait(timeout=30)
        return running.statistics().failures

    return run


def test_an_order_is_shipped(run, dead, caplog):
    caplog.set_level("INFO")
    assert run('{"article": "chair"}') == 0
    assert "shipped chair" in caplog.text
    assert dead.info().state.messages == 0


def test_nonsense_becomes_a_dead_letter(run, dead, stream):
    assert run(b"nonsense") == 0
    letter = dead.get_last(f"dead.{stream.name}.eu")
    assert letter.data == b"nonsense"
    assert "it is not JSON" in letter.headers["Dead-Reason"]


# pytest warns of exceptions in handlers. This test expects one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_order_that_fails_too_often_becomes_a_dead_letter(run, dead, stream, monkeypatch):
    def ship(order):
        raise OSError("the van is full")

    monkeypatch.setattr(worker, "ship", ship)
    monkeypatch.setattr(worker, "ATTEMPTS", 1)
    assert run('{"article": "chair"}', deliveries=2) == 1
    assert dead.get_last(f"dead.{stream.name}.eu").headers["Dead-Reason"] == "failed 1 times"
