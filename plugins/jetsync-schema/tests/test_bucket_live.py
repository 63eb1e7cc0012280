"""
Definitions in a bucket: valid changes take effect, and broken ones do not.
"""

from __future__ import annotations

import logging
import pickle
import threading

import pytest
import shop
import structlog

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import eventually
from jetsync_schema import JsonSchema, Problem, PydanticModel, Schemas, ViolationError

pytestmark = pytest.mark.live

INTEGER = JsonSchema({"type": "integer"})
NULL = JsonSchema({"type": "null"})


@pytest.fixture
def follow(bucket):
    """
    A factory of plugins that watch the bucket; closed afterwards.
    """
    made = []

    def follow(*arguments, **options):
        made.append(Schemas(*arguments, **{"bucket": bucket, **options}))
        return made[-1]

    yield follow
    for plugin in made:
        plugin.close()


def takes(plugin, subject, data):
    """
    Return whether a message could be published.
    """
    try:
        plugin.check(subject, data)
    except ViolationError:
        return False
    return True


def put(bucket, plugin, key, said):
    """
    Change a definition and wait until the change has taken effect.
    """
    assert plugin.wait_revision(bucket.put(key, said), 30)


def test_updates_take_effect(follow, bucket):
    """
    New, changed and deleted definitions take effect.
    """
    bucket.put("a", INTEGER.definition("a.*"))
    plugin = follow()
    assert plugin.contracts == {"a.*": "a"}
    assert (takes(plugin, "a.1", b"1"), takes(plugin, "a.1", b"null")) == (True, False)

    put(bucket, plugin, "a", NULL.definition("a.*", "b.*", name="other"))
    assert plugin.contracts == {"a.*": "other", "b.*": "other"}
    assert (takes(plugin, "a.1", b"1"), takes(plugin, "b.1", b"null")) == (False, True)

    assert plugin.wait_revision(bucket.delete("a"), 30)
    assert plugin.contracts == {}
    assert takes(plugin, "a.1", b"x")
    assert plugin.problems == ()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be an object"),
        (b'{"subjects": "a.*", "schema": {"type": "nope"}}', r"$.type"),
        (b'{"subjects": "a..b", "schema": {}}', "empty token"),
        (b'{"schema": {}}', '"subjects"'),
        (
            b'{"subjects": "a", "kind": "pydantic", "model": "os:system"}',
            "unknown model 'os:system'",
        ),
    ],
)
def test_a_broken_definition_keeps_the_last_good_one(follow, bucket, caplog, said, reason):
    """
    The problem is logged, passed to the callback, and listed in `problems` while it lasts.
    """
    good = bucket.put("a", INTEGER.definition("a.*"))
    told = []
    plugin = follow(on_problem=told.append)
    with caplog.at_level(logging.ERROR, "jetsync_schema"):
        broken = bucket.put("a", said)
        assert plugin.wait_revision(broken, 30)

    assert (takes(plugin, "a.1", b"1"), takes(plugin, "a.1", b"null")) == (True, False)
    (problem,) = plugin.problems
    assert (problem.bucket, problem.key) == (bucket.bucket, "a")
    assert (problem.revision, problem.in_use) == (broken, good)
    assert reason in problem.reason
    assert told == [problem]
    (record,) = caplog.records
    assert record.event == "schema_broken"
    assert record.fields["key"] == "a"

    put(bucket, plugin, "a", NULL.definition("a.*"))
    assert plugin.problems == ()
    assert takes(plugin, "a.1", b"null")


def test_a_report_is_seen_without_any_set_up_of_logging(follow, bucket, capsys):
    """
    Without any configuration of logging, the problem is printed on stderr.
    """
    logger = logging.getLogger("jetsync_schema")
    there = logging.root.handlers[:]
    logging.root.handlers[:] = []
    try:
        plugin = follow()
        put(bucket, plugin, "a", b"{")
    finally:
        logging.root.handlers[:] = there

    assert logger.handlers == []
    assert "schema_broken" in capsys.readouterr().err


def test_a_report_goes_to_structlog(follow, bucket):
    """
    If the application has configured structlog, it gets the problem with its fields.
    """
    try:
        with structlog.testing.capture_logs() as captured:
            plugin = follow()
            put(bucket, plugin, "a", b"{")
    finally:
        structlog.reset_defaults()

    (event,) = [each for each in captured if each["logger"] == "jetsync_schema"]
    assert (event["event"], event["key"]) == ("schema_broken", "a")


