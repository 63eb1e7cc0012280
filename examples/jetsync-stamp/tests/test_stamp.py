"""
The plugin against a real server.
"""

from __future__ import annotations

import contextlib

import pytest

import jetsync
from jetsync.testing import HookRecorder
from jetsync_stamp import PROGRAM, NotOwnedError, Stamp
from jetsync_stamp._ages import OTHERS, PROGRAMS, Ages


@pytest.fixture
def connect(nats_server):
    """
    A function that connects with plugins and returns a JetStream object.
    """
    with contextlib.ExitStack() as stack:

        def connect(*plugins):
            client = stack.enter_context(jetsync.connect(nats_server.url, plugins=plugins))
            return client.jetstream()

        yield connect


def test_messages_say_who_sent_them(connect, stream):
    """
    Each message has the header, in a single publish and in a bulk publish.
    """
    js = connect(Stamp("till"))
    js.publish(f"{stream.name}.a", b"1")
    js.publish_many((f"{stream.name}.a", b"x") for _ in range(99))

    programs = {stream.get_message(n).headers[PROGRAM] for n in (1, 2, 100)}
    assert programs == {"till"}


def test_plugins_after_it_get_the_header(connect, stream):
    """
    The header is set before messages are prepared.
    """
    recorder = HookRecorder("jetsync_prepare_message")
    connect(recorder, Stamp("till")).publish(f"{stream.name}.a", b"1")

    (call,) = recorder.calls
    assert call["message"].headers[PROGRAM] == "till"


def test_ages_are_measured(connect, stream):
    """
    Ages are counted by sender. Messages without the headers are not counted.
    """
    reader = Stamp("office")
    connect(Stamp("till")).publish_many([(f"{stream.name}.a", b"x")] * 3)
    connect().publish(f"{stream.name}.a", b"of another program")
    for odd in ("noon", "-inf"):
        connect().publish(f"{stream.name}.a", b"odd", headers={PROGRAM: "x", "Stamp-Time": odd})

    consumer = connect(reader).stream(stream.name).create_consumer("office")
    for message in consumer.fetch(6, expires=5):
        message.ack()

    assert list(reader.statistics()) == ["till"]
    ages = reader.statistics()["till"]
    assert ages.count == 3
    assert 0.0 <= ages.mean <= ages.greatest


def test_the_number_of_programs_is_limited():
    """
    A sender that keeps changing its name does not fill the reader's memory.
    """
    ages = Ages()
    for number in range(PROGRAMS + 50):
        ages.add(f"program-{number}", 1.0)
    ages.add("program-0", 1.0)

    statistics = ages.statistics()
    assert len(statistics) == PROGRAMS + 1
    assert (statistics["program-0"].count, statistics[OTHERS].count) == (2, 50)


def test_other_subjects_are_rejected(connect, stream):
    """
    A message to another program's subject is not sent, and the error says why.
    """
    js = connect(Stamp("till", owns=f"{stream.name}.till."))
    js.publish(f"{stream.name}.till.1", b"mine")

    with pytest.raises(jetsync.PluginError) as caught:
        js.publish(f"{stream.name}.office.1", b"not mine")

    assert caught.value.plugin == "stamp"
    assert isinstance(caught.value.__cause__, NotOwnedError)
    assert stream.info().state.messages == 1


def test_loaded_by_name(connect, stream, monkeypatch):
    """
    A plugin that is loaded by its entry point gets the program's name from the environment.
    """
    monkeypatch.setenv("STAMP_PROGRAM", "till")
    connect("stamp").publish(f"{stream.name}.a", b"1")

    assert stream.get_message(1).headers[PROGRAM] == "till"


def test_a_program_needs_a_name(connect, monkeypatch):
    """
    Without a name, connecting fails and the error says what to set.
    """
    monkeypatch.delenv("STAMP_PROGRAM", raising=False)

    with pytest.raises(jetsync.ConfigurationError, match="STAMP_PROGRAM"):
        connect("stamp")
