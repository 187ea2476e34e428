"""The alert rules and the Grafana dashboard ask for metrics and labels that a real scrape has."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from dispatcher_project.cli.doctor.parts import LATE_PERIODS, LATE_SECONDS
from dispatcher_project.supervisor.data_folder import ROOT
from jobs import ports
from jobs.api.metrics import DispatcherCollector
from tests.deploy import promql
from tests.support.fake_leases import FakeLeases
from tests.support.fakes import make_ports

ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
_DURATION = re.compile(r"(?:\d+[smhdw])+")
_TEMPLATED = re.compile(r"\$labels\.(\w+)")


@pytest.fixture
def served(db: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Every series name of a scrape, with its labels."""
    leases: Any = FakeLeases()
    monkeypatch.setattr(ports, "production_ports", lambda: make_ports(leases))
    found: dict[str, set[str]] = {}
    for family in DispatcherCollector(name_tenants=True).collect():
        labels = set(getattr(family, "_labelnames", ()))
        if family.type == "histogram":  # the sum of the values is not kept, and so neither is their count
            found[f"{family.name}_bucket"] = labels | {"le"}
        else:
            found[f"{family.name}_total" if family.type == "counter" else family.name] = labels
    return found


def check(expression: str, served: dict[str, set[str]]) -> set[str]:
    """The labels that its result may have."""
    query = promql.read(expression.replace("$__rate_interval", "5m").replace("$model", ".*"))
    assert query.selectors, expression
    labels: set[str] = set()
    for metric, asked in query.selectors:
        assert metric in served, f"{metric} in {expression}"
        assert asked <= served[metric], f"{metric}: {asked - served[metric]}"
        labels |= served[metric]
    assert query.grouped <= labels, expression
    return labels


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_can_fire_and_has_a_remedy(rule: dict[str, Any], served: dict[str, set[str]]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert _DURATION.fullmatch(rule.get("for", "0s"))
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description"} == set(rule["annotations"])
    labels = check(rule["expr"], served)
    for text in rule["annotations"].values():
        assert set(_TEMPLATED.findall(text)) <= labels


def test_a_sweep_is_stuck_for_the_alert_when_it_is_late_for_doctor() -> None:
    (stuck,) = (rule["expr"] for rule in RULES if rule["alert"] == "DispatcherSweepStuck")
    late = f"{LATE_PERIODS} * dispatcher_sweep_period_seconds + {LATE_SECONDS:g}"
    assert stuck == f"dispatcher_sweep_age_seconds > {late}"


def test_alerts_are_named_once() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 10


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_queries_existing_metrics(panel: dict[str, Any], served: dict[str, set[str]]) -> None:
    assert panel["datasource"]["uid"] == "${datasource}", "whatever Prometheus the importer chooses"
    for target in panel["targets"]:
        labels = check(target["expr"], served)
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels


@pytest.mark.database
def test_the_dashboard_shows_every_metric_and_no_panel_covers_another(served: dict[str, set[str]]) -> None:
    asked = {
        metric
        for panel in PANELS
        for target in panel["targets"]
        for metric, _ in promql.read(
            target["expr"].replace("$__rate_interval", "5m").replace("$model", ".*")
        ).selectors
    }
    assert asked == set(served)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    (models,) = (one for one in DASHBOARD["templating"]["list"] if one["name"] == "model")
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", models["query"]["query"]).groups()  # type: ignore[union-attr]
    assert label in served[name]


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(",
        "rate(a)",
        "sum by (x a)",
        "a[5]",
        "a{b=c}",
        "a b",
        "max(a[5m])",
        "histogram_quantile(a)",
        "a ~ b",
    ],
)
def test_queries_that_prometheus_refuses_are_refused(wrong: str) -> None:
    with pytest.raises(promql.BadQuery):
        promql.read(wrong)
