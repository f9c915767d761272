"""The files in ops/, and the queries of the dashboard and the alert rules."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

OPS = Path(__file__).parents[2] / "ops"
DASHBOARD = OPS / "grafana" / "reput.json"
ALERTS = OPS / "prometheus" / "alerts.yml"
_NAME = re.compile(r"\b(?:reput|process)_[a-z_]+|\bup\b")
# The parts of a histogram, as they are scraped.
_PARTS = re.compile("_(bucket|sum|count)$")


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    content: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return content


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard that show something, those of collapsed rows too."""
    found = []
    for panel in dashboard()["panels"]:
        found += panel.get("panels", [])
        if panel["type"] != "row":
            found.append(panel)
    return found


def panel_queries() -> list[tuple[str, str]]:
    """Return the title and the expression of each query of the dashboard."""
    return [(panel["title"], t["expr"]) for panel in panels() for t in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metric_names(expression: str) -> Iterator[str]:
    """Yield the names of the metrics in an expression, of histograms without their parts."""
    for name in _NAME.findall(expression):
        yield _PARTS.sub("", name)