def test_a_program_that_starts_later_finds_the_last_good_one(follow, bucket):
    """
    The last good definition is read from the history of the key, if the bucket keeps one.
    """
    good = bucket.put("a", INTEGER.definition("a.*"))
    bucket.put("a", b"{")
    bucket.put("a", b"[]")
    bucket.put("b", NULL.definition("b.*"))
    bucket.delete("b")
    bucket.put("b", b"{")
    plugin = follow()

    assert plugin.contracts == {"a.*": "a"}
    assert {each.key: each.in_use for each in plugin.problems} == {"a": good, "b": 0}


def test_a_broken_definition_does_not_affect_others(follow, bucket):
    """
    Each key is read independently of the others.
    """
    plugin = follow()
    put(bucket, plugin, "a", b"{")
    put(bucket, plugin, "b", INTEGER.definition("b.*"))

    assert plugin.contracts == {"b.*": "b"}


def test_of_two_for_one_pattern_the_first_key_counts(follow, bucket):
    """
    All programs choose the same one, in any order of changes. The other one is reported, and used
    once the first is gone.
    """
    plugin = follow({"c.*": shop.ORDERS})
    put(bucket, plugin, "b", INTEGER.definition("x.*", "y.*"))
    put(bucket, plugin, "a", NULL.definition("x.*"))
    put(bucket, plugin, "c", NULL.definition("c.*"))

    assert plugin.contracts == {"x.*": "a", "y.*": "b", "c.*": "c.*"}
    assert {each.key for each in plugin.problems} == {"b", "c"}
    assert "'x.*' already has a contract: 'a'" in str(plugin.problems)
    assert plugin.wait_revision(bucket.delete("a"), 30)
    assert plugin.contracts["x.*"] == "b"


def test_a_folder_overrides_the_bucket(follow, bucket, tmp_path):
    """
    A folder that is reloaded may override a pattern of the bucket, which is reported, and later
    release it.
    """
    bucket.put("a", INTEGER.definition("x"))
    index = tmp_path / "index.json"
    index.write_text('{"contracts": []}')
    plugin = follow(directory=tmp_path)
    assert plugin.contracts == {"x": "a"}

    index.write_text('{"contracts": [{"subjects": "x", "schema": {"type": "null"}, "name": "n"}]}')
    plugin.reload()
    assert plugin.contracts == {"x": "n"}
    (problem,) = plugin.problems
    assert (problem.key, problem.reason) == ("a", "'x' already has a contract: 'n'")

    index.write_text('{"contracts": []}')
    plugin.reload()
    assert (plugin.contracts, plugin.problems) == ({"x": "a"}, ())


def test_the_bucket_guards_itself(follow, bucket, connect):
    """
    A client with the plugin refuses to store a broken definition.
    """
    plugin = follow(unlisted="refuse", receive="raise")
    bucket.put("broken", b"{")
    kv = connect(plugin).key_value(bucket.bucket)
    with pytest.raises(jetsync.PluginError, match="definitions in"):
        kv.put("a", b'{"subjects": "a", "schema": {"type": "nope"}}')
    kv.put("a", INTEGER.definition("a"))
    kv.delete("a")

    # To repair a definition, a user must be able to read it.
    assert kv.get("broken").value == b"{"


def test_models_are_known_by_name(follow, bucket):
    """
    A definition in a bucket cannot import code.
    """
    bucket.put("a", b'{"subjects": "a", "kind": "pydantic", "model": "Numbers", "strict": true}')
    plugin = follow(models={"Numbers": list[int]})

    plugin.check("a", b"[1]")
    with pytest.raises(ViolationError, match=r"\$\[0\]"):
        plugin.check("a", b'["1"]')
    assert PydanticModel(list[int]).load(b'["1"]') == [1]


def test_a_publish_under_change_sees_one_or_the_other(follow, bucket, connect, stream):
    """
    While definitions change, publishing threads see either the old ones or the new ones.
    """
    subject = f"{stream.name}.a"
    bucket.put("a", INTEGER.definition(f"{stream.name}.*"))
    plugin = follow(unlisted="refuse")
    js = connect(plugin)
    stop = threading.Event()
    strange = []

    def work():
        while not stop.is_set():
            try:
                js.publish(subject, b"1")
            except jetsync.PluginError as error:
                if '"null"' not in str(error):
                    strange.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(20):
            contract = (NULL, INTEGER)[turn % 2]
            put(bucket, plugin, "a", contract.definition(f"{stream.name}.*"))
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert strange == []
    assert js.publish(subject, b"1").sequence > 0


