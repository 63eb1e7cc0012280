import os
import threading

import pytest

import jetsync
from jetsync_spark import JetStreamSink
from jetsync_spark.common import clients
from jetsync_spark.common.clients import client_for, forget, lend
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.options import ConnectSettings


@pytest.fixture
def settings(nats_server):
    """
    Settings whose client is dropped afterwards.
    """
    made = ConnectSettings(servers=nats_server.url)
    yield made
    forget(made)


class Plugin:
    """
    An object that only equals itself.
    """


class TestSharing:
    def test_equal_settings_share_a_client(self, settings, nats_server):
        """
        Tasks that run one after the other in a worker share a connection; other settings have their
        own.
        """
        other = ConnectSettings(servers=nats_server.url, request_timeout=7.0)
        try:
            again = ConnectSettings(servers=nats_server.url)
            assert client_for(settings) is client_for(again)
            assert client_for(settings) is not client_for(other)
        finally:
            forget(other)

    def test_simultaneous_threads_share_one(self, settings):
        """
        A thread that connects without need closes its connection.
        """
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(client_for(settings))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

        assert len(set(map(id, found))) == 1
        assert found[0].is_connected

    def test_options_of_a_program(self, nats_server):
        """
        The client gets a name if the program's options have none.
        """
        options = jetsync.ConnectOptions(servers=nats_server.url)
        try:
            assert client_for(options, "a-name").options.name == "a-name"
        finally:
            forget(options)

    @pytest.mark.parametrize("plugin", [[], Plugin(), ([],)])
    def test_plugins_have_names(self, nats_server, plugin):
        """
        Plugin objects that do not equal their copies would make a connection for each task.
        """
        options = jetsync.ConnectOptions(servers=nats_server.url, plugins=[plugin])

        with pytest.raises(JetStreamSparkError, match="pass their names"):
            client_for(options)
        with pytest.raises(JetStreamSparkError, match="pass their names"):
            JetStreamSink(options, stream="S")


class TestRenewal:
    def test_a_failed_task_drops_the_client(self, settings):
        """
        The next task connects again.
        """
        with pytest.raises(ZeroDivisionError), lend(settings) as first:
            1 / 0  # noqa: B018 - it must fail.

        assert first.is_closed
        assert client_for(settings) is not first

    def test_other_tasks_may_finish(self, settings):
        """
        A failing task does not close the connection of another task.
        """
        with lend(settings) as mine:
            with pytest.raises(ZeroDivisionError), lend(settings):
                1 / 0  # noqa: B018 - as above.
            mine.flush()
            with lend(settings) as other:
                assert other is not mine

        assert mine.is_closed

    def test_a_client_that_another_task_closes_first_is_not_lent(self, settings, monkeypatch):
        """
        Another task fails after this one has found the client, and before it counts as a user.
        """
        find, found = clients.client_for, []

        def find_then_fail(*args):
            found.append(find(*args))
            if len(found) == 1:
                forget(settings)
            return found[-1]

        monkeypatch.setattr(clients, "client_for", find_then_fail)
        with lend(settings) as client:
            client.flush()

        assert found[0].is_closed
        assert client is found[1]

    def test_a_reader_that_is_stopped_early_has_not_failed(self, settings):
        """
        Spark closes the generator of such a reader.
        """

        def reading():
            with lend(settings) as client:
                yield client

        reader = reading()
        client = next(reader)
        reader.close()

        assert client_for(settings) is client

    def test_a_dead_connection_is_replaced(self, settings, monkeypatch):
        """
        After a pause, the connection is checked before it is used.
        """
        first = client_for(settings)
        monkeypatch.setattr(clients, "IDLE", 0.0)
        assert client_for(settings) is first

        first.close()

        assert client_for(settings) is not first

    def test_a_forked_process_connects_itself(self, settings):
        """
        The inherited connection belongs to the parent.
        """
        mine = client_for(settings)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                other = client_for(settings)
                other.rtt(timeout=10)
                os.write(write, b"ok" if other is not mine else b"same")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(write)

        assert os.read(read, 10) == b"ok"
        os.close(read)
        mine.rtt(timeout=10)


def test_no_server_is_one_sentence():
    """
    The error has the address and the advice, and no password.
    """
    options = jetsync.ConnectOptions(servers="nats://me:s3cret@127.0.0.1:1", connect_timeout=1)

    with pytest.raises(JetStreamSparkError, match=r"127.0.0.1:1 failed .*can reach") as caught:
        client_for(options)

    assert "s3cret" not in str(caught.value)
