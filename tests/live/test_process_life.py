"""
Clients when processes fork, are interrupted, and end.

Most tests run a script in a process of its own, and check its status, output and duration.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path
from typing import ClassVar

import pytest

import jetsync
from helpers.certificates import Authority, tls_block
from helpers.interrupts import interrupted_at, is_locked, steps_of
from helpers.lacking import needs_fork, skip_if_lacking
from helpers.streams import fill
from helpers.waiting import LATE, eventually
from jetsync._base.deadline import Deadline
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy


def run(script, *arguments, timeout=60.0):
    """
    Run a script in an interpreter of its own and return its output. Its status must be 0 and its
    stderr empty.

    The script can import the test helpers. Warnings are off, because newer interpreters warn of
    every fork in a process that has threads.
    """
    helpers = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, helpers))}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    skip_if_lacking(done.stderr)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


FORK = """
    import os, sys, threading
    from helpers.forks import refusals, run_in_child
    import jetsync

    url, name = sys.argv[1:]
    client = jetsync.connect(url)
    js = client.jetstream()
    stream = js.create_stream(name, subjects=[name + ".>"], storage="memory")
    consumer = stream.create_consumer("c")
    subscription = client.subscribe(name + ".*")
    answers = client.request_many("quiet." + name, timeout=60)
    js.publish(name + ".parent", b"1")
    message = consumer.next(expires=20)
    # One thread reads the socket at the moment of the fork.
    reader = threading.Thread(target=subscription.next, kwargs={"timeout": 0.5}, daemon=True)
    assert subscription.next(timeout=20).data == b"1"
    reader.start()

    def child():
        calls = [
            lambda: client.publish(name),
            lambda: client.request(name, timeout=1),
            lambda: client.request_many(name, timeout=1),
            lambda: next(answers),
            lambda: client.subscribe(name),
            lambda: client.flush(),
            lambda: client.rtt(),
            lambda: client.drain(),
            lambda: client.reconnect(),
            lambda: subscription.next(timeout=1),
            lambda: next(subscription),
            lambda: js.publish(name + ".x", b"", timeout=1),
            lambda: js.publish_many([(name + ".x", b"")]),
            lambda: js.account_info(timeout=1),
            lambda: stream.info(timeout=1),
            lambda: stream.get_message(1),
            lambda: consumer.info(timeout=1),
            lambda: consumer.next(expires=1),
            lambda: list(consumer.fetch(1, expires=1)),
            lambda: message.ack(),
            lambda: message.ack_sync(timeout=1),
        ]
        refusals(calls)
        assert not client.is_connected
        assert "forked" in repr(client), repr(client)
        # Closing inherited handles does not affect the parent's.
        subscription.close()
        client.close()
        with jetsync.connect(url) as own:
            ack = own.jetstream().publish(name + ".child", b"2", timeout=20)
            print("child", own.server.client_id, ack.sequence, flush=True)

    print("status", run_in_child(child, {leave}))
    reader.join()
    ack = js.publish(name + ".parent", b"3")
    print("parent", client.server.client_id, ack.sequence)
    client.flush()
    rest = [subscription.next(timeout=0) for _ in range(subscription.pending)]
    print("stored", stream.info().state.messages)
    print("reconnects", client.statistics().reconnects)
    message.ack_sync()
    print("acked", consumer.info().num_ack_pending)
    client.close()
