"""
Plugins of the client apply to requests.
"""

from __future__ import annotations

import pytest

import jetsync
from jetsync_services import Service, ServiceError, call

pytestmark = pytest.mark.live


class Checking:
    """
    A plugin that refuses requests with `bad` in the payload, and marks others.
    """

    name = "checking"

    @jetsync.hookimpl
    def jetsync_message_received(self, message):
        """
        Refuse or replace a request.
        """
        if b"bad" in message.data:
            raise ValueError("secret")
        return message.replace(data=message.data + b" checked")

    @jetsync.hookimpl
    def jetsync_prepare_message(self, message):
        """
        Refuse a request before it is sent, or add a header.
        """
        if message.data == b"unsendable":
            raise ValueError("unsendable")
        message.headers = {"X-From": "plugin"}


@pytest.fixture
def checked(nats_server, name):
    """
    A service whose client has the plugin. Its answer is the header X-From and the payload.
    """
    with (
        jetsync.connect(nats_server.url, plugins=[Checking()]) as client,
        Service(client, name, version="1.0.0") as service,
    ):

        @service.endpoint("echo", subject=name)
        def echo(request):
            return f"{request.headers.get('X-From')}: {request.data.decode()}"

        yield client


def test_a_plugin_replaces_a_request(checked, caller, name):
    """
    The handler gets the request that the plugin returns.
    """
    assert call(caller, name, b"good").data == b"None: good checked"


def test_a_refused_request_is_answered_400(checked, caller, name, caplog):
    """
    If a plugin refuses a request, the handler is not called, and the caller learns the name of the
    plugin but not the text.
    """
    with pytest.raises(ServiceError) as caught:
        call(caller, name, b"bad")

    assert (caught.value.code, caught.value.description) == (400, "refused by the plugin checking")
    assert "secret" in caplog.text


def test_a_call_passes_through_the_plugins_of_the_caller(checked, name):
    """
    The plugins of the caller may change a request, and refuse it before it is sent.
    """
    assert call(checked, name, b"good").data == b"plugin: good checked"
    with pytest.raises(jetsync.PluginError, match="unsendable"):
        call(checked, name, b"unsendable")


def test_schemas_check_requests(nats_server, name, caller):
    """
    With jetsync-schema, a request that violates the contract of its subject gets 400.
    """
    schema = pytest.importorskip("jetsync_schema")
    pytest.importorskip("jsonschema_rs")
    schemas = schema.Schemas({name: schema.JsonSchema({"type": "integer"})}, receive="raise")

    with (
        jetsync.connect(nats_server.url, plugins=[schemas]) as client,
        Service(client, name, version="1.0.0") as service,
    ):
        service.endpoint("double", subject=name)(lambda request: request.json() * 2)

        assert call(caller, name, 4).json() == 8
        with pytest.raises(ServiceError, match="refused by the plugin schema"):
            call(caller, name, "four")


def test_functions_that_wrap_the_handling(service_client, name, caller):
    """
    The functions of `wrap` see the message, the result and errors; the first one is the outermost.
    """
    seen = []

    def noting(label):
        def wrap(handle):
            def handling(message):
                seen.append((label, message.subject))
                try:
                    return handle(message)
                except ServiceError as error:
                    seen.append((label, error.code))
                    raise

            return handling

        return wrap

    service = Service(service_client, name, version="1.0.0", wrap=[noting("a"), noting("b")])

    @service.endpoint("fail", subject=name)
    def fail(request):
        raise ServiceError(404, "no")

    with service, pytest.raises(ServiceError):
        call(caller, name)

    assert seen == [("a", name), ("b", name), ("b", 404), ("a", 404)]


def test_spans_of_requests(service_client, name, caller):
    """
    With `wrap=[otel.handler]` of jetsync-otel, the span of a request continues the trace of its
    caller.
    """
    jetsync_otel = pytest.importorskip("jetsync_otel")
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel = jetsync_otel.OTel(tracer_provider=provider)
    service = Service(service_client, name, version="1.0.0", wrap=[otel.handler])
    service.endpoint("echo", subject=name)(lambda request: request.data)

    with service, provider.get_tracer("test").start_as_current_span("caller") as span:
        call(caller, name, headers=jetsync_otel.inject())

    (found,) = [each for each in exporter.get_finished_spans() if each.name == "process"]
    assert found.context.trace_id == span.get_span_context().trace_id
    assert found.attributes["messaging.nats.subject"] == name
