"""
The dashboard and the alert rules of the documentation use metrics that `jetsync export` serves.

`tests/frameworks/test_monitoring_files.py` loads them into the parsers of these tools.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from jetsync.monitoring import METRICS

FOLDER = Path(__file__).parents[1] / "docs" / "howto" / "monitoring"
BY_NAME = {metric.prometheus_name: metric for metric in METRICS}
OF_PROMETHEUS = {"instance", "job"}


def rules():
    """
    Return the alert rules.
    """
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"]
    return group["rules"]


def dashboard():
    """
    Return the dashboard.
    """
    return json.loads((FOLDER / "dashboard.json").read_text("utf-8"))


def targets():
    """
    Return the queries of all panels, with the templates of their legends.
    """
    return [target for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def variables():
    """
    Return the queries of the variables of the dashboard.
    """
    return [each for each in dashboard()["templating"]["list"] if each["type"] == "query"]


EXPRESSIONS = [
    *(rule["expr"] for rule in rules()),
    *(target["expr"] for target in targets()),
    *(each["query"] for each in variables()),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_name_and_label_is_served(expression):
    """
    Every metric of an expression exists, and has the labels that the expression names.
    """
    names = re.findall(r"\bjetsync_\w+", expression)
    assert names
    assert [name for name in names if name not in BY_NAME] == []
    for name, selectors in re.findall(r"\b(jetsync_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*=~?", selectors)) <= set(BY_NAME[name].labels)
    for groups in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(re.findall(r"\w+", groups)) <= {
            label for name in names for label in BY_NAME[name].labels
        }


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_the_texts_of_an_alert_use_its_labels(rule):
    """
    The summary of an alert names only labels that one of its metrics has.
    """
    labels = {
        label
        for name in re.findall(r"\bjetsync_\w+", rule["expr"])
        for label in BY_NAME[name].labels
    }
    text = " ".join(rule["annotations"].values())

    assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


def test_legends_and_variables_use_labels_that_exist():
    """
    The legend of each line names labels of its metric, and the dashboard has the variables in use.
    """
    for target in targets():
        (name,) = set(re.findall(r"\bjetsync_\w+", target["expr"]))
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert used <= set(BY_NAME[name].labels)
    known = {each["name"] for each in dashboard()["templating"]["list"]}
    text = (FOLDER / "dashboard.json").read_text("utf-8")
    assert set(re.findall(r"\$\{?(\w+)", text)) - {"__all"} == known


def test_panels_have_places_and_numbers_of_their_own():
    """
    No two panels overlap or share a number.
    """
    panels = dashboard()["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_prometheus_loads_the_rules():
    """
    The configuration of Prometheus names the file of the rules, and the default port.
    """
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))

    assert config["rule_files"] == ["alerts.yml"]
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9100"]}]
