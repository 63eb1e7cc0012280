"""
Clients when processes are interrupted and end.

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
from pathlib import Path
from typing import ClassVar

import pytest

import jetsync
from helpers.interrupts import interrupted_at, is_locked, steps_of
from helpers.programs import run
from helpers.streams import fill
from helpers.waiting import LATE, eventually
from jetsync._base.deadline import Deadline
from jetsync.devserver import DevServer


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
