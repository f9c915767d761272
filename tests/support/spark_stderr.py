"""What Spark's JVM and its Python workers write to standard error, while a test captures it."""

import time

import pytest

_SECONDS_MAX = 30.0


def read_until(capfd: pytest.CaptureFixture[str], text: str) -> str:
    """Return what was written up to a text at least: a thread passes on what the JVM writes."""
    said, deadline = "", time.monotonic() + _SECONDS_MAX
    while text not in said and time.monotonic() < deadline:
        said += capfd.readouterr().err
    return said
