"""
Connections to real servers: connecting, losing the connection, reconnecting and closing.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import itertools
import logging
import re
import signal
import socket
import threading
import time

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.interrupts import handled_at, interrupted_at, shows_holder, steps_of
from helpers.streams import fast_stream, memory_stream
from helpers.waiting import LATE, at_some_pace, blocked, eventually, timed
from jetsync._io import probe as probe_module
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy, HookRecorder

QUICK = {"reconnect_wait": 0.05}
"""Options of a client that reconnects quickly."""


def io_threads():
    """
    The names of jetsync's own threads that are alive.
    """
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("jetsync-")}


def open_sockets():
    """
    The sockets of this process that are open.
    """
    gc.collect()
    found = [one for one in gc.get_objects() if isinstance(one, socket.socket)]
    return {id(one) for one in found if one.fileno() >= 0}


def events(recorder, *kinds):
    """
    The status events that a recorder saw, those of *kinds* where some are given.
    """
    seen = [call["event"] for call in recorder.calls if call.hook == "jetsync_status"]
    return [event for event in seen if not kinds or event.kind.value in kinds]


def kinds(recorder, *wanted):
    """
    The kinds of the status events that a recorder saw, in order.
    """
    return [event.kind.value for event in events(recorder, *wanted)]


@contextlib.contextmanager
def black_holes(count):
    """
    URLs of servers that accept connections and never send anything.
    """
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        yield [f"nats://127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]


@pytest.fixture
def closed_port():
    """
    The URL of a port where nothing listens during the test.
    """
    with socket.socket() as held:
        # The port is bound but does not listen: connections are refused, and no other process takes
        # it.
        held.bind(("127.0.0.1", 0))
        yield f"nats://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def own_server():
    """
    A server of the test, which may stop, kill and pause it.
    """
    with DevServer() as server:
        yield server


@pytest.fixture
def pool():
    """
    Threads for calls that wait.
    """
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def recorder():
    """
    A plugin that records status events.
    """
    return HookRecorder("jetsync_status")


class TestConnect:
    @pytest.mark.parametrize("persist", [False, True], ids=["once", "persistent"])
    def test_nothing_listens(self, closed_port, persist):
        """
        connect() raises ConnectError before its timeout, and leaves no thread. Only with
        retry_on_failed_connect does it use up the timeout.
        """
        before = io_threads()
        expected = jetsync.ConnectTimeoutError if persist else jetsync.ConnectError
        with (
            timed(*((2.0, 3.0) if persist else (0.0, 0.5))),
            pytest.raises(expected, match=r"refused|111"),
        ):
            jetsync.connect(
                closed_port, connect_timeout=2, retry_on_failed_connect=persist, reconnect_wait=0.05
            )
        assert io_threads() == before

    def test_the_next_server_is_tried_when_one_is_down(self, nats_server, closed_port):
        """
        One working server in the list is enough, at any position.
        """
        for servers in itertools.islice(
            itertools.cycle([[closed_port, nats_server.url], [nats_server.url, closed_port]]), 6
        ):
            with jetsync.connect(servers, connect_timeout=20) as client:
                assert client.server.url == nats_server.url

    def test_a_silent_server_does_not_use_up_the_budget(self, nats_server):
        """
        Servers share the timeout, so a server that hangs leaves time for the next ones.
        """
        with black_holes(2) as holes:

            def attempt(pace):
                timeout = 1.2 * pace
                servers = [*holes, nats_server.url]
                with (
                    timed(0.0, timeout),
                    jetsync.connect(servers, connect_timeout=timeout) as client,
                ):
                    assert client.server.url == nats_server.url

            for _ in range(3):
                at_some_pace(attempt)

    @pytest.mark.parametrize("persist", [False, True], ids=["once", "persistent"])
    def test_the_budget_is_a_total_over_all_servers(self, persist):
        """
        Four silent servers take no longer than one.
        """
        before = io_threads()
        with (
            black_holes(4) as holes,
            timed(0.5, 1.3),
            pytest.raises(jetsync.ConnectTimeoutError) as caught,
        ):
            jetsync.connect(holes, connect_timeout=0.6, retry_on_failed_connect=persist)
        assert caught.value.timeout == 0.6
        assert io_threads() == before

    @pytest.mark.parametrize("persist", [False, True], ids=["once", "persistent"])
    def test_a_refused_login_ends_the_attempt_at_once(self, persist):
        """
        AuthenticationError is raised at once, even if the client retries its first connection.
        """
        before = io_threads()
        config = {"authorization": {"timeout": 30, "user": "ann", "password": "right"}}
        with (
            DevServer(jetstream=False, config=config) as server,
            timed(0.0, 1.0),
            pytest.raises(jetsync.AuthenticationError),
        ):
            jetsync.connect(
                server.url,
                user="ann",
                password="wrong",
                connect_timeout=20,
                retry_on_failed_connect=persist,
            )
        assert io_threads() == before

    def test_the_first_connect_may_wait_for_a_server_that_starts_later(self, own_server, pool):
        """
        With retry_on_failed_connect, the call returns once the server has started.
        """
        own_server.stop()
        connecting = pool.submit(
            jetsync.connect,
            own_server.url,
            retry_on_failed_connect=True,
            connect_timeout=60,
            **QUICK,
        )
        with pytest.raises(concurrent.futures.TimeoutError):
            connecting.result(1.0)
        own_server.start()
        with connecting.result(30) as client:
            assert client.is_connected
            assert client.rtt() > 0.0

    def test_monitoring_shows_the_name(self, nats_server, unique):
        """
        The server's monitoring shows the name from the options.
        """
        with jetsync.connect(nats_server.url, name=unique) as client:
            connections = nats_server.monitor("connz")["connections"]
            named = {entry["cid"]: entry.get("name") for entry in connections}
            assert named[client.server.client_id] == unique


class TestFacts:
    def test_statistics_count_traffic(self, client, unique):
        """
        Statistics count bytes in both directions, subscriptions and requests in flight, and are
        frozen.
        """
        before = client.statistics()
        with client.subscribe(unique) as subscription:
            client.publish(unique, b"x" * 1000)
            assert subscription.next(timeout=20).data == b"x" * 1000
            during = client.statistics()
        assert during.bytes_out - before.bytes_out > 1000
        assert during.bytes_in - before.bytes_in > 1000
        assert (before.subscriptions, during.subscriptions) == (1, 2)
        assert client.statistics().subscriptions == 1
        assert (during.reconnects, during.requests_in_flight, during.strays) == (0, 0, 0)

    def test_rtt_and_flush(self, client):
        """
        A round trip takes some time, and less than a second on an idle machine.
        """
        assert 0.0 < client.rtt(timeout=20) < 1.0 + LATE
        assert client.flush(timeout=20) is None

    def test_the_server_is_described(self, client, nats_server):
        """
        The server's INFO is available as typed fields and as the original JSON.
        """
        server = client.server
        assert server.version == nats_server.version
        assert server.version_tuple == nats_server.version_tuple
        assert (server.jetstream, server.headers, server.lame_duck) == (True, True, False)
        assert server.max_payload == 1 << 20
        assert server.url == nats_server.url
        assert server.api_level == server.raw["api_lvl"]
        assert re.fullmatch(r"N[A-Z2-7]{55}", server.server_id)
        assert repr(client) == f"<Client open {nats_server.url}>"

    def test_a_later_info_counts(self, client):
        """
        The server sends another INFO after the login, and the client uses it.
        """
        eventually(lambda: client.server.raw.get("connect_info"))
        assert client.server.raw["remote_account"] == "$G"
        assert client.server.client_id == client.server.raw["client_id"]

    def test_a_limit_that_changes_over_a_reconnect_holds(self, tmp_path, recorder):
        """
        After a restart with a smaller max_payload, the client refuses larger messages.
        """
        changing = tmp_path / "limit.conf"
        changing.write_text("max_payload: 2048\n")
        # The server looks for included files relative to its configuration file.
        from_root = "../" * 20 + str(changing)[1:]
        with (
            DevServer(config=f"include '{from_root}'") as server,
            jetsync.connect(server.url, plugins=[recorder], **QUICK) as client,
        ):
            client.publish("foo", b"x" * 2048)
            changing.write_text("max_payload: 1024\n")
            server.restart()
            eventually(lambda: "reconnected" in kinds(recorder))
            assert client.server.max_payload == 1024
            with pytest.raises(jetsync.MaxPayloadError) as caught:
                client.publish("foo", b"x" * 1025)
            assert (caught.value.size, caught.value.limit) == (1025, 1024)
            client.publish("foo", b"x" * 1024)
            client.flush()
            assert client.statistics().reconnects == 1


class TestClose:
    def test_closing_again_does_nothing(self, nats_server):
        """
        Closing twice, also from several threads at once, has no effect and leaves no thread.
        """
        before = io_threads()
        client = jetsync.connect(nats_server.url)
        threads = [threading.Thread(target=client.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        client.close()
        assert (client.is_closed, client.is_connected) == (True, False)
        assert io_threads() == before

    def test_every_call_on_a_closed_client_raises(self, nats_server, unique):
        """
        Each call of each handle raises ConnectionClosedError at once, and sends nothing.
        """
        client = jetsync.connect(nats_server.url)
        js = client.jetstream()
        stream = js.create_stream(unique, subjects=[unique], storage="memory")
        consumer = stream.create_consumer(name="c")
        js.publish(unique, b"1")
        message = consumer.next(expires=20)
        js.delete_stream(unique)
        client.close()
        for call in (
            lambda: client.publish(unique),
            lambda: client.request(unique),
            lambda: client.subscribe(unique),
            client.flush,
            client.rtt,
            client.drain,
            client.reconnect,
            client.__enter__,
            lambda: js.publish(unique),
            lambda: js.publish_many([(unique, b"")]),
            js.account_info,
            stream.info,
            lambda: consumer.fetch(1),
            consumer.next,
            message.ack_sync,
            message.ack,
        ):
            with timed(0.0, 0.5), pytest.raises(jetsync.ConnectionClosedError):
                call()
        assert repr(client).startswith("<Client closed")
        assert client.server.version == nats_server.version

    def test_closing_wakes_every_waiter(self, nats_server, pool, unique):
        """
        A request, a next, a fetch and next() of a subscription end with ConnectionClosedError. An
        iteration ends. A publish ends according to its outcome.
        """
        with jetsync.connect(nats_server.url) as other, other.subscribe(unique):
            other.flush()
            client = jetsync.connect(nats_server.url)
            js = client.jetstream()
            made = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory", no_ack=True)
            consumer = made.create_consumer(name="c")
            subscriptions = [client.subscribe(f"_quiet.{unique}.{n}") for n in range(2)]
            request = pool.submit(client.request, unique, timeout=30)
            publish = pool.submit(js.publish, f"{unique}.a", timeout=30)
            taken = pool.submit(subscriptions[0].next, timeout=30)
            iterated = pool.submit(list, subscriptions[1])
            following = pool.submit(consumer.next, 30)
            fetched = pool.submit(lambda: list(consumer.fetch(5, expires=30)))
            seen = other.jetstream().consumer(unique, "c")
            # Either the publish's waiter or the consumer may get the message.
            eventually(lambda: client.statistics().requests_in_flight == 2)
            eventually(lambda: seen.info().num_waiting >= 1)
            eventually(lambda: all(shows_holder(sub._reading.turn._lock) for sub in subscriptions))
            with timed(0.0, 2.0):
                client.close()
                for waiting in (request, taken):
                    with pytest.raises(jetsync.ConnectionClosedError):
                        waiting.result(10)
                assert iterated.result(10) == []
                with pytest.raises(jetsync.PublishOutcomeUnknownError) as caught:
                    publish.result(10)
                assert isinstance(caught.value.__cause__, jetsync.ConnectionClosedError)
                errors = [waiting.exception(10) for waiting in (following, fetched)]
            # One of the two may have received the published message.
            assert {type(error) for error in errors} <= {jetsync.ConnectionClosedError, type(None)}
            assert jetsync.ConnectionClosedError in {type(error) for error in errors}
            other.jetstream().delete_stream(unique)

    @pytest.mark.parametrize("answer", ["ack", "term", "ack_many"])
    def test_threads_can_acknowledge_while_the_client_closes(self, own_server, unique, answer):
        """
        A handler that has a message when close() begins can still finish it.
        """
        client = jetsync.connect(own_server.url)
        js = client.jetstream()
        stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
        js.publish(f"{unique}.one", b"")
        consumer = stream.create_consumer("c")
        message = consumer.next(expires=5)
        publisher = js.publisher(ack_timeout=60)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            own_server.pause()
            publisher.publish(f"{unique}.two", b"")
            closing = pool.submit(client.close, timeout=30)
            eventually(lambda: repr(client).find("closing") > 0)
            if answer == "ack_many":
                assert jetsync.ack_many([message]) == 1
            else:
                getattr(message, answer)()
            own_server.resume()
            closing.result(30)
        with jetsync.connect(own_server.url) as client:
            info = client.jetstream().stream(unique).consumer("c").info()
            assert info.num_ack_pending == 0

    def test_only_publishers_get_the_time(self, own_server, unique):
        """
        While close() waits for the messages of publishers, all other calls have ended, and new ones
        raise. The messages that the publishers had accepted are stored.
        """
        client = jetsync.connect(own_server.url)
        js = client.jetstream(timeout=60)
        stream = fast_stream(js, unique)
        consumer = stream.create_consumer("c")
        subscriptions = [client.subscribe(f"quiet.{n}") for n in range(2)]
        accepted = {"publisher": 0, "fast": 0}

        def endless():
            while True:
                yield f"{unique}.many", b""

        def fill(name, add):
            while True:
                add()
                accepted[name] += 1

        first = js.publisher(ack_timeout=60)
        second = js.publisher(window=10, ack_timeout=60)
        fast = js.fast_publisher(flow=1, max_outstanding_acks=2, timeout=60)
        fast.add(f"{unique}.fast", b"first")
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            waiting = [
                pool.submit(lambda: list(consumer.fetch(5, expires=9))),
                pool.submit(consumer.next, 9),
                pool.submit(subscriptions[0].next, timeout=60),
                # It has no stream, so it waits before the next attempt.
                pool.submit(js.publish, "nobody", retries=1, retry_wait=50),
            ]
            iterated = pool.submit(list, subscriptions[1])
            blocked(pool, 5)
            own_server.pause()
            future = first.publish(f"{unique}.one", b"")
            waiting += [
                pool.submit(js.publish, f"{unique}.other"),
                pool.submit(client.request, "quiet", timeout=60),
                pool.submit(client.flush, timeout=60),
                pool.submit(js.publish_many, endless()),
                pool.submit(fill, "publisher", lambda: second.publish(f"{unique}.two", b"")),
                pool.submit(fill, "fast", lambda: fast.add(f"{unique}.fast", bytes(2000))),
            ]
            blocked(pool, 11)
            closing = pool.submit(client.close, timeout=60)
            kinds = {type(one.exception(20)) for one in waiting}
            assert kinds == {
                jetsync.ConnectionClosedError,
                jetsync.PublishManyError,
                jetsync.PublishOutcomeUnknownError,
            }
            assert iterated.result(20) == []
            for call in (
                lambda: client.publish("quiet"),
                lambda: client.request("quiet"),
                lambda: client.subscribe("quiet"),
                client.flush,
                client.reconnect,
                lambda: js.publish(f"{unique}.other"),
                lambda: js.publish_many([(f"{unique}.many", b"")]),
                js.publisher,
                lambda: first.publish(f"{unique}.one"),
                lambda: second.publish(f"{unique}.two"),
                lambda: fast.add(f"{unique}.fast", b""),
                lambda: fast.commit(f"{unique}.fast", b""),
                lambda: js.fast_publisher().add(f"{unique}.fast", b""),
                lambda: consumer.fetch(1),
            ):
                with pytest.raises(jetsync.ConnectionClosedError):
                    call()
            assert not closing.done()
            assert not client.is_closed
            own_server.resume()
            closing.result(60)
        assert future.result(20).stream == unique
        assert accepted["publisher"] == second.statistics().acknowledged == 10
        assert accepted["fast"] > 0
        assert (fast.ack.size, fast.ack.lost) == (accepted["fast"] + 1, 0)
        for publisher in (first, second, fast):
            publisher.close()

    def test_calls_that_wait_for_room_in_several_publishers(self, own_server, pool, unique):
        """
        close() finishes one publisher after the other, but first ends the waits for room in all.
        """
        client = jetsync.connect(own_server.url)
        js = client.jetstream()
        memory_stream(js, unique)
        publishers = [js.publisher(window=1, ack_timeout=60) for _ in range(3)]

        def fill(publisher):
            while True:
                publisher.publish(f"{unique}.a")

        own_server.pause()
        waiting = [pool.submit(fill, publisher) for publisher in publishers]
        blocked(pool, 3)
        closing = pool.submit(client.close, timeout=60)
        try:
            for one in waiting:
                assert isinstance(one.exception(20), jetsync.ConnectionClosedError)
            assert not closing.done()
        finally:
            own_server.resume()
            closing.result(60)

    def test_the_connection_is_lost_while_a_publisher_finishes(self, own_server, unique, pool):
        """
        The publisher sends the rest on the next connection. All other calls still raise.
        """
        with (
            jetsync.connect(own_server.url) as other,
            CutProxy(own_server.url) as proxy,
            jetsync.connect(proxy.url, **QUICK) as client,
        ):
            js = client.jetstream(timeout=20)
            # The message has no stream yet, and is sent again long after the cut.
            publisher = js.publisher(ack_timeout=60, retry_wait=4)
            future = publisher.publish(f"{unique}.a", b"")
            eventually(lambda: publisher._flight.waiting)
            memory_stream(other.jetstream(), unique)
            closing = pool.submit(client.close, timeout=60)
            # Without a connection, it would not wait for the publisher.
            blocked(pool)
            proxy.cut()
            eventually(lambda: client.statistics().reconnects == 1)
            with pytest.raises(jetsync.ConnectionClosedError):
                js.publish(f"{unique}.a", b"")
            closing.result(60)
            assert future.result(0).sequence == 1

    def test_closing_in_a_signal_handler(self, own_server, pool, unique):
        """
        The client closes in another thread, which waits for the publisher. Waiting calls end.
        """
        client = jetsync.connect(own_server.url)
        js = client.jetstream(timeout=60)
        stream = memory_stream(js, unique)
        consumer = stream.create_consumer("c", filter_subject=f"{unique}.b")
        subscription = client.subscribe("quiet")
        publisher = js.publisher(ack_timeout=60)
        own_server.pause()
        future = publisher.publish(f"{unique}.a", b"")
        waiting = pool.submit(subscription.next, timeout=60)
        blocked(pool)

        def resume():
            try:
                return waiting.exception(20)
            finally:
                own_server.resume()

        resuming = []

        def close(*_):
            resuming.append(pool.submit(resume))
            client.close(timeout=60)

        before = signal.signal(signal.SIGALRM, close)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(jetsync.ConnectionClosedError):
                consumer.next(60)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert isinstance(resuming[0].result(20), jetsync.ConnectionClosedError)
        assert future.result(20).stream == unique

    def test_closing_in_a_signal_handler_that_interrupted_a_write(self, own_server, pool):
        """
        The client closes in the background. The call of another thread ends at once there, too.
        """
        client = jetsync.connect(own_server.url)
        subscription = client.subscribe("quiet")
        client.flush(timeout=20)
        own_server.pause()
        waiting = pool.submit(subscription.next, timeout=60)
        blocked(pool)
        with connection_of(client).lane.outbox.write_lock:
            client.close(timeout=60)
        assert isinstance(waiting.exception(20), jetsync.ConnectionClosedError)
        own_server.resume()
        eventually(lambda: client.is_closed)

    def test_closing_wakes_calls_that_wait_for_a_connection(self, own_server, pool):
        """
        Publishes that wait for a reconnect end with ConnectionClosedError, because nothing was
        sent.
        """
        client = jetsync.connect(own_server.url, request_timeout=30, **QUICK)
        own_server.kill()
        eventually(lambda: not client.is_connected)
        waiting = [
            pool.submit(client.publish, "a"),
            pool.submit(client.jetstream().publish, "a"),
            pool.submit(client.request, "a"),
            pool.submit(client.subscribe, "a"),
            pool.submit(client.flush),
        ]
        concurrent.futures.wait(waiting, 0.2)
        assert [future.done() for future in waiting] == [False] * 5
        with timed(0.0, 2.0):
            client.close()
            for future in waiting:
                assert isinstance(future.exception(10), jetsync.ConnectionClosedError)

    def test_closing_sends_accepted_publishes(self, nats_server, client, unique):
        """
        A core publish that has returned is sent, even if the client closes at once.
        """
        with client.subscribe(unique) as subscription:
            client.flush()
            with jetsync.connect(nats_server.url) as sender:
                for number in range(500):
                    sender.publish(unique, b"%d" % number)
            got = [subscription.next(timeout=20).data for _ in range(500)]
        assert got == [b"%d" % number for number in range(500)]

    def test_closing_ends_in_time_when_the_server_hangs(self, own_server):
        """
        close() ends by its timeout, and leaves no thread and no socket.
        """
        before, sockets = io_threads(), open_sockets()
        client = jetsync.connect(own_server.url)
        own_server.pause()
        with timed(0.0, 2.0):
            client.close(timeout=0.5)
        eventually(lambda: io_threads() == before, 2)
        eventually(lambda: open_sockets() <= sockets, 2)
        assert client.is_closed

    def test_draining_delivers_buffered_messages(self, nats_server, client, pool, unique):
        """
        The subscriptions end after the last buffered message, and then the client is closed.
        """
        receiver = jetsync.connect(nats_server.url)
        subscription = receiver.subscribe(unique)
        receiver.flush()
        for number in range(200):
            client.publish(unique, b"%d" % number)
        client.flush()
        draining = pool.submit(receiver.drain, timeout=10)
        blocked(pool)
        got = [message.data for message in subscription]
        draining.result(20)
        assert got == [b"%d" % number for number in range(200)]
        assert receiver.is_closed

    def test_draining_gives_up_in_time(self, nats_server, client, unique, caplog):
        """
        Messages that are not taken by the timeout are dropped, and the log has their number.
        """
        receiver = jetsync.connect(nats_server.url)
        _subscription = receiver.subscribe(unique)
        receiver.flush()
        for _ in range(3):
            client.publish(unique)
        client.flush()
        with caplog.at_level(logging.DEBUG, "jetsync"), timed(0.2, 2.0):
            receiver.drain(timeout=0.2)
        assert receiver.is_closed
        assert "dropped=3" in caplog.text


class TestReconnect:
    def test_events_come_in_order(self, own_server, pool, caplog):
        """
        A restart is one disconnected and one reconnected event. Handlers may call the client, and a
        handler that raises does not affect the others.
        """
        seen = []

        class Asking:
            name = "asking"

            @jetsync.hookimpl
            def jetsync_status(self, event):
                if event.kind.value == "reconnected":
                    seen.append((event.kind.value, client.rtt(timeout=10) > 0.0))
                else:
                    seen.append((event.kind.value, client.is_connected))

        class Broken:
            name = "broken"

            @jetsync.hookimpl
            def jetsync_status(self, event):
                raise RuntimeError("a broken handler")

        recorder = HookRecorder("jetsync_status")
        plugins = [Asking(), Broken(), recorder]
        with (
            caplog.at_level(logging.WARNING, "jetsync"),
            jetsync.connect(own_server.url, plugins=plugins, **QUICK) as client,
        ):
            url = client.server.url
            own_server.restart()
            eventually(lambda: len(seen) == 2)
        disconnected, reconnected, closed = events(recorder)
        assert (disconnected.kind.value, disconnected.server) == ("disconnected", url)
        assert (reconnected.kind.value, reconnected.server) == ("reconnected", url)
        assert (closed.kind.value, closed.error) == ("closed", None)
        assert reconnected.reconnects == 1
        assert seen == [("disconnected", False), ("reconnected", True), ("closed", False)]
        assert "a broken handler" in caplog.text

    def test_subscriptions_are_replayed(self, own_server):
        """
        Core subscriptions, queue groups and requests continue after a restart, and no message is
        delivered twice.
        """
        with (
            jetsync.connect(own_server.url, **QUICK) as client,
            client.subscribe("a.*") as plain,
            client.subscribe("a.*", queue="q") as member,
        ):
            for turn in range(3):
                own_server.restart()
                eventually(lambda: client.statistics().reconnects == turn + 1)  # noqa: B023
                client.publish("a.x", b"%d" % turn)
                assert [s.next(timeout=20).data for s in (plain, member)] == [b"%d" % turn] * 2
            client.flush()
            assert (plain.pending, member.pending) == (0, 0)

    def test_calls_wait_for_the_connection(self, own_server, pool):
        """
        A request without a connection is sent after the reconnect. The server then answers that
        there are no responders.
        """
        with jetsync.connect(own_server.url, **QUICK) as client:
            own_server.stop()
            eventually(lambda: not client.is_connected)
            asking = pool.submit(client.request, "nobody", timeout=20)
            assert not concurrent.futures.wait([asking], 0.2).done
            own_server.start()
            assert isinstance(asking.exception(10), jetsync.NoRespondersError)

    def test_calls_fail_in_time_without_a_connection(self, own_server):
        """
        Calls raise DisconnectedError after their own timeout, because nothing was sent.
        """
        with jetsync.connect(own_server.url, request_timeout=0.2, **QUICK) as client:
            own_server.stop()
            eventually(lambda: not client.is_connected)
            for call in (
                lambda: client.publish("a"),
                lambda: client.request("a"),
                lambda: client.subscribe("a"),
                lambda: client.jetstream().publish("a"),
                client.jetstream().account_info,
                client.flush,
                client.rtt,
            ):
                with timed(0.2, 0.7), pytest.raises(jetsync.DisconnectedError):
                    call()
            assert client.server.url == own_server.url
            assert repr(client) == f"<Client down {own_server.url}>"

    def test_calls_in_flight_end_when_the_connection_dies(self, own_server, pool):
        """
        A request raises ConnectionLostError and a publish PublishOutcomeUnknownError at once, not
        after their timeouts.
        """
        with (
            jetsync.connect(own_server.url) as other,
            other.subscribe("quiet"),
            jetsync.connect(own_server.url, **QUICK) as client,
        ):
            other.flush()
            js = client.jetstream()
            js.create_stream("S", subjects=["s"], no_ack=True)
            request = pool.submit(client.request, "quiet", timeout=30)
            publish = pool.submit(js.publish, "s", msg_id="m", timeout=30)
            eventually(lambda: client.statistics().requests_in_flight == 2)
            own_server.kill()
            with pytest.raises(jetsync.ConnectionLostError):
                request.result(10)
            with pytest.raises(jetsync.PublishOutcomeUnknownError) as caught:
                publish.result(10)
            assert (caught.value.subject, caught.value.msg_id) == ("s", "m")

    def test_a_flush_ends_when_the_connection_dies(self, own_server, pool):
        """
        A flush raises ConnectionLostError at once, not after its timeout.
        """
        with jetsync.connect(own_server.url, **QUICK) as client:
            own_server.pause()
            waiting = pool.submit(client.flush, timeout=30)
            assert not concurrent.futures.wait([waiting], 0.2).done
            own_server.kill()
            with pytest.raises(jetsync.ConnectionLostError):
                waiting.result(10)

    def test_a_client_that_gives_up_is_closed(self, own_server, recorder):
        """
        After max_reconnects attempts every call raises ConnectionClosedError with the reason, and
        waiting calls are woken. There is one closed event, and close() leaves no thread.
        """
        before = io_threads()
        client = jetsync.connect(own_server.url, plugins=[recorder], max_reconnects=2, **QUICK)
        subscription = client.subscribe("a")
        own_server.kill()
        with timed(0.0, 5.0), pytest.raises(jetsync.ConnectionClosedError):
            subscription.next(timeout=30)
        with pytest.raises(
            jetsync.ConnectionClosedError,
            match="gave up reconnecting after max_reconnects=2 attempts; the last failed: ",
        ):
            client.request("a")
        eventually(lambda: kinds(recorder) == ["disconnected", "closed"])
        error = events(recorder)[-1].error
        assert isinstance(error, jetsync.ConnectionClosedError)
        assert (client.is_closed, client.is_connected) == (True, False)
        client.close()
        assert io_threads() == before

    def test_a_client_that_may_not_reconnect_is_closed_at_once(self, own_server, recorder, pool):
        """
        With max_reconnects=0, losing the connection closes the client.
        """
        before = io_threads()
        with jetsync.connect(own_server.url, plugins=[recorder], max_reconnects=0) as client:
            subscription = client.subscribe("a")
            waiting = pool.submit(list, subscription)
            own_server.kill()
            eventually(lambda: client.is_closed, 2)
            assert isinstance(waiting.exception(10), jetsync.ConnectionClosedError)
            eventually(lambda: kinds(recorder) == ["disconnected", "closed"])
        assert io_threads() == before

    def test_a_server_in_lame_duck_mode(self, recorder):
        """
        The event names the server, and so does the server's INFO.
        """
        with (
            DevServer() as server,
            jetsync.connect(server.url, plugins=[recorder], **QUICK) as client,
        ):
            server.lame_duck()
            eventually(lambda: "lame_duck" in kinds(recorder))
            assert events(recorder)[0].server == server.url
            assert client.server.lame_duck
            server.kill()


class TestAskedReconnect:
    """
    Calls of client.reconnect().
    """

    def test_new_connection(self, own_server, recorder):
        """
        When the call returns, the client has another connection, with its subscriptions.
        """
        with (
            jetsync.connect(own_server.url, plugins=[recorder], **QUICK) as client,
            client.subscribe("a") as subscription,
        ):
            first = client.server.client_id
            client.reconnect(timeout=20)
            assert client.is_connected
            assert client.server.client_id != first
            client.publish("a", b"1")
            assert subscription.next(timeout=20).data == b"1"
            eventually(lambda: kinds(recorder) == ["disconnected", "reconnected"])

    def test_next_publish(self, nats_server, stream):
        """
        The next publish is stored. It is never sent on the connection that was dropped.
        """
        with jetsync.connect(nats_server.url, reconnect_wait=0) as client:
            for turn in range(40):
                client.reconnect(timeout=20)
                ack = client.jetstream().publish(f"{stream.name}.A", timeout=20)
                assert ack.sequence == client.statistics().reconnects == turn + 1

    def test_calls_of_other_threads(self, nats_server, pool, stream, monkeypatch):
        """
        The calls that other threads start meanwhile wait for the next connection.
        """
        left, spans, unknown, over = [], [], [], threading.Event()

        def publish():
            while not over.is_set():
                start = time.monotonic()
                try:
                    client.jetstream().publish(f"{stream.name}.A", timeout=20)
                except jetsync.PublishOutcomeUnknownError:
                    unknown.append(start)

        with jetsync.connect(nats_server.url, reconnect_wait=0) as client:
            outbox = connection_of(client).lane.outbox
            drop = outbox.drop_connection

            def drop_and_note(epoch):
                drop(epoch)
                left.append(time.monotonic())

            monkeypatch.setattr(outbox, "drop_connection", drop_and_note)
            publishing = [pool.submit(publish) for _ in range(4)]
            for turn in range(20):
                sent = client.statistics().bytes_out
                eventually(lambda: client.statistics().bytes_out > sent + 1000)  # noqa: B023
                client.reconnect(timeout=20)
                spans.append((left[-1], time.monotonic()))
                assert client.statistics().reconnects == turn + 1
            over.set()
            concurrent.futures.wait(publishing)
        assert len(spans) == len(left) == 20
        assert [start for start in unknown for left, back in spans if left < start < back] == []

    def test_calls_in_flight(self, own_server, pool):
        """
        A request that waits for its answer is lost, and the outcome of a publish is unknown.
        """
        with (
            jetsync.connect(own_server.url) as other,
            other.subscribe("quiet"),
            jetsync.connect(own_server.url, **QUICK) as client,
        ):
            other.flush()
            js = client.jetstream()
            js.create_stream("S", subjects=["s"], no_ack=True)
            request = pool.submit(client.request, "quiet", timeout=30)
            publish = pool.submit(js.publish, "s", timeout=30)
            eventually(lambda: client.statistics().requests_in_flight == 2)
            with timed(0.0, 5.0):
                client.reconnect(timeout=20)
                assert isinstance(request.exception(10), jetsync.ConnectionLostError)
                assert isinstance(publish.exception(10), jetsync.PublishOutcomeUnknownError)

    def test_in_several_threads(self, own_server, pool, monkeypatch):
        """
        Threads that ask at the same time get one new connection.
        """
        with jetsync.connect(own_server.url, **QUICK) as client:
            outbox, together = connection_of(client).lane.outbox, threading.Barrier(4)
            drop = outbox.drop_connection

            def drop_together(epoch):
                together.wait(20)
                drop(epoch)

            monkeypatch.setattr(outbox, "drop_connection", drop_together)
            for asking in [pool.submit(client.reconnect, timeout=20) for _ in range(4)]:
                assert asking.result(30) is None
            assert client.statistics().reconnects == 1

    def test_while_the_client_reconnects(self, own_server, pool):
        """
        The call waits for the connection that the client is making already.
        """
        with jetsync.connect(own_server.url, **QUICK) as client:
            own_server.stop()
            eventually(lambda: not client.is_connected)
            asking = pool.submit(client.reconnect, timeout=30)
            blocked(pool)
            own_server.start()
            asking.result(20)
            assert client.is_connected
            assert client.statistics().reconnects == 1

    def test_an_asked_reconnect_without_a_server_raises_in_time(self, nats_server):
        """
        Without a server the call raises DisconnectedError in time. The client continues to try.
        """
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, request_timeout=0.3, **QUICK) as client,
        ):
            proxy.refuse()
            for arguments in ({}, {"timeout": 0.3}):
                with timed(0.3, 0.8), pytest.raises(jetsync.DisconnectedError, match=r"0\.3 s"):
                    client.reconnect(**arguments)
            proxy.accept()
            client.reconnect(timeout=20)
            client.flush(timeout=20)

    def test_closed_meanwhile(self, nats_server, pool):
        """
        If the client is closed, the call raises ConnectionClosedError at once.
        """
        with CutProxy(nats_server.url) as proxy:
            client = jetsync.connect(proxy.url, **QUICK)
            proxy.refuse()
            asking = pool.submit(client.reconnect, timeout=30)
            eventually(lambda: not client.is_connected)
            with timed(0.0, 2.0):
                client.close()
                assert isinstance(asking.exception(10), jetsync.ConnectionClosedError)

    def test_gives_up_meanwhile(self, nats_server):
        """
        If the client gives up, the call raises ConnectionClosedError with the reason.
        """
        with CutProxy(nats_server.url) as proxy:
            client = jetsync.connect(proxy.url, max_reconnects=2, **QUICK)
            proxy.refuse()
            with pytest.raises(jetsync.ConnectionClosedError, match="gave up reconnecting after"):
                client.reconnect(timeout=30)
            client.close()

    def test_an_asked_reconnect_needs_max_reconnects(self, nats_server):
        """
        With max_reconnects=0 the call raises ConflictingUseError, and the connection stays.
        """
        with jetsync.connect(nats_server.url, max_reconnects=0) as client:
            with pytest.raises(jetsync.ConflictingUseError, match="max_reconnects is 0"):
                client.reconnect()
            assert client.rtt(timeout=20) > 0.0

    def test_ctrl_c_at_any_step_ends_an_asked_reconnect(self, nats_server):
        """
        Ctrl-C at any step ends the call, and the client continues to reconnect if it has begun to.
        """
        with jetsync.connect(nats_server.url, reconnect_wait=0) as client:

            def is_usable():
                with contextlib.suppress(jetsync.ConnectionLostError):
                    client.flush(timeout=20)
                    return True

            struck = 0
            for step in range(1, steps_of(client.reconnect) + 1):
                struck += not interrupted_at(step, client.reconnect)
                eventually(is_usable)
            assert struck > 5

    def test_a_handler_may_ask_for_a_reconnect_during_a_publish(self, nats_server, stream):
        """
        A handler that interrupts any step of a publish gets a new connection, or an error at once.
        """
        outcomes = []

        def handler():
            with timed(0.0, 4.0):
                try:
                    client.reconnect(timeout=20)
                    outcomes.append("reconnected")
                except jetsync.CallInSignalHandlerError:
                    outcomes.append("refused")

        def publish():
            client.jetstream().publish(f"{stream.name}.A", timeout=20)

        with jetsync.connect(nats_server.url, reconnect_wait=0) as client:
            for step in range(1, steps_of(publish) + 1):
                before = client.statistics().reconnects
                try:
                    handled_at(step, publish, handler)
                except jetsync.PublishOutcomeUnknownError:
                    assert outcomes[-1] == "reconnected"
                made = client.statistics().reconnects - before
                assert made == 0 or outcomes[-1] == "reconnected"
        assert set(outcomes) == {"reconnected", "refused"}


@pytest.mark.cluster
class TestCluster:
    def test_another_node_takes_over_with_the_subscriptions(self, recorder, pool):
        """
        If the connected node is killed, the client moves to a node that the first one announced,
        with its subscriptions. There is one disconnected and one reconnected event.
        """
        with DevServer(cluster=3) as cluster:
            first = cluster.urls[0]
            with (
                jetsync.connect(first, plugins=[recorder], **QUICK) as client,
                jetsync.connect(cluster.urls[1]) as other,
                client.subscribe("news") as news,
                client.subscribe("ask") as ask,
            ):
                assert client.server.url == first
                assert client.server.cluster is not None
                name = client.server.server_name
                client.flush()
                answering = pool.submit(
                    lambda: other.publish(ask.next(timeout=20).reply, b"answer")
                )
                cluster.kill(0)
                eventually(lambda: kinds(recorder, "disconnected", "reconnected")[1:])
                assert client.server.url in cluster.urls[1:]
                assert client.server.server_name != name
                # The other node learns of the subscriptions over the route shortly afterwards.
                eventually(lambda: other.publish("news", b"1") or news.next(timeout=0.05))
                assert client.request("ask", b"?", timeout=10).data == b"answer"
                answering.result(20)
                client.flush()
                assert kinds(recorder, "disconnected", "reconnected", "closed") == [
                    "disconnected",
                    "reconnected",
                ]

    def test_servers_that_join_are_announced(self, recorder):
        """
        The client learns of each new node once.
        """
        with DevServer(cluster=3) as cluster:
            cluster.stop(2)
            # A client that connects before the first node has noticed the third would already know
            # it.
            eventually(lambda: len(cluster.monitor("varz")["connect_urls"]) == 2)
            with jetsync.connect(cluster.urls[0], plugins=[recorder], **QUICK) as client:
                cluster.start(2, wait=False)
                eventually(lambda: events(recorder, "servers_discovered"))
                client.flush()
                announced = [event.servers for event in events(recorder, "servers_discovered")]
            assert announced == [(cluster.urls[2],)]


@pytest.fixture(scope="module")
def paused():
    """
    A client of a paused server, its JetStream and one of its consumers.

    The client does not probe the connection, which it would drop after the first timeout.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        DevServer() as server,
        jetsync.connect(server.url) as setting_up,
        jetsync.connect(server.url, request_timeout=0.5) as client,
    ):
        patch.setattr(probe_module, "PING_WAIT", 600.0)
        setting_up.jetstream().create_stream("S", subjects=["s"]).create_consumer(name="c")
        js = client.jetstream()
        stream, consumer = js.stream("S"), js.consumer("S", "c")
        subscription = client.subscribe("quiet")
        client.flush(timeout=20)
        server.pause()
        yield client, js, stream, consumer, subscription
        server.resume()
        # The connection is the same and works, including nats-py's handling of PONGs.
        client.flush(timeout=20)
        assert "S" in js.stream_names(timeout=20)
        assert client.statistics().reconnects == 0


