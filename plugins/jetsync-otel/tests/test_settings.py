"""
The settings and their environment variables.
"""

from __future__ import annotations

import pytest
from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import jetsync
from jetsync_otel import HeadersGetter, HeadersSetter, OTel, Settings, extract, inject


def test_an_empty_environment_changes_no_setting_of_otel():
    """
    An empty environment changes nothing.
    """
    assert Settings.from_env({}) == Settings()
    assert Settings() == Settings(
        granularity="operation", empty_receives=False, max_links=128, consumers=True
    )


def test_from_the_environment():
    """
    Each setting has a variable.
    """
    env = {
        "JETSYNC_OTEL_GRANULARITY": " message ",
        "JETSYNC_OTEL_EMPTY_RECEIVES": "Yes",
        "JETSYNC_OTEL_MAX_LINKS": "7",
        "JETSYNC_OTEL_CONSUMERS": "0",
    }
    assert Settings.from_env(env) == Settings(
        granularity="message", empty_receives=True, max_links=7, consumers=False
    )


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("GRANULARITY", "batch", "'operation' or 'message', not 'batch'"),
        ("EMPTY_RECEIVES", "maybe", "JETSYNC_OTEL_EMPTY_RECEIVES must be 1 or 0, not 'maybe'"),
        ("MAX_LINKS", "-1", "JETSYNC_OTEL_MAX_LINKS must be a number, not '-1'"),
    ],
)
def test_invalid_values(variable, text, said):
    """
    The error names the variable, and the accepted values.
    """
    with pytest.raises(jetsync.ConfigurationError, match=said):
        Settings.from_env({f"JETSYNC_OTEL_{variable}": text})


@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_the_number_of_links_must_be_a_number(value):
    """
    The number of links must be a number.
    """
    with pytest.raises(jetsync.ConfigurationError, match="max_links"):
        Settings(max_links=value)


def test_a_plugin_reads_the_environment(monkeypatch):
    """
    A plugin that is loaded by name reads the environment, and its repr shows the settings.
    """
    monkeypatch.setenv("JETSYNC_OTEL_GRANULARITY", "message")
    assert OTel().settings.granularity == "message"
    assert "message" in repr(OTel())
    assert OTel(settings=Settings()).settings.granularity == "operation"


def test_per_message_hooks_only_where_needed():
    """
    The plugin implements no per-message hook if operations have only one span.
    """
    assert OTel(settings=Settings()).jetsync_prepare_message is None
    assert OTel(settings=Settings(granularity="message")).jetsync_prepare_message is not None


class TestCarrier:
    def test_a_header_is_looked_up_exactly_then_in_any_case(self):
        """
        A header is looked up by its exact name first, then in any case.
        """
        getter = HeadersGetter()
        headers = jetsync.Headers([("Traceparent", "1"), ("traceparent", "2"), ("B", "3")])
        assert getter.get(headers, "traceparent") == ["2"]
        assert getter.get(headers, "TRACEPARENT") == ["1", "2"]
        assert getter.get(headers, "tracestate") is None
        assert getter.keys(headers) == ["Traceparent", "traceparent", "B"]

    def test_a_header_that_was_set_has_one_value(self):
        """
        After setting a header, it has one value.
        """
        headers = jetsync.Headers([("a", "1"), ("a", "2")])
        HeadersSetter().set(headers, "a", "3")
        assert headers.items() == [("a", "3")]

    def test_an_injected_context_can_be_extracted(self):
        """
        An injected context can be extracted, and the original headers are unchanged.
        """
        origin = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))
        current = trace.set_span_in_context(NonRecordingSpan(origin), context.Context())
        given = {"A": "1"}
        headers = inject(given, current)
        assert given == {"A": "1"}
        assert headers["A"] == "1"
        message = jetsync.StoredMessage("S", "s", 1, 1, headers)
        found = trace.get_current_span(extract(message)).get_span_context()
        assert (found.trace_id, found.span_id) == (1, 2)
        assert inject(None, context.Context()) == {}
