"""
The end of a service: no request that has arrived is lost, and no thread is left.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading

import pytest

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy, eventually
from jetsync_services import Service, ServiceError, call, ping, stats

pytestmark = pytest.mark.live

PROGRAM = """
import sys, jetsync
from jetsync_services import Service

client = jetsync.connect(sys.argv[1], drain_timeout=20)
service = Service(client, sys.argv[2], version="1.0.0")

@service.endpoint("echo", subject=sys.argv[2], threads=2)
def echo(request):
    return request.data

service.start()
print(service.id, flush=True)
service.run()
"""


def names():
    """
    The names of the threads of services.
    """
    return [each.name for each in threading.enumerate() if "jetsync-service" in each.name]


class TestStop:
    def test_requests_that_have_arrived_are_answered(self, service, caller, name):
        """
        The stop waits until all requests that wait were handled, and leaves no thread.
        """
        opened, entered = threading.Event(), threading.Event()

        @service.endpoint("a", subject=name)
        def wait(request):
            entered.set()
            assert opened.wait(60)
            return request.data

        service.start()
        with caller.subscribe("answers.>") as answers:
            for number in range(50):
                caller.publish(name, b"x", reply=f"answers.{number}")
            assert entered.wait(30)
            stopping = threading.Thread(target=service.stop)
            stopping.start()
            opened.set()
            stopping.join(60)

            assert {answers.next(timeout=30).subject for _ in range(50)} == {
                f"answers.{number}" for number in range(50)
            }
        assert names() == []

    def test_discovery_works_until_the_last_handler_has_returned(self, service, caller, name):
        """
        While handlers finish, the service can still be seen. After the stop it cannot.
        """
        opened, entered = threading.Event(), threading.Event()

        @service.endpoint("a", subject=name)
        def wait(request):
            entered.set()
            assert opened.wait(60)

        service.start()
        caller.publish(name)
        assert entered.wait(30)
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        (endpoint,) = service._endpoints
        eventually(lambda: not endpoint.threads[0].is_alive())

        assert [each.id for each in ping(caller, name)] == [service.id]
        opened.set()
        stopping.join(30)
        assert ping(caller, name) == []

    def test_after_the_timeout_waiting_requests_get_503(self, service, caller, name):
        """
        If a handler does not return in time, the stop says so, and the requests that wait get 503
        when the thread is free.
        """
        opened, entered = threading.Event(), threading.Event()

        @service.endpoint("a", subject=name)
        def wait(request):
            entered.set()
            assert opened.wait(60)
            return b"done"

        service.start()
        with caller.subscribe("late.>") as answers:
            caller.publish(name, reply="late.1")
            caller.publish(name, reply="late.2")
            assert entered.wait(30)

            with pytest.raises(jetsync.WaitTimeoutError, match="handlers of the service"):
                service.stop(timeout=0.1)
            opened.set()
            service.stop(timeout=30)

            found = {each.subject: each for each in (answers.next(timeout=30) for _ in range(2))}
        assert found["late.1"].data == b"done"
        assert found["late.2"].headers["Nats-Service-Error"] == "the service is stopping"

    def test_can_be_repeated_and_calls_on_stop_once(self, service_client, name):
        """
        The second stop does nothing, and a service cannot be started again.
        """
        stopped = []
        service = Service(service_client, name, version="1.0.0", on_stop=stopped.append)
        with service:
            pass
        service.stop()

        assert stopped == [service]
        with pytest.raises(jetsync.ConflictingUseError, match="started once"):
            service.start()
        with pytest.raises(jetsync.ConflictingUseError, match="takes no endpoints"):
            service.endpoint("a")(bytes)

    def test_a_handler_may_stop_its_service(self, service, caller, name):
        """
        In a handler, stop returns at once, and the answer is sent.
        """

        @service.endpoint("quit", subject=name)
        def leave(request):
            service.stop()
            return b"bye"

        service.start()
        assert call(caller, name).data == b"bye"
        assert service.wait(timeout=30)
        eventually(lambda: names() == [])

    def test_a_handler_that_ends_the_program(self, service_client, name, caller, caplog):
        """
        A SystemExit in a handler answers 500 and ends the service with an error.
        """
        service = Service(service_client, name, version="1.0.0")

        @service.endpoint("quit", subject=name)
        def leave(request):
            raise SystemExit

        service.start()
        with pytest.raises(ServiceError, match="500"):
            call(caller, name)
        assert service.wait(timeout=30)

        with pytest.raises(jetsync.ConflictingUseError, match="SystemExit"):
            service.run()

    def test_endpoints_may_be_added_while_it_runs(self, service, caller, name):
        """
        An endpoint that is added later can be called when the decorator returns.
        """
        service.start()
        service.endpoint("late", subject=name)(lambda request: b"late")

        assert call(caller, name).data == b"late"
        assert [each.name for each in service.info().endpoints] == ["late"]
        assert [each.num_requests for each in service.stats().endpoints] == [1]
        service.stop()
        assert names() == []

    def test_wait_ends_in_time(self, service):
        """
        While the service runs, wait returns False after the timeout.
        """
        service.start()

        assert service.wait(timeout=0.01) is False
        assert service.wait(timeout=0) is False
        service.stop()
        assert service.wait() is True

    def test_a_stop_during_the_start(self, service, caller, name, monkeypatch):
        """
        If another thread stops the service while it starts, it answers nothing afterwards.
        """
        service.endpoint("a", subject=name)(bytes)
        subscribe = service._subscribe

        def stop_first(settings):
            stopping = threading.Thread(target=service.stop)
            stopping.start()
            stopping.join(30)
            return subscribe(settings)

        monkeypatch.setattr(service, "_subscribe", stop_first)
        service.start()

        assert names() == []
        with pytest.raises(jetsync.NoRespondersError):
            call(caller, name)

    def test_the_client_is_closed_first(self, nats_server, name):
        """
        If the client is closed, the service ends without an error, and can be stopped.
        """
        client = jetsync.connect(nats_server.url)
        service = Service(client, name, version="1.0.0")
        service.endpoint("a", subject=name)(bytes)
        service.start()

        client.close()

        assert service.wait(timeout=30)
        assert service.error is None
        service.stop()
        assert names() == []


class TestConnection:
    def test_continues_after_a_reconnect(self, nats_server, name, caller):
        """
        After a lost connection, the service has the same id and start, and answers.
        """
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.02) as client,
            Service(client, name, version="1.0.0") as service,
        ):
            service.endpoint("a", subject=name)(lambda request: b"a")
            before = service.started

            proxy.cut()

            assert eventually(lambda: [each.id for each in ping(caller, name)]) == [service.id]
            assert call(caller, name).data == b"a"
            assert service.started == before

    def test_lost_answers_to_discovery_are_an_error(self, nats_server, name, service_client):
        """
        If the connection is lost while answers arrive, the list could be short, so there is none.
        """
        asked = threading.Event()
        with (
            Service(
                service_client, name, version="1.0.0", on_stats=lambda endpoint: asked.set()
            ) as service,
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.02) as client,
            concurrent.futures.ThreadPoolExecutor(1) as pool,
        ):
            service.endpoint("a", subject=name)(bytes)
            asking = pool.submit(stats, client, name, timeout=60, stall=60)
            assert asked.wait(30)

            proxy.cut()

            with pytest.raises(jetsync.ConnectionLostError):
                asking.result(30)

    def test_a_refused_subject_is_an_error(self, tmp_path):
        """
        If the user may not subscribe to a subject, the service ends with this error.
        """
        config = tmp_path / "server.conf"
        config.write_text(
            "authorization { users = [{ user: a, password: b, permissions: "
            '{ subscribe: { deny: "secret" } } }] }'
        )
        with (
            DevServer(config=config) as server,
            jetsync.connect(server.url, user="a", password="b") as client,
        ):
            service = Service(client, "a", version="1.0.0")
            service.endpoint("a", subject="secret")(bytes)

            with pytest.raises(jetsync.PermissionDeniedError, match="secret"):
                service.run()

            assert names() == []


class TestSignals:
    @pytest.mark.skipif(sys.platform == "win32", reason="signals")
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_run_drains_at_a_signal(self, nats_server, name, caller, number):
        """
        At SIGTERM and Ctrl-C, a program that runs a service answers all that the server has sent
        it, and exits with the status of the signal.
        """
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, nats_server.url, name],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert program.stdout.readline()
            with Service(caller, name, version="1.0.0") as other:
                other.endpoint("echo", subject=name)(lambda request: request.data)
                sent = 0
                with jetsync.connect(nats_server.url) as load, load.subscribe("got.>") as answers:
                    while program.poll() is None:
                        load.publish(name, b"x", reply=f"got.{sent}")
                        sent += 1
                        if sent == 2000:
                            os.kill(program.pid, number)
                    load.flush()
                    got = set()
                    while len(got) < sent and (answer := answers.next(timeout=10)) is not None:
                        got.add(answer.subject)
        finally:
            program.kill()
            program.stdout.close()
        assert program.wait(60) == 128 + number
        assert len(got) == sent

    def test_run_in_another_thread_ends_with_stop(self, service, caller, name):
        """
        In another thread, run leaves the signals alone, and ends with stop.
        """
        service.endpoint("a", subject=name)(lambda request: b"a")
        running = threading.Thread(target=service.run)
        running.start()
        eventually(lambda: ping(caller, name))

        service.stop()

        running.join(30)
        assert not running.is_alive()
