"""
Plugins of a client that is connected to a real server.
"""

from __future__ import annotations

import threading

import attrs
import pytest

import jetsync
from helpers.waiting import unless_late
from jetsync.devserver import DevServer
from jetsync.events import PullOutcome, StatusKind
from jetsync.hookspecs import hookimpl


class Statuses:
    """
    Keep all status events, and let a test wait for one kind.
    """

    def __init__(self):
        self.changed = threading.Condition()
        self.events = []

    @hookimpl
    def jetsync_status(self, event):
        with self.changed:
            self.events.append((event, threading.current_thread().name))
            self.changed.notify_all()

    def of(self, kind):
        """
        Return the events of one kind so far.
        """
        return [event for event, _ in self.events if event.kind is kind]

    def wait(self, kind):
        """
        Wait for the first event of the kind and return it.
        """
        with self.changed:
            assert self.changed.wait_for(lambda: self.of(kind), 30), f"no {kind}: {self.events}"
            return self.of(kind)[0]


@pytest.fixture
def with_plugins(nats_server):
    """
    A function that connects with plugins. The client is closed after the test.
    """
    clients = []

    def with_plugins(*plugins):
        clients.append(jetsync.connect(nats_server.url, plugins=plugins))
        return clients[-1]

    yield with_plugins
    for client in clients:
        client.close()


class Move:
    """
    Change the subject of each message, before all other plugins.
    """

    def __init__(self, subject):
        self.subject = subject

    @hookimpl(tryfirst=True)
    def jetsync_prepare_message(self, message):
        return attrs.evolve(message, subject=self.subject)


class Guard:
    """
    Copy the subject into a header, and reject some payloads.
    """

    @hookimpl
    def jetsync_prepare_message(self, message):
        if message.data == b"refuse":
            raise ValueError("refused")
        return attrs.evolve(message, headers={"Seen": message.subject})


class TestPublishing:
    def test_order_and_veto(self, with_plugins, stream):
        """
        The later plugin gets the changed subject. A veto names the plugin, and nothing is sent.
        """
        js = with_plugins(Guard, Move(f"{stream.name}.final")).jetstream()

        js.publish(f"{stream.name}.first", b"1")
        with pytest.raises(jetsync.PluginError) as caught:
            js.publish(f"{stream.name}.first", b"refuse")

        assert (caught.value.plugin, caught.value.hook) == ("Guard", "jetsync_prepare_message")
        assert isinstance(caught.value.__cause__, ValueError)
        message = stream.get_message(1)
        assert message.subject == f"{stream.name}.final"
        assert message.headers["Seen"] == f"{stream.name}.final"
        assert stream.info().state.messages == 1

    def test_a_publish_runs_inside_its_wrapper(self, with_plugins, stream):
        """
        The wrapper gets the operation and then its ack. The message is prepared in between.
        """
        seen = []

        class Around:
            @hookimpl(wrapper=True)
            def jetsync_publish(self, operation):
                seen.append(operation)
                seen.append((yield))

            @hookimpl
            def jetsync_prepare_message(self, message):
                seen.append(message.data)

        ack = with_plugins(Around).jetstream().publish(f"{stream.name}.a", b"x", msg_id="1")

        operation, *rest = seen
        assert (operation.subject, operation.messages) == (f"{stream.name}.a", 1)
        assert operation.has_message_ids
        assert rest == [b"x", ack]

    def test_an_error_of_the_publish_passes_its_wrapper(self, with_plugins, unique):
        """
        The wrapper gets the same error as the caller.
        """
        seen = []

        class Around:
            @hookimpl(wrapper=True)
            def jetsync_publish(self):
                try:
                    return (yield)
                except jetsync.JetSyncError as error:
                    seen.append(error)
                    raise

        with pytest.raises(jetsync.NoStreamResponseError) as caught:
            with_plugins(Around).jetstream().publish(unique, b"x", retries=0)

        assert seen == [caught.value]

    def test_retries_are_the_plugins(self, with_plugins, js, unique):
        """
        The plugin replaces the built-in rule and decides after each attempt.
        """
        asked = []

        class Retry:
            @hookimpl
            def jetsync_retry(self, operation, error, attempt):
                asked.append((operation.name, type(error), attempt))
                if attempt == 3:
                    js.create_stream(unique, subjects=[unique], storage="memory")
                return 0.0

        ack = with_plugins(Retry).jetstream().publish(unique, b"x", retries=0)

        assert (ack.stream, ack.sequence) == (unique, 1)
        expected = ("publish", jetsync.NoStreamResponseError)
        assert asked == [(*expected, attempt) for attempt in (1, 2, 3)]
        js.delete_stream(unique)


