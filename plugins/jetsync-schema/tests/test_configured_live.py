"""
The plugin, loaded by name and configured by environment variables.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
import shop

import jetsync
from jetsync.testing import eventually
from jetsync_schema import ConfiguredSchemas, JsonSchema, violation_of

pytestmark = pytest.mark.live


@pytest.fixture
def environment(monkeypatch, nats_server):
    """
    Set the plugin's variables, and remove those that are not given.
    """
    monkeypatch.setenv("NATS_URL", nats_server.url)

    def environment(**given):
        for name, value in given.items():
            monkeypatch.setenv(f"JETSYNC_SCHEMA_{name.upper()}", str(value))

    return environment


@pytest.fixture
def folder(tmp_path, stream):
    """
    A folder that defines a contract for the stream's subjects.
    """
    said = {"contracts": [{"subjects": f"{stream.name}.orders.>", "schema": shop.SCHEMA}]}
    (tmp_path / "index.json").write_text(json.dumps(said), "utf-8")
    return tmp_path


def test_a_directory(environment, folder, stream):
    """
    The variable names a folder of definitions.
    """
    environment(directory=folder, unlisted="refuse")
    with jetsync.connect(plugins=["schema"]) as client:
        js = client.jetstream()
        js.publish(f"{stream.name}.orders.1", shop.GOOD)
        with pytest.raises(jetsync.PluginError, match=r"\$\.items\[3\]\.price"):
            js.publish(f"{stream.name}.orders.1", shop.BAD)
        with pytest.raises(jetsync.PluginError, match="has no contract"):
            js.publish(f"{stream.name}.others", shop.BAD)


def test_received_messages(environment, folder, js, stream):
    """
    Only received messages are checked, with the policy that the variable names.
    """
    environment(directory=folder, receive="mark", publish="no")
    js.publish(f"{stream.name}.orders.1", shop.BAD)
    with jetsync.connect(plugins=["schema"]) as client:
        client.jetstream().publish(f"{stream.name}.orders.1", shop.GOOD)
        found = [
            violation_of(client.jetstream().stream(stream.name).get_message(sequence))
            for sequence in (1, 2)
        ]
    assert (found[0] is None, found[1]) == (False, None)


@pytest.mark.parametrize("how", ["call", "environment"])
def test_the_definitions_bucket_has_its_own_connection(
    environment, monkeypatch, bucket, stream, how
):
    """
    The bucket has its own connection, which does not load the plugin and ends with the client.
    """
    bucket.put("a", shop.ORDERS.definition(f"{stream.name}.orders.>"))
    environment(bucket=bucket.bucket)
    plugins = ["schema"] if how == "call" else []
    if how == "environment":
        monkeypatch.setenv("JETSYNC_PLUGINS", "schema")
    before = threading.active_count()
    with jetsync.connect(plugins=plugins) as client:
        with pytest.raises(jetsync.PluginError, match="breaks contract 'a'"):
            client.jetstream().publish(f"{stream.name}.orders.1", shop.BAD)
        revision = bucket.put("a", JsonSchema({"type": "null"}).definition(f"{stream.name}.>"))

        def refused():
            try:
                client.jetstream().publish(f"{stream.name}.orders.1", shop.GOOD)
            except jetsync.PluginError:
                return True
            return False

        eventually(refused, timeout=30)
    assert revision
    eventually(lambda: threading.active_count() <= before)


class Broken:
    """
    A plugin that cannot be made.
    """

    def __init__(self):
        raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("servers", "others"),
    [("nats://127.0.0.1:1", []), (None, [Broken]), (None, ["nowhere"])],
    ids=["refused", "broken", "unknown"],
)
@pytest.mark.parametrize("how", ["call", "environment"])
def test_a_failed_connect_leaves_nothing(
    environment, monkeypatch, bucket, stream, how, servers, others
):
    """
    The connection for the bucket ends with its threads, so that repeated attempts do not accumulate
    them.
    """
    bucket.put("a", shop.ORDERS.definition(f"{stream.name}.orders.>"))
    environment(bucket=bucket.bucket)
    plugins = ["schema", *others]
    if how == "environment":
        monkeypatch.setenv("JETSYNC_PLUGINS", "schema")
        plugins = others
    before = set(threading.enumerate())

    for _ in range(2):
        with pytest.raises((jetsync.ConnectError, jetsync.ConfigurationError)):
            jetsync.connect(servers, plugins=plugins, connect_timeout=10)

    eventually(lambda: set(threading.enumerate()) <= before, timeout=30)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, r"set \$JETSYNC_SCHEMA_DIRECTORY or \$JETSYNC_SCHEMA_BUCKET"),
        ({"directory": "/nowhere"}, "index.json"),
        ({"bucket": "none"}, "bucket"),
        ({"bucket": "none", "receive": "drop"}, "receive must be one of"),
        ({"bucket": "none", "publish": "maybe"}, "is yes or no, not 'maybe'"),
    ],
)
def test_invalid_variables_are_refused_at_connect(environment, given, reason):
    """
    The error says which variable to set.
    """
    environment(**given)

    with pytest.raises(jetsync.ConfigurationError, match=reason):
        jetsync.connect(plugins=["schema"])


def test_a_program_ends_that_closes_nothing(environment, bucket, tmp_path):
    """
    The thread and the connection for the bucket do not keep the process alive.
    """
    environment(bucket=bucket.bucket)
    script = tmp_path / "script.py"
    script.write_text("import jetsync\nclient = jetsync.connect(plugins=['schema'])\n", "utf-8")

    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_is_the_entry_point(environment, folder):
    """
    `jetsync plugins` lists the plugin under its documented name.
    """
    environment(directory=folder)
    with jetsync.connect(plugins=["schema"]) as client:
        (info,) = client.plugins
    assert info.name == "schema"
    assert info.source == f"{ConfiguredSchemas.__module__}:ConfiguredSchemas"
