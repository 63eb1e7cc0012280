"""
The texts of errors that users see, and the chains of their causes.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import traceback

import pytest

import jetsync
from helpers.waiting import at_some_pace
from jetsync.devserver import DevServer


def chain(error):
    """
    Return the errors that Python prints before *error*.
    """
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [] if before is None else [*chain(before), before]


def interrupted(call):
    """
    Send Ctrl-C while *call* waits, and return the exception.
    """
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            call()
    finally:
        timer.join()
    return caught.value


class TestChains:
    def test_ctrl_c_in_a_consumption(self, js, unique):
        stream = js.create_stream(unique, storage="memory")
        with stream.create_consumer("c").consume() as consumption:
            assert chain(interrupted(lambda: next(consumption))) == []

    def test_ctrl_c_in_an_ordered_consumption(self, js, unique):
        stream = js.create_stream(unique, storage="memory")
        with stream.ordered_consumer() as ordered, ordered.consume() as consumption:
            assert chain(interrupted(lambda: next(consumption))) == []

    @pytest.mark.parametrize("filled", [False, True])
    def test_ctrl_c_in_a_watch(self, js, unique, filled):
        kv = js.create_key_value(unique, storage="memory")
        if filled:
            kv.put("a", b"1")
        with kv.watch() as watch:
            if filled:
                next(watch)
            assert chain(interrupted(lambda: next(watch))) == []

    def test_the_subject_of_a_publisher(self, js):
        with js.publisher() as publisher, pytest.raises(jetsync.InvalidSubjectError) as caught:
            publisher.publish("a b", b"")
        assert chain(caught.value) == []

    def test_a_missing_key(self, js, unique):
        kv = js.create_key_value(unique, storage="memory")
        with pytest.raises(jetsync.KeyNotFoundError) as caught:
            kv.get("x")
        assert chain(caught.value) == []

    def test_a_refused_connect(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"nats://127.0.0.1:{unused.getsockname()[1]}"
            with pytest.raises(jetsync.ConnectError) as caught:
                jetsync.connect(url)
        assert str(caught.value) == f"connection refused ({url}); is a server running there?"
        (cause,) = chain(caught.value)
        assert isinstance(cause, ConnectionRefusedError)
        text = "".join(traceback.format_exception(caught.value))
        assert "asyncio" not in text
        assert "nats/aio" not in text.replace(os.sep, "/")

    def test_a_refused_login(self):
        config = {"authorization": {"timeout": 30, "user": "u", "password": "p"}}
        with (
            DevServer(jetstream=False, config=config) as server,
            pytest.raises(jetsync.AuthenticationError) as caught,
        ):
            jetsync.connect(server.url, user="u", password="wrong")
        assert chain(caught.value) == []

    def test_the_error_of_a_silent_server_has_no_chain(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"nats://127.0.0.1:{silent.getsockname()[1]}"

            def attempt(pace):
                timeout = 0.3 * pace
                with pytest.raises(jetsync.ConnectTimeoutError) as caught:
                    jetsync.connect(url, connect_timeout=timeout)
                within = f"within {timeout:.3g} s"
                reason = f"the server sent no first line {within} ({url})"
                assert str(caught.value) == f"no connection {within}: {reason}"
                assert chain(caught.value) == []

            at_some_pace(attempt)


class TestObjects:
    """Errors name the requested object."""

    @pytest.mark.parametrize("allow_direct", [False, True])
    def test_a_missing_message(self, js, unique, allow_direct):
        stream = js.create_stream(unique, subjects=[f"{unique}.>"], allow_direct=allow_direct)
        subject = f"{unique}.none"
        for call, text in (
            (lambda: stream.get_message(9999), "message 9999 not found"),
            (lambda: stream.get_last(subject), f"no message on subject {subject!r}"),
            (lambda: stream.get_next(subject, 5), f"no message on subject {subject!r} from sequ"),
            (lambda: stream.get_at(3 * 10**18), "no message since 2065-01-24T05:20:00"),
        ):
            with pytest.raises(jetsync.MessageNotFoundError) as caught:
                call()
            assert str(caught.value).startswith(text)
            assert f" in stream {unique!r} (404" in str(caught.value)

    @pytest.mark.parametrize("storage", ["file", "memory"])
    def test_a_message_to_delete(self, js, unique, storage):
        stream = js.create_stream(unique, subjects=[unique], storage=storage)
        for _ in range(3):
            js.publish(unique, b"")
        stream.delete_message(2)
        for sequence in (2, 99):
            with pytest.raises(jetsync.MessageNotFoundError) as caught:
                stream.delete_message(sequence)
            assert str(caught.value).startswith(f"message {sequence} not found in stream")


class TestAdvice:
    """Errors say how to fix the problem."""

    def test_of_streams_and_consumers(self, js, unique):
        stream = js.create_stream(unique, subjects=[unique], storage="memory")
        stream.create_consumer("c")
        for call, text in (
            (lambda: js.publish(unique, b"", ttl=5), "the stream needs allow_msg_ttl=True"),
            (lambda: js.create_stream(unique, subjects=["x"]), "use create_or_update_stream"),
            (lambda: stream.create_consumer("c", ack_wait=5), "use create_or_update_consumer"),
            (lambda: js.create_stream(f"{unique}B", subjects=[unique]), f"stream '{unique}B': "),
        ):
            with pytest.raises(jetsync.ApiError, match=text):
                call()

    def test_of_publishes(self, js, unique):
        with pytest.raises(jetsync.NoStreamResponseError, match=r"s: no stream has this subject"):
            js.publish(unique, b"")
        with pytest.raises(jetsync.PublishManyError, match=r"the first is messages\[0\]: "):
            js.publish_many([(unique, b"")])
