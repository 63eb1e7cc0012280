"""
A service with endpoints, groups and errors, on a real server.
"""

from __future__ import annotations

import os
import threading

import pytest

import jetsync
from jetsync_services import (
    EndpointInfo,
    Response,
    Service,
    ServiceError,
    call,
    discover,
    info,
    ping,
    stats,
)
from jetsync_services.errors import error_of

pytestmark = pytest.mark.live


class SecretError(Exception):
    """
    An error with a secret in it.
    """


def serve(service, function, name="echo", **settings):
    """
    Add an endpoint and start the service; return the subject.
    """
    subject = f"{service.name}.{name}"
    service.endpoint(name, subject=subject, **settings)(function)
    service.start()
    return subject


async def never_awaited(service):
    """
    Run nothing.
    """


class TestAnswers:
    @pytest.mark.parametrize(
        ("result", "payload"),
        [
            (b"bytes", b"bytes"),
            ("text \N{SNOWMAN}", "text \N{SNOWMAN}".encode()),
            (None, b""),
            ({"a": [1, "<", None]}, b'{"a":[1,"\\u003c",null]}'),
            (memoryview(b"view"), b"view"),
            (False, b"false"),
        ],
    )
    def test_a_handler_returns_bytes_text_or_json(self, service, caller, result, payload):
        """
        The answer is what the handler returns, as JSON unless it is bytes or text.
        """
        subject = serve(service, lambda request: result)

        assert call(caller, subject).data == payload

    def test_an_answer_with_headers(self, service, caller):
        """
        A Response adds headers.
        """
        subject = serve(service, lambda request: Response([1], headers={"X-Page": "2"}))

        answer = call(caller, subject)

        assert (answer.json(), answer.headers["X-Page"]) == ([1], "2")

    def test_a_request_has_data_headers_and_its_subject(self, service, caller):
        """
        The handler sees the payload, the headers and the subject of the request.
        """
        service.endpoint("price", subject=f"{service.name}.*")(
            lambda request: [
                request.json(),
                request.headers["X-User"],
                request.subject,
                request.endpoint,
            ]
        )
        service.start()

        answer = call(caller, f"{service.name}.chair", {"n": 1}, headers={"X-User": "ann"})

        assert answer.json() == [{"n": 1}, "ann", f"{service.name}.chair", "price"]

    def test_a_message_without_a_reply_subject_is_handled(self, service, service_client):
        """
        A message that nobody waits for is handled and counted, and gets no answer.
        """
        handled = threading.Event()
        subject = serve(service, lambda request: handled.set())

        service_client.publish(subject, b"x")

        assert handled.wait(10)


