"""The Grafana dashboard: it can be imported anywhere, and asks for metrics that exist."""

import re
from itertools import combinations
from typing import Any

import pytest

from reput.console.metrics.metric_names import FAMILIES
from tests.support.ops import dashboard, metric_names, panel_queries, panels, rules

EXPRESSIONS = [*(e for _, e in panel_queries()), *(rule["expr"] for rule in rules())]
NAMES = {family.name: family for family in FAMILIES}


def test_it_has_a_data_source_variable_and_no_inputs_or_fixed_uid() -> None:
    content = dashboard()
    assert "__inputs" not in content
    assert "uid" not in content
    assert "id" not in content
    variables = {v["name"]: v for v in content["templating"]["list"]}
    assert list(variables) == ["datasource", "cluster", "node_id"]
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    for owner in [*panels(), *(t for p in panels() for t in p["targets"])]:
        assert owner["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_have_ids_and_places_of_their_own() -> None:
    every = dashboard()["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    for a, b in combinations((panel["gridPos"] for panel in every), 2):
        assert not _overlap(a, b), (a, b)
    assert all(place["gridPos"]["x"] + place["gridPos"]["w"] <= 24 for place in every)


def _overlap(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return (
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=map(str, range(len(EXPRESSIONS))))
def test_every_metric_and_label_of_a_query_exists(expression: str) -> None:
    used = [name for name in metric_names(expression) if name.startswith("reput_")]
    assert set(used) <= NAMES.keys()
    labels = {"job", "instance", "le", *(n for name in used for n in NAMES[name].label_names)}
    for group in re.findall(r"by \(([^)]*)\)", expression):
        assert set(group.replace(" ", "").split(",")) <= labels
    for name in re.findall(r"([a-z_]+)(?:=~|!=|=)\"", expression):
        assert name in labels


def test_every_metric_is_on_the_dashboard_or_in_a_rule() -> None:
    used = {name for expression in EXPRESSIONS for name in metric_names(expression)}
    assert NAMES.keys() <= used


def test_counters_are_shown_as_rates_or_increases() -> None:
    for title, expression in panel_queries():
        for name in metric_names(expression):
            if name.endswith("_total") and title != "Skipped log":
                assert re.search(rf"(rate|increase)\({name}", expression), title
