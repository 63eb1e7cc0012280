"""
Clients in processes that fork.
"""

from __future__ import annotations

import os
import re
import textwrap

import pytest

import jetsync
from helpers.certificates import Authority, tls_block
from helpers.lacking import needs_fork
from helpers.programs import run
from jetsync.devserver import DevServer

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
