"""Stores of real brokers that were killed: what is said of each message is what came of it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.store.pending.outcomes import (
    check_deliveries,
    check_outcomes,
    delivered_in,
    pending_of,
)

ARCHIVES = sorted((Path(__file__).parent / "stores").glob("*.tar.xz"))


def test_there_is_a_store_of_each_line_of_releases() -> None:
    assert [path.name.removeprefix("pending-").removesuffix(".tar.xz") for path in ARCHIVES] == [
        "4.8.0",
        "4.9.4",
        "5.3.3",
        "5.5.0",
    ]


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    subprocess.run(["tar", "-xJf", request.param, "-C", tmp_path], check=True)
    (directory,) = tmp_path.iterdir()
    return directory


def test_a_killed_broker_did_with_each_message_what_its_state_says(unpacked: Path) -> None:
    scenario: dict[str, Any] = json.loads((unpacked / "scenario.json").read_text())
    sent = {message["uniq_key"]: message["kind"] for message in scenario["sent"]}
    rows = {}
    for part in ("killed", "later"):
        store, version = unpacked / part, scenario["version"]
        conf = store / "broker.conf"
        rows[part] = pending_of(store, conf, version, scenario[f"{part}_at"])
        check_deliveries(rows[part], delivered_in(store, conf, version))
    check_outcomes(sent, rows["killed"], rows["later"])