def test_a_watch_continues_after_a_callback_that_raises(follow, bucket):
    """
    The watching thread continues.
    """

    def fail(problem):
        raise RuntimeError(problem)

    plugin = follow(on_problem=fail)
    put(bucket, plugin, "a", b"{")
    put(bucket, plugin, "b", INTEGER.definition("b"))

    assert "b" in plugin.contracts


def test_a_bucket_by_name_has_a_connection_of_its_own(nats_server, bucket, stream):
    """
    The connection closes with the plugin, and the contracts stay.
    """
    bucket.put("a", INTEGER.definition(f"{stream.name}.*"))
    options = jetsync.ConnectOptions(servers=nats_server.url)
    before = threading.active_count()
    with (
        Schemas(bucket=bucket.bucket, options=options, unlisted="refuse") as plugin,
        jetsync.connect(options=options, plugins=[plugin]) as client,
    ):
        js = client.jetstream()
        js.publish(f"{stream.name}.a", b"1")
        put(bucket, plugin, "a", NULL.definition(f"{stream.name}.*"))
        with pytest.raises(jetsync.PluginError):
            js.publish(f"{stream.name}.a", b"1")
    eventually(lambda: threading.active_count() <= before)
    plugin.close()

    assert not plugin.wait_revision(bucket.put("a", INTEGER.definition("a")), 0.2)
    assert takes(plugin, f"{stream.name}.a", b"null")


def test_a_missing_bucket(js, nats_server, bucket):
    """
    A missing bucket is an error at once, and no connection and no thread is left.
    """
    before = threading.active_count()
    with pytest.raises(jetsync.BucketNotFoundError):
        Schemas(bucket="none", options=jetsync.ConnectOptions(servers=nats_server.url))
    eventually(lambda: threading.active_count() <= before)

    js.delete_key_value(bucket.bucket)
    with pytest.raises(jetsync.BucketNotFoundError):
        Schemas(bucket=bucket)


def test_a_plugin_with_a_bucket_can_not_be_pickled(follow):
    """
    A plugin with a bucket has a connection and a thread. One without can be pickled.
    """
    with pytest.raises(TypeError):
        pickle.dumps(follow())

    again = pickle.loads(pickle.dumps(Schemas({"a": INTEGER}, receive="mark", unlisted="refuse")))
    assert not takes(again, "a", b"null")
    assert not takes(again, "b", b"1")


def test_survives_what_happens_to_servers_and_buckets(caplog):
    """
    The server restarts, and the bucket is missing for a while. The contracts stay, the problem is
    reported, and the next definitions take effect.
    """
    with (
        DevServer() as server,
        jetsync.connect(server.url, reconnect_wait=0.1) as client,
    ):
        js = client.jetstream()
        bucket = js.create_key_value("schemas")
        bucket.put("a", INTEGER.definition("a"))
        bucket.put("b", INTEGER.definition("b"))
        with Schemas(bucket=bucket) as plugin:
            server.restart()
            put(eventually_there(js), plugin, "a", NULL.definition("a"))
            assert takes(plugin, "a", b"null")

            js.delete_key_value("schemas")
            (problem,) = eventually(lambda: plugin.problems, timeout=30)
            assert (problem.bucket, problem.key) == ("schemas", None)
            assert not takes(plugin, "b", b"null")

            bucket = js.create_key_value("schemas")
            # Another definition that by chance has the revision of the previous one.
            for contract in (NULL, NULL, INTEGER):
                revision = bucket.put("a", contract.definition("a"))
            assert revision == 3
            eventually(
                lambda: plugin.contracts == {"a": "a"} and takes(plugin, "a", b"1"), timeout=60
            )
            assert plugin.problems == ()
    assert "schemas_unreadable" in caplog.text


def eventually_there(js):
    """
    Return the bucket as soon as the server knows it again.
    """

    def look():
        try:
            return js.key_value("schemas")
        except jetsync.JetSyncError:
            return None

    return eventually(look, timeout=30)


def test_a_problem_is_a_value():
    """
    Equal problems compare equal.
    """
    assert Problem("b", "k", "r", 1, 2) == Problem("b", "k", "r", 1, 2)