"""


@needs_fork
class TestFork:
    @pytest.mark.parametrize("leave", ["sys.exit", "os._exit"], ids=["exit", "_exit"])
    def test_a_fork_affects_neither_process(self, nats_server, js, unique, leave):
        """
        In the child, the inherited client raises an error at once and a new one works. The parent
        continues undisturbed, and each has its own connection.
        """
        output = run(FORK.replace("{leave}", leave), nats_server.url, unique)
        found = re.fullmatch(
            r"child (\d+) 2\nstatus 0\nparent (\d+) 3\nstored 3\nreconnects 0\nacked 0\n", output
        )
        assert found, output
        assert found[1] != found[2]
        js.delete_stream(unique)

    def test_the_parents_subscription_gets_nothing_twice(self, nats_server, unique):
        """
        Messages that are published while the child lives arrive once, in the parent.
        """
        script = """
            import os, sys, time
            import jetsync

            url, name = sys.argv[1:]
            patient = {"connect_timeout": 30, "request_timeout": 30}
            client = jetsync.connect(url, **patient)
            subscription = client.subscribe(name)
            client.flush()
            begin, ready = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(ready, b"!")
                with jetsync.connect(url, **patient) as own:
                    for number in range(50):
                        own.publish(name, b"c%d" % number)
                os._exit(0)
            os.read(begin, 1)
            for number in range(50):
                client.publish(name, b"p%d" % number)
            assert os.waitpid(pid, 0)[1] == 0
            client.flush()
            got = [subscription.next(timeout=20).data for _ in range(100)]
            client.flush()
            assert subscription.pending == 0
            for source in "cp":
                mine = [data for data in got if data.startswith(source.encode())]
                assert mine == [b"%s%d" % (source.encode(), n) for n in range(50)], mine
        """
        run(script, nats_server.url, unique)

    def test_a_publisher_whose_lock_is_held(self, nats_server, unique):
        """
        In the child, calls on the parent's publisher raise, and closing the client does not wait.

        The thread that held the lock of the publisher at the fork does not exist there.
        """
        script = """
            import os, signal, sys, threading
            from helpers.forks import refusals
            from jetsync._base.deadline import FOREVER
            import jetsync

            def fork():
                return publisher.publish(name), os.fork() == 0

            url, name = sys.argv[1:]
            with jetsync.connect(url) as client:
                js = client.jetstream()
                js.create_stream(name, subjects=[name])
                publisher = js.publisher()
                future, is_child = publisher._turn.run(FOREVER, fork)
                if is_child:
                    owner = threading.Thread(target=publisher._turn._lock.acquire)
                    owner.start()
                    owner.join()
                    signal.alarm(30)
                    refusals([
                        lambda: future.result(timeout=60),
                        lambda: future.exception(),
                        lambda: future.add_done_callback(print),
                        publisher.statistics,
                        lambda: publisher.flush(timeout=60),
                    ])
                    publisher.close()
                    client.close()
                    os._exit(7)
                assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
                assert future.result(timeout=20).sequence == 1
                js.delete_stream(name)
        """
        run(script, nats_server.url, unique)

    @pytest.mark.thorough
    @pytest.mark.parametrize("scheme", ["nats", "ws", "wss"])
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_the_status_of_a_child(self, scheme, host, tmp_path):
        """A forked child ends with its own status, although its parent has a client on uvloop."""
        pytest.importorskip("uvloop")
        block, options = {"port": -1, "no_tls": True}, {"connect_timeout": 30}
        if scheme != "nats":
            pytest.importorskip("aiohttp")
        if scheme == "wss":
            authority = Authority(tmp_path, "ours")
            block = {"port": -1, "tls": tls_block(authority.issue("server", hosts=(host,)))}
            options["tls_ca"] = authority.path
        with DevServer(jetstream=False, config={"websocket": block}) as server:
            port = server.port if scheme == "nats" else server.ports()["websocket"]
            statuses = run(
                """
                import os, sys, jetsync
                client = jetsync.connect(sys.argv[1], loop="uvloop", **eval(sys.argv[2]))
                child = os.fork()
                if not child:
                    sys.exit(3)
                print(os.waitpid(child, 0)[1])
                """,
                f"{scheme}://{host}:{port}",
                repr(options),
            )
        assert os.waitstatus_to_exitcode(int(statuses)) == 3

    @pytest.mark.thorough
    def test_a_pool_of_forked_workers_connects_by_itself(self, nats_server, js, stream):
        """
        With multiprocessing's "fork", options can be pickled, and every worker has its own client.
        """
        script = """
            import multiprocessing, sys
            import jetsync

            url, name = sys.argv[1:]
            client = jetsync.connect(url, name="parent")

            def work(number):
                with jetsync.connect(options=client.options) as own:
                    own.jetstream().publish(name + ".w", b"%d" % number)
                    return own.server.client_id

            with multiprocessing.get_context("fork").Pool(3) as pool:
                ids = pool.map(work, range(6))
            assert len({*ids, client.server.client_id}) == 7
            client.rtt()
        """
        run(script, nats_server.url, stream.name)
        assert stream.info().state.messages == 6


@needs_fork
class TestReconnectAfterFork:
    """The option `after_fork="reconnect"`."""

    CHILD = """
        import sys, jetsync
        from concurrent.futures import ThreadPoolExecutor
        from helpers.forks import refusals, run_in_child

        url, name = sys.argv[1:]
        options = dict(after_fork="reconnect", name=name, reconnect_wait=0.05)
        client = jetsync.connect(url, **options)
        js = client.jetstream()
        stream = js.create_stream(name, subjects=[name + ".*"], storage="memory",
            allow_atomic=True, allow_direct=True)
        consumer, other = stream.create_consumer("c"), stream.create_consumer("d")
        js.publish(name + ".a", b"parent")
        message = consumer.next(expires=20)
        old = {
            "subscription": client.subscribe(name),
            "publisher": js.publisher(),
            "batch": js.atomic_batch(),
            "fetch": consumer.fetch(5, expires=5),
            "consumption": consumer.consume(),
            "scan": iter(stream.scan()),
        }
        old["batch"].add(name + ".b", b"1")
        parent = client.server.client_id

        def child():
            CALLS

        assert run_in_child(child) == 0
        # The parent continues on its own connection.
        old["batch"].commit(name + ".b", b"2")
        client.flush()
        assert client.server.client_id == parent and client.statistics().reconnects == 0
        message.ack_sync()
        for name in ("subscription", "publisher", "fetch", "consumption"):
            old[name].close()
        client.close()
    """

    def check(self, nats_server, js, unique, calls):
        script = textwrap.dedent(self.CHILD)
        lines = textwrap.indent(textwrap.dedent(calls).strip(), "    ")
        try:
            run(script.replace("    CALLS", lines), nats_server.url, unique)
        finally:
            js.delete_stream(unique)

    def test_every_idle_handle_works_in_the_child(self, nats_server, js, unique):
        """Every idle handle works on a connection of the child."""
        calls = """
            assert js.publish(name + ".a", b"child").sequence == 2
            assert client.is_connected and client.server.client_id != parent
            assert stream.info().state.messages == 2
            assert js.publish_many([(name + ".a", b"1"), (name + ".a", b"2")]).count == 2
            batch = other.fetch(4, expires=20)
            assert [each.data for each in batch] == [b"parent", b"child", b"1", b"2"]
            assert batch.ack() == 4
            with client.subscribe(name) as mine:
                client.publish(name, b"x")
                assert mine.next(timeout=20).data == b"x"
            with js.publisher() as publisher:
                assert publisher.publish(name + ".a", b"3").result(20).sequence == 5
            with other.consume() as messages:
                assert next(messages).data == b"3"
            client.close()
        """
        self.check(nats_server, js, unique, calls)

    @pytest.mark.thorough
    @pytest.mark.parametrize("first", ["client.flush()", "js.account_info()", "other.next()"])
    def test_the_first_call_after_a_fork_may_be_of_any_kind(self, nats_server, js, unique, first):
        """Each kind of call may be the first one, in many threads at once."""
        first = first.replace("next()", "next(expires=5)")
        calls = f"""
            with ThreadPoolExecutor(8) as pool:
                [each.result() for each in [pool.submit(lambda: {first}) for _ in range(8)]]
            assert client.is_connected and client.server.client_id != parent
            client.close()
        """
        self.check(nats_server, js, unique, calls)

    @pytest.mark.thorough
    @pytest.mark.parametrize("connected", [True, False])
    def test_open_handles(self, nats_server, js, unique, connected):
        """Open handles of the parent raise ForkedProcessError, and closing them does no harm."""
        calls = f"""
            if {connected}:
                client.flush()
            calls = [
                lambda: old["subscription"].next(timeout=5),
                lambda: old["publisher"].publish(name + ".a", b""),
                lambda: old["batch"].add(name + ".b", b""),
                lambda: old["batch"].commit(name + ".b", b"", timeout=5),
                lambda: list(old["fetch"]),
                lambda: next(old["consumption"]),
            ]
            for text in refusals(calls):
                assert "after_fork='reconnect'" in text
            for handle in ("subscription", "publisher", "fetch", "consumption"):
                old[handle].close()
            old["batch"].discard()
            client.close()
        """
        self.check(nats_server, js, unique, calls)

    def test_a_child_that_cannot_connect_tries_again(self):
        """A child that cannot connect gets ConnectError, and its next call tries again."""
        with DevServer(jetstream=False) as server:
            script = """
                import os, sys, jetsync
                from jetsync.client import Client  # Takes longer than a second on a busy machine.
                from jetsync.devserver import DevServer

                def connected(call):
                    while True:
                        try:
                            return call()
                        except jetsync.ConnectError:
                            pass  # A busy machine may take longer than a second.

                options = {"after_fork": "reconnect", "connect_timeout": 1}
                client = connected(lambda: jetsync.connect(sys.argv[1], **options))
                pid = os.fork()
                if pid == 0:
                    os.kill(int(sys.argv[2]), 19)
                    for _ in range(2):
                        try:
                            client.flush()
                        except jetsync.ConnectError as error:
                            print("error", flush=True)
                    os.kill(int(sys.argv[2]), 18)
                    connected(lambda: client.flush(timeout=30))
                    os._exit(3)
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            """
            output = run(script, server.url, str(server.pids[0]))
        assert output == "error\nerror\n3\n"

    def test_a_fork_while_the_child_connects(self):
        """A grandchild connects although a thread of the child was connecting at the fork."""
        with DevServer(jetstream=False) as server:
            script = """
                import os, sys, threading, time, jetsync
                from helpers.forks import run_in_child
                client = jetsync.connect(sys.argv[1], after_fork="reconnect", connect_timeout=30)

                def grandchild():
                    os.kill(int(sys.argv[2]), 18)
                    client.flush(timeout=30)

                def child():
                    os.kill(int(sys.argv[2]), 19)
                    connecting = threading.Thread(target=client.flush, kwargs={"timeout": 30})
                    connecting.start()
                    while threading.active_count() < 3:
                        time.sleep(0.01)
                    assert run_in_child(grandchild) == 0
                    connecting.join()
                    client.flush()

                assert run_in_child(child) == 0
                client.close()
            """
            run(script, server.url, str(server.pids[0]))

    def test_only_error_and_reconnect_are_accepted_after_a_fork(self):
        """The default is "error", and only "reconnect" is accepted otherwise."""
        assert jetsync.ConnectOptions().after_fork == "error"
        with pytest.raises(jetsync.InvalidArgumentError, match="after_fork must be one of"):
            jetsync.ConnectOptions(after_fork="retry")


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
class TestGreenThreads:
    PATCH: ClassVar = {
        "gevent": "from gevent import monkey; monkey.patch_all()",
        "eventlet": "import eventlet; eventlet.monkey_patch()",
    }

    def run(self, library, script, *arguments):
        """Run a script whose threads come from a library."""
        pytest.importorskip("uvloop")
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
        return run(f"{self.PATCH[library]}\n{textwrap.dedent(script)}", *arguments, timeout=60.0)

    def test_a_client_works_with_green_threads_and_needs_no_close(
        self, library, nats_server, unique
    ):
        """A client works with the library's threads, and needs no close at exit."""
        script = """
            import sys, threading, jetsync
            url, name = sys.argv[1:]
            client = jetsync.connect(url)
            js = client.jetstream()
            stream = js.create_stream(name, subjects=[name], storage="memory")
            assert js.publish_many((name, b"%d" % number) for number in range(100)).count == 100
            consumer = stream.create_consumer("c")
            batch = consumer.fetch(50)
            print(len(list(batch)), batch.ack())
            seen, done = [], threading.Event()
            def handle(message):
                seen.append(message)
                message.ack()
                if len(seen) == 50:
                    done.set()
            with consumer.consume(handle):
                done.wait(30)
            print(len(seen))
            js.delete_stream(name)
        """
        assert self.run(library, script, nats_server.url, unique) == "50 50\n50\n"

    def test_connect_timeout(self, library):
        """A silent server costs no more than `connect_timeout`."""
        script = """
            import sys, time, jetsync
            begin = time.monotonic()
            try:
                jetsync.connect(sys.argv[1], connect_timeout=0.5)
            except jetsync.ConnectError as error:
                print(time.monotonic() - begin)
        """
        with socket.create_server(("127.0.0.1", 0)) as silent:
            took = self.run(library, script, f"nats://127.0.0.1:{silent.getsockname()[1]}")
        assert 0.4 < float(took) < 0.5 + LATE

    def test_green_threads_refuse_uvloop(self, library):
        """The client refuses uvloop, which would block all threads of the library."""
        script = """
            import jetsync
            try:
                jetsync.connect("nats://127.0.0.1:1", loop="uvloop")
            except jetsync.ConfigurationError as error:
                print(error)
        """
        assert "does not work with the threads of gevent or eventlet" in self.run(library, script)