class TestSilentServer:
    """
    A server that is stopped with SIGSTOP: connections stay open, and no request is answered.
    """

    def test_a_publish_to_a_silent_server_has_an_unknown_outcome(self, paused):
        """
        The message was sent and no ack arrived, so the outcome is unknown.
        """
        _, js, *_ = paused
        with timed(0.5, 1.0), pytest.raises(jetsync.PublishOutcomeUnknownError) as caught:
            js.publish("s", msg_id="1", timeout=0.5)
        assert (caught.value.subject, caught.value.msg_id) == ("s", "1")

    def test_every_message_to_a_silent_server_is_reported_as_unknown(self, paused):
        """
        Every message is reported with an unknown outcome.
        """
        _, js, *_ = paused
        with timed(0.5, 1.5), pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many([("s", b"%d" % n) for n in range(5)], ack_timeout=0.5)
        failures = caught.value.report.failures
        assert [type(failure.error) for failure in failures] == [
            jetsync.PublishOutcomeUnknownError
        ] * 5

    def test_requests_to_a_silent_server_time_out(self, paused):
        """
        Requests of all kinds end with RequestTimeoutError, by an explicit or the default timeout.
        """
        client, js, stream, consumer, _ = paused
        for call in (
            lambda: client.request("quiet"),
            js.account_info,
            stream.info,
            consumer.info,
            lambda: js.create_stream("T", subjects=["t"]),
            lambda: stream.get_message(1),
        ):
            with timed(0.5, 1.0), pytest.raises(jetsync.RequestTimeoutError):
                call()

    def test_a_pull_ends_two_seconds_after_its_expiry(self, paused):
        """
        A pull ends at most two seconds after its expiry.
        """
        _, _, _, consumer, _ = paused
        with timed(1.0, 3.3), pytest.raises(TimeoutError) as caught:
            consumer.next(expires=1)
        assert isinstance(caught.value, jetsync.JetSyncError)

    def test_local_waits(self, paused):
        """
        A flush, a round trip and next() of a subscription end in time. A core publish does not
        wait.
        """
        client, _, _, _, subscription = paused
        for call in (client.flush, client.rtt):
            with timed(0.5, 1.0), pytest.raises(jetsync.WaitTimeoutError):
                call()
            # The late answer to the abandoned flush does no harm, which the fixture checks.
        with timed(0.2, 0.7):
            assert subscription.next(timeout=0.2) is None
        client.publish("quiet")
        assert subscription.next(timeout=0.0) is None

    def test_a_writer_waits_for_room_and_then_gives_up(self, own_server):
        """
        If the server reads nothing, writers wait once the buffers are full, and memory does not
        grow.
        """
        with jetsync.connect(own_server.url, request_timeout=0.5) as client:

            def write():
                for _ in range(100):
                    client.publish("a", b"x" * 1_000_000)

            own_server.pause()
            with pytest.raises(jetsync.DisconnectedError, match="does not accept more data"):
                write()
            assert client.statistics().bytes_out < 60_000_000
            own_server.resume()
            client.flush(timeout=20)

    def test_pings_detect_a_paused_server(self, own_server, recorder):
        """
        Without answers to its pings the client drops the connection, and reconnects once the server
        runs again.
        """

        def attempt(pace):
            recorder.clear()
            options = {"ping_interval": 0.2 * pace, "max_outstanding_pings": 2, **QUICK}
            with jetsync.connect(own_server.url, plugins=[recorder], **options) as client:
                own_server.pause()
                try:
                    with timed(0.3 * pace, 3.0 * pace):
                        eventually(lambda: kinds(recorder) == ["disconnected"])
                finally:
                    own_server.resume()
                eventually(lambda: kinds(recorder, "disconnected", "reconnected")[1:])
                assert client.jetstream().account_info().streams == 0

        at_some_pace(attempt)


