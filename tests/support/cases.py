"""Which cases of a test always run, and which only in the exhaustive run."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_cases(cases: Iterable[object], kept: int = 1) -> list[Any]:
    """Return cases for ``parametrize``; all but the first ``kept`` are exhaustive."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if n < kept else pytest.mark.exhaustive,
        )
        for n, case in enumerate(cases)
    ]


def stride(sample: int) -> pytest.MarkDecorator:
    """Parametrize ``stride``: every ``sample``-th place always, every place in exhaustive runs."""
    every = pytest.param(1, marks=pytest.mark.exhaustive, id="all")
    return pytest.mark.parametrize("stride", [pytest.param(sample, id="sample"), every])
