"""
What a server can do, as `jetsync doctor` lists it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jetsync.cli import _features, _specifications
from jetsync.cli._features import FEATURES, missing, verdicts

ROOT = Path(__file__).parents[2]


class TestFeatures:
    EVERYWHERE = ("direct_get",)
    SINCE_211 = (
        *("direct_batch", "direct_multi", "message_ttl", "limit_markers", "pause"),
        "priority_groups",
    )
    SINCE_212 = ("prioritized", "atomic_batch", "counters", "schedules")
    SINCE_2121 = ("batch_message_ids",)
    SINCE_214 = ("batch_eob", "fast_ingest", "reset")

    @pytest.mark.parametrize(
        ("version", "level", "works"),
        [
            ("2.10.26", 0, EVERYWHERE),
            ("2.11.11", 1, EVERYWHERE + SINCE_211),
            ("2.12.0", 2, EVERYWHERE + SINCE_211 + SINCE_212),
            ("2.12.8", 3, EVERYWHERE + SINCE_211 + SINCE_212 + SINCE_2121),
            ("2.14.6", 4, EVERYWHERE + SINCE_211 + SINCE_212 + SINCE_2121 + SINCE_214),
            ("2.15.1", 5, _features.NAMES),
            ("2.16.0-RC.1", 6, _features.NAMES),
        ],
    )
    def test_features_of_each_server(self, version, level, works):
        """
        The features of each server version, as they were measured.
        """
        found = verdicts(version, level)

        assert {verdict.feature.name for verdict in found if verdict.works} == set(works)
        assert all(verdict.why for verdict in found if not verdict.works)

    def test_level_counts_where_servers_differ(self):
        """
        A new server in front of an old JetStream has only the features of the old one.
        """
        by_name = {verdict.feature.name: verdict for verdict in verdicts("2.15.1", 1)}

        assert not by_name["fast_ingest"].works
        assert by_name["fast_ingest"].why == (
            "needs nats-server 2.14 (API level 4), this is 2.15.1 (API level 1)"
        )

    def test_a_feature_with_known_faults_is_marked(self):
        """
        A feature that works with known faults is marked.
        """
        by_name = {verdict.feature.name: verdict for verdict in verdicts("2.12.1", 2)}

        assert by_name["atomic_batch"].works
        assert by_name["atomic_batch"].why.startswith("before 2.12.5: ")

    def test_the_version_that_mends_a_feature_is_not_marked(self):
        """
        The version from which a feature has no known faults is not marked.
        """
        by_name = {verdict.feature.name: verdict for verdict in verdicts("2.12.5", 3)}

        assert by_name["atomic_batch"].works
        assert not by_name["atomic_batch"].why

    def test_without_jetstream_nothing_works(self):
        """
        All features have the same reason.
        """
        found = verdicts("2.15.1", 5, jetstream="off")

        assert {(verdict.works, verdict.why) for verdict in found} == {(False, "off")}

    @pytest.mark.parametrize(
        ("version", "works", "notes"),
        [
            ("2.9.0", [1, 21, 85, 2, 5], {"DG-78 (server 2.10, 2.11 only)"}),
            ("2.10.26", [1, 21, 105, 33, 5], {"SC-70, SC-85 (server 2.11)"}),
            ("2.11.11", [1, 21, 107, 74, 45], {"DG-58, DG-72 (server 2.12)"}),
            ("2.12.0", [37, 21, 107, 75, 45], {"DG-78 (server 2.10, 2.11 only)"}),
            ("2.12.1", [43, 21, 107, 75, 45], {"AB-35 (server 2.12.0 only)"}),
            ("2.14.0-RC.1", [50, 72, 107, 75, 45], {"SC-69, SC-84 (no server)"}),
            ("2.16.0", [50, 72, 107, 75, 45], {"SC-69, SC-84 (no server)"}),
        ],
    )
    def test_clauses_of_each_server(self, version, works, notes):
        """
        Of each specification, a server can do the clauses of its version and of earlier ones.
        """
        found = _specifications.coverage(version)

        assert [each.works for each in found] == works
        shown = {part for each in found for part in each.note.removeprefix("not ").split("; ")}
        assert notes <= shown

    def test_the_newest_servers_lack_only_what_no_new_server_does(self):
        """
        From 2.14 on, the missing clauses are those of no server and those of old servers only.
        """
        found = _specifications.coverage("2.14.0")

        assert {
            servers for each in found for servers, _ in each.missing if not servers.endswith("only")
        } == {"none"}
        (fast,) = (each for each in found if each.title == "ADR-50, fast ingest")
        assert (fast.missing, fast.note) == ((), "")

    def test_missing_clauses_as_json(self):
        """
        The JSON has each id of a missing clause, and the servers that can do it.
        """
        found = _specifications.Coverage(
            "ADR-0, sample", 9, (("2.14.0", "X-01, X-08 to X-10"), ("none", "X-12"))
        )

        assert found.note == "not X-01, X-08 to X-10 (server 2.14.0); X-12 (no server)"
        assert found.as_json() == {
            "specification": "ADR-0, sample",
            "clauses": 9,
            "works": 4,
            "missing": [
                {"clauses": ["X-01", "X-08", "X-09", "X-10"], "needs": "nats-server 2.14.0"},
                {"clauses": ["X-12"], "needs": None},
            ],
        }

    def test_the_page_shows_the_clauses_of_a_server(self):
        """
        The example of the documentation is what doctor prints about this version.
        """
        page = ROOT / "docs" / "command-line.md"
        lines = re.findall(
            r"^(ADR-\d+, .*?) {2,}(\d+ of \d+) +(.*)$", page.read_text("utf-8"), re.MULTILINE
        )

        assert lines == [
            (each.title, f"{each.works} of {each.clauses}", each.note)
            for each in _specifications.coverage("2.12.8")
            if "fast" not in each.title
        ]

    def test_missing_features(self):
        """
        Only the required features count.
        """
        found = verdicts("2.12.8", 3)

        assert missing(found, ()) == ()
        assert missing(found, ("fast_ingest", "atomic_batch")) == ("fast_ingest",)

    @pytest.mark.parametrize(("version", "works"), [("2.14.0-RC.3", True), ("dev", False)])
    def test_a_pre_release_counts_as_its_release(self, version, works):
        """
        A pre-release counts as its release. Text that is not a version is older than every version.
        """
        assert {verdict.works for verdict in verdicts(version, 4)} == {works}

    def test_names_are_unique(self):
        """
        Each name for `--require` means one feature.
        """
        assert len({feature.name for feature in FEATURES}) == len(FEATURES)
