"""
Tests with a real server, which jetsync's fixtures start.
"""

import pytest
import worker

import jetsync


@pytest.fixture
def dead(js):
    yield js.create_stream("DEAD", subjects=["dead.>"], storage="memory")
    js.delete_stream("DEAD")


@pytest.fixture
def run(js, stream, dead):
    def run(data, attempts=1):
        js.publish(f"{stream.name}.eu", data)
        consumer = stream.create_consumer("shipping", max_deliver=attempts)
        running = consumer.consume(
            worker.handle, ack="auto", dead_letter=worker.DEAD_LETTERS, stop_after=attempts
        )
        assert running.wait(timeout=30)
        return running.statistics().failures

    return run


def reason(letter):
    return letter.headers["Jetsync-Dead-Letter-Reason"]


def test_an_order_is_shipped(run, dead, caplog):
    caplog.set_level("INFO")
    assert run('{"article": "chair"}') == 0
    assert "shipped chair" in caplog.text
    assert dead.info().state.messages == 0


def test_nonsense_becomes_a_dead_letter(run, dead):
    run(b"nonsense")
    letter = dead.get_last(worker.DEAD_LETTERS)
    assert letter.data == b"nonsense"
    assert "it is not JSON" in reason(letter)


# pytest warns of exceptions in handlers. This test expects one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_order_that_fails_too_often_becomes_a_dead_letter(run, js, dead, stream, monkeypatch):
    def ship(order):
        raise OSError("the van is full")

    monkeypatch.setattr(worker, "ship", ship)
    assert run('{"article": "chair"}', attempts=2) == 2
    letter = dead.get_last(worker.DEAD_LETTERS)
    assert reason(letter) == "OSError: the van is full"
    # The van is back, so the order returns.
    assert js.publish_many([jetsync.replay(letter)]).count == 1
    assert stream.get_last(f"{stream.name}.eu").data == letter.data