class TestReading:
    def test_a_fetch_and_its_messages(self, with_plugins, js, stream):
        """
        A fetch is one operation. Plugins get each message before the caller.
        """
        operations, shown = [], []

        class Watch:
            @hookimpl(wrapper=True)
            def jetsync_fetch(self, operation):
                operations.append(operation)
                return (yield)

            @hookimpl
            def jetsync_message_received(self, message):
                shown.append(message.data)

        for number in range(3):
            js.publish(f"{stream.name}.a", str(number))
        stream.create_consumer("worker")
        worker = with_plugins(Watch).jetstream().consumer(stream.name, "worker")

        taken = [message.data for message in worker.fetch(3, expires=5)]

        assert taken == shown == [b"0", b"1", b"2"]
        (operation,) = operations
        assert (operation.name, operation.stream) == ("fetch", stream.name)
        assert (operation.consumer, operation.max_messages) == ("worker", 3)

    def test_a_direct_read_is_an_operation(self, with_plugins, js, stream):
        """
        The method that reads gives the operation its name.
        """
        operations = []

        class Watch:
            @hookimpl(wrapper=True)
            def jetsync_fetch(self, operation):
                operations.append(operation)
                return (yield)

        js.publish(f"{stream.name}.a", b"x")
        with_plugins(Watch).jetstream().stream(stream.name).get_last(f"{stream.name}.a")

        (operation,) = operations
        assert (operation.name, operation.stream) == ("get_last", stream.name)


class TestStatuses:
    def test_an_empty_fetch_is_reported(self, with_plugins, stream):
        """
        A status is reported in the caller's thread, also if the call returns normally.
        """
        stream.create_consumer("worker")

        def attempt():
            statuses = Statuses()
            worker = with_plugins(statuses).jetstream().consumer(stream.name, "worker")
            assert list(worker.fetch(1, expires=1)) == []
            return statuses

        statuses = unless_late(attempt)
        (event,) = statuses.of(StatusKind.PULL_STATUS)
        assert (event.code, event.outcome) == (408, PullOutcome.ENDED)
        assert (event.stream, event.consumer) == (stream.name, "worker")
        assert {thread for _, thread in statuses.events} == {threading.current_thread().name}

    def test_a_refused_pull_is_reported(self, with_plugins, stream):
        """
        If a pull exceeds a limit of the consumer, plugins get one event and the caller an error.
        """
        statuses = Statuses()
        stream.create_consumer("worker", max_batch=2)
        worker = with_plugins(statuses).jetstream().consumer(stream.name, "worker")

        with pytest.raises(jetsync.MaxRequestBatchError):
            list(worker.fetch(3, expires=1))

        (event,) = statuses.of(StatusKind.PULL_STATUS)
        assert (event.code, event.outcome) == (409, PullOutcome.FAILED)

    def test_the_life_of_a_connection(self):
        """
        Disconnecting, reconnecting and closing are one event each, in order and in one thread.
        """
        statuses = Statuses()

        with DevServer() as server:
            with jetsync.connect(server.url, plugins=[statuses], reconnect_wait=0.1):
                server.restart()
                reconnected = statuses.wait(StatusKind.RECONNECTED)
            statuses.wait(StatusKind.CLOSED)

        kinds = [event.kind for event, _ in statuses.events]
        expected = [StatusKind.DISCONNECTED, StatusKind.RECONNECTED, StatusKind.CLOSED]
        assert [kind for kind in kinds if kind in expected] == expected
        assert reconnected.reconnects == 1
        assert {thread for _, thread in statuses.events} == {"jetsync-events"}

    def test_a_lame_duck_server_is_one_event(self):
        """
        A server that is about to shut down is one event.
        """
        statuses = Statuses()

        with (
            DevServer(config={"lame_duck_grace_period": "1s"}) as server,
            jetsync.connect(server.url, plugins=[statuses]),
        ):
            server.lame_duck()
            statuses.wait(StatusKind.LAME_DUCK)

        assert len(statuses.of(StatusKind.LAME_DUCK)) == 1

    def test_a_handler_may_use_the_client(self, with_plugins, stream):
        """
        A plugin can call blocking methods of the client in `jetsync_status`.
        """
        results = []
        finished = threading.Event()

        class Reacts:
            @hookimpl
            def jetsync_status(self, event):
                if event.kind is StatusKind.RECONNECTED:
                    results.append(client.jetstream().publish(f"{stream.name}.a", b"back"))
                    finished.set()

        client = with_plugins(Reacts)
        client.reconnect()

        assert finished.wait(30)
        assert results[0].stream == stream.name


class TestConnect:
    def test_a_bad_plugin_is_refused_before_anything_is_connected(self, nats_server):
        """
        `connect` rejects an invalid plugin and leaves no thread.
        """

        class Misspelt:
            @hookimpl
            def jetsync_prepare_mesage(self, message):
                pass

        before = threading.active_count()
        with pytest.raises(jetsync.ConfigurationError, match="did you mean"):
            jetsync.connect(nats_server.url, plugins=[Misspelt])

        assert threading.active_count() == before

    def test_a_client_says_which_plugins_it_has(self, with_plugins):
        """
        The plugins of a client are listed with their hooks.
        """
        (info,) = with_plugins(Guard).plugins

        assert (info.name, info.hooks) == ("Guard", ("jetsync_prepare_message",))
