"""The captured standard error of Spark's JVM and its Python workers."""

import time

import pytest

_SECONDS_MAX = 30.0


def read_until(capfd: pytest.CaptureFixture[str], text: str) -> str:
    """Return the captured output once it contains `text`: a thread forwards it from the JVM."""
    output, deadline = "", time.monotonic() + _SECONDS_MAX
    while text not in output and time.monotonic() < deadline:
        output += capfd.readouterr().err
    return output
