"""Spark's failures as StoreErrors: an error raised in a worker keeps its class."""

from __future__ import annotations

import re

import store.errors
from store.errors import SparkError, StoreError

_STORE_ERROR = re.compile(r"store\.errors\.(\w+): (.*)")


def to_store_error(failure: Exception) -> StoreError:
    """Return the StoreError named in the text of Spark's failure, else a SparkError."""
    text = str(failure)
    found = _STORE_ERROR.search(text)
    kind = getattr(store.errors, found[1], None) if found is not None else None
    if found is None or kind is None:
        return SparkError(f"Spark failed: {text.strip().splitlines()[0]}")
    error: StoreError = kind.__new__(kind)  # the class decides the exit code; the text is complete
    error.args = (found[2].strip(),)
    return error
