from __future__ import annotations

import json
import weakref
from types import SimpleNamespace

import pytest

from jetsync._api.context import Context
from jetsync._base.deadline import Deadline
from jetsync.errors import (
    ApiError,
    JetStreamNotEnabledError,
    NoRespondersError,
    ProtocolError,
    StreamNotFoundError,
)


def soon():
    """A deadline."""
    return Deadline.after(10)


class StubConnection:
    """A connection that records requests and takes their answers from a list."""

    def __init__(self):
        self.lane, self.plugins, self.server = object(), object(), SimpleNamespace()
        self.requests, self.answers, self.contexts = [], [], weakref.WeakSet()
        self.error = None

    def exchange(self, subject, header, body, deadline, **options):
        self.requests.append((subject, body))
        if self.error is not None:
            raise self.error
        return b"_INBOX.x", b"", None, self.answers.pop(0)


@pytest.fixture
def connection():
    """A connection that is a stub."""
    return StubConnection()


@pytest.fixture
def context(connection):
    """The context of a domain."""
    return Context(connection, prefix="$JS.hub.API", domain="hub", default_timeout=3.0)


class TestApi:
    @pytest.mark.parametrize(
        ("body", "sent"),
        [
            (None, b""),
            ({}, b"{}"),
            ({"a": [1, None], "ü": "é"}, '{"a":[1,null],"ü":"é"}'.encode()),
        ],
    )
    def test_a_request_goes_to_the_prefix_and_its_answer_is_returned(
        self, context, connection, body, sent
    ):
        """A request goes to the context's prefix, and its answer is returned without its type."""
        connection.answers.append(b'{"type":"x","ok":true}')

        assert context.api("STREAM.INFO.S", body, soon()) == {"ok": True}
        assert connection.requests == [(b"$JS.hub.API.STREAM.INFO.S", sent)]

    def test_the_code_of_an_error_answer_selects_the_class(self, context, connection):
        """The code of an error answer selects the exception class."""
        error = {"code": 404, "err_code": 10059, "description": "stream not found"}
        connection.answers.append(json.dumps({"type": "x", "error": error}).encode())

        with pytest.raises(StreamNotFoundError) as caught:
            context.api("STREAM.INFO.S", None, soon(), stream="S")
        assert (caught.value.code, caught.value.err_code) == (404, 10059)
        assert caught.value.stream == "S"

    def test_an_unknown_error_code_becomes_a_plain_api_error(self, context, connection):
        """An unknown error code becomes a plain ApiError with the server's description."""
        error = {"code": 418, "err_code": 19999, "description": "teapot"}
        connection.answers.append(json.dumps({"error": error}).encode())

        with pytest.raises(ApiError, match="teapot") as caught:
            context.api("STREAM.INFO.S", None, soon())
        assert (caught.value.code, caught.value.err_code) == (418, 19999)

    def test_without_responders_the_error_says_no_jetstream(self, context, connection):
        """If no server answers under the prefix, the error says that JetStream is not enabled."""
        connection.error = NoRespondersError("$JS.hub.API.INFO")

        with pytest.raises(JetStreamNotEnabledError, match=r"503.*10039"):
            context.api("INFO", None, soon())

    @pytest.mark.parametrize("answer", [b"+OK", b"[]"])
    def test_an_answer_that_is_no_json_object_is_a_protocol_error(
        self, context, connection, answer
    ):
        """An answer that is not a JSON object is a protocol error."""
        connection.answers.append(answer)

        with pytest.raises(ProtocolError):
            context.api("INFO", None, soon())


def test_a_call_without_a_timeout_uses_that_of_the_context(context):
    """A call without a timeout uses the default of the context."""
    assert context.deadline(None).total == 3.0
    assert context.deadline(0.5).total == 0.5


def test_a_context_gives_access_to_its_connection(context, connection):
    """A context gives access to the lane, the plugins and the server of its connection."""
    assert context.lane is connection.lane
    assert context.plugins is connection.plugins
    assert context.server is connection.server
