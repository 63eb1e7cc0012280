"""
`jetsync dead`: dead letters are listed, shown, put back and removed.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import jetsync
from jetsync.cli._app import jetsync as app


@pytest.fixture
def run(nats_server, monkeypatch):
    """
    Run a command against the shared server, and return its output; a function from arguments.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", nats_server.url)

    def run(*arguments, fails=0):
        result = CliRunner().invoke(app, ("dead", *arguments))
        assert result.exit_code == fails, result.output
        return result.output

    return run


@pytest.fixture
def give_up(js, stream):
    """
    Let a consumer give up messages as dead letters; a function from its name and the reasons.
    """

    def give_up(subject, name, *reasons):
        consumer = stream.create_consumer(name, filter_subject=f"{stream.name}.{name}")

        def handle(message):
            raise jetsync.DeadLetter(message.data.decode())

        for reason in reasons:
            js.publish(f"{stream.name}.{name}", reason, headers={"Kind": "test"}, msg_id=reason)
        consumer.consume(handle, ack="auto", dead_letter=subject, stop_after=len(reasons)).wait()

    return give_up


@pytest.fixture(params=["direct", "leader", "workqueue"])
def letters(request, js, unique, give_up):
    """
    A stream with dead letters of two consumers and a message that is none.
    """
    kind = request.param
    made = js.create_stream(
        f"{unique}-dead",
        subjects=[f"{unique}-dead.>"],
        storage="memory",
        allow_direct=kind == "direct",
        retention="workqueue" if kind == "workqueue" else "limits",
    )
    give_up(f"{made.name}.a", "first", "no seat", "no paper")
    js.publish(f"{made.name}.other", b"not a dead letter")
    give_up(f"{made.name}.b", "second", "no ink")
    yield made
    made.delete()


class TestDead:
    def test_ls_and_show(self, run, letters, stream):
        """
        The list has the reasons, and options select. One dead letter is shown with its payload.
        """
        rows = run("ls", letters.name).splitlines()
        assert [row.split()[0] for row in rows[1:]] == ["1", "2", "4"]
        assert rows[1].rstrip().endswith("no seat")
        assert f"first of {stream.name}" in rows[1]
        assert f"{stream.name}.first" in rows[1]

        def listed(*options):
            return [each["sequence"] for each in json.loads(run("ls", letters.name, *options))]

        assert listed("--json") == [1, 2, 4]
        assert listed("--consumer", "second", "--json") == [4]
        assert listed("--reason", "paper", "--json") == [2]
        assert listed("--subject", f"{letters.name}.a", "--json") == [1, 2]
        assert listed("--from", "OTHER", "--json") == []
        day = letters.get_message(2).timestamp
        assert listed("--since", day.isoformat(), "--json") == [2, 4]
        assert listed("--until", day.isoformat(), "--json") == [1]
        assert listed("--since", "1h", "--until", day.isoformat(), "--json") == [1]
        assert run("ls", letters.name, "--reason", "zebra") == "No dead letter matches.\n"

        shown = run("show", letters.name, "1")
        assert "no seat" in shown
        assert "header Kind" in shown
        assert shown.endswith("\nno seat\n")
        found = json.loads(run("show", letters.name, "2", "--json"))
        assert (found["subject"], found["data"]) == (f"{stream.name}.first", "no paper")
        assert found["headers"] == {"Kind": ["test"], "Nats-Msg-Id": ["no paper"]}
        assert (found["stream"], found["consumer"], found["deliveries"]) == (
            stream.name,
            "first",
            1,
        )
        assert run("show", letters.name, "2", "--raw") == "no paper"
        assert "message 3 of" in run("show", letters.name, "3", fails=1)
        assert "not found" in run("show", letters.name, "9", fails=1)

    def test_replay(self, run, letters, stream):
        """
        The originals are published again, and their dead letters are removed. Others stay.
        """
        replay = ("replay", letters.name)

        assert "add --yes" in run(*replay, "1", fails=1)
        assert "Give SEQUENCES" in run(*replay, fails=2)
        assert "add --yes" in run(*replay, "1", "--json", fails=2)
        assert run(*replay, "--all", "--dry-run") == "3 dead letters: 1, 2, 4\n"
        assert stream.info().state.messages == 3
        assert run(*replay, "2", "4", "--yes") == "2 messages were published again\n"
        again = stream.get_message(5)
        assert (again.subject, again.data) == (f"{stream.name}.second", b"no ink")
        assert again.headers["Kind"] == "test"
        assert letters.info(deleted_details=True).state.deleted == [2, 4]
        assert letters.cached_info.state.last_seq == 4
        done = json.loads(run(*replay, "--reason", "seat", "--yes", "--json"))
        assert done == {"chosen": [1], "done": [1], "duplicates": 0, "failed": []}
        assert run(*replay, "--all", "--yes") == "No dead letter matches.\n"
        assert run("ls", letters.name) == f"{letters.name} has no dead letters.\n"

    def test_a_second_replay_stores_nothing_twice(self, run, letters, stream):
        """
        With --keep the dead letters stay, and a second call stores no message twice.
        """
        replay = ("replay", letters.name, "--all", "--keep", "--yes")

        assert run(*replay) == "3 messages were published again\n"
        assert run(*replay).endswith("3 of them had been stored before\n")
        assert stream.info().state.messages == 6

    def test_rm(self, run, letters):
        """
        Dead letters are removed, and no other message.
        """
        remove = ("rm", letters.name)

        assert "add --yes" in run(*remove, "--all", fails=1)
        assert run(*remove, "--consumer", "first", "--yes") == "2 dead letters were removed\n"
        assert "message 3 of" in run(*remove, "3", "--yes", fails=1)
        assert run(*remove, "--until", "1h", "--dry-run") == "No dead letter matches.\n"
        assert run(*remove, "4", "4", "-y") == "1 dead letter was removed\n"
        assert letters.info().state.messages == 1


