"""Values of options: times, relative to now or not."""

import time

import pytest

from store.errors import ConfigError
from streaming.sources.option_values import parse_time

NOW = 1_700_000_000_000  # 2023-11-14T22:13:20Z


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW * 1_000_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("-0s", NOW),
        ("-90s", NOW - 90_000),
        ("-30m", NOW - 1_800_000),
        (" -2h ", NOW - 7_200_000),
        ("-1d", NOW - 86_400_000),
        ("-2", -2),
        ("2023-11-14T22:13:20Z", NOW),
        ("1700000000000", NOW),
    ],
)
def test_a_time_is_absolute_or_relative_to_now(text: str, expected: int) -> None:
    assert expected == parse_time("--time", text)


@pytest.mark.parametrize(
    "text", ["2h", "", "-2w", "-h", "-1.5h", "-9999999999d", "yesterday", "Now"]
)
def test_another_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--time .* nor relative"):
        parse_time("--time", text)
