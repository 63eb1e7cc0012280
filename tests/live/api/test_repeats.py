"""
Requests to the JetStream API whose answer is late or lost: reads are sent again, changes never.
"""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync._api import account, replica_or_leader
from jetsync.values.headers import Headers

STREAM = {
    "config": {"name": "S", "subjects": ["s"], "retention": "limits", "storage": "file"},
    "state": {"messages": 1, "last_seq": 1},
}
CONSUMER = {"stream_name": "S", "name": "C", "config": {"ack_policy": "explicit"}}
MESSAGE = {"message": {"subject": "s", "seq": 1, "time": "2026-01-01T00:00:00Z"}}
ANSWERS = {
    "INFO": {"memory": 0},
    "STREAM.INFO": STREAM,
    "STREAM.CREATE": STREAM,
    "STREAM.UPDATE": STREAM,
    "STREAM.LIST": {"total": 1, "streams": [STREAM]},
    "STREAM.NAMES": {"total": 1, "streams": ["S"]},
    "STREAM.PURGE": {"success": True, "purged": 1},
    "STREAM.DELETE": {"success": True},
    "STREAM.MSG.GET": MESSAGE,
    "STREAM.MSG.DELETE": {"success": True},
    "CONSUMER.INFO": CONSUMER,
    "CONSUMER.CREATE": CONSUMER,
    "CONSUMER.LIST": {"total": 1, "consumers": [CONSUMER]},
    "CONSUMER.NAMES": {"total": 1, "consumers": ["C"]},
    "CONSUMER.DELETE": {"success": True},
}
READS = {
    "INFO": lambda js: js.account_info(),
    "STREAM.INFO": lambda js: js.stream("S"),
    "STREAM.LIST": lambda js: list(js.streams()),
    "STREAM.NAMES": lambda js: list(js.stream_names()),
    "STREAM.MSG.GET": lambda js: js.stream("S").get_message(1, direct=False),
    "CONSUMER.INFO": lambda js: js.stream("S").consumer("C"),
    "CONSUMER.LIST": lambda js: list(js.stream("S").consumers()),
    "CONSUMER.NAMES": lambda js: list(js.stream("S").consumer_names()),
    "DIRECT.GET": lambda js: js.stream("S").get_last("s", direct=True),
}
"""Calls that only read, by the request that is not answered at first."""
CHANGES = {
    "STREAM.CREATE": lambda js: js.create_stream("S", subjects=["s"], timeout=0.5),
    "STREAM.UPDATE": lambda js: js.update_stream("S", subjects=["s"], timeout=0.5),
    "STREAM.PURGE": lambda js: js.stream("S").purge(timeout=0.5),
    "STREAM.DELETE": lambda js: js.delete_stream("S", timeout=0.5),
    "STREAM.MSG.DELETE": lambda js: js.stream("S").delete_message(1, timeout=0.5),
    "CONSUMER.CREATE": lambda js: js.stream("S").create_consumer("C", timeout=0.5),
    "CONSUMER.DELETE": lambda js: js.stream("S").delete_consumer("C", timeout=0.5),
}


class Leaderless:
    """
    A service in the place of JetStream that leaves the first requests of one kind unanswered.
    """

    def __init__(self, client, prefix):
        self.prefix = prefix
        self.silent = ""
        """The start of the endpoint of these requests."""
        self.times = 1
        """How many requests of that kind get no answer."""
        self.replies = Counter()
        """The reply subjects of these requests."""
        self.dropped = lambda: None
        """Called after each request without an answer."""
        self._client = client
        self._subscription = client.subscribe(f"{prefix}.>")
        client.flush()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        for request in self._subscription:
            endpoint = request.subject.removeprefix(f"{self.prefix}.")
            if self.silent and endpoint.startswith(self.silent):
                self.replies[request.reply] += 1
                if self.replies.total() <= self.times:
                    self.dropped()
                    continue
            self.answer(endpoint, request.reply)

    def answer(self, endpoint, reply):
        if endpoint.startswith("DIRECT.GET"):
            headers = Headers()
            for name, value in {
                "Stream": "S",
                "Subject": "s",
                "Sequence": "1",
                "Time-Stamp": "2026-01-01T00:00:00Z",
            }.items():
                headers[f"Nats-{name}"] = value
            self._client.publish(reply, b"data", headers=headers)
            return
        start = max(filter(endpoint.startswith, ANSWERS), key=len)
        self._client.publish(reply, json.dumps(ANSWERS[start]).encode())

    def close(self):
        self._subscription.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def server(nats_server, unique):
    """
    The service.
    """
    with jetsync.connect(nats_server.url) as other:
        service = Leaderless(other, f"{unique}.API")
        yield service
        service.close()


@pytest.fixture
def js(client, server):
    """
    The context whose requests go to the service.
    """
    return client.jetstream(prefix=server.prefix, timeout=20)


