"""
The options for fields of configurations, and the differences that `edit` shows.
"""

from __future__ import annotations

import attrs
import click
import pytest

import jetsync
from jetsync.cli._app import jetsync as app
from jetsync.cli._edit import Change, changed_fields, shown
from jetsync.typing import ConsumerFields, StreamFields

OF_STREAMS = {
    "consumer_limits": "has parts of its own: --config",
    "extra": "is for fields that jetsync does not know: --config",
    "placement": "--placement-cluster and --placement-tag",
    "republish": "has parts of its own: --config",
    "sealed": "only an update can set it: `stream edit --seal`",
    "subject_transform": "has parts of its own: --config",
    "template_owner": "servers since 2.12 refuse it",
}
"""The keywords of `create_stream` that no option of `stream add` has, and why."""

PUSH = "for push consumers; the command creates pull consumers"

OF_CONSUMERS = {
    "deliver_group": PUSH,
    "deliver_policy": "--deliver, --seq and --since",
    "deliver_subject": PUSH,
    "direct": "for servers",
    "durable_name": "the argument NAME",
    "extra": "is for fields that jetsync does not know: --config",
    "filter_subject": "--filter",
    "filter_subjects": "--filter",
    "flow_control": PUSH,
    "idle_heartbeat": PUSH,
    "opt_start_seq": "--seq",
    "opt_start_time": "--since",
    "pause_until": "`consumer pause`",
    "rate_limit_bps": PUSH,
    "sourcing": "for servers",
}
"""The keywords of `create_consumer` that no option of `consumer add` has, and why."""


def arguments_of(*path):
    """
    Return the names of the arguments of a command.
    """
    command = app
    for name in path:
        command = command.get_command(click.Context(command), name)
    return {parameter.name for parameter in command.params}


class TestOptions:
    @pytest.mark.parametrize(
        ("path", "fields", "left_out"),
        [
            (("stream", "add"), StreamFields, OF_STREAMS),
            (("stream", "edit"), StreamFields, OF_STREAMS),
            (("consumer", "add"), ConsumerFields, OF_CONSUMERS),
        ],
    )
    def test_every_keyword_has_an_option(self, path, fields, left_out):
        """
        Every keyword has an option, unless a list says why not. No name of the list has one.
        """
        keywords = fields.__annotations__.keys()
        missing = keywords - arguments_of(*path)

        assert missing - {"sealed"} == left_out.keys() - {"sealed"}
        assert left_out.keys() <= keywords

    def test_the_fields_of_a_consumer_that_cannot_change_are_no_options_of_edit(self):
        """
        `consumer edit` has the options of `consumer add`, except those of the start and the acks.
        """
        only_at_first = {"deliver", "seq", "since", "ack_policy", "replay_policy"}
        own = {"force", "dry_run"}

        assert arguments_of("consumer", "edit") - own == (
            arguments_of("consumer", "add") - only_at_first
        )
        own |= {"sealed", "no_mirror"}
        assert arguments_of("stream", "edit") - own == arguments_of("stream", "add")


class TestChanges:
    NOW = jetsync.StreamConfig(
        name="S", max_age=0.0, max_msgs=-1, metadata={"_nats.ver": "2.15.1", "a": "1"}
    )

    def change(self, **fields):
        """
        Return the differences of some fields.
        """
        return list(Change("the stream S", self.NOW, fields).differences())

    def test_only_what_differs(self):
        """
        Fields that are set to the value that they have are no differences.
        """
        assert self.change(max_msgs=-1, max_bytes=5) == [("max_bytes", None, 5)]
        assert self.change(max_msgs=-1) == []

    def test_fields_of_files_and_options(self):
        """
        Options take precedence over a file, and the metadata is merged, without that of servers.
        """
        file = jetsync.StreamConfig(
            name="S", max_msgs=3, max_bytes=4, metadata={"_nats.ver": "2.10.0", "b": "2"}
        )

        assert changed_fields(self.NOW, file, {"max_msgs": 7}) == {
            "max_msgs": 7,
            "max_bytes": 4,
            "metadata": {"_nats.ver": "2.15.1", "a": "1", "b": "2"},
        }
        other = attrs.evolve(file, name="T")
        assert changed_fields(self.NOW, other, {})["name"] == "T"
        with pytest.raises(click.UsageError):
            changed_fields(self.NOW, jetsync.StreamConfig(name="S"), {})

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("max_age", 0.0, "none"),
            ("max_age", 90.0, "1m30s"),
            ("max_bytes", -1, "unlimited"),
            ("max_bytes", 2048, "2 KiB"),
            ("max_msgs", 12345, "12,345"),
            ("max_msgs", None, "not set"),
            ("allow_direct", True, "yes"),
            ("storage", jetsync.StorageType.FILE, "file"),
            ("subjects", ["a", "b"], "a, b"),
            ("backoff", [1.0, 60.0], "1s, 1m"),
            ("metadata", {"_nats.ver": "2.15.1", "a": "1"}, "a=1"),
            ("metadata", {"_nats.ver": "2.15.1"}, "none"),
            ("mirror", jetsync.StreamSource(name="S"), '{"name": "S"}'),
        ],
    )
    def test_values_for_people(self, name, value, text):
        """
        Values are shown with units and words.
        """
        assert shown(name, value) == text
