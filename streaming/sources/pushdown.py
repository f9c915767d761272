"""Filter push-down: selects rows by a query's filters before they are decoded.

A filter can use only what a scan knows of a record without decoding it: its queue, offsets, size
and store time. Spark evaluates every filter again, so a filter may be applied in part.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from store.arrow.schema import rows_of_topics
from store.commitlog.dispatch_request import DispatchRequests

_NAMES = ("commit_log_offset", "size", "queue_id", "queue_offset", "store_timestamp")
_COLUMNS = {(name,) for name in _NAMES}
_Comparison = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_COMPARISONS = get_args(_Comparison)
_MIN, _MAX = -(2**63), 2**63 - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


@dataclass
class RowFilter:
    """The condition on rows: their topic, and inclusive bounds of columns (times in ms)."""

    topics: frozenset[str] | None = None
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, filters: Iterable[Filter]) -> None:
        """Add the usable parts of some filters, all of which must hold."""
        for f in filters:
            if isinstance(f, (EqualTo, In)) and f.attribute == ("topic",):
                values = f.value if isinstance(f, In) else (f.value,)
                wanted = frozenset(v for v in values if isinstance(v, str))
                self.topics = wanted if self.topics is None else self.topics & wanted
            elif isinstance(f, _COMPARISONS) and f.attribute in _COLUMNS:
                self._add_bound(f)

    def bound(self, column: str) -> tuple[int, int]:
        """Return the inclusive bounds of a column."""
        return self.bounds.get(column, (_MIN, _MAX))

    def mask(self, requests: DispatchRequests) -> NDArray[np.bool_]:
        """Return for each record whether it may match."""
        chosen = np.ones(len(requests), np.bool_)
        if self.topics is not None:
            chosen &= rows_of_topics(requests, self.topics.__contains__)
        for column, (low, high) in self.bounds.items():
            if column == "queue_id":
                values = requests.queue_ids[requests.queue]
            else:
                values = getattr(requests, column)
            chosen &= (values >= low) & (values <= high)
        return chosen

    def _add_bound(self, f: _Comparison) -> None:
        column = f.attribute[0]
        bounds = _floor_and_ceiling(f.value)
        if bounds is None:
            return
        floor, ceiling = bounds
        low, high = self.bound(column)
        match f:
            case EqualTo():
                low, high = max(low, ceiling), min(high, floor)
            case GreaterThan():
                low = max(low, floor + 1)
            case GreaterThanOrEqual():
                low = max(low, ceiling)
            case LessThan():
                high = min(high, ceiling - 1)
            case LessThanOrEqual():
                high = min(high, floor)
        self.bounds[column] = low, high


def _floor_and_ceiling(value: object) -> tuple[int, int] | None:
    """Return the integers (ms for a time) around a value, None if it is not a number or time."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        since = value - _EPOCH
        return since // _MILLISECOND, -(-since // _MILLISECOND)
    return None


def is_pushdown_enabled() -> bool:
    """Return whether the session pushes filters down: spark.sql.python.filterPushdown.enabled.

    If it does not, Spark refuses a reader that accepts filters. The only sign of the setting here
    is the worker module in which Spark creates the reader.
    """
    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