class TestInterrupt:
    def test_ctrl_c_ends_a_wait_at_once(self, nats_server, js, stream):
        """
        Ctrl-C raises KeyboardInterrupt within a second from next, a fetch, a subscription, a
        request and a flush. Later calls work, and the server removes the pulls.
        """
        script = """
            import os, signal, sys, threading, time
            from helpers.interrupts import interrupt_main_thread
            from helpers.waiting import eventually
            import jetsync

            url, name = sys.argv[1:]
            client = jetsync.connect(url)
            js = client.jetstream()
            stream = js.stream(name)
            consumer = stream.create_consumer("c")
            subscription = client.subscribe("quiet." + name)
            client.flush()

            def interrupted(call):
                begin = time.monotonic()
                timer = threading.Timer(0.3, interrupt_main_thread)
                timer.start()
                try:
                    call()
                except KeyboardInterrupt:
                    seconds = time.monotonic() - begin
                    assert 0.25 < seconds < 10.0, seconds
                else:
                    raise SystemExit("not interrupted")
                timer.join()

            interrupted(lambda: consumer.next(expires=30))
            js.publish(name + ".a", b"1")
            assert consumer.next(expires=20).data == b"1"
            interrupted(lambda: list(consumer.fetch(10, expires=30)))
            js.publish(name + ".a", b"2")
            assert consumer.next(expires=20).data == b"2"
            interrupted(lambda: subscription.next(timeout=30))
            interrupted(lambda: list(subscription))
            interrupted(lambda: client.request("quiet." + name, timeout=30))
            with client.request_many("quiet." + name, timeout=30) as answers:
                interrupted(lambda: list(answers))
                assert answers.reason is None
            client.publish("quiet." + name, b"3")
            assert [subscription.next(timeout=20).data for _ in range(3)] == [b"", b"", b"3"]
            eventually(lambda: not consumer.info().num_waiting)
            assert client.statistics().requests_in_flight == 0
            assert client.statistics().reconnects == 0
            client.close()
        """
        run(script, nats_server.url, stream.name)

    def test_ctrl_c_ends_waits_for_a_connection(self):
        """
        Connecting to a silent server, and a call without a connection, end at once. A connect
        leaves no thread.
        """
        script = """
            import os, signal, socket, sys, threading, time
            from helpers.interrupts import interrupt_main_thread
            from helpers.waiting import eventually
            import jetsync

            def interrupted(call):
                begin = time.monotonic()
                timer = threading.Timer(0.3, interrupt_main_thread)
                timer.start()
                try:
                    call()
                except KeyboardInterrupt:
                    assert time.monotonic() - begin < 10.0
                else:
                    raise SystemExit("not interrupted")
                timer.join()

            def is_alone():
                return threading.enumerate() == [threading.main_thread()]

            connect = jetsync.connect  # Imports the client, in a thread that Ctrl-C does not end.
            with socket.create_server(("127.0.0.1", 0)) as hole:
                url = f"nats://127.0.0.1:{hole.getsockname()[1]}"
                interrupted(lambda: connect(url, connect_timeout=30))
            eventually(is_alone)
            client = jetsync.connect(sys.argv[1], request_timeout=30)
            os.kill(int(sys.argv[2]), signal.SIGKILL)
            eventually(lambda: not client.is_connected)
            interrupted(lambda: client.publish("a"))
            interrupted(client.flush)
            interrupted(client.jetstream().account_info)
            client.close()
            eventually(is_alone)
        """
        with DevServer() as server:
            run(script, server.url, str(server.pids[0]))