@pytest.fixture
def impatient(monkeypatch):
    """
    Take an answer for late after a moment.
    """
    monkeypatch.setattr(account, "LATE", 0.05)
    monkeypatch.setattr(replica_or_leader, "LATE", 0.05)
    # Otherwise, slow requests are sent again after half of their time.
    monkeypatch.setattr(account, "SLOW_ENDPOINTS", ("none",))


@pytest.mark.usefixtures("impatient")
class TestLateAnswers:
    @pytest.mark.parametrize("silent", READS)
    def test_a_read_is_sent_again(self, js, server, silent):
        """
        A read succeeds if its second request is answered, on the reply subject of the first.
        """
        server.silent = silent
        READS[silent](js)
        assert len(server.replies) == 1
        assert server.replies.total() >= 2

    @pytest.mark.parametrize("silent", CHANGES)
    def test_a_change_is_sent_once(self, js, server, silent):
        """
        A request that may change something is never repeated, because it may have been processed.
        """
        server.silent = silent
        with pytest.raises(jetsync.RequestTimeoutError):
            CHANGES[silent](js)
        assert server.replies.total() == 1

    def test_each_read_of_the_api_is_tested(self):
        """
        The table of reads and the tests know the same requests.
        """
        known = {start.rstrip(".") for start in account.READS}
        assert known == READS.keys() - {"DIRECT.GET"}
        assert not any(change.startswith(account.READS) for change in CHANGES)

    def test_late_duplicates(self, js, server, client, caplog):
        """
        The first answer counts, also that to the first request. Later ones are dropped silently.
        """
        server.silent, server.times = "INFO", 3
        waiting = []

        def collect():
            waiting.append(None)
            if len(waiting) == 3:
                (reply,) = server.replies
                for _ in range(3):
                    server.answer("INFO", reply)

        server.dropped = collect
        js.account_info()
        eventually(lambda: server.replies.total() >= 3)
        client.flush()
        js.account_info()
        assert client.statistics().requests_in_flight == 0
        assert not [record for record in caplog.records if record.levelname != "DEBUG"]

    def test_no_answer_at_all(self, js, server):
        """
        The call ends at its deadline, and its error names the whole time.
        """
        server.silent, server.times = "INFO", 1000
        with pytest.raises(jetsync.RequestTimeoutError, match=r"within 0\.5 s"):
            js.account_info(timeout=0.5)
        assert len(server.replies) == 1
        assert 2 <= server.replies.total() <= 10


def test_a_call_with_a_short_timeout_is_sent_once(js, server):
    """
    A call of at most a second asks once.
    """
    server.silent = "STREAM.INFO"
    with pytest.raises(jetsync.RequestTimeoutError):
        js.stream("S", timeout=0.5)
    assert server.replies.total() == 1


def test_a_slow_read_is_sent_again_after_half_of_its_time(js, server):
    """
    A list that takes the server long is asked for twice at most.
    """
    server.silent = "STREAM.LIST"
    list(js.streams(timeout=3))
    assert server.replies.total() == 2


class TestLostConnections:
    @pytest.fixture
    def lossy(self, proxied, unique):
        """
        A stream with a message, and a proxy that cuts connections.
        """
        js, proxy = proxied()
        stream = js.create_stream(unique, subjects=[unique], storage="memory", allow_direct=True)
        js.publish(unique, b"x")
        yield stream, proxy
        js.delete_stream(unique)

    @pytest.mark.parametrize(
        "read",
        [
            lambda stream: stream.get_last(stream.name),
            lambda stream: stream.get_last(stream.name, direct=False),
            lambda stream: stream.get_message(1, direct=True),
            lambda stream: stream.info(),
            lambda stream: list(stream.consumer_names()),
        ],
        ids=["get_last", "leader", "direct", "info", "names"],
    )
    def test_a_read_is_sent_again(self, lossy, read):
        """
        A read whose connection is lost before its answer is sent again on the next one.
        """
        stream, proxy = lossy
        for _ in range(2):
            proxy.cut_after(to_client=0, reset=True)
            read(stream)

    def test_a_change_is_not(self, lossy):
        """
        A change whose connection is lost raises ConnectionLostError at once.
        """
        stream, proxy = lossy
        proxy.cut_after(to_client=0, reset=True)
        with pytest.raises(jetsync.ConnectionLostError) as caught:
            stream.purge()
        assert caught.value.sent

    def test_the_next_connection_does_not_come(self, lossy):
        """
        Without another connection, the read ends at its deadline.
        """
        stream, proxy = lossy
        proxy.cut_after(to_client=0, reset=True)
        proxy.refuse()
        with pytest.raises(jetsync.DisconnectedError):
            stream.info(timeout=0.3)
        proxy.accept()
