"""
Writes to key-value buckets, without Spark.
"""

import threading
import time

import attrs
import pytest
from changes import change, table, write
from writing import again, in_task, restarting

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.clients import forget
from jetsync_spark.common.errors import JetStreamSparkError, OptionError, RowError
from jetsync_spark.common.options import ConnectSettings
from jetsync_spark.write import partition as writing
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.ledger import OvertakenError
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import columns_of, make_plan

Row = pytest.importorskip("pyspark.sql").Row

in_each_mode = pytest.mark.parametrize("mode", ["atleastonce", "atomic", "exactlyonce"])


@pytest.fixture
def bucket(js, unique):
    """
    A bucket with all features, which is removed afterwards.
    """
    yield js.create_key_value(unique, history=5, atomic=True, limit_marker_ttl=60)
    js.delete_key_value(unique)


@pytest.fixture
def plan(nats_server, unique):
    """
    A factory of plans of writes to `bucket`.
    """

    def make(mode="atleastonce", columns=None, **options):
        options.setdefault("retry_timeout", 20.0)
        return make_plan(
            ConnectSettings(servers=nats_server.url),
            WriteOptions(bucket=unique, mode=mode, **options),
            columns or columns_of(None, constant=True, bucket=unique),
        )

    return make


class TestWriting:
    @in_each_mode
    def test_changes_of_a_key_keep_their_order(self, bucket, plan, mode):
        """
        The last row of a key in a partition is what the key has, also after deletes and purges.
        """
        rows = [change(f"k{n % 7}", b"%d" % n) for n in range(500)]
        rows += [change("k0", None, "DEL"), change("k1", None, "PURGE"), change("k1", b"new")]
        rows += [change("k2", None, "PURGE"), change("k2", None, "PURGE")]

        written = write(plan(mode, chunk_size=100), rows)

        assert (written.rows, written.stored) == (505, 505)
        assert table(bucket) == {
            "k1": b"new",
            **{f"k{n % 7}": b"%d" % n for n in range(493, 500) if n % 7 > 2},
        }
        assert bucket.history("k0")[-1].operation is jetsync.KeyOperation.DELETE
        assert [bytes(each.value) for each in bucket.history("k1")] == [b"", b"new"]

    @pytest.mark.parametrize("mode", ["atleastonce", "exactlyonce"])
    def test_expected_revisions(self, bucket, plan, mode):
        """
        A row is stored if its key has the expected revision, and 0 stands for a key without one.
        """
        first = bucket.put("a", b"1")
        rows = [change("a", b"2", expected=first), change("new", b"3", expected=0)]

        written = write(plan(mode), rows)

        assert written.stored == 2
        assert table(bucket) == {"a": b"2", "new": b"3"}

    @pytest.mark.parametrize("mode", ["atleastonce", "exactlyonce"])
    def test_another_revision_fails_the_task(self, bucket, plan, mode):
        """
        The error names the row, the key and both revisions.
        """
        bucket.put("a", b"1")
        now = bucket.put("a", b"2")
        rows = [change("b", b"x"), change("a", b"3", expected=now - 1)]

        with pytest.raises(RowError) as caught:
            write(plan(mode), rows)

        said = f"row 1 of partition 0: key 'a' has revision {now}, and the row expects {now - 1}"
        assert said in str(caught.value)
        policies = "skip or deadLetter" if mode == "atleastonce" else "skip"
        assert str(caught.value).endswith(f"; or set onInvalidRow to {policies}")
        assert caught.value.column == "expected_revision"
        assert bytes(bucket.get("a").value) == b"2"

    @pytest.mark.parametrize("mode", ["atleastonce", "exactlyonce"])
    def test_rows_with_another_revision_are_skipped(self, bucket, plan, mode):
        """
        They count as invalid, and the other rows are stored. A later row of a key whose revision a
        row of the write has changed is one of them.
        """
        now = bucket.put("a", b"1")
        rows = [change(f"b{n}", b"x") for n in range(20)]
        rows[3] = change("a", b"no", expected=now + 1)
        rows[7] = change("none", None, "DEL", expected=now)
        rows[9] = change("a", b"2", expected=now)
        rows[11] = change("a", b"3", expected=now)

        written = write(plan(mode, on_invalid_row="skip", chunk_size=6), rows)

        assert (written.rows, written.stored, written.invalid) == (20, 17, 3)
        assert len(table(bucket)) == 17
        assert table(bucket)["a"] == b"2"

    def test_rows_with_another_revision_become_dead_letters(self, js, bucket, plan, target):
        """
        A dead letter has the value of the row, its key in the subject, and its other columns.
        """
        bucket.put("a", b"1")
        dead = f"{target.name}.dead"
        rows = [change("a", b"2", expected=99), change("a b", b"3"), change("c", b"4")]

        written = write(plan(on_invalid_row="deadletter", dead_letter_subject=dead), rows)

        assert (written.stored, written.invalid) == (1, 2)
        found = {bytes(each.data): each.headers for each in target.scan()}
        late, illegal = found[b"2"], found[b"3"]
        assert "has revision" in late["Jetsync-Dead-Letter-Reason"]
        assert late["Jetsync-Dead-Letter-Subject"] == f"$KV.{bucket.bucket}.a"
        assert late["Jetsync-Dead-Letter-Columns"] == '{"expected_revision": 99}'
        assert "the key has a character" in illegal["Jetsync-Dead-Letter-Reason"]
        assert illegal["Jetsync-Dead-Letter-Subject"] == f"$KV.{bucket.bucket}.a b"

    def test_a_task_that_runs_again_finds_its_conditional_rows(self, bucket, plan):
        """
        Its first run has changed their revisions. A key with the value of the row counts as a
        duplicate.
        """
        now = bucket.put("a", b"1")
        rows = [change("a", b"2", expected=now), change("b", None, "DEL", expected=0)]
        write(plan(), rows)

        written = write(plan(), rows)

        assert (written.stored, written.duplicates) == (0, 2)

    def test_times_to_live(self, js, nats_server, unique):
        """
        The bucket has to allow them.
        """
        bucket = js.create_key_value(unique, limit_marker_ttl=60)
        try:
            settings = ConnectSettings(servers=nats_server.url)
            columns = attrs.evolve(columns_of(None, constant=True, bucket=unique), ttl="ttl")
            plan = make_plan(settings, WriteOptions(bucket=unique), columns)

            write(plan, [change("a", b"1", ttl=3600), change("b", b"2")])

            assert (bucket.get("a").ttl, bucket.get("b").ttl) == (3600, None)
        finally:
            js.delete_key_value(unique)

    def test_a_time_to_live_in_a_bucket_with_history(self, bucket, plan):
        """
        The plan tells the tasks whether the bucket has a history.
        """
        with pytest.raises(RowError, match="the bucket keeps earlier revisions"):
            write(plan(), [change("a", b"1", ttl=9)])

    def test_parts_are_retried_in_order(self, bucket, plan, monkeypatch):
        """
        If a row of a key is not stored, the later rows of the key are stored again after it.
        """
        plan = plan()
        published = []
        real = jetsync.JetStream.publish_many

        def losing(js, messages, **options):
            assert options["retries"] == 0
            messages = list(messages)
            published.append([subject.rpartition(".")[2] for subject, _ in messages])
            if len(published) > 1:
                return real(js, messages, **options)
            # The second message is lost, and so are the fourth and all that follow it.
            report = real(js, [messages[0], messages[2]], **options)
            error = jetsync.NoStreamResponseError(messages[1][0])
            failures = [
                jetsync.PublishFailure(n, jetsync.OutboundMessage(*messages[n]), error)
                for n in (1, 3)
            ]
            raise jetsync.PublishManyError(attrs.evolve(report, failures=failures))

        monkeypatch.setattr(jetsync.JetStream, "publish_many", losing)
        keys = ["x", "a", "a", "b", "a", "c"]
        rows = [{"key": key, "value": b"%d" % n} for n, key in enumerate(keys)]

        written = write(plan, rows)

        assert published == [keys, ["a", "a", "b", "a", "c"]]
        assert table(bucket) == {"x": b"0", "a": b"4", "b": b"3", "c": b"5"}
        assert (written.rows, written.stored) == (6, 6)

    def test_a_refusal_without_a_conflict_is_retried(self, bucket, plan, monkeypatch):
        """
        A leader refuses a change while it stores another one of the key. Later rows of the key wait
        for the retry.
        """
        now = bucket.put("a", b"1")
        published = []
        real = jetsync.JetStream.publish_many

        def busy(js, messages, **options):
            published.append([bytes(each.data) for each in messages])
            if len(published) > 1:
                return real(js, messages, **options)
            report = real(js, [], **options)
            refused = jetsync.WrongLastSequenceError()
            failures = [jetsync.PublishFailure(n, m, refused) for n, m in enumerate(messages)]
            raise jetsync.PublishManyError(attrs.evolve(report, failures=failures))

        monkeypatch.setattr(jetsync.JetStream, "publish_many", busy)
        rows = [change("a", b"2", expected=now), change("a", b"3", expected=now + 9)]

        written = write(plan(on_invalid_row="skip"), rows)

        assert published == [[b"2", b"3"]] * 2
        assert (written.stored, written.invalid) == (1, 1)
        assert bytes(bucket.get("a").value) == b"2"

    def test_a_delete_is_no_empty_value(self, bucket, plan):
        """
        If the key has an empty value, a delete at another revision was not stored.
        """
        now = bucket.put("a", b"")

        written = write(plan(on_invalid_row="skip"), [change("a", None, "DEL", expected=now + 1)])

        assert (written.duplicates, written.invalid) == (0, 1)
        assert "a" in bucket

    def test_the_leader_is_asked_for_a_revision(self, bucket, plan, monkeypatch):
        """
        A replica may lag, and then a row that is stored would count as invalid.
        """
        asked = []
        real = jetsync.Stream.get_last

        def get_last(stream, *args, **options):
            asked.append(options["direct"])
            return real(stream, *args, **options)

        monkeypatch.setattr(jetsync.Stream, "get_last", get_last)
        write(plan(on_invalid_row="skip"), [change("a", b"1", expected=9)])

        assert asked == [False]

    def test_a_rejected_row_is_not_published_again(self, bucket, plan, monkeypatch):
        """
        An earlier row of its key is published again, and so are the later ones.
        """
        published = []
        real = jetsync.JetStream.publish_many

        def refusing(js, messages, **options):
            published.append([bytes(data) for _, data in messages])
            if len(published) > 1:
                return real(js, messages, **options)
            failures = [
                jetsync.PublishFailure(n, jetsync.OutboundMessage(*messages[n]), error)
                for n, error in enumerate(
                    [
                        jetsync.NoStreamResponseError(messages[0][0]),
                        jetsync.InvalidArgumentError("refused", argument="data"),
                    ]
                )
            ]
            report = real(js, messages[2:], **options)
            raise jetsync.PublishManyError(attrs.evolve(report, failures=failures))

        monkeypatch.setattr(jetsync.JetStream, "publish_many", refusing)
        rows = [{"key": "a", "value": b"%d" % n} for n in range(3)]

        written = write(plan(on_invalid_row="skip"), rows)

        assert published == [[b"0", b"1", b"2"], [b"0", b"2"]]
        assert (written.rows, written.stored, written.invalid) == (3, 2, 1)

    @pytest.mark.parametrize("call", ["stream_of", "compare"])
    def test_a_revision_is_asked_for_until_the_leader_answers(
        self, bucket, plan, monkeypatch, call
    ):
        """
        The stream of the bucket is looked up in the same way.
        """
        failures = [jetsync.TemporarilyUnavailableError(), jetsync.RequestTimeoutError("x", 1.0)]
        real = getattr(writing, call)

        def late(*args):
            if failures:
                raise failures.pop()
            return real(*args)

        now = bucket.put("a", b"1")
        monkeypatch.setattr(writing, call, late)

        written = write(plan(on_invalid_row="skip"), [change("a", b"2", expected=now + 1)])

        assert (written.invalid, failures) == (1, [])

    def test_a_plugin_that_retries_keeps_the_order(self, js, nats_server, unique, monkeypatch):
        """
        It sends a change again when later ones are stored, so these wait for the ack of the change.
        """
        js.create_key_value(unique)
        real = jetsync.JetStream.publish_many
        back = threading.Event()

        class Later:
            @jetsync.hookimpl
            def jetsync_retry(self, operation, error, attempt):
                if attempt == 2 and not back.is_set():
                    js.create_key_value(unique)
                    back.set()
                return 0.1

            def __eq__(self, other):
                return type(other) is Later

            def __hash__(self):
                return 1

        def in_blocks(messages):
            """The stream is back when several blocks were sent."""
            for number, message in enumerate(messages):
                if number == 1500 and not back.is_set():
                    time.sleep(0.05)
                    js.create_key_value(unique)
                    back.set()
                yield message

        monkeypatch.setattr(
            jetsync.JetStream,
            "publish_many",
            lambda context, messages, **options: real(context, in_blocks(messages), **options),
        )
        options = jetsync.ConnectOptions(servers=nats_server.url, plugins=[Later()])
        plan = make_plan(
            options, WriteOptions(bucket=unique), columns_of(None, constant=True, bucket=unique)
        )
        js.delete_key_value(unique)
        try:
            with in_task():
                changes = [(f"$KV.{unique}.k{n % 100}", b"%d" % n) for n in range(2500)]
                writing.write_messages(plan, iter(changes))

            assert table(js.key_value(unique)) == {
                f"k{n % 100}": b"%d" % n for n in range(2400, 2500)
            }
        finally:
            forget(options)
            js.delete_key_value(unique)