SAMPLES = 80
"""Steps of a call at which it is interrupted; running all some thousand takes too long."""


def at_rest(used):
    """
    Return what is used once no thread reads a login any more. It may end after the connect.
    """
    eventually(lambda: "jetsync-make_login" not in {one.name for one in threading.enumerate()})
    return used()


class TestInterruptedReads:
    """
    Ctrl-C at any step of a call for a message leaves the handle's lock free.
    """

    def check(self, is_free, call):
        step, ended = 0, False
        while not ended:
            step += 1
            ended = interrupted_at(step, call)
            assert is_free(), step

    def test_ctrl_c_ends_a_read_of_a_core_subscription(self, client, unique):
        """
        Core subscriptions.
        """
        with client.subscribe(unique) as subscription:
            self.check(
                lambda: not is_locked(subscription._reading.turn._lock),
                lambda: subscription.next(timeout=0),
            )

    def test_ordered_consumption(self, stream):
        """
        Iterations of an ordered consumer.
        """

        def take():
            consumption.next(timeout=0)

        with stream.ordered_consumer() as ordered:
            consumption = ordered.consume()
            take()
            reading = consumption._core.reading
            self.check(lambda: reading.free and reading.taker is None, take)

    @pytest.mark.parametrize("how", ["next", "loop"])
    @pytest.mark.parametrize("arrived", [True, False], ids=["buffered", "in flight"])
    def test_an_interrupted_ordered_read_misses_nothing(
        self, nats_server, js, stream, how, arrived
    ):
        """
        After Ctrl-C at any step of a call, an ordered consumption hands out the same message.
        """

        def take():
            if how == "next":
                return messages.next(timeout=20)
            for message in messages:
                return message
            return None

        sent, step, ended = 0, 0, 0
        # Its own client, because Ctrl-C may end the connection.
        with (
            jetsync.connect(nats_server.url, reconnect_wait=0.01) as client,
            client.jetstream().stream(stream.name).ordered_consumer() as ordered,
            ordered.consume() as messages,
        ):
            while ended < 3:
                step += 1
                # An uninterrupted call, because the last one may have ended the server's consumer.
                fill(js, stream, 1, start=sent)
                got = [take()]
                fill(js, stream, 2, start=sent + 1)
                if arrived:
                    eventually(lambda: messages._core.refill() and len(messages._core.buffer) == 2)
                ended += interrupted_at(step, lambda made=got: made.append(take()))
                # Of the same consumer: they may not hide that messages before them are lost.
                fill(js, stream, 2, start=sent + 3)
                while len(got) < 5:
                    got.append(take())
                sent += 5
                assert [int(message.data) for message in got] == [*range(sent - 5, sent)], step
                assert messages.received == ordered.statistics().delivered == sent, step
            assert step > 10

    def test_an_interrupted_consumption_continues_or_says_so(self, nats_server, js, stream):
        """
        After Ctrl-C at any step of a call, a consumption hands out the next message or says that it
        was interrupted. It can be closed, and leaves neither a lock nor a subscription.
        """

        def connected():
            with contextlib.suppress(jetsync.TransportError):
                client.flush()
                return True

        consumer = stream.create_consumer("worker", ack_policy="none")
        outcomes, step, ended = set(), 0, 0
        # Its own client, because Ctrl-C may end the connection.
        with jetsync.connect(nats_server.url, reconnect_wait=0.01) as client:
            worker = client.jetstream().consumer(stream.name, "worker")
            # On a busy machine, a call may have fewer steps than others.
            while ended < 3:
                step += 1
                eventually(connected)
                messages = worker.consume(max_messages=2, expires=2)
                js.publish(f"{stream.name}.a", b"1")
                eventually(lambda made=messages: made._core.feed.box.frames)
                ended += interrupted_at(step, lambda made=messages: made.next(timeout=5))
                try:
                    # Repeated, because a message may be lost with the connection.
                    taken = None
                    while taken is None:
                        js.publish(f"{stream.name}.a", b"2")
                        taken = messages.next(timeout=1)
                    outcomes.add("taken")
                except jetsync.ConsumptionClosedError as error:
                    assert "a call was interrupted" in str(error)  # noqa: PT017
                    outcomes.add("interrupted")
                assert not is_locked(messages._core.reading.turn._lock), step
                messages.close()
                assert messages.closed
                # Otherwise the server might send the next message to the closed consumption.
                eventually(lambda: not consumer.info().num_waiting)
            assert "taken" in outcomes
            eventually(lambda: client.statistics().subscriptions == 1)

    def test_ordered_consumer(self, stream):
        """
        Beginning to read an ordered consumer.
        """

        def begin():
            ordered._source.turn.run(Deadline.after(5), ordered._check_unused)

        with stream.ordered_consumer() as ordered:
            step, ended = 0, False
            while not ended:
                step += 1
                ended = interrupted_at(step, begin)
                assert not is_locked(ordered._source.turn._lock), step


