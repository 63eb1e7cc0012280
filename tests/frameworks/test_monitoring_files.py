"""
The dashboard and the alert rules of the documentation, in the parsers of Prometheus and Grafana.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

promql = pytest.importorskip("promql_parser", reason="no wheel for this interpreter")

FOLDER = Path(__file__).parents[2] / "docs" / "howto" / "monitoring"
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
DURATION = re.compile(r"\d+[smh]")

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_prometheus_reads_each_rule(rule):
    """
    The expression of an alert is PromQL, and its duration is one.
    """
    promql.parse(rule["expr"])
    assert DURATION.fullmatch(rule.get("for", "1m"))


@pytest.mark.parametrize("expression", [target["expr"] for target in TARGETS])
def test_prometheus_reads_each_query(expression):
    """
    The query of each panel is PromQL.
    """
    promql.parse(expression)


def test_grafana_reads_the_dashboard():
    """
    The models of Grafana read the dashboard and write all of it again.
    """
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")

    read = models.Dashboard.from_json(DASHBOARD)
    written = json.loads(encoder.JSONEncoder().encode(read))

    assert missing(DASHBOARD, written) == []


def missing(wanted, found, path=""):
    """
    List what is in one document and not in another.
    """
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            line
            for key, value in wanted.items()
            # A field without a value is left out.
            if value is not None
            for line in missing(value, found.get(key), f"{path}.{key}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [
            line
            for number, (one, other) in enumerate(zip(wanted, found, strict=True))
            for line in missing(one, other, f"{path}[{number}]")
        ]
    return [] if wanted == found else [f"{path}: {wanted!r}, not {found!r}"]