class TestExactlyOnce:
    def test_the_ledger_is_in_the_bucket(self, bucket, plan):
        """
        A replay stores nothing again, and a task that was overtaken stores nothing at all.
        """
        rows = [change(f"k{n}", b"%d" % n) for n in range(30)]
        late = plan("exactlyonce", chunk_size=10)
        write(late, rows)
        before = bucket.stream.info().state.last_seq

        written = write(again(late), rows)
        assert (written.skipped, written.stored) == (30, 0)
        assert bucket.stream.info().state.last_seq == before

        write(again(late), [change("k0", b"newer")], batch=1)
        with pytest.raises(OvertakenError, match="or another writeId, which writes the rows again"):
            write(again(late), rows)
        assert bytes(bucket.get("k0").value) == b"newer"
        assert sorted(set(bucket.keys()) - set(table(bucket))) == ["_ledger.q.0"]

    def test_the_name_of_the_bucket_does_not_move_the_ledger(self, js, nats_server, unique):
        """
        In a stream, a token with "ledger" begins the subjects of the ledger.
        """
        name = f"ledger-{unique}"
        js.create_key_value(name, atomic=True)
        settings = ConnectSettings(servers=nats_server.url)
        options = WriteOptions(bucket=name, mode="exactlyonce")
        try:
            made = make_plan(settings, options, columns_of(None, constant=True, bucket=name))
        finally:
            js.delete_key_value(name)

        assert made.ledgers == (f"$KV.{name}._ledger",)

    def test_a_value_that_another_program_has_written(self, bucket, plan):
        """
        The row is not stored, as the ledger says, although the key has its value.
        """
        now = bucket.put("a", b"2")
        rows = [change("a", b"2", expected=now + 1), change("b", b"3")]

        written = write(plan("exactlyonce", on_invalid_row="skip"), rows)

        assert (written.stored, written.invalid) == (1, 1)

    def test_a_refusal_without_a_conflict_is_retried(self, bucket, plan, monkeypatch):
        """
        A leader refuses a chunk while it stores another change of one of its keys.
        """
        failures = [jetsync.WrongLastSequenceError()] * 2
        real = jetsync.JetStream.publish_batch

        def busy(js, messages, **options):
            if failures:
                raise failures.pop()
            return real(js, messages, **options)

        monkeypatch.setattr(jetsync.JetStream, "publish_batch", busy)
        now = bucket.put("a", b"1")

        written = write(plan("exactlyonce"), [change("a", b"2", expected=now)])

        assert (written.stored, failures) == (1, [])
        assert bytes(bucket.get("a").value) == b"2"

    def test_a_replay_does_not_look_at_revisions(self, bucket, plan):
        """
        The first run has changed them, and the ledger counts its rows.
        """
        now = bucket.put("a", b"1")
        rows = [change("a", b"2", expected=now), change("b", b"3", expected=now)]
        first = plan("exactlyonce", on_invalid_row="skip")
        assert write(first, rows).invalid == 1

        written = write(again(first), rows)

        assert (written.skipped, written.stored, written.invalid) == (2, 0, 0)