def test_a_dropped_client_is_closed_at_once(nats_server, unique):
    """A used client closes when its last handle is dropped, without the cycle collector."""

    def use():
        js = jetsync.connect(nats_server.url).jetstream()
        stream = js.create_stream(unique, subjects=[unique])
        js.publish(unique, b"1")
        for message in stream.create_consumer().fetch(1, expires=20):
            message.ack()
        stream.delete()

    def ours():
        return {one for one in threading.enumerate() if one.name.startswith("jetsync-")}

    gc.collect()
    before = ours()
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="client was dropped without being closed"):
            use()
        assert eventually(lambda: ours() <= before)
    finally:
        gc.enable()


@pytest.mark.parametrize("while_", ["waiting", "connecting"])
@pytest.mark.parametrize("loop", ["asyncio", "auto"])
def test_a_client_that_is_dropped_while_it_reconnects_leaves_nothing(nats_server, loop, while_):
    """Its thread ends, and neither a connection nor a socket is left."""
    with CutProxy(nats_server.url) as proxy:
        wait = 60.0 if while_ == "waiting" else 0.0
        options = {"loop": loop, "reconnect_wait": wait, "max_reconnect_wait": 60.0}
        made = [jetsync.connect(proxy.url, **options)]
        thread = made[0]._connection.session._bridge._thread
        if while_ == "connecting":
            # The next connection is accepted, and its server sends nothing until it is dropped.
            proxy.pause("to_client")
        proxy.cut()
        eventually(lambda: not made[0].is_connected)
        if while_ == "connecting":
            assert proxy.wait_accepted(2)

        def drop():
            made.clear()
            gc.collect()
            proxy.resume()
            thread.join(10)
            # The sockets that nothing closes warn when they are collected.
            gc.collect()

        with pytest.warns(ResourceWarning) as warned:
            drop()
        assert [str(each.message).partition(" was")[0] for each in warned] == ["client"]
        assert proxy.wait_open(0)


