"""
The options of `jetsync stream add`.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import jetsync
from helpers.commands import NO_SERVER
from jetsync.cli._config_options import read_changes, read_config


class TestStreamOptions:
    @pytest.fixture
    def created(self, run, monkeypatch):
        """A function that returns the configuration with which a command creates a stream."""
        configs = []

        def create_stream(config):
            configs.append(config)
            return SimpleNamespace(cached_info=jetsync.StreamInfo(config=config))

        js = SimpleNamespace(create_stream=create_stream)
        monkeypatch.setattr("jetsync.cli.stream.jetstream", lambda _: js)

        def call(*arguments):
            assert run("stream", "add", *arguments).exit_code == 0
            return configs.pop()

        return call

    def test_nothing_given(self, created):
        """
        Only the given options are sent; the subjects follow from the name.
        """
        assert created("S") == jetsync.StreamConfig(name="S", subjects=["S.>"])

    @pytest.mark.parametrize("name", ["", "a b", "\udcff"])
    def test_an_invalid_name(self, run, created, name):
        """
        The error is about the name, and not about the subjects that follow from it.
        """
        done = run("stream", "add", "--", name)
        assert done.exit_code == 1
        assert "Error: invalid stream name " in done.output

    def test_everything_given(self, created):
        """
        Options are fields of a configuration under shorter names.
        """
        flags = ("--direct", "--atomic", "--batched", "--ttl")
        limits = ("--storage", "memory", "--max-age", "60s", "--replicas", "3")

        config = created("S", "--subjects", "a.>, b,", *limits, *flags)

        assert config == jetsync.StreamConfig(
            name="S",
            subjects=["a.>", "b"],
            storage="memory",
            max_age=60.0,
            num_replicas=3,
            allow_direct=True,
            allow_atomic=True,
            allow_batched=True,
            allow_msg_ttl=True,
        )

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_a_configuration_is_read_as_servers_take_it(self, tmp_path, wrapped):
        """
        Durations are nanoseconds, as servers take them; the output of `stream info --json` works
        too.
        """
        config = {"name": "S", "subjects": ["s.>"], "max_age": 60_000_000_000}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"config": config} if wrapped else config))

        read = read_config(path, jetsync.StreamConfig)

        assert (read.name, read.subjects, read.max_age) == ("S", ["s.>"], 60.0)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
    def test_changes_are_read_once(self, tmp_path):
        """
        The file of an edit may be a pipe: its fields, also those that are null, are read once.
        """
        path = tmp_path / "pipe"
        os.mkfifo(path)
        text = '{"max_msgs": 5, "description": null}'
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(path.write_text, text)
            config, cleared = read_changes(path, jetsync.StreamConfig)
            written.result(30)

        assert (config.max_msgs, cleared) == (5, {"description": None})

    @pytest.mark.parametrize("text", ["name: S", "[" * 100_000])
    def test_a_configuration_that_is_not_json(self, run, tmp_path, text):
        """
        The error names the file.
        """
        path = tmp_path / "config.json"
        path.write_text(text)

        result = run("stream", "create", "S", "--config", str(path), "-s", NO_SERVER)

        assert result.exit_code == 1
        assert "is not JSON" in result.output
