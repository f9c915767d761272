"""Spark's failures as StoreErrors: an error raised in a worker keeps its class."""

from __future__ import annotations

import re

from store import errors
from store.errors import SparkError, StoreError

_STORE_ERROR = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.*)")

# Classes are pickled by the names of their modules, which differ in a checkout and in the wheel.
_MISSING_MODULE = re.compile(
    r"ModuleNotFoundError: No module named "
    r"'((?:reput|(?:reput\.)?(?:store|checkpoints|streaming))(?:\.\w+)*)'"
)


def to_store_error(failure: Exception) -> StoreError:
    """Return the StoreError named in the text of Spark's failure, else a SparkError."""
    if (mixed := mixed_installation(failure)) is not None:
        return mixed
    text = str(failure)
    found = _STORE_ERROR.search(text)
    kind = getattr(errors, found[1], None) if found is not None else None
    if found is None or kind is None:
        return SparkError(f"Spark failed: {text.strip().splitlines()[0]}")
    error: StoreError = kind.__new__(kind)  # the class decides the exit code; the text is complete
    error.args = (found[2].strip(),)
    return error


def mixed_installation(failure: BaseException) -> SparkError | None:
    """Return the error of a worker that has no module of the driver's name, if this is one."""
    found = _MISSING_MODULE.search(str(failure))
    if found is None:
        return None
    return SparkError(
        f"the Python of Spark's workers has no module {found[1]}: install the same wheel of reput "
        "for the driver and for its workers (PYSPARK_PYTHON); a checkout and a wheel do not mix"
    )
