"""
The alert rules of the documentation fire when they should, as Prometheus itself computes them.

`promtool`, which comes with Prometheus, evaluates them.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).parents[2] / "docs" / "howto" / "monitoring" / "alerts.yml"
PROMTOOL = shutil.which("promtool")
WORKER = '{stream="ORDERS", consumer="worker"}'
STREAM = '{stream="ORDERS"}'

# For each alert: series that make it fire, and series that do not. One value for each minute.
CASES = {
    "JetStreamNotExported": (
        {"other": "1x10"},
        {"jetsync_up": "0x10"},
    ),
    "JetStreamUnreachable": (
        {"jetsync_up": "0x10"},
        {"jetsync_up": "1x10"},
    ),
    "JetStreamStreamSilent": (
        {f"jetsync_stream_up{STREAM}": "0x10"},
        {f"jetsync_stream_up{STREAM}": "1x10"},
    ),
    "JetStreamNoLeader": (
        {
            'jetsync_stream_leader{stream="ORDERS", server="a"}': "0x10",
            'jetsync_stream_leader{stream="ORDERS", server="b"}': "0x10",
        },
        {
            'jetsync_stream_leader{stream="ORDERS", server="a"}': "0x10",
            'jetsync_stream_leader{stream="ORDERS", server="b"}': "1x10",
        },
    ),
    "JetStreamUnanswered": (
        {"jetsync_streams_unanswered": "1x10"},
        {"jetsync_streams_unanswered": "0x10"},
    ),
    "JetStreamConsumersUnanswered": (
        {f"jetsync_stream_consumers_unanswered{STREAM}": "1x10"},
        {f"jetsync_stream_consumers_unanswered{STREAM}": "0x10"},
    ),
    "JetStreamBacklog": (
        {
            f"jetsync_consumer_num_pending{WORKER}": "400x10",
            f"jetsync_consumer_num_ack_pending{WORKER}": "200x10",
        },
        {
            f"jetsync_consumer_num_pending{WORKER}": "400x10",
            f"jetsync_consumer_num_ack_pending{WORKER}": "100x10",
        },
    ),
    "JetStreamOldMessage": (
        {f"jetsync_consumer_oldest_age_seconds{WORKER}": "301x10"},
        {f"jetsync_consumer_oldest_age_seconds{WORKER}": "299x10"},
    ),
    "JetStreamNoWorker": (
        # A worker that stopped. One that never ran has no age: see below.
        {
            f"jetsync_consumer_num_pending{WORKER}": "1x10",
            f"jetsync_consumer_num_waiting{WORKER}": "0x10",
            f"jetsync_consumer_last_delivery_age_seconds{WORKER}": "61+60x10",
        },
        # A busy worker.
        {
            f"jetsync_consumer_num_pending{WORKER}": "1x10",
            f"jetsync_consumer_num_waiting{WORKER}": "0x10",
            f"jetsync_consumer_last_delivery_age_seconds{WORKER}": "1x10",
        },
    ),
    "JetStreamRedeliveries": (
        {f"jetsync_consumer_num_redelivered{WORKER}": "101x10"},
        {f"jetsync_consumer_num_redelivered{WORKER}": "100x10"},
    ),
    "JetStreamReplicasBehind": (
        {f"jetsync_consumer_replicas_behind{WORKER}": "1x10"},
        {f"jetsync_stream_replicas_behind{STREAM}": "0x10"},
    ),
    "JetStreamSourceLag": (
        {'jetsync_stream_source_lag{stream="ORDERS", source="EAST"}': "1001x10"},
        {'jetsync_stream_source_lag{stream="ORDERS", source="EAST"}': "1000x10"},
    ),
    "JetStreamDiskFull": (
        {
            "jetsync_account_storage_bytes": "90x10",
            "jetsync_account_storage_limit_bytes": "100x10",
        },
        {
            "jetsync_account_storage_bytes": "70x10",
            "jetsync_account_storage_limit_bytes": "100x10",
        },
    ),
}
NO_WORKER = [
    # A worker that never ran.
    (True, {"num_pending": "1x10", "num_waiting": "0x10"}),
    # An idle worker whose pull waits.
    (False, {"num_pending": "1x10", "num_waiting": "1x10"}),
    # A paused consumer.
    (False, {"num_pending": "1x10", "num_waiting": "0x10", "paused": "1x10"}),
]

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(PROMTOOL is None, reason="promtool, of Prometheus, is not installed"),
]


def fires(alert, series, folder):
    """
    Return whether Prometheus says, after ten minutes of *series*, that *alert* fires.
    """
    asked = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in series.items()
                ],
                # The whole list of alerts would be compared; `ALERTS` has what fires.
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})',
                        "eval_time": "10m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            }
        ],
    }
    file = folder / "asked.yml"
    file.write_text(yaml.safe_dump(asked), "utf-8")
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 or "got: nil" in done.stdout + done.stderr, done
    return done.returncode == 0


def test_each_rule_has_a_case():
    """
    No alert is left out.
    """
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]

    assert [rule["alert"] for rule in group["rules"]] == list(CASES)


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires(alert, tmp_path):
    """
    It fires for series of the fault, and not for those beside its limit.
    """
    bad, good = CASES[alert]

    assert fires(alert, bad, tmp_path)
    assert not fires(alert, good, tmp_path)


@pytest.mark.parametrize(("expected", "figures"), NO_WORKER)
def test_a_consumer_without_a_worker(expected, figures, tmp_path):
    """
    The alert knows a worker that never ran from an idle one and from a paused consumer.
    """
    series = {f"jetsync_consumer_{name}{WORKER}": values for name, values in figures.items()}

    assert fires("JetStreamNoWorker", series, tmp_path) is expected
