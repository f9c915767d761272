"""Which cases of a test run always, and which in the exhaustive run only."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_cases(cases: Iterable[object], kept: int = 1) -> list[Any]:
    """Return cases for ``parametrize``: all but the first few run in the exhaustive run only."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if n < kept else pytest.mark.exhaustive,
        )
        for n, case in enumerate(cases)
    ]


def stride(sample: int) -> pytest.MarkDecorator:
    """Parametrize ``stride``: every ``sample``-th place always, each in the exhaustive run."""
    every = pytest.param(1, marks=pytest.mark.exhaustive, id="all")
    return pytest.mark.parametrize("stride", [pytest.param(sample, id="sample"), every])
