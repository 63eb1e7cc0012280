"""
The command line against real servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner

import jetsync
from helpers.certificates import Authority
from helpers.commands import running
from helpers.waiting import at_some_pace, eventually
from jetsync.cli import consumer as consumer_module
from jetsync.cli._app import jetsync as app
from jetsync.devserver import DevServer


@pytest.fixture
def run(nats_server, monkeypatch):
    """
    Run a command against the shared server; a function from arguments.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", nats_server.url)

    def run(*arguments, **options):
        return CliRunner().invoke(app, arguments, **options)

    return run


def checked(result):
    """
    Return the output of a command that has to succeed.
    """
    assert result.exit_code == 0, result.output
    return result.output


class TestMessages:
    def test_pub_and_get(self, run, stream):
        """
        A published message is shown as it was stored.
        """
        subject = f"{stream.name}.a"

        output = checked(run("pub", subject, "hello", "-H", "Kind: [test]", "-H", "Kind: 2"))

        assert output == f"stored in {stream.name} at 1\n"
        shown = checked(run("get", stream.name, "1"))
        assert f"subject      {subject}" in shown
        assert [line.split() for line in shown.splitlines() if line.startswith("header")] == [
            ["header", "Kind", "[test]"],
            ["header", "Kind", "2"],
        ]
        assert shown.endswith("\nhello\n")

    def test_pub_twice_with_one_id(self, run, stream):
        """
        The second message is a duplicate, and the output names the first one's sequence.
        """
        arguments = ("pub", f"{stream.name}.a", "x", "--msg-id", "1")
        checked(run(*arguments))

        assert checked(run(*arguments)) == f"duplicate: {stream.name} has it at 1\n"
        assert json.loads(checked(run(*arguments, "--json")))["duplicate"] is True

    def test_pub_reads_standard_input(self, run, stream):
        """
        Without DATA, and with `-`, the payload comes from standard input, byte by byte.
        """
        checked(run("pub", f"{stream.name}.a", input=b"\x00\xff"))
        checked(run("pub", f"{stream.name}.b", "-", input=b"b"))

        assert run("get", stream.name, "1", "--raw").stdout_bytes == b"\x00\xff"
        first = json.loads(checked(run("get", stream.name, "1", "--json")))
        assert first["data_base64"] == "AP8="
        last = json.loads(checked(run("get", stream.name, "--last", f"{stream.name}.b", "--json")))
        assert (last["sequence"], last["data"]) == (2, "b")

    def test_pub_many(self, run, stream):
        """
        --count publishes numbered messages, and counts those that are stored.
        """
        command = ("pub", f"{stream.name}.{{{{Count}}}}", "nr {{Count}}", "-H", "A: b")
        command += ("--msg-id", "id-{{Count}}", "--count")

        output = checked(run(*command, "3"))
        assert re.fullmatch(rf"stored 3 messages in {stream.name} in \S+, [\d,]+ msgs/s\n", output)
        shown = json.loads(checked(run("get", stream.name, "2", "--json")))
        assert (shown["subject"], shown["data"]) == (f"{stream.name}.2", "nr 2")
        assert shown["headers"] == {"A": ["b"], "Nats-Msg-Id": ["id-2"]}

        first, second = checked(run(*command, "5")).splitlines()
        assert first.startswith("stored 2 messages in")
        assert second == "3 duplicates were not stored again"
        report = json.loads(checked(run(*command, "6", "--json")))
        assert (report["count"], report["duplicates"]) == (6, 5)
        assert report["streams"] == [stream.name]

    def test_pub_many_that_are_not_stored(self, run, stream):
        """
        If messages are not stored, the command fails.
        """
        result = run("pub", f"nobody.{stream.name}", "x", "--count", "2")

        assert result.exit_code == 1
        assert result.output.startswith("Error: 2 of 2 messages")

    def test_pub_many_of_standard_input(self, run, stream):
        """
        The number is also filled into bytes.
        """
        checked(run("pub", f"{stream.name}.a", "--count", "2", input=b"\xff{{Count}}"))

        assert run("get", stream.name, "2", "--raw").stdout_bytes == b"\xff2"

    def test_pub_with_a_time_to_live(self, run, js, unique):
        """
        The time to live is stored with the message.
        """
        js.create_stream(unique, subjects=[unique], allow_msg_ttl=True, storage="memory")

        checked(run("pub", unique, "x", "--ttl", "60"))
        checked(run("pub", unique, "x", "--ttl", "never"))

        headers = [
            json.loads(checked(run("get", unique, number, "--json")))["headers"]
            for number in ("1", "2")
        ]
        assert headers == [{"Nats-TTL": ["60"]}, {"Nats-TTL": ["never"]}]
        js.delete_stream(unique)

    def test_a_missing_object_is_an_error_of_one_line(self, run, stream):
        """
        A missing message, stream and subject are errors of one line.
        """
        for arguments in (
            ("get", stream.name, "9"),
            ("get", "MISSING", "1"),
            ("pub", f"nobody.{stream.name}", "x"),
        ):
            result = run(*arguments)
            assert result.exit_code == 1
            assert result.output.startswith("Error: ")
            assert result.output.count("\n") == 1


