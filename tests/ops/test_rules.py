"""The alert rules and the scrape jobs, by promtool."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.ops import ALERTS, OPS, rules

PROMTOOL = shutil.which("promtool")
TESTS = OPS / "prometheus" / "alerts_test.yml"
SCRAPES = OPS / "prometheus" / "scrape.yml"
DOCUMENT = OPS.parent / "docs" / "operations.md"
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


def promtool(*arguments: str | Path) -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=OPS / "prometheus"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_rules_and_the_scrape_jobs() -> None:
    promtool("check", "rules", ALERTS)
    promtool("check", "config", SCRAPES)


@needs_promtool
def test_the_rules_fire_when_and_only_when_they_should() -> None:
    promtool("test", "rules", TESTS)


def test_every_rule_has_a_test_and_a_line_in_the_documentation() -> None:
    tested, documented = TESTS.read_text("utf-8"), DOCUMENT.read_text("utf-8")
    for rule in rules():
        assert rule["alert"] in tested
        assert f"`{rule['alert']}`" in documented
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_every_job_has_a_name_that_the_rules_select() -> None:
    jobs = yaml.safe_load(SCRAPES.read_text("utf-8"))["scrape_configs"]
    assert all(job["job_name"].startswith("reput") for job in jobs)