class TestErrors:
    def test_a_service_error_reaches_the_caller(self, service, caller):
        """
        The caller gets the code, the description and the payload.
        """

        def refuse(request):
            raise ServiceError(404, "no such\nitem", b"details")

        subject = serve(service, refuse)

        with pytest.raises(ServiceError) as caught:
            call(caller, subject)

        error = caught.value
        assert (error.code, error.description, error.data) == (404, "no such item", b"details")
        assert str(error) == "no such item (404)"
        headers = caller.request(subject).headers
        assert headers["Nats-Service-Error"] == "no such item"
        assert headers["Nats-Service-Error-Code"] == "404"
        assert service.stats().endpoints[0].last_error == "404:no such item"

    def test_an_unexpected_error_tells_nothing(self, service, caller, caplog):
        """
        The caller gets 500 and no text of the error, which is in the log.
        """

        def fail(request):
            raise SecretError("secret")

        subject = serve(service, fail)

        answer = caller.request(subject)

        assert dict(answer.headers.items()) == {
            "Nats-Service-Error": "internal error",
            "Nats-Service-Error-Code": "500",
        }
        assert answer.data == b""
        assert "secret" in caplog.text

    def test_errors_are_shown_if_the_service_says_so(self, service_client, name, caller):
        """
        With show_errors, the caller gets the repr of the error.
        """

        def fail(request):
            raise SecretError("two\nlines")

        with Service(service_client, name, version="0.0.1", show_errors=True) as service:
            service.endpoint("fail", subject=f"{name}.fail")(fail)
            with pytest.raises(ServiceError, match=r"SecretError\('two\\nlines'\) \(500\)"):
                call(caller, f"{name}.fail")

    @pytest.mark.parametrize("text", [None, "", " \n", "\ud800"])
    def test_an_error_that_cannot_be_shown(self, service_client, name, caller, text):
        """
        If the repr of an error fails or cannot be sent, the caller gets 500 without it, and the
        thread handles the next request.
        """

        class OddError(Exception):
            def __repr__(self):
                return text

        def fail(request):
            raise OddError

        with Service(service_client, name, version="0.0.1", show_errors=True) as service:
            service.endpoint("fail", subject=f"{name}.fail")(fail)
            for _ in range(2):
                with pytest.raises(ServiceError, match=r"^internal error \(500\)$"):
                    call(caller, f"{name}.fail")

    def test_a_payload_that_is_not_json(self, service, caller):
        """
        If the handler asks for JSON and the payload is none, the caller gets 400.
        """
        subject = serve(service, lambda request: request.json())

        with pytest.raises(ServiceError, match="the payload is not JSON") as caught:
            call(caller, subject, b"{")

        assert caught.value.code == 400

    @pytest.mark.parametrize("result", [object(), {1, 2}, float("nan")])
    def test_a_result_without_json_is_an_error(self, service, caller, result):
        """
        If JSON cannot express the result, the caller gets 500.
        """
        subject = serve(service, lambda request: result)

        with pytest.raises(ServiceError) as caught:
            call(caller, subject)

        assert caught.value.code == 500

    @pytest.mark.parametrize(
        "result", [Response(b"x" * (2 << 20)), Response(b"", headers={"a b": "c"})]
    )
    def test_an_answer_that_cannot_be_sent_is_an_error(self, service, caller, result):
        """
        If the answer is too large or has a bad header, the caller gets 500 at once, and the
        statistics count one request with an error.
        """
        subject = serve(service, lambda request: result)

        with pytest.raises(ServiceError, match="the answer cannot be sent"):
            call(caller, subject)

        (counts,) = service.stats().endpoints
        assert (counts.num_requests, counts.num_errors) == (1, 1)

    @pytest.mark.parametrize("code", ["x", "-1", "9" * 5000, "\N{ARABIC-INDIC DIGIT ONE}"])
    def test_answers_of_other_services_without_a_number(self, service, caller, code):
        """
        An error whose code is not a number has the code 0.
        """
        subject = serve(
            service, lambda request: Response(b"", headers={"Nats-Service-Error-Code": code})
        )

        with pytest.raises(ServiceError, match="no description") as caught:
            call(caller, subject)

        assert caught.value.code == 0

    def test_answers_of_other_services_that_are_no_text(self):
        """
        Bytes of a description that are no UTF-8 are replaced.
        """
        headers = b"NATS/1.0\r\nNats-Service-Error: no \xff\r\nNats-Service-Error-Code: 404\r\n\r\n"

        error = error_of(jetsync.Message(b"a", b"", headers, b""))

        assert (error.code, error.description) == (404, "no \N{REPLACEMENT CHARACTER}")

    def test_an_error_of_another_service_is_passed_on(self, service, caller):
        """
        If a handler does not catch the ServiceError of its own call, its caller gets it.
        """

        def refuse(request):
            raise ServiceError(404, "no such item")

        service.endpoint("inner", subject=f"{service.name}.inner")(refuse)
        service.endpoint("outer", subject=f"{service.name}.outer")(
            lambda request: call(caller, f"{service.name}.inner")
        )
        service.start()

        with pytest.raises(ServiceError, match=r"no such item \(404\)"):
            call(caller, f"{service.name}.outer")


class TestGroups:
    def test_subjects_and_queue_groups(self, service_client, name):
        """
        Groups nest, join their subjects with dots, and pass on their queue group unless it is
        replaced or disabled.
        """
        service = Service(service_client, name, version="1.0.0", queue_group="workers")
        add = lambda group, each, **settings: group.endpoint(each, **settings)(bytes)  # noqa: E731
        add(service, "a")
        add(service, "b", queue_group=None)
        v1 = service.group("v1.x", queue_group="first")
        add(v1, "c", subject="get.*")
        add(v1.group("deep"), "d", queue_group="own")
        none = service.group("none", queue_group=None)
        add(none, "e")
        add(none.group(""), "f", queue_group="again", metadata={"k": "v"})

        assert [
            (each.name, each.subject, each.queue_group, each.metadata)
            for each in service.info().endpoints
        ] == [
            ("a", "a", "workers", {}),
            ("b", "b", "", {}),
            ("c", "v1.x.get.*", "first", {}),
            ("d", "v1.x.deep.d", "own", {}),
            ("e", "none.e", "", {}),
            ("f", "none.f", "again", {"k": "v"}),
        ]

    def test_without_a_queue_group_each_instance_answers(self, service_client, name, caller):
        """
        A queue group shares the requests; without one, each instance gets each of them.
        """
        services = [Service(service_client, name, version="1.0.0") for _ in range(3)]
        for each in services:
            each.endpoint("all", subject=f"{name}.all", queue_group=None)(lambda request: b"all")
            each.endpoint("one", subject=f"{name}.one")(lambda request: b"one")
            each.start()

        try:
            answers = [
                len(list(caller.request_many(f"{name}.{subject}", stall=0.3)))
                for subject in ("all", "one")
            ]
        finally:
            for each in services:
                each.stop()
        assert answers == [3, 1]