class TestRefused:
    def test_a_message_that_is_not_stored_keeps_its_dead_letter(self, run, js, unique, give_up):
        """
        If no stream takes an original any more, its dead letter stays, and the command fails.
        """
        letters = js.create_stream(f"{unique}-dead", subjects=[f"{unique}-dead"], storage="memory")
        give_up(letters.name, "worker", "one")
        js.stream(unique).update(subjects=["elsewhere." + unique])
        try:
            shown = run("replay", letters.name, "--all", "--yes", fails=1)
            assert "dead letter 1 stays: no response from a stream" in shown
            assert letters.info().state.messages == 1
        finally:
            letters.delete()

    def test_a_stream_that_forbids_to_delete(self, run, js, unique, give_up):
        """
        Nothing is published if the dead letters could not be removed.
        """
        letters = js.create_stream(
            f"{unique}-dead", subjects=[f"{unique}-dead"], storage="memory", deny_delete=True
        )
        give_up(letters.name, "worker", "one")
        try:
            for command in ("replay", "rm"):
                shown = run(command, letters.name, "--all", "--yes", fails=1)
                assert "forbids deleting messages" in shown
            assert js.stream(unique).info().state.messages == 1
            run("replay", letters.name, "--all", "--yes", "--keep")
            assert js.stream(unique).info().state.messages == 2
        finally:
            letters.delete()

    def test_an_interruption_says_what_is_done(self, run, js, unique, give_up, monkeypatch):
        """
        After Ctrl-C, the command says how many messages were published, and loses none.
        """
        letters = js.create_stream(f"{unique}-dead", subjects=[f"{unique}-dead"], storage="memory")
        give_up(letters.name, "worker", "one", "two")
        delete = jetsync.Stream.delete_message

        def interrupted(stream, sequence):
            if sequence == 2:
                raise KeyboardInterrupt
            delete(stream, sequence)

        monkeypatch.setattr(jetsync.Stream, "delete_message", interrupted)
        try:
            shown = run("replay", letters.name, "--all", "--yes", fails=1)
            assert "1 of 2 messages was published again" in shown
            monkeypatch.undo()
            monkeypatch.setenv("NATS_URL", js._context.server.url)
            shown = run("replay", letters.name, "--all", "--yes")
            assert "1 of them had been stored before" in shown
            assert js.stream(unique).info().state.messages == 4
        finally:
            letters.delete()
