"""
The commands that change and report streams, consumers and buckets, and `pub` for many lines.
"""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

import jetsync
from helpers.commands import running
from helpers.waiting import eventually
from jetsync.cli._app import jetsync as app


@pytest.fixture
def run(nats_server, monkeypatch):
    """
    Run a command against the shared server, and return its output; a function from arguments.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", nats_server.url)

    def run(*arguments, fails=0, **options):
        result = CliRunner().invoke(app, arguments, **options)
        assert result.exit_code == fails, result.output
        return result.output

    return run


def answers_of(pseudo_terminal, answer, *command):
    """
    Run a command in a pseudo-terminal, answer its question, and return what it printed.
    """
    started = pseudo_terminal("jetsync", *command)
    started.read_until("[y/N]: ")
    started.type(answer + "\n")
    return started.read_all()


class TestStreamInfo:
    def test_limits_that_edit_sets_are_shown(self, run, stream):
        """
        The output has the limits that decide which messages the stream keeps and takes.
        """
        limits = ("--max-msgs-per-subject", "90", "--max-msg-size", "4KB", "--discard", "new")
        run("stream", "edit", stream.name, *limits, "--deny-purge", "-y")

        shown = run("stream", "info", stream.name)

        pairs = dict(
            re.split(" {2,}", line.strip(), maxsplit=1) for line in shown.splitlines() if line
        )
        assert pairs["max per subject"] == "90"
        assert pairs["max message size"] == "4 KiB"
        assert pairs["max consumers"] == "unlimited"
        assert pairs["discard"] == "new"
        assert pairs["denies"] == "deny_purge"

    def test_how_a_stream_is_written_to_disk_is_shown(self, run, js, unique):
        """
        The output says whether the server acknowledges messages before it has written them.
        """
        run("stream", "add", unique, "--subjects", unique, "--persist", "async")

        assert re.search("persist mode +async", run("stream", "info", unique))
        js.delete_stream(unique)

    def test_the_lag_of_a_copy_is_shown(self, run, js, stream, unique):
        """
        The output says how far a mirror has copied its origin.
        """
        js.publish(f"{stream.name}.a", b"x")
        mirror = js.create_stream(
            f"{unique}_COPY", mirror=jetsync.StreamSource(stream.name), storage="memory"
        )
        eventually(lambda: mirror.info().mirror.active is not None)

        shown = run("stream", "info", mirror.name)

        assert re.search(
            f"mirror of +{stream.name}, 0 messages behind, last heard [0-9]+s ago", shown
        )
        js.delete_stream(mirror.name)


class TestStreamEdit:
    def test_the_difference_is_shown_and_confirmed(self, pseudo_terminal, stream):
        """
        On a terminal, the command shows the fields that change, and asks. `n` changes nothing.
        """
        command = ("stream", "edit", stream.name, "--max-age", "7d", "--max-msgs", "50")

        assert "Aborted!" in answers_of(pseudo_terminal, "n", *command)
        assert stream.info().config.max_msgs == -1
        shown = answers_of(pseudo_terminal, "y", *command)
        assert re.search("max msgs.*unlimited.*50", shown)
        assert re.search("max age.*none.*7d", shown)
        config = stream.info().config
        assert (config.max_msgs, config.max_age) == (50, 604_800)

    def test_a_script_needs_yes(self, run, stream):
        """
        Without a terminal, the command needs --yes, and changes nothing with --dry-run.
        """
        command = ("stream", "edit", stream.name, "--description", "new")

        assert "add --yes" in run(*command, fails=1)
        assert "new" in run(*command, "--dry-run")
        assert stream.info().config.description is None
        assert run(*command, "--yes").endswith(f"changed the stream {stream.name}\n")
        assert stream.info().config.description == "new"
        assert run(*command, "--yes").startswith("Nothing changes")

    def test_json(self, run, stream):
        """
        With --json, the output is JSON alone, so the command asks nothing.
        """
        command = ("stream", "edit", stream.name, "--max-age", "1h", "--json")

        assert "add --yes or --dry-run" in run(*command, fails=2)
        planned = json.loads(run(*command, "--dry-run"))
        assert planned["applied"] is False
        assert planned["changes"]["max_age"]["new"] == 3_600_000_000_000
        assert json.loads(run(*command, "--yes"))["applied"] is True

    def test_other_fields_stay(self, run, js, stream):
        """
        Fields and keys of the metadata that are not given stay as they are.
        """
        stream.update(metadata={"team": "billing"}, max_msgs=9)

        run("stream", "edit", stream.name, "--metadata", "tier=1", "--duplicate-window", "1h", "-y")

        config = stream.info().config
        assert config.metadata.items() >= {"team": "billing", "tier": "1"}.items()
        assert (config.max_msgs, config.duplicate_window) == (9, 3600)

    def test_subjects_may_be_repeated(self, run, stream):
        """
        A repeated option adds subjects instead of replacing those of the first one.
        """
        first, second, third = (f"{stream.name}.{each}" for each in "abc")

        run(
            "stream",
            "edit",
            stream.name,
            "--subjects",
            f"{first},{second}",
            "--subjects",
            third,
            "-y",
        )

        assert stream.info().config.subjects == [first, second, third]

    def test_a_mirror_becomes_an_ordinary_stream(self, run, js, stream, unique):
        """
        Without its mirror, a stream keeps its messages, and may have subjects of its own.
        """
        js.publish(f"{stream.name}.a", b"x")
        source = jetsync.StreamSource(stream.name)
        copy = js.create_stream(f"{unique}_COPY", mirror=source, storage="memory")
        eventually(lambda: copy.info().state.messages)
        command = ("stream", "edit", copy.name, "--no-mirror", "--subjects", f"copy.{unique}")

        assert "one of --mirror and --no-mirror" in run(*command, "--mirror", "OTHER", fails=2)
        assert re.search("mirror +.*not set", run(*command, "--yes"))

        assert js.publish(f"copy.{unique}", b"y").sequence == 2
        js.delete_stream(copy.name)

    def test_a_file_has_fields_to_change(self, run, stream, tmp_path):
        """
        Fields of a file are set, also those without an option. Null removes one. The others stay.
        """
        path = tmp_path / "stream.json"
        path.write_text('{"republish": {"src": ">", "dest": "copy.>"}, "max_msgs": 5}')

        shown = run("stream", "edit", stream.name, "--config", str(path), "--max-msgs", "6", "-y")

        assert '"dest": "copy.>"' in shown
        config = stream.info().config
        assert (config.republish.dest, config.max_msgs) == ("copy.>", 6)
        path.write_text('{"republish": null, "description": null}')
        shown = run("stream", "edit", stream.name, "--config", str(path), "--yes")
        assert re.search("republish +.*not set", shown)
        assert "description" not in shown
        assert stream.info().config.republish is None
        path.write_text('{"name": "OTHER", "max_msgs": 5}')
        assert "cannot be renamed" in run(
            "stream", "edit", stream.name, "--config", str(path), "-y", fails=1
        )

    def test_a_limit_that_removes_messages(self, run, js, stream):
        """
        The command says if a new limit removes messages at once.
        """
        js.publish_many((f"{stream.name}.a", b"x") for _ in range(9))

        shown = run("stream", "edit", stream.name, "--max-msgs", "4", "--dry-run")
        assert "the stream has 9 messages: the oldest are removed at once" in shown
        each = ("stream", "edit", stream.name, "--dry-run", "--max-msgs-per-subject")
        assert "subjects with more than 8 messages lose the oldest: at once" in run(*each, "8")
        assert "at once" not in run(*each, "9")
        assert stream.info().state.messages == 9
        stream.update(max_msgs_per_subject=9)
        js.publish_many((f"{stream.name}.b", b"x") for _ in range(3))
        assert "at once" not in run(*each, "10")

    def test_nothing_to_change_is_a_usage_error(self, run, stream):
        """
        Without an option, the command says what it needs.
        """
        assert "Give an option or a file" in run("stream", "edit", stream.name, fails=2)

    def test_sealing(self, run, js, stream):
        """
        --seal makes the stream refuse messages.
        """
        run("stream", "edit", stream.name, "--seal", "--yes")

        assert stream.info().config.sealed is True


class TestStreamReports:
    def test_report(self, run, js, stream):
        """
        The report has sizes and the lag of the slowest consumer.
        """
        stream.create_consumer("quick")
        stream.create_consumer("slow")
        js.publish_many((f"{stream.name}.a", b"x" * 100) for _ in range(20))
        quick = stream.consumer("quick")
        for message in quick.fetch(15):
            message.ack_sync()

        rows = run("stream", "report", "--interval", "0").splitlines()
        (row,) = [line.split() for line in rows if line.startswith(f"{stream.name} ")]
        assert row[1] == "20"
        assert row[4:6] == ["2", "20"]
        found = json.loads(run("stream", "report", "--interval", "0", "--json", "--sort", "lag"))
        assert [each["lag"] for each in found] == sorted(
            (each["lag"] for each in found), reverse=True
        )
        (own,) = [each for each in found if each["stream"] == stream.name]
        assert (own["messages"], own["consumers"], own["lag"]) == (20, 2, 20)

    def test_rates(self, run, js, stream):
        """
        The rate is that of the messages which arrive between the two samples.
        """
        import threading

        ends = threading.Event()

        def publish():
            while not ends.is_set():
                js.publish(f"{stream.name}.a", b"x")

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            (found,) = json.loads(
                run("stream", "report", "--subject", f"{stream.name}.a", "--json")
            )
        finally:
            ends.set()
            thread.join()
        assert found["messages_per_second"] > 0

    def test_subjects(self, run, js, stream):
        """
        The command counts the messages of each subject, or of some.
        """
        for subject, count in (("a", 1), ("b.c", 3), ("b.d", 2)):
            js.publish_many((f"{stream.name}.{subject}", b"x") for _ in range(count))

        rows = [line.split() for line in run("stream", "subjects", stream.name).splitlines()[1:]]
        assert rows == [
            [f"{stream.name}.a", "1"],
            [f"{stream.name}.b.c", "3"],
            [f"{stream.name}.b.d", "2"],
        ]
        command = ("stream", "subjects", stream.name, f"{stream.name}.b.*", "--sort", "messages")
        assert list(json.loads(run(*command, "--json")).values()) == [3, 2]
        assert "1 more subjects are not shown" in run(*command, "--limit", "1")
        assert "has no messages of no.such" in run("stream", "subjects", stream.name, "no.such")

    def test_find(self, run, js, stream, unique):
        """
        The command lists the streams that match all options, or those that do not.
        """
        other = js.create_stream(f"{unique}-used", subjects=[f"{unique}-used"], storage="memory")
        other.create_consumer("worker")
        js.publish(f"{unique}-used", b"x")

        def found(*options):
            names = run("stream", "find", "--names", *options).splitlines()
            return {stream.name, other.name} & {*names}

        try:
            assert found() == {stream.name, other.name}
            assert found("--empty") == found("--unused") == {stream.name}
            assert found("--empty", "--invert") == {other.name}
            assert found("--subject", f"{unique}-used") == {other.name}
            assert found("--subject", f"{unique}-used", "--invert") == {stream.name}
            assert found("--idle", "1h") == found("--older-than", "1h") == set()
            assert found("--idle", "0", "--storage", "memory") == {stream.name, other.name}
            assert found("--replicas", "3") == found("--leader", "nobody") == set()
            assert found("--behind") == found("--mirrors") == found("--storage", "file") == set()
            assert found("--retention", "limits") == {stream.name, other.name}
        finally:
            other.delete()


class TestConsumers:
    def test_edit(self, run, stream):
        """
        The command changes one field, and the others stay.
        """
        stream.create_consumer("worker", max_deliver=5, filter_subject=f"{stream.name}.a")
        edit = ("consumer", "edit", stream.name, "worker")

        shown = run(*edit, "--filter", f"{stream.name}.b", "--filter", f"{stream.name}.c", "-y")

        assert "filter subjects" in shown
        config = stream.consumer("worker").cached_info.config
        assert config.filter_subjects == [f"{stream.name}.b", f"{stream.name}.c"]
        assert (config.filter_subject, config.max_deliver) == (None, 5)
        run(*edit, "--filter", f"{stream.name}.a", "--ack-wait", "5s", "-y")
        config = stream.consumer("worker").cached_info.config
        assert (config.filter_subject, config.ack_wait) == (f"{stream.name}.a", 5)
        assert "Give one of --ack-wait" in run(
            *edit, "--ack-wait", "1s", "--backoff", "1s", fails=2
        )
        assert "not found" in run("consumer", "edit", stream.name, "no", "--sample", "1", fails=1)

    def test_pause_and_resume(self, run, stream):
        """
        A pause ends after a duration, at a time, or with `resume`.
        """
        stream.create_consumer("worker")
        pause = ("consumer", "pause", stream.name, "worker")

        assert run(*pause, "1h").startswith("paused the consumer worker of")
        assert 3500 < stream.consumer("worker").cached_info.pause_remaining <= 3600
        assert json.loads(run(*pause, "2100-01-01T00:00:00Z", "--json"))["paused"] is True
        assert "paused" in run("consumer", "report", stream.name, "--interval", "0")
        waits = ("consumer", "next", stream.name, "worker", "--wait", "1s")
        assert "within 1s: it is paused until 2100-01-01" in run(*waits, fails=1)
        assert run("consumer", "resume", stream.name, "worker").endswith("delivers messages\n")
        assert stream.consumer("worker").cached_info.paused is False
        assert "is over" in run(*pause, "2020-01-01", fails=1)
        assert "nor a duration" in run(*pause, "soon", fails=2)

    def test_reset(self, run, js, stream, pseudo_terminal):
        """
        A reset asks, and delivers messages again.
        """
        js.publish_many((f"{stream.name}.a", str(number)) for number in range(3))
        consumer = stream.create_consumer("worker")
        for message in consumer.fetch(3):
            message.ack_sync()
        reset = ("consumer", "reset", stream.name, "worker", "--seq", "2")

        assert "add --yes" in run(*reset, fails=1)
        assert "add --yes" in run(*reset, "--json", fails=2)
        shown = answers_of(pseudo_terminal, "y", *reset)
        assert f"Move the consumer worker of {stream.name} from sequence 3 to sequence 2?" in shown
        assert [message.sequence for message in consumer.fetch(2)] == [2, 3]
        assert json.loads(run(*reset, "--json", "--yes"))["reset_seq"] == 2

    @pytest.mark.versions
    def test_servers_that_cannot(self, run, server_for):
        """
        On a server that cannot pause or reset consumers, the error says which server can.
        """
        server = server_for("2.10.26")
        with jetsync.connect(server.url) as client:
            client.jetstream().create_stream("OLD", subjects=["old"]).create_consumer("worker")
        for command in (("pause", "OLD", "worker", "1h"), ("reset", "OLD", "worker", "-y")):
            assert "needs" in run("consumer", *command, "-s", server.url, fails=1)
        plan = ("pub", "old", "x", "--schedule", "@in 1h", "--target", "old2", "-s", server.url)
        assert "a message schedule is not supported: needs server 2.12" in run(*plan, fails=1)

    def test_report(self, run, js, stream):
        """
        The report has the lag, and what is not acknowledged.
        """
        stream.create_consumer("b")
        stream.create_consumer("a")
        js.publish_many((f"{stream.name}.a", b"x") for _ in range(5))
        assert len(list(stream.consumer("b").fetch(2))) == 2

        report = ("consumer", "report", stream.name, "--interval", "0")
        rows = [line.split() for line in run(*report).splitlines()[1:]]
        assert [row[:3] for row in rows] == [["a", "5", "0"], ["b", "5", "2"]]
        found = json.loads(run(*report, "--sort", "unacknowledged", "--json"))
        assert [each["consumer"] for each in found] == ["b", "a"]
        assert (found[0]["pending"], found[0]["unacknowledged"]) == (3, 2)
        assert stream.name in run("consumer", "report", "--interval", "0")
        stream.delete_consumer("a")
        stream.delete_consumer("b")
        assert run(*report) == f"{stream.name} has no consumers.\n"


class TestBuckets:
    def test_revert(self, run, make_bucket, pseudo_terminal):
        """
        A key gets the value of an earlier revision, after a question that shows both values.
        """
        bucket = make_bucket(history=5)
        for value in ("one", "two"):
            bucket.put("k", value)
        revert = ("kv", "revert", bucket.bucket, "k", "1")

        assert "add --yes" in run(*revert, fails=1)
        assert "Replace 'two' by 'one' in k?" in answers_of(pseudo_terminal, "y", *revert)
        assert bucket.get("k").value == b"one"
        bucket.delete("k")
        assert run(*revert, "--yes") == "5\n"
        assert "is at revision 5 already" in run(
            "kv", "revert", bucket.bucket, "k", "5", "-y", fails=1
        )
        assert "not found" in run("kv", "revert", bucket.bucket, "k", "99", "-y", fails=1)

    def test_compact(self, run, make_bucket):
        """
        What is left of deleted keys is removed, except recent markers.
        """
        bucket = make_bucket(history=5)
        bucket.put("k", "one")
        bucket.put("kept", "one")
        bucket.delete("k")
        compact = ("kv", "compact", bucket.bucket)

        assert "add --yes" in run(*compact, fails=1)
        assert run(*compact, "-y") == "removed what was left of 1 deleted key\n"
        assert [entry.is_deleted for entry in bucket.history("k")] == [True]
        run(*compact, "-y", "--older-than", "0")
        assert bucket.stream.info().state.messages == 1


class TestPub:
    def test_lines(self, run, stream):
        """
        Each line is a message, without its line end. The number is filled into the subject.
        """
        subject = f"{stream.name}.{{{{Count}}}}"

        shown = run("pub", subject, "--lines", input=b"one {{Count}}\r\n\ntwo \xff")

        assert shown.startswith(f"stored 3 messages in {stream.name} in ")
        stored = [stream.get_message(number) for number in (1, 2, 3)]
        assert [message.data for message in stored] == [b"one {{Count}}", b"", b"two \xff"]
        assert stored[2].subject == f"{stream.name}.3"
        again = ("pub", f"{stream.name}.a", "--lines", "--msg-id", "{{Count}}", "--json")
        report = json.loads(run(*again, input="a\nb\n"))
        assert (report["count"], report["duplicates"], report["last_sequence"]) == (2, 0, 5)
        assert json.loads(run(*again, input="a\nb\n"))["duplicates"] == 2

    def test_a_line_is_sent_when_it_arrives(self, nats_server, stream):
        """
        A line of a slow program is stored before the next one arrives.
        """
        arguments = ("pub", f"{stream.name}.a", "--lines")
        with running(*arguments, NATS_URL=nats_server.url) as process:
            process.stdin.write("first\n")
            process.stdin.flush()
            eventually(lambda: stream.info().state.messages == 1)
            process.stdin.close()
            assert process.wait(60) == 0

    def test_lines_that_are_not_stored(self, run, stream):
        """
        If messages are not stored, the command counts them and fails.
        """
        shown = run("pub", f"nobody.{stream.name}", "--lines", input="a\nb\n", fails=1)
        assert "Error: 2 of 2 messages are not stored; the first error: no response" in shown

    def test_schedules(self, run, js, unique):
        """
        The server publishes the message later.
        """
        stream = js.create_stream(
            unique, subjects=[f"{unique}.>"], storage="memory", allow_msg_schedules=True
        )
        plan, target = f"{unique}.plan", ("--target", f"{unique}.out")
        try:
            shown = run("pub", plan, "hello", "--schedule", "@in 0s", *target)
            assert shown == f"scheduled in {unique} at 1\n"
            eventually(lambda: f"{unique}.out" in stream.info(subjects_filter=">").state.subjects)
            assert stream.get_last(f"{unique}.out").data == b"hello"
            for text, pattern in (
                ("@every 1h", "@every 3600s"),
                ("@daily", "@daily"),
                ("0 30 9 * * 1-5", "0 30 9 * * 1-5"),
                ("@at 2100-01-01T00:00:00Z", "@at 2100-01-01T00:00:00Z"),
            ):
                run("pub", plan, "x", "--schedule", text, *target)
                (found,) = stream.schedules(plan)
                assert (found.pattern, found.target) == (pattern, f"{unique}.out")
            assert "cron has six fields" in run(
                "pub", plan, "x", "--schedule", "now", *target, fails=1
            )
        finally:
            stream.delete()

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (("--lines",), "--lines reads standard input"),
            (("--schedule", "@daily"), "--schedule needs --target"),
            (("--target", "b"), "need --schedule"),
            (("--schedule", "@daily", "--target", "b", "--count", "2"), "leave out --count"),
            (("--schedule", "@every 0", "--target", "b"), "not longer than 0"),
            (("--schedule", "@at noon", "--target", "b"), "neither a time"),
        ],
    )
    def test_options_that_exclude_each_other(self, run, options, text):
        """
        Options that exclude each other are usage errors.
        """
        assert text in run("pub", "a", "x", *options, fails=2)