class TestDiscovery:
    def test_ping_info_and_stats_of_all_of_a_name_and_of_an_instance(
        self, service_client, name, caller
    ):
        """
        The functions return all instances, those of a name, or one.
        """
        services = [Service(service_client, name, version=f"1.{n}.0") for n in range(2)]
        for each in services:
            each.endpoint("echo", subject=f"{name}.echo")(bytes)
        with services[0], services[1]:
            ids = sorted(each.id for each in services)

            assert {each.id for each in ping(caller)} >= set(ids)
            assert [each.id for each in ping(caller, name)] == ids
            assert ping(caller, name, ids[0])[0].id == ids[0]
            assert {each.id: each for each in info(caller, name)} == {
                each.id: each.info() for each in services
            }
            assert [each.endpoints[0].num_requests for each in stats(caller, name)] == [0, 0]
            (found,) = [each for each in discover(caller) if each.name == name]
            assert found.versions == ("1.0.0", "1.1.0")
            assert found.endpoints == (
                EndpointInfo(name="echo", subject=f"{name}.echo", queue_group="q"),
            )
            assert [each.id for each in found.instances] == ids

    def test_an_unknown_name_is_an_empty_list_at_once(self, caller):
        """
        Without an instance, the server answers at once, and the list is empty.
        """
        assert ping(caller, "absent", timeout=60, stall=60) == []

    def test_names_are_case_sensitive(self, service, caller):
        """
        Names match as they are given.
        """
        service.start()

        assert ping(caller, service.name.upper()) == []

    def test_an_id_needs_a_name(self, caller):
        """
        An id alone is refused.
        """
        with pytest.raises(jetsync.InvalidArgumentError, match="needs the name"):
            ping(caller, id="x")

    def test_another_prefix(self, service_client, name, caller):
        """
        Services of another account may be found under another prefix.
        """
        with Service(service_client, name, version="1.0.0", control_prefix="other.SRV"):
            assert ping(caller, name) == []
            (found,) = ping(caller, name, control_prefix="other.SRV")
            assert found.name == name

    @pytest.mark.parametrize(
        "answer",
        [
            b"[]",
            b"{",
            b'{"name":[],"id":"a","version":"1.0.0","started":"2026-01-01T00:00:00Z"}',
            b'{"name":"a","id":"a","version":"1.0.0","started":"today"}',
            (
                b'{"name":"a","id":"a","version":"1.0.0","started":"2026-01-01T00:00:00Z",'
                b'"endpoints":[{"name":"e","subject":"e","num_requests":1e999}]}'
            ),
        ],
    )
    def test_unreadable_answers_are_left_out(self, service, caller, service_client, answer, caplog):
        """
        An answer that is no such document is logged and left out.
        """
        service.start()
        junk = service_client.subscribe(f"$SRV.STATS.{service.name}")
        threading.Thread(
            target=lambda: [service_client.publish(each.reply, answer) for each in junk]
        ).start()
        service_client.flush()

        assert [each.id for each in stats(caller, service.name)] == [service.id]
        assert "unreadable_answer" in caplog.text
        junk.close()

    def test_on_stats_adds_data(self, service_client, name, caller):
        """
        The result of on_stats is the data of an endpoint. If it raises, the counts remain.
        """

        def on_stats(endpoint):
            return {"of": endpoint.name} if endpoint.name == "a" else 1 / 0

        with Service(service_client, name, version="1.0.0", on_stats=on_stats) as service:
            service.endpoint("a", subject=f"{name}.a")(bytes)
            service.endpoint("b", subject=f"{name}.b")(bytes)
            (found,) = stats(caller, name)

        assert [each.data for each in found.endpoints] == [{"of": "a"}, None]

    @pytest.mark.parametrize("data", [{1}, float("nan"), "\ud800", b"x", object()])
    def test_data_that_json_cannot_express_is_left_out(self, service_client, name, caller, data):
        """
        The instance still answers with its counts.
        """
        with Service(service_client, name, version="1.0.0", on_stats=lambda _: data) as service:
            service.endpoint("a", subject=f"{name}.a")(bytes)
            (found,) = stats(caller, name)
            assert service.stats().endpoints[0].data is None

        assert [each.data for each in found.endpoints] == [None]

    def test_reset(self, service, caller):
        """
        A reset sets the counts to 0 and the start to now.
        """
        subject = serve(service, lambda request: b"")
        call(caller, subject)
        before = service.stats()

        service.reset()

        after = service.stats()
        assert before.endpoints[0].num_requests == 1
        assert before.endpoints[0].processing_time > 0
        assert (after.endpoints[0].num_requests, after.endpoints[0].processing_time) == (0, 0)
        assert after.started > before.started


