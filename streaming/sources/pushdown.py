"""Filter push-down: selects rows by a query's filters before they are decoded.

A filter can use only what a scan knows of a record without decoding it: its broker, queue, offsets,
size and store time. What is applied exactly is accepted, and Spark does not evaluate it again; a
store time is applied, but not accepted, because a time out of Spark's range is null there.
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
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from store.arrow.schema import rows_of_topics
from store.commitlog.dispatch_request import DispatchRequests

_NAMES = ("commit_log_offset", "size", "queue_id", "queue_offset", "store_timestamp")
_COLUMNS = {(name,) for name in _NAMES}
_NEVER_NULL = (_COLUMNS | {("topic",), ("broker",)}) - {("store_timestamp",)}
_Comparison = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_COMPARISONS = get_args(_Comparison)
_USABLE = (*_COMPARISONS, In, IsNotNull)
# columns=kafka names these otherwise (no message has other columns of such a name).
_KAFKA_NAMES = {("partition",): ("queue_id",), ("offset",): ("queue_offset",)}
_MIN, _MAX = -(2**63), 2**63 - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


@dataclass
class RowFilter:
    """The condition on rows: broker, topic, and inclusive bounds of columns (times in ms)."""

    brokers: frozenset[str] | None = None
    topics: frozenset[str] | None = None
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, filters: Iterable[Filter]) -> list[Filter]:
        """Add filters, all of which must hold; return those that Spark must evaluate."""
        return [f for f in filters if not self._accepts(f)]

    def _accepts(self, f: Filter) -> bool:
        """Add a filter if it is usable; return whether ``mask`` and ``reads`` decide it."""
        attribute = _KAFKA_NAMES.get(f.attribute, f.attribute) if isinstance(f, _USABLE) else ()
        if isinstance(f, IsNotNull):
            return attribute in _NEVER_NULL
        if isinstance(f, (EqualTo, In)) and attribute in (("topic",), ("broker",)):
            name = f"{attribute[0]}s"
            values = f.value if isinstance(f, In) else (f.value,)
            wanted = frozenset(v for v in values if isinstance(v, str))
            earlier = getattr(self, name)
            setattr(self, name, wanted if earlier is None else earlier & wanted)
            return True
        if isinstance(f, _COMPARISONS) and attribute in _COLUMNS:
            return self._add_bound(attribute[0], f) and attribute in _NEVER_NULL
        return False

    def reads(self, broker: str) -> bool:
        """Return whether messages of a broker may match."""
        return self.brokers is None or broker in self.brokers

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

    def _add_bound(self, column: str, f: _Comparison) -> bool:
        """Add a bound; return False if the value cannot be compared."""
        bounds = _floor_and_ceiling(f.value)
        if bounds is None:
            return False
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
        return True


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
