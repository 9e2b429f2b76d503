"""What the docs offer for Prometheus and Grafana speaks of metrics and labels that there are, and of no others."""
import json
import re
from pathlib import Path

import pytest
import yaml

from chrono_beat.core.records import Ending, Start
from chrono_beat.metrics import Metrics
from chrono_beat_django.dashboard.deployment import FIGURES

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "monitoring" / "grafana-dashboard.json").read_text())
RULES = yaml.safe_load((DOCS / "monitoring" / "alert-rules.yml").read_text())
PROMISED = """chrono_lateness_seconds chrono_executions_total chrono_deliveries_total chrono_duplicate_deliveries_total
    chrono_reaps_total chrono_refused_outcomes_total chrono_missed_total chrono_audit_repairs_total chrono_dead_letters
    chrono_backlog chrono_capped_seconds_total chrono_partitions_owned chrono_clock_skew_seconds""".split()
"""Names that bind: dashboards of users depend on them."""

OF_ALL = {"instance", "job"}
FUNCTIONS = {"sum", "max", "min", "rate", "increase", "by", "abs", "absent", "histogram_quantile", "min_over_time", "and"}


def labels():
    """Return {metric: labels}, as a process tells them that has heard of everything."""
    metrics = Metrics()
    events = {
        "published": {"tenants": ["a"], "lateness_us": [1]}, "capped": {"tenants": ["a"], "spent_us": [1]},
        "clock_skew": {"of": "redis", "skew_us": 1},
        "recorded": {"starts": [Start("x", 1, "w", 1)], "started": [], "endings": [Ending("x", "dead", "", 1, "", 1, "")],
                     "tenants": ["a"], "ended": ["x"]}}
    for event, fields in events.items():
        metrics.observe(event, fields)
    found = {}
    for family in metrics.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = {label for sample in family.samples for label in sample.labels if label != "le"}
        found |= {sample.name: set(sample.labels) for sample in family.samples if sample.name.endswith("_bucket")}
    return found | {name: {label} - {""} for name, (_, label) in FIGURES.items()}


LABELS = labels()


def wrong_in(expression):
    """Return what an expression of PromQL says that cannot be."""
    text = re.sub(r"\[[^\]]*\]", "", expression)
    matched = re.findall(r"(\w+)\{([^}]*)\}", text)
    grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", text) for label in group.split(",")}
    bare = re.sub(r"\{[^}]*\}|\bby \([^)]*\)|\"[^\"]*\"", "", text)
    words = re.findall(r"[a-z_]\w*", bare, re.IGNORECASE)
    names = [word for word in words if word.startswith("chrono")]
    known = set().union(*(LABELS.get(name, set()) for name in names)) | OF_ALL
    wrong = [name for name in words if name not in FUNCTIONS and name not in LABELS]
    wrong += [f"{name}{{{label}}}" for name, inside in matched for label in re.findall(r"(\w+)\s*[=!]", inside)
              if label not in LABELS.get(name, set()) | OF_ALL]
    wrong += [f"by {label}" for label in sorted(grouped - known)]
    wrong += [f"rate of {name}" for name in re.findall(r"(?:rate|increase)\((\w+)", text)
              if not name.endswith(("_total", "_bucket"))]
    wrong += ["brackets"] * (text.count("(") != text.count(")"))
    return wrong + ["no metric"] * (not names)


def test_every_promised_metric_is_told_and_the_page_lists_all_with_their_labels():
    rows = re.findall(r"^``(chrono_\w+)``  +(.*)$", (DOCS / "monitoring.rst").read_text(), re.MULTILINE)
    there = {name: found for name, found in LABELS.items() if not name.endswith("_bucket")}

    assert set(PROMISED) <= there.keys()
    assert {name: set(re.findall(r"\w+", re.split(r"  +|\b(?:run|worker|figures) ", rest)[0])) for name, rest in rows} == there


PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_that_there_are(panel):
    assert panel["targets"]
    for target in panel["targets"]:
        assert wrong_in(target["expr"].replace("$__rate_interval", "5m")) == []
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))


def test_the_dashboard_can_be_imported_and_shows_every_metric():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]
    assert len(set(places)) == len(places) and all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in DASHBOARD["panels"])
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "tenant"}
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables["tenant"]["definition"]).groups()
    assert asked[1] in LABELS[asked[0]]
    said = json.dumps(DASHBOARD)
    assert [name for name in PROMISED if name not in said] == []


@pytest.mark.parametrize("rule", RULES["groups"][0]["rules"], ids=lambda rule: rule["alert"])
def test_a_rule_has_the_shape_of_one_and_asks_for_metrics_that_there_are(rule):
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Chrono[A-Za-z]+", rule["alert"])
    assert wrong_in(rule["expr"]) == []
    assert re.search(r"[<>=]=? [\d.]+$|^absent\(", rule["expr"])
    assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"].keys() == {"summary", "description"}
    shown = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    assert shown <= set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))


def test_rules_have_names_of_their_own():
    assert RULES.keys() == {"groups"} and [group.keys() for group in RULES["groups"]] == [{"name", "rules"}]
    names = [rule["alert"] for rule in RULES["groups"][0]["rules"]]
    assert len(set(names)) == len(names) > 10


@pytest.mark.parametrize(("expression", "wrong"), [
    ("sum(rate(chrono_reap_total[5m]))", ["chrono_reap_total"]),
    ('max(chrono_backlog{pool="x"})', ["chrono_backlog{pool}"]),
    ("sum by (worker) (rate(chrono_reaps_total[5m]))", ["by worker"]),
    ("rate(chrono_backlog[5m])", ["rate of chrono_backlog"]),
    ("sum(rate(chrono_reaps_total[5m])", ["brackets"]),
    ("suum(chrono_backlog)", ["suum"]),
    ("max(up)", ["up", "no metric"]),
])
def test_the_check_of_expressions_finds_what_is_wrong(expression, wrong):
    assert wrong_in(expression) == wrong