class TestPlan:
    @pytest.mark.parametrize(
        ("made", "options", "columns", "said"),
        [
            ({}, {"mode": "atomic"}, {}, "set atomic on the bucket"),
            ({}, {}, {"ttl": "ttl"}, "set limit_marker_ttl on the bucket"),
            (
                {"atomic": True},
                {"mode": "atomic"},
                {"expected_sequence": "expected_revision"},
                "mode atomic cannot write column expected_revision",
            ),
        ],
    )
    def test_a_bucket_that_cannot_store_the_rows(
        self, nats_server, js, unique, made, options, columns, said
    ):
        """
        It is found before the first row, and the advice names the option of the bucket.
        """
        js.create_key_value(unique, **made)
        settings = ConnectSettings(servers=nats_server.url)
        wanted = attrs.evolve(columns_of(None, constant=True, bucket=unique), **columns)
        try:
            with pytest.raises(JetStreamSparkError, match=said):
                make_plan(settings, WriteOptions(bucket=unique, **options), wanted)
        finally:
            js.delete_key_value(unique)

    def test_a_mirror(self, nats_server, js, unique):
        """
        The error names the bucket to write to.
        """
        js.create_key_value(unique)
        js.create_key_value(f"{unique}-copy", mirror=unique)
        settings = ConnectSettings(servers=nats_server.url)
        try:
            with pytest.raises(JetStreamSparkError, match=f"write to bucket {unique}$"):
                make_plan(settings, WriteOptions(bucket=f"{unique}-copy"), Columns(bucket="x"))
        finally:
            js.delete_key_value(f"{unique}-copy")
            js.delete_key_value(unique)

    def test_a_missing_bucket(self, nats_server):
        """
        The error says that it is a bucket.
        """
        settings = ConnectSettings(servers=nats_server.url)
        with pytest.raises(JetStreamSparkError, match="create the bucket, or correct the option"):
            make_plan(settings, WriteOptions(bucket="no_such"), Columns(bucket="no_such"))

    def test_another_domain(self, nats_server):
        """
        Keys of another domain have other subjects.
        """
        settings = ConnectSettings(servers=nats_server.url, domain="hub")
        with pytest.raises(OptionError, match="bucket of another JetStream domain"):
            make_plan(settings, WriteOptions(bucket="b"), Columns(bucket="b"))

    def test_dead_letters_in_the_bucket(self, bucket, plan):
        """
        They would be values of keys.
        """
        dead = f"$KV.{bucket.bucket}.dead"
        with pytest.raises(OptionError, match="would be values of bucket"):
            plan(on_invalid_row="deadletter", dead_letter_subject=dead)


def test_a_server_that_restarts_keeps_the_last_change_of_each_key():
    """
    Retries of lost changes do not overwrite later changes of their keys.
    """
    with DevServer() as server, jetsync.connect(server.url) as client:
        bucket = client.jetstream().create_key_value("b")
        plan = make_plan(
            ConnectSettings(servers=server.url),
            WriteOptions(bucket="b", max_in_flight=50, retry_timeout=20.0),
            columns_of(None, constant=True, bucket="b"),
        )
        with restarting(server, plan) as restart:

            def rows():
                for number in range(2000):
                    if number == 1000:
                        restart()
                    yield Row(key=f"k{number % 10}", value=b"%d" % number)

            with in_task():
                written = writing.write_rows(plan, rows())
        client.flush(timeout=30)

        assert written.stored == 2000
        assert table(bucket) == {f"k{n % 10}": b"%d" % n for n in range(1990, 2000)}
