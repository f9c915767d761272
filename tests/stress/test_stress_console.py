"""The short form of the stress script: a console beside a dispatch at full speed."""

from pathlib import Path

import pytest

from tests.stress.console import faults, stress
from tests.support.cases import first_cases

GROWTH_MB = 200  # of private memory: caches that fill and searches, not a leak for each request
DESCRIPTORS_MAX = 600  # 400 maps are kept; connections and files beside them
PEAK_MB = 700


@pytest.mark.parametrize(("seconds", "least"), first_cases([(8, 1), (45, 10)]))
def test_a_console_beside_a_dispatch_is_right_and_leaks_nothing(
    tmp_path: Path, seconds: int, least: int
) -> None:
    result = stress(tmp_path, seconds) | {"p99": 0.0}  # other tests run at the same time
    assert faults(result, PEAK_MB) == []
    assert result["swaps"] > 0
    asked = result["asked"]
    for kind in ("ask_page", "ask_topic", "ask_message", "ask_search", "ask_stream"):
        assert asked[kind] >= least, kind
    assert asked["tail messages"] > 100 * least
    assert result["end"]["private MB"] < result["begin"]["private MB"] + GROWTH_MB
    assert result["end"]["descriptors"] < DESCRIPTORS_MAX