class TestThreads:
    def test_slow_users_do_not_cost_the_connection(self):
        """
        A slow subscriber thread and a slow status hook delay neither the answers to the server's
        pings, nor other subscriptions, nor requests.
        """

        def attempt(pace):
            asleep = threading.Event()
            reports = []

            class Sleepy:
                name = "sleepy"

                @jetsync.hookimpl
                def jetsync_status(self, event):
                    if event.kind.value == "permission_denied":
                        asleep.set()
                        # Longer than the server waits for answers to its pings.
                        time.sleep(1.6 * pace)

            def slow(subscription, client):
                message = subscription.next(timeout=20)
                # As in the hook.
                time.sleep(1.6 * pace)
                reports.append((message.data, client.jetstream().account_info().streams))

            permissions = {"publish": {"deny": "forbidden"}}
            user = {"user": "u", "password": "p", "permissions": permissions}
            config = {
                "ping_interval": f"{400 * pace}ms",
                "ping_max": 2,
                "authorization": {"timeout": 30, "users": [user]},
            }
            with (
                DevServer(config=config) as server,
                jetsync.connect(server.url, user="u", password="p", plugins=[Sleepy()]) as client,
                client.subscribe("slow") as first,
                client.subscribe("fast") as second,
            ):
                thread = threading.Thread(target=slow, args=(first, client))
                thread.start()
                client.publish("slow", b"go")
                client.publish("forbidden")
                assert asleep.wait(20)
                received = 0
                while thread.is_alive():
                    client.publish("fast")
                    assert second.next(timeout=20) is not None
                    received += 1
                    thread.join(0.02)
                thread.join()
                assert reports == [(b"go", 0)]
                assert received > 30
                assert client.statistics().reconnects == 0

        at_some_pace(attempt)

    def test_many_threads_share_one_client(self, js, unique):
        """
        In 32 threads, each of 50 publishes is followed by a read, and no answer reaches another
        thread.
        """
        made = js.create_stream(
            unique, subjects=[f"{unique}.>"], storage="memory", allow_direct=True
        )
        begin = threading.Barrier(32)

        def work(number):
            sequences = []
            begin.wait(60)
            for turn in range(50):
                data = f"{number}-{turn}".encode()
                ack = js.publish(f"{unique}.{number}", data, timeout=30)
                stored = made.get_message(ack.sequence, direct=True, timeout=30)
                assert (stored.data, stored.subject) == (data, f"{unique}.{number}")
                sequences.append(ack.sequence)
            return sequences

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            found = [sequence for part in pool.map(work, range(32)) for sequence in part]
        assert sorted(found) == list(range(1, 1601))
        js.delete_stream(unique)