# A client that is interrupted before its close has begun counts as dropped.
@pytest.mark.filterwarnings("ignore:client was dropped:ResourceWarning")
class TestInterruptedLife:
    @pytest.mark.thorough
    @pytest.mark.parametrize("loop", ["asyncio", "auto"])
    @pytest.mark.parametrize("what", ["connect", "with", "close"])
    def test_ctrl_c_at_any_step_of_a_client_leaves_nothing(self, nats_server, what, loop):
        """
        Ctrl-C at any step of connecting, of a with block and of closing raises KeyboardInterrupt,
        and leaves neither a thread nor a file descriptor.
        """
        made = []

        def connect():
            made.append(jetsync.connect(nats_server.url, loop=loop))

        def use():
            with jetsync.connect(nats_server.url, loop=loop) as client:
                # The list keeps the client, because an interrupt in a weak reference's callback is
                # swallowed.
                made.append(client)
                client.publish("a", b"1")

        def close():
            made[-1].close()

        def used():
            gc.collect()
            # Ctrl-C inside Thread.start may leave a thread in Python's list that never began.
            ours = {
                one
                for one in threading.enumerate()
                if one.name.startswith("jetsync-") and one.is_alive()
            }
            return len(list(Path("/proc/self/fd").iterdir())), ours

        call = {"connect": connect, "with": use, "close": close}[what]
        connect()
        made.pop().close()
        before = at_rest(used)
        if what == "close":
            connect()
        total = steps_of(call)
        while made:
            made.pop().close()
        # Runs differ in their number of steps, because they wait more or less often.
        struck = 0
        for step in range(1, total, max(total // SAMPLES, 1)):
            if what == "close":
                connect()
            struck += not interrupted_at(step, call)
            while made:
                made.pop().close()
            eventually(lambda: used() == before, 10)
        assert struck > SAMPLES // 3


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestInterruptedSubscriptions:
    """
    Ctrl-C at any step of a call leaves no subscription. After a reconnect it would exist again.
    """

    @pytest.mark.parametrize(
        "what",
        ["subscribe", "request_many", "fetch", "consume", "scan", "publisher", "fast"],
    )
    def test_none_is_left(self, client, js, unique, what):
        """
        Each kind of subscription.
        """
        stream = js.create_stream(
            unique,
            subjects=[unique],
            storage="memory",
            allow_batched=True,
            allow_direct=True,
        )
        consumer = stream.create_consumer("worker")
        # Kept during the call, because Python swallows an interrupt that strikes in a finalizer.
        made = []

        def use():
            made.append(makers[what]())
            made[0].close()

        makers = {
            "subscribe": lambda: client.subscribe(unique),
            "request_many": lambda: client.request_many(unique, timeout=30),
            "fetch": lambda: consumer.fetch(1, expires=30),
            "consume": consumer.consume,
            "scan": stream.scan,
            "publisher": js.publisher,
            "fast": js.fast_publisher,
        }

        def is_over():
            made.clear()
            gc.collect()
            return client.statistics().subscriptions == 1

        total = steps_of(use)
        for step in range(1, total, max(total // SAMPLES, 1)):
            made.clear()
            # Ctrl-C may end the connection.
            eventually(lambda: client.is_connected)
            with contextlib.suppress(jetsync.ConnectionLostError):
                interrupted_at(step, use)
        # Checked once, because each check collects garbage, which takes long.
        assert eventually(is_over)


class TestDocumentedWorker:
    @pytest.mark.skipif(hasattr(signal, "SIGBREAK"), reason="this system cannot send SIGTERM")
    def test_the_documented_worker_ends_with_status_143(self):
        """
        The worker in `docs/howto/processes.md` ends with status 143 and prints only its messages.
        """
        page = Path(__file__).parents[2] / "docs" / "howto" / "processes.md"
        code = re.search("```py\n(import jetsync\n.*?)```", page.read_text("utf-8"), re.DOTALL)
        assert code
        with DevServer() as server, jetsync.connect(server.url) as client:
            js = client.jetstream()
            stream = js.create_stream("ORDERS", subjects=["orders.>"], storage="memory")
            consumer = stream.create_consumer("worker")
            js.publish("orders.1", b"1")
            worker = subprocess.Popen(
                [sys.executable, "-c", code[1]],
                env={**os.environ, "NATS_URL": server.url},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                eventually(lambda: consumer.info().ack_floor.stream_seq == 1, 20)
                worker.terminate()
                output = worker.communicate(timeout=20)
            finally:
                worker.kill()
            assert (worker.returncode, *output) == (143, "b'1'\n", "")


class TestEnd:
    @pytest.mark.parametrize("paused", [False, True], ids=["", "server hangs"])
    def test_a_forgotten_close_costs_nothing(self, paused):
        """
        A script that leaves a client, a subscription and waiting daemon threads ends within 3 s
        with status 0 and an empty stderr, even if the server hangs. It has published nothing.
        """
        script = """
            import os, signal, sys, threading, time
            from helpers.waiting import eventually
            import jetsync
            from jetsync.testing import HookRecorder

            client = jetsync.connect(sys.argv[1], plugins=[HookRecorder("jetsync_status")])
            subscription = client.subscribe("a")
            stream = client.jetstream().create_stream("S", subjects=["s"])
            consumer = stream.create_consumer("c")
            for call in (lambda: list(subscription), lambda: client.request("a", timeout=60)):
                threading.Thread(target=call, daemon=True).start()
            batch = consumer.fetch(5, expires=60)
            eventually(lambda: client.statistics().requests_in_flight)
            if sys.argv[2] == "True":
                os.kill(int(sys.argv[3]), signal.SIGSTOP)
            sys.stdout.write(str(time.time()))
        """
        with DevServer() as server:
            began = float(run(script, server.url, str(paused), str(server.pids[0])))
            seconds = time.time() - began
            server.resume()
        assert seconds < 3.0 + LATE

    def test_accepted_messages_are_delivered(self, nats_server, client, js, stream):
        """
        If a script publishes 1000 messages, acknowledges 1000 others and ends without close, all of
        them are delivered.
        """
        consumer = stream.create_consumer("c", max_ack_pending=2000)
        js.publish_many([(f"{stream.name}.a", b"%d" % number) for number in range(1000)])
        script = """
            import sys
            import jetsync

            client = jetsync.connect(sys.argv[1])
            messages = list(client.jetstream().consumer(sys.argv[2], "c").fetch(1000, expires=10))
            assert len(messages) == 1000
            for number, message in enumerate(messages):
                message.ack()
                client.publish("core." + sys.argv[2], b"%d" % number)
        """
        with client.subscribe(f"core.{stream.name}") as subscription:
            client.flush()
            run(script, nats_server.url, stream.name)
            got = [subscription.next(timeout=20).data for _ in range(1000)]
        assert got == [b"%d" % number for number in range(1000)]
        # The server may have read an acknowledgement without having stored it yet.
        eventually(lambda: consumer.info().num_ack_pending == 0)
        info = consumer.info()
        assert (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq) == (0, 0, 1000)

    def test_an_exception_ends_the_script_as_any_other(self, nats_server):
        """
        The status is 1, the traceback is the program's, and the client does not delay the exit.
        """
        script = (
            f"import jetsync, time; c = jetsync.connect({nats_server.url!r});"
            " print(time.time(), flush=True); 1 / 0"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert time.time() - float(done.stdout) < 2.0 + LATE
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("ZeroDivisionError")
        assert "jetsync" not in done.stderr.replace(script, "")

    def test_everything_in_a_thread(self, nats_server):
        """
        A thread other than the main one may import and use jetsync, and end.
        """
        script = """
            import sys, threading

            def work():
                import jetsync
                client = jetsync.connect(sys.argv[1])
                print(client.jetstream().account_info().streams >= 0)
                sys.exit(3)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        """
        assert run(script, nats_server.url) == "True\n"

    def test_nothing_is_printed(self, nats_server):
        """
        The client writes neither to stdout nor to stderr, whatever happens to the connection.
        """
        script = """
            import os, signal, sys
            import jetsync

            client = jetsync.connect(sys.argv[1], max_reconnects=1, reconnect_wait=0.05)
            subscription = client.subscribe("a")
            os.kill(int(sys.argv[2]), signal.SIGKILL)
            try:
                subscription.next(timeout=10)
            except jetsync.ConnectionClosedError:
                pass
        """
        with DevServer() as server:
            assert run(script, server.url, str(server.pids[0])) == ""

    @pytest.mark.parametrize(
        "handle",
        [
            "stream.create_consumer('c').fetch(1)",
            "client.subscribe('a')",
            "stream.ordered_consumer().fetch(1)",
            "stream.ordered_consumer().consume()",
            "iter(stream.create_consumer('c').fetch(1))",
        ],
    )
    def test_a_handle_that_outlives_the_modules_prints_nothing(self, nats_server, stream, handle):
        """
        A handle that Python frees after it has emptied jetsync's modules leaves stderr empty. The
        prompt of Python 3.13 frees its variables that late.
        """
        script = f"""
            import os, sys
            import jetsync

            client = jetsync.connect(sys.argv[1])
            stream = client.jetstream().stream(sys.argv[2])
            os.kept = {handle}  # Python empties the module `os` after those of jetsync.
            client.close()
        """
        assert run(script, nats_server.url, stream.name) == ""


def server_connections(server):
    """Return the server's monitoring of its connections."""
    return server.monitor("connz")["connections"]


def drop(handles):
    """Drop all handles of a list."""
    handles.clear()
    gc.collect()


class TestForgottenClient:
    """
    A client that is dropped without `close`.
    """

    @pytest.mark.parametrize("kept", ["client", "context", "subscription"])
    def test_a_forgotten_client_warns_and_leaves_nothing(self, nats_server, unique, kept):
        """
        Python warns and names the line that connected. No thread, no descriptor and no connection
        is left, whichever handle was dropped last.
        """
        # The first event loop of a process opens a pipe that stays.
        jetsync.connect(nats_server.url).close()
        gc.collect()
        threads, files = set(threading.enumerate()), set(Path("/proc/self/fd").iterdir())

        def connect():
            client = jetsync.connect(nats_server.url, name=unique)
            subscription = client.subscribe(unique)
            context = client.jetstream()
            context.account_info()
            client.publish(unique)
            subscription.next(timeout=20)
            if kept != "subscription":
                subscription.close()
            return {"client": client, "context": context, "subscription": subscription}[kept]

        handles = [connect() for _ in range(10)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            drop(handles)
        clients = [each for each in caught if str(each.message).startswith("client")]
        line = connect.__code__.co_firstlineno + 1
        assert [(each.filename, each.lineno) for each in clients] == [(__file__, line)] * 10
        eventually(lambda: set(threading.enumerate()) <= threads)
        eventually(lambda: set(Path("/proc/self/fd").iterdir()) <= files)
        # The server notices the end of a connection a little later.
        eventually(
            lambda: unique not in [each.get("name") for each in server_connections(nats_server)]
        )

    def test_a_failed_connect_is_no_handle(self):
        """
        A connect that failed leaves no client to close.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with contextlib.suppress(jetsync.ConnectError):
                jetsync.connect("nats://127.0.0.1:1")
            gc.collect()
        assert caught == []


class TestForgottenSubscription:
    """
    A subscription that is dropped without `close`.
    """

    def test_it_unsubscribes(self, client, unique):
        """
        Python warns, the server removes the subscription, and the client stays usable.
        """
        handles = [client.subscribe(unique)]
        client.flush()
        with pytest.warns(ResourceWarning, match=f"subscription to '{unique}'") as caught:
            drop(handles)
        assert [each.filename for each in caught] == [__file__]
        with pytest.raises(jetsync.NoRespondersError):
            client.request(unique, timeout=20)

    def test_no_warning(self, nats_server, client, unique):
        """There is no warning if the subscription or its client was closed."""
        with jetsync.connect(nats_server.url) as other:
            handles = [client.subscribe(unique), other.subscribe(unique)]
        handles[0].close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            drop(handles)
        assert caught == []

    def test_its_client_ends(self, nats_server, unique):
        """
        A client without references closes in the background.
        """
        before = set(threading.enumerate())
        client = jetsync.connect(nats_server.url)
        subscriptions = [client.subscribe(unique), client.subscribe(unique, max_pending=1)]
        for _ in range(3):
            client.publish(unique)
        client.flush()
        handles = [client, *subscriptions]
        del client, subscriptions
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drop(handles)
        eventually(lambda: set(threading.enumerate()) <= before)


class TestManyClients:
    def test_two_clients_in_one_process(self, nats_server, unique):
        """
        Each client has its own connection, thread and inbox; closing one does not affect the other.
        """
        with jetsync.connect(nats_server.url) as first:
            second = jetsync.connect(nats_server.url)
            assert first.server.client_id != second.server.client_id
            with second.subscribe(unique) as asked:
                second.flush()
                answer = threading.Thread(
                    target=lambda: second.publish(asked.next(timeout=20).reply, b"yes")
                )
                answer.start()
                assert first.request(unique, timeout=20).data == b"yes"
                answer.join()
            second.close()
            assert (first.is_connected, second.is_connected) == (True, False)
            assert first.rtt() > 0.0

    @pytest.mark.thorough
    @pytest.mark.parametrize("loop", ["asyncio", "auto"])
    def test_nothing_is_left_of_closed_clients(self, nats_server, loop):
        """
        Fifty clients, used and closed, and ten that could not connect leave no thread and no file
        descriptor.
        """

        def cycle():
            with jetsync.connect(nats_server.url, loop=loop) as client:
                with client.subscribe("a") as subscription:
                    client.publish("a", b"x")
                    assert subscription.next(timeout=20).data == b"x"
                client.jetstream().account_info()

        def fail():
            with contextlib.suppress(jetsync.ConnectError):
                jetsync.connect("nats://127.0.0.1:1", loop=loop)

        def used():
            gc.collect()
            return len(list(Path("/proc/self/fd").iterdir())), set(threading.enumerate())

        cycle()
        fail()
        before = at_rest(used)
        for _ in range(50):
            cycle()
        for _ in range(10):
            fail()
        eventually(lambda: used() == before, 5)