class TestChecks:
    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({"name": "a b"}, "invalid service name"),
            ({"name": ""}, "invalid service name"),
            ({"name": 5}, "service must be a str"),
            ({"version": "1.0"}, "semantic version"),
            ({"version": "01.0.0"}, "semantic version"),
            ({"metadata": {"a": 1}}, "metadata must be"),
            ({"metadata": "a"}, "metadata must be"),
            ({"queue_group": "a b"}, "queue group"),
            ({"queue_group": ""}, "queue group"),
            ({"on_stats": 5}, "on_stats must be a function"),
            ({"on_stop": never_awaited}, "on_stop must be a plain function"),
            ({"wrap": [5]}, "wrap must be a function"),
            ({"control_prefix": "a.*"}, "'\\*' is not allowed"),
            ({"description": "\ud800"}, "valid UTF-8"),
        ],
    )
    def test_settings_of_a_service(self, service_client, settings, reason):
        """
        A setting that other clients would refuse is an error before anything is sent.
        """
        given = {"name": "a", "version": "1.0.0"} | settings
        sent = service_client.statistics().bytes_out

        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError), match=reason):
            Service(service_client, **given)

        assert service_client.statistics().bytes_out == sent

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({"name": "a.b"}, "invalid endpoint name"),
            ({"subject": "a..b"}, "a token is empty"),
            ({"subject": "a b"}, "a space"),
            ({"subject": "a.>.b"}, "'>' must be the last token"),
            ({"threads": 0}, "threads must be 1 or more"),
            ({"threads": 10_001}, "threads must be at most 10,000"),
            ({"threads": True}, "threads must be a whole number"),
            ({"max_waiting": -1}, "max_waiting must be 0 or more"),
            ({"timeout": 0}, "timeout must be more than 0 seconds"),
            ({"timeout": float("nan")}, "timeout must be more than 0 seconds"),
            ({"timeout": 5e9}, "in another unit"),
            ({"timeout": "1"}, "timeout must be seconds"),
            ({"queue_group": "\n"}, "queue group"),
        ],
    )
    def test_settings_of_an_endpoint(self, service, settings, reason):
        """
        A setting that cannot be used is an error before the handler is added.
        """
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError), match=reason):
            service.endpoint(**{"name": "a"} | settings)

    def test_handlers_are_plain_functions(self, service):
        """
        None of the code of an async function or of a generator would run, so they are refused.
        """

        async def later(request):
            pass

        def many(request):
            yield b""

        async def many_later(request):
            yield b""

        class Later:
            async def __call__(self, request):
                pass

        for handler in (later, many, many_later, Later(), 5):
            with pytest.raises(jetsync.InvalidTypeError):
                service.endpoint("a")(handler)

    @pytest.mark.parametrize(
        "arguments", [(0, "x"), (True, "x"), ("404", "x"), (404, ""), (404, 5)]
    )
    def test_service_errors(self, arguments):
        """
        An error that cannot be sent is refused when it is made.
        """
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
            ServiceError(*arguments)

    def test_a_call_that_json_cannot_express(self, caller):
        """
        Data without JSON is refused before anything is sent.
        """
        deep = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(jetsync.InvalidTypeError, match="JSON"):
            call(caller, "a", deep)
        with pytest.raises(jetsync.InvalidTypeError, match="JSON"):
            call(caller, "a", object())

    def test_a_call_of_nothing(self, caller):
        """
        Without an instance, the call fails at once.
        """
        with pytest.raises(jetsync.NoRespondersError):
            call(caller, "absent", timeout=60)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_forked_child_gets_a_clear_error(self, service):
        """
        In a forked child, a service of the parent raises, and the parent's goes on.
        """
        serve(service, lambda request: b"")
        pid = os.fork()
        if pid == 0:
            status = 2
            try:
                for use in (service.stop, service.wait):
                    try:
                        use()
                    except jetsync.ForkedProcessError:
                        status -= 1
            finally:
                os._exit(status)

        assert os.waitpid(pid, 0)[1] == 0
        assert service.is_running