class TestGet:
    def test_a_message_is_found_by_sequence_subject_and_time(self, run, js, stream):
        """
        By sequence, the last and the next of a subject, and by time.
        """
        for number in range(6):
            js.publish(f"{stream.name}.{number % 2}", f"m{number}")
        third = js.stream(stream.name).get_message(3)

        def got(*arguments):
            return run("get", stream.name, *arguments, "--raw").stdout_bytes.decode()

        assert got("--seq", "2") == "m1"
        assert got("--last", f"{stream.name}.0") == "m4"
        assert got("--next", f"{stream.name}.1") == "m1"
        assert got("--next", f"{stream.name}.1", "--from", "3") == "m3"
        assert got("--at", third.timestamp.isoformat()) == "m2"
        assert got("--at", "1h") == "m0"

    def test_foreign_messages_are_escaped(self, run, js, stream):
        """
        Control characters of payloads and headers are shown as escapes.
        """
        js.publish(f"{stream.name}.a", b"\x1b[2J\xff\nnext", headers={"A": "\x1b[31m"})

        shown = checked(run("get", stream.name, "1"))

        assert "\x1b" not in shown
        assert shown.endswith("\n\\x1b[2J\\xff\nnext\n")


class TestTail:
    def test_a_filter_that_matches_nothing(self, run, js, stream):
        """
        The command warns once, however many consumers it needs to find the last messages.
        """
        self.fill(js, stream, 40)

        result = run("tail", stream.name, "--no-follow", "--subject", "nothing")

        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.count("it stores no more such messages") == 1

    def fill(self, js, stream, count, start=0):
        """
        Publish numbers to two subjects in turn.
        """
        js.publish_many(
            (f"{stream.name}.{number % 2}", str(number)) for number in range(start, start + count)
        )

    def shown(self, run, stream, *arguments):
        """
        The payloads that a tail shows if it does not follow the stream.
        """
        output = checked(run("tail", stream.name, "--no-follow", "--raw", *arguments))
        return [int(line) for line in output.splitlines()]

    def test_where_it_begins(self, run, js, stream):
        """
        A tail starts ten or more messages before the end, or at a sequence, a time or the next
        message.
        """
        self.fill(js, stream, 40)
        for sequence in (*range(10, 20), 37, 38):
            stream.delete_message(sequence)
        middle = stream.get_message(30).timestamp.isoformat()

        left = [n for n in range(40) if n + 1 not in {*range(10, 20), 37, 38}]
        assert self.shown(run, stream) == left[-10:]
        for count in (0, 1, 2, 7, 19, 27, 28, 29, 1000):
            wanted = left[-count:] if count else []
            assert self.shown(run, stream, "--last", str(count)) == wanted
        odd = [n for n in left if n % 2]
        for count in (1, 5, len(odd), 1000):
            subject = ("--subject", f"{stream.name}.1")
            assert self.shown(run, stream, *subject, "--last", str(count)) == odd[-count:]
        both = ("--subject", f"{stream.name}.1", "--subject", f"{stream.name}.0")
        assert self.shown(run, stream, *both, "--seq", "29") == [n for n in left if n >= 28]
        assert self.shown(run, stream, "--since", middle) == [n for n in left if n >= 29]
        assert self.shown(run, stream, "--since", "1h", "--count", "3") == left[:3]
        assert self.shown(run, stream, "--new") == []
        assert list(stream.consumer_names()) == []

    def test_a_tail_of_an_empty_stream_prints_nothing(self, run, stream):
        """
        A tail of an empty stream prints nothing.
        """
        assert self.shown(run, stream) == []

    def test_a_tail_prints_lines_or_json_and_moves_no_cursor(self, run, js, stream):
        """
        Each message is one line with its headers below, or JSON. No output moves the cursor.
        """
        js.publish(f"{stream.name}.a", "two\nlines \x1b[2J", headers={"Kind": "\x9b2J"})
        ends = ("tail", stream.name, "--no-follow")

        (line,) = checked(run(*ends)).splitlines()
        assert line.startswith("1  20")
        assert line.endswith(f"  {stream.name}.a  two\\nlines \\x1b[2J")
        assert checked(run(*ends, "--headers")).splitlines()[1:] == ["    Kind: \\x9b2J"]
        (line,) = checked(run(*ends, "--json")).splitlines()
        assert "\x9b" not in line
        message = json.loads(line)
        assert (message["sequence"], message["data"]) == (1, "two\nlines \x1b[2J")
        assert message["headers"] == {"Kind": ["\x9b2J"]}

    @pytest.fixture
    def follow(self, nats_server):
        """
        Start a tail in a process of its own; a function from arguments.
        """
        with contextlib.ExitStack() as stack:

            def follow(*arguments):
                return stack.enter_context(running("tail", *arguments, NATS_URL=nats_server.url))

            yield follow

    def test_follows_until_ctrl_c(self, follow, js, stream):
        """
        New messages are shown at once. Ctrl-C ends the tail silently with exit status 0.
        """
        self.fill(js, stream, 2)
        process = follow(stream.name, "--raw")
        assert [process.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
        self.fill(js, stream, 2, start=2)
        assert [process.stdout.readline() for _ in range(2)] == ["2\n", "3\n"]

        process.send_signal(signal.SIGINT)

        assert process.wait(20) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")
        assert list(stream.consumer_names()) == []

    def test_a_closed_pipe_ends_the_tail_silently(self, follow, js, stream):
        """
        A closed pipe ends the tail silently.
        """
        self.fill(js, stream, 10)
        process = follow(stream.name, "--raw", "--seq", "1")
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        self.fill(js, stream, 10, start=10)

        assert process.wait(20) == 0
        assert process.stderr.read() == ""

    def test_ends_after_a_count(self, follow, js, stream):
        """
        The tail waits for messages until it has shown the requested number.
        """
        process = follow(stream.name, "--raw", "--count", "2", "--seq", "1")
        self.fill(js, stream, 3)

        assert process.communicate(timeout=20) == ("0\n1\n", "")
        assert process.returncode == 0

    def test_the_stream_is_removed(self, follow, js, stream):
        """
        If the stream is removed, the tail ends and says why.
        """
        self.fill(js, stream, 1)
        process = follow(stream.name, "--raw")
        assert process.stdout.readline() == "0\n"
        js.delete_stream(stream.name)

        assert process.wait(60) == 1
        assert re.match("Error: stream '.*' not found", process.stderr.read())

    def test_a_tail_of_a_work_queue_names_another_command(self, run, js, unique):
        """
        A tail of a work queue is an error that names a command for its messages.
        """
        js.create_stream(unique, subjects=[f"{unique}.>"], retention="workqueue")
        js.publish(f"{unique}.1", b"two chairs")

        result = run("tail", unique)

        assert result.exit_code == 1
        assert re.match(
            r"Error: '.*' is a work queue, .*`jetsync get .* --next '>'`", result.output
        )
        assert "two chairs" in checked(run("get", unique, "--next", ">"))
        js.delete_stream(unique)

    def test_a_tail_of_a_stream_that_keeps_messages_for_consumers(self, run, js, unique):
        """
        Only a work queue is refused.
        """
        stream = js.create_stream(unique, subjects=[f"{unique}.>"], retention="interest")
        stream.create_consumer("keeper")
        js.publish(f"{unique}.1", b"two chairs")

        assert "two chairs" in checked(run("tail", unique, "--no-follow"))
        js.delete_stream(unique)

    def test_a_tail_of_a_missing_stream_is_an_error_of_one_line(self, run):
        """
        A missing stream is an error of one line.
        """
        result = run("tail", "MISSING")

        assert result.exit_code == 1
        assert result.output.startswith("Error: ")


class TestStreams:
    def test_create_show_list_purge_remove(self, run, unique, terminal):
        """
        The commands work on a stream from creation to removal.
        """
        output = checked(
            run("stream", "create", unique, "--subjects", f"{unique}.>", "--storage", "memory")
        )
        assert output == f"created {unique} for {unique}.>\n"
        for number in range(3):
            checked(run("pub", f"{unique}.{number}", "x"))

        (row,) = [
            line.split()
            for line in checked(run("stream", "ls", "--subject", f"{unique}.1")).splitlines()[1:]
        ]
        assert row[:3] == [unique, f"{unique}.>", "3"]
        shown = checked(run("stream", "info", unique, "--subjects", ">"))
        assert f"{unique}.2         1" in shown
        info = json.loads(checked(run("stream", "info", unique, "--json")))
        assert info["state"]["messages"] == 3

        assert checked(run("stream", "purge", unique, "--keep", "1", "-f")) == (
            f"removed 2 messages from {unique}\n"
        )
        refused = run("stream", "rm", unique, input="n\n")
        assert refused.exit_code == 1
        output = checked(run("stream", "rm", unique, input="y\n"))
        assert output.endswith(f"removed {unique} with 1 messages\n")
        assert run("stream", "info", unique).exit_code == 1
        assert unique not in checked(run("stream", "ls"))

    def test_advice_names_commands(self, run, stream):
        """
        Errors advise commands and options, and no names of Python.
        """
        exists = run("stream", "add", stream.name, "--subjects", "other")
        assert exists.output.endswith(
            "`jetsync stream info` shows it, `jetsync stream edit` changes it, and "
            "`jetsync stream rm` removes it\n"
        )
        without = run("pub", f"{stream.name}.a", "x", "--ttl", "1m")
        assert without.output.endswith("give the stream --ttl with `jetsync stream edit`\n")
        later = run("pub", f"{stream.name}.a", "--schedule", "@in 1h", "--target", "b", "x")
        assert "give the stream --schedules with `jetsync stream edit` (400" in later.output
        nowhere = run("stream", "ls", "-s", "nats://127.0.0.1:1")
        assert nowhere.output.endswith("`jetsync server` starts one\n")

    def test_create_from_a_configuration(self, run, unique, tmp_path):
        """
        The output of `stream info --json` can be used to create the stream again.
        """
        flags = ("--direct", "--atomic", "--ttl", "--max-age", "60", "--storage", "memory")
        checked(run("stream", "create", unique, *flags))
        path = tmp_path / "stream.json"
        path.write_text(checked(run("stream", "info", unique, "--json")))
        checked(run("stream", "rm", unique, "-f"))

        made = json.loads(
            checked(run("stream", "create", unique, "--config", str(path), "--json"))
        )["config"]

        assert made["max_age"] == 60_000_000_000
        assert (made["allow_direct"], made["allow_atomic"], made["allow_msg_ttl"]) == (True,) * 3
        assert "allows   " in checked(run("stream", "info", unique))
        checked(run("stream", "rm", unique, "-f"))

    def test_purge_asks_first(self, run, stream, terminal):
        """
        Nothing is removed without confirmation.
        """
        checked(run("pub", f"{stream.name}.a", "x"))

        assert run("stream", "purge", stream.name, input="n\n").exit_code == 1
        assert stream.info().state.messages == 1
        some = ("stream", "purge", stream.name, "--sequence", "1000")
        assert f"Remove all messages before sequence 1,000 from {stream.name}?" in (
            run(*some, input="n\n").output
        )
        some = ("stream", "purge", stream.name, "--subject", "a", "--keep", "5")
        assert f"Remove all messages of a but the newest 5 from {stream.name}?" in (
            run(*some, input="n\n").output
        )
        checked(run("stream", "purge", stream.name, "--subject", f"{stream.name}.a", input="y\n"))
        assert stream.info().state.messages == 0

    @pytest.mark.parametrize("given", ["", "y\n"])
    @pytest.mark.parametrize("command", ["rm", "purge"])
    def test_a_script_needs_force(self, run, stream, command, given):
        """
        Without a terminal nothing is removed, whatever arrives on standard input.
        """
        checked(run("pub", f"{stream.name}.a", "x"))

        refused = run("stream", command, stream.name, input=given)

        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr == (
            "Error: there is no terminal to ask for confirmation: add --yes\n"
        )
        assert stream.info().state.messages == 1


class TestConsumers:
    def test_list_show_remove(self, run, stream, terminal):
        """
        The commands list, show and remove the consumers of a stream.
        """
        assert checked(run("consumer", "ls", stream.name)) == f"{stream.name} has no consumers.\n"
        stream.create_consumer("worker", filter_subject=f"{stream.name}.a")
        checked(run("pub", f"{stream.name}.a", "x"))

        rows = checked(run("consumer", "ls", stream.name)).splitlines()
        assert rows[1].split()[:5] == ["worker", "1", "0", "0", "0"]
        (listed,) = json.loads(checked(run("consumer", "ls", stream.name, "--json")))
        assert listed["name"] == "worker"
        shown = checked(run("consumer", "info", stream.name, "worker"))
        assert f"filters             {stream.name}.a" in shown or f"{stream.name}.a" in shown
        info = json.loads(checked(run("consumer", "info", stream.name, "worker", "--json")))
        assert info["num_pending"] == 1

        assert run("consumer", "rm", stream.name, "worker", input="n\n").exit_code == 1
        assert checked(run("consumer", "rm", stream.name, "worker", "-f")) == (
            f"removed the consumer worker of {stream.name}\n"
        )
        assert run("consumer", "info", stream.name, "worker").exit_code == 1

    def test_adding_a_durable_consumer_twice_changes_nothing(self, run, stream):
        """
        A durable pull consumer is created, and creating it again changes nothing.
        """
        options = ("--filter", f"{stream.name}.a", "--filter", f"{stream.name}.b", "--seq", "3")
        options += ("--ack", "all", "--max-deliver", "5", "--max-ack-pending", "20")
        options += ("--inactive-threshold", "1h", "--description", "d", "--backoff", "1s,1m30s")
        for _ in range(2):
            assert checked(run("consumer", "add", stream.name, "worker", *options)) == (
                f"created the consumer worker of {stream.name}\n"
            )

        config = stream.consumer("worker").cached_info.config
        assert config.filter_subjects == [f"{stream.name}.a", f"{stream.name}.b"]
        assert (config.deliver_policy, config.opt_start_seq) == ("by_start_sequence", 3)
        assert (config.ack_policy, config.max_deliver, config.max_ack_pending) == ("all", 5, 20)
        assert (config.inactive_threshold, config.description) == (3600, "d")
        assert config.backoff == [1, 90]
        refused = run("consumer", "add", stream.name, "worker", "--ack", "none")
        assert (refused.exit_code, refused.output.count("\n")) == (1, 1)

    def test_add_with_one_filter(self, run, stream):
        """
        Other ways to begin, and the output for programs.
        """
        command = ("consumer", "add", stream.name, "worker", "--filter", f"{stream.name}.a")

        info = json.loads(checked(run(*command, "--deliver", "new", "--ack-wait", "2m", "--json")))

        assert info["config"]["filter_subject"] == f"{stream.name}.a"
        assert info["config"]["deliver_policy"] == "new"
        assert info["config"]["ack_wait"] == 120_000_000_000
        checked(run("consumer", "add", stream.name, "late", "--since", "1h"))
        assert stream.consumer("late").cached_info.config.opt_start_time is not None

    def test_add_with_a_filter_that_matches_nothing(self, run, stream):
        """
        The server accepts it, so the command warns.
        """
        result = run("consumer", "add", stream.name, "worker", "--filter", "nothing")

        assert result.exit_code == 0
        assert result.stderr == (
            "the stream has no subject that matches nothing: it stores no more such messages\n"
        )


class TestNext:
    @pytest.fixture
    def consumer(self, run, js, stream):
        """
        A consumer with three messages.
        """
        js.publish_many((f"{stream.name}.a", str(number)) for number in range(3))
        return stream.create_consumer("worker", ack_wait=600)

    def left(self, consumer):
        """
        Return how many messages are not delivered, and how many not acknowledged.
        """
        info = consumer.info()
        return info.num_pending, info.num_ack_pending

    def test_next_prints_and_acknowledges_messages(self, run, stream, consumer):
        """
        Messages are printed and acknowledged.
        """
        command = ("consumer", "next", stream.name, "worker", "--wait", "60s")

        (line,) = checked(run(*command)).splitlines()
        assert line.startswith("1  20")
        assert line.endswith(f"  {stream.name}.a  0")
        assert self.left(consumer) == (2, 0)
        assert checked(run(*command, "--count", "2", "--raw")) == "1\n2\n"
        assert self.left(consumer) == (0, 0)

    def test_ctrl_c_ends_next_with_an_error(self, run, stream, consumer, monkeypatch):
        """
        Ctrl-C ends the command with an error, so that a loop of a shell can end.
        """

        def interrupted(_):
            raise KeyboardInterrupt

        monkeypatch.setattr(consumer_module, "show_of", lambda **_: interrupted)
        result = run("consumer", "next", stream.name, "worker", "--wait", "60s")

        assert result.exit_code == 1
        assert result.output.endswith("Aborted!\n")

    def test_fewer_than_wanted(self, run, stream, consumer):
        """
        What arrived is printed, and the rest is reported on standard error.
        """
        command = ("consumer", "next", stream.name, "worker", "--raw", "--wait")

        def attempt(_):
            stream.delete_consumer("worker")
            stream.create_consumer("worker", ack_wait=600)
            result = run(*command, "2s", "--count", "4")
            assert (result.exit_code, result.stdout) == (0, "0\n1\n2\n")
            assert result.stderr == "3 of 4 messages arrived within 2s\n"
            result = run(*command, "1s")
            assert (result.exit_code, result.stdout) == (1, "")
            assert result.stderr == "Error: consumer worker had no message within 1s\n"

        at_some_pace(attempt)

    def test_other_answers(self, run, stream, consumer):
        """
        A message is redelivered, now or later, or never, or is left without an answer.
        """
        command = ("consumer", "next", stream.name, "worker", "--wait", "60s", "--raw", "--ack")

        assert checked(run(*command, "nak", "--count", "3")) == "0\n1\n2\n"
        assert checked(run(*command, "nak", "--delay", "1h")) == "0\n"
        assert checked(run(*command, "term")) == "1\n"
        assert checked(run(*command, "none")) == "2\n"
        assert self.left(consumer) == (0, 2)

    def test_messages_that_a_closed_pipe_lacks_are_redelivered(
        self, js, stream, consumer, nats_server
    ):
        """
        If the output is closed, the messages that were not printed are redelivered at once.
        """
        js.publish_many((f"{stream.name}.a", b"x" * 10_000) for _ in range(97))
        command = ("consumer", "next", stream.name, "worker", "--wait", "60s")
        command += ("--count", "100", "--raw")
        with running(*command, NATS_URL=nats_server.url) as process:
            assert process.stdout.readline() == "0\n"
            process.stdout.close()
            assert process.wait(60) == 0
            assert process.stderr.read() == ""

        floor = consumer.info().ack_floor.stream_seq
        # The message that was printed when the output closed has no answer.
        left = [message.sequence for message in consumer.fetch(100 - floor - 1, expires=60)]
        assert left == list(range(floor + 2, 101))

    def test_each_message_is_a_json_object_on_a_line(self, run, stream, consumer):
        """
        With --json, each message is an object on a line.
        """
        line = checked(run("consumer", "next", stream.name, "worker", "--wait", "60s", "--json"))

        assert json.loads(line)["data"] == "0"

    def test_a_consumer_without_acknowledgement(self, run, stream, consumer):
        """
        Nothing is acknowledged, and asking for it is an error.
        """
        stream.create_consumer("free", ack_policy="none")
        command = ("consumer", "next", stream.name, "free", "--wait", "60s", "--raw")

        result = run(*command, "--ack", "ack")
        assert result.exit_code == 1
        assert "messages of consumer free cannot be acknowledged" in result.output
        assert checked(run(*command)) == "0\n"


class TestDoctor:
    def test_the_newest_server_has_everything(self, run, nats_server):
        """
        Server, account and features are shown, and the exit status is 0.
        """
        output = checked(run("doctor", nats_server.url))

        assert f"nats-server {nats_server.version}" in output
        assert re.search("^fast ingest +fast_ingest +yes", output, re.MULTILINE)
        assert " no " not in output

    def test_the_json_of_doctor_has_the_same_contents(self, run, nats_server):
        """
        The JSON output has the same contents.
        """
        report = json.loads(checked(run("doctor", "--json", "--require", "fast_ingest")))

        assert report["ok"] is True
        assert report["server"]["version"] == nats_server.version
        assert (report["tls"], report["client"]["login"]) == (False, None)
        assert report["api_level"] >= 5
        assert 0 < report["rtt_ms"] < 1000
        assert report["account"]["limits"]["max_streams"] == -1
        assert all(feature["works"] for feature in report["features"])

    @pytest.mark.parametrize(
        ("config", "login", "kind"),
        [
            (
                "user: app, password: s3cret",
                ["--user", "app", "--password", "s3cret"],
                "a user and a password",
            ),
            ("token: s3cret", ["--token", "s3cret"], "a token"),
            ("users: [{nkey: PUBLIC}]", ["--nkey", "SEED"], "an NKey"),
        ],
    )
    def test_tls_and_the_kind_of_login_are_shown(self, run, tmp_path, config, login, kind):
        """
        The report says whether TLS is used and which kind of login, and shows no value of it.
        """
        if "SEED" in login:
            nkeys = pytest.importorskip("nkeys")
            from helpers.credentials import new_key

            pair, public = new_key(nkeys.PREFIX_BYTE_USER)
            config, login = config.replace("PUBLIC", public), ["--nkey", pair.seed.decode()]
        authority = Authority(tmp_path, "authority")
        certificate, key = authority.issue("server")
        tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
        with DevServer(config=f"{tls}\nauthorization {{ {config} }}") as server:
            output = checked(run("doctor", server.url, "--tls-ca", authority.path, *login))

        assert re.search(r"^TLS +yes *$", output, re.MULTILINE)
        assert re.search(rf"^login +{kind} *$", output, re.MULTILINE)
        assert not [secret for secret in login[1::2] if secret in output]

    def test_a_login_in_the_url_and_no_tls(self, run):
        """
        A login may come from the URL, and the report says if there is no TLS.
        """
        with DevServer(config="authorization { token: s3cret }") as server:
            url = server.url.replace("://", "://s3cret@")
            output = checked(run("doctor", url))

        assert re.search(r"^TLS +not used *$", output, re.MULTILINE)
        assert re.search(r"^login +a token *$", output, re.MULTILINE)
        assert "s3cret" not in output

    def test_a_server_without_jetstream_has_the_exit_status_1(self, run):
        """
        Without JetStream the exit status is 1, and every feature has the reason.
        """
        with DevServer(jetstream=False) as server:
            result = run("doctor", server.url, "--json")

        report = json.loads(result.output)
        assert result.exit_code == 1
        (problem,) = report["problems"]
        assert "JetStream" in problem
        assert {feature["why"] for feature in report["features"]} == {problem}
        assert report["specifications"] == []
        assert not any(feature["works"] for feature in report["features"])

    def test_a_user_of_the_system_account_sees_all_servers(self, run):
        """
        The report lists all servers, and the exit status is 0 if they are healthy.
        """
        accounts = {
            "$SYS": {"users": [{"user": "sys", "password": "s"}]},
            "APP": {"jetstream": "enabled", "users": [{"user": "app", "password": "a"}]},
        }
        config = {"accounts": accounts, "no_auth_user": "app"}
        login = ["--user", "sys", "--password", "s"]
        with DevServer(cluster=3, name="c", config=config) as cluster:
            with jetsync.connect(cluster.url, user="sys", password="s") as client:
                eventually(lambda: all(each.ok for each in client.system(servers=3).healthz()))
            output = checked(run("doctor", cluster.url, *login))
            report = json.loads(checked(run("doctor", cluster.url, "--json", *login)))
            other = json.loads(checked(run("doctor", cluster.url, "--json")))
            failed = run("doctor", cluster.url, "--require", "pause", *login)

        # The disk has a message after two minutes at the latest.
        servers = rf"^(c-\d) +{cluster.version} +c +ok +every 2m "
        assert re.findall(servers, output, re.MULTILINE) == [
            "c-0",
            "c-1",
            "c-2",
        ]
        assert "belongs to the system account" in output
        assert (report["ok"], report["problems"]) == (True, [])
        assert [each["name"] for each in report["servers"]] == ["c-0", "c-1", "c-2"]
        assert {each["healthy"] for each in report["servers"]} == {True}
        syncs = {(each["sync_always"], each["sync_interval"]) for each in report["servers"]}
        assert syncs == {(False, 120.0)}
        assert "servers" not in other
        assert failed.exit_code == 1

    @pytest.mark.parametrize(
        ("version", "works", "note"),
        [
            *(
                pytest.param(*case, marks=pytest.mark.versions, id=case[0])
                for case in (
                    ("2.10.26", [1, 21, 105, 33, 5], "not SC-70, SC-85 (server 2.11); SC-69"),
                    ("2.11.11", [1, 21, 107, 74, 45], "not DG-58, DG-72 (server 2.12); DG-15"),
                    ("2.12.8", [43, 21, 107, 75, 45], "AB-08 to AB-10, AB-12, AB-32"),
                    ("2.14.6", [50, 72, 107, 75, 45], "not AB-35 (server 2.12.0 only)"),
                )
            ),
            pytest.param(None, [50, 72, 107, 75, 45], "not SC-69, SC-84 (no server)", id="newest"),
        ],
    )
    def test_the_clauses_that_a_server_cannot_do(
        self, run, server_for, nats_server, version, works, note
    ):
        """
        The report says for each specification which clauses the connected server cannot do.
        """
        server = server_for(version) if version else nats_server
        output = checked(run("doctor", server.url))
        found = json.loads(checked(run("doctor", server.url, "--json")))["specifications"]

        assert [each["works"] for each in found] == works
        shown = re.findall(r"^ADR-\d+, [a-z -]+?  +(\d+) of (\d+)", output, re.MULTILINE)
        assert shown == [(str(each["works"]), str(each["clauses"])) for each in found]
        assert note in output
        for each in found:
            missing = [name for group in each["missing"] for name in group["clauses"]]
            assert each["clauses"] - each["works"] == len(set(missing)) == len(missing)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11", "2.12.8", "2.14.6"])
    def test_older_servers(self, run, server_for, version):
        """
        The table of features matches servers of each version.
        """
        server = server_for(version)
        report = json.loads(checked(run("doctor", server.url, "--json")))
        works = {feature["feature"]: feature["works"] for feature in report["features"]}

        assert report["server"]["version"] == version
        with jetsync.connect(server.url) as client:
            js = client.jetstream()
            assert works == {**works, **kept_by(js)}
            stream = js.create_stream("PROBE", subjects=["probe"], storage="memory")
            stream.create_consumer("C")
            for feature in ("reset", "pause"):
                # Silence is the answer of servers that do not know the request.
                subject = f"$JS.API.CONSUMER.{feature.upper()}.PROBE.C"
                timeout = 10 if works[feature] else 1
                assert works[feature] == answers(client, subject, timeout)
            stream.delete()

    def test_a_required_feature_that_is_missing(self, run, server_for):
        """
        If a required feature does not work, the exit status is 1.
        """
        server = server_for("2.12.8")

        result = run("doctor", server.url, "--require", "batch_eob", "--require", "atomic_batch")

        assert result.exit_code == 1
        assert "problem: batch_eob does not work\n" in result.output
        assert "needs nats-server 2.14 (API level 4), this is 2.12.8 (API level 3)" in result.output

    test_a_required_feature_that_is_missing = pytest.mark.versions(
        test_a_required_feature_that_is_missing
    )


def kept_by(js):
    """
    Try the features that a stream's configuration turns on, and return those that the server kept.
    """
    switches = {
        "message_ttl": {"allow_msg_ttl": True},
        "limit_markers": {"subject_delete_marker_ttl": 1.0, "allow_rollup_hdrs": True},
        "atomic_batch": {"allow_atomic": True},
        "fast_ingest": {"allow_batched": True},
        "counters": {"allow_msg_counter": True},
        "schedules": {"allow_msg_schedules": True},
    }
    kept = {}
    for feature, fields in switches.items():
        try:
            js.create_stream("PROBE", subjects=["probe"], storage="memory", **fields)
            kept[feature] = True
        except jetsync.JetSyncError:
            kept[feature] = False
        if "PROBE" in js.stream_names():
            js.delete_stream("PROBE")
    return kept


def answers(client, subject, timeout):
    """
    Return whether the server answers an API subject at all.
    """
    try:
        client.request(subject, b"{}", timeout=timeout)
    except (jetsync.NoRespondersError, jetsync.RequestTimeoutError):
        return False
    return True


class TestServer:
    @pytest.fixture
    def start(self):
        """
        Start `jetsync server` in a process of its own; a function from arguments.
        """
        started = []

        def start(*arguments):
            process = subprocess.Popen(
                [sys.executable, "-m", "jetsync", "server", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            started.append(process)
            return process

        yield start
        for process in started:
            process.kill()
            process.communicate()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_runs_until_it_is_interrupted(self, start, number, tmp_path):
        """
        The first line is the URL. Ctrl-C and SIGTERM stop the server and end with status 0.
        """
        process = start("--port", "0", "--store", str(tmp_path / "store"))
        url = process.stdout.readline().strip()

        with jetsync.connect(url) as client:
            client.jetstream().create_stream("KEPT", subjects=["kept"])
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)

        assert process.returncode == 0, errors
        assert errors.endswith("stopped\n")
        with pytest.raises(jetsync.ConnectError):
            jetsync.connect(url, connect_timeout=2)
        with (
            DevServer(store=tmp_path / "store") as server,
            jetsync.connect(server.url) as client,
        ):
            assert client.jetstream().stream("KEPT").name == "KEPT"

    def test_a_configuration_file(self, start, tmp_path):
        """
        A file gives TLS and logins. The port is that of the options.
        """
        authority = Authority(tmp_path, "authority")
        certificate, key = authority.issue("server")
        file = tmp_path / "nats.conf"
        file.write_text(
            f'port: 1, tls {{ cert_file: "{certificate}", key_file: "{key}" }}\n'
            "authorization { user: app, password: s3cret }\n"
        )
        url = start("--port", "0", "--config", str(file)).stdout.readline().strip()
        login = {"user": "app", "password": "s3cret", "tls_ca": authority.path}
        with jetsync.connect(url, **login) as client:
            assert list(client.jetstream().stream_names()) == []
        with pytest.raises(jetsync.AuthenticationError):
            jetsync.connect(url, tls_ca=authority.path)

    def test_a_server_that_ends_by_itself(self, start):
        """
        If the server dies, the command ends and prints the server's log.
        """
        process = start("--port", "0")
        url = process.stdout.readline().strip()
        pid = server_pid(process.pid)
        watch = threading.Thread(target=process.wait, args=(30,))
        watch.start()

        os.kill(pid, signal.SIGKILL)
        watch.join()

        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "nats-server ended by itself" in errors
        assert url.startswith("nats://127.0.0.1:")


def server_pid(parent):
    """
    Return the server that a process has started.
    """
    if shutil.which("ps") is None:
        pytest.skip("there is no ps")
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=True
    )
    (pid,) = children.stdout.split()
    return int(pid)
