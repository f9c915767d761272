"""Offsets by queue, ``{"topic": {"0": 123}}``, and the rows between two of them.

These are the messages' own queue offsets: each copy of a repeated offset is between the same two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.commitlog.dispatch_request import DispatchRequests

LATEST_OFFSET, EARLIEST_OFFSET = -1, -2  # as in Spark's Kafka source
NO_OFFSET = (1 << 63) - 1  # beyond each queue's end
_QUEUE_ID_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """Queue offsets by topic and queue id. A queue of these topics may be missing."""

    by_topic: Mapping[str, Mapping[int, int]]

    def as_json(self) -> dict[str, dict[str, int]]:
        """Return the form that ``parse_queue_offsets`` takes."""
        return {
            topic: {str(queue_id): n for queue_id, n in sorted(offsets.items())}
            for topic, offsets in sorted(self.by_topic.items())
        }

    def of(self, topic: str, queue_id: int, missing: int) -> int:
        """Return the offset of a queue of these topics, ``missing`` if it has none."""
        return self.by_topic[topic].get(queue_id, missing)


@dataclass(frozen=True, slots=True)
class QueueSpans:
    """The span of each queue to read: from ``floors``, up to ``ceilings`` (exclusive).

    Offsets select their topics alone. A queue of them without a floor is read from its beginning,
    one without a ceiling to its end. None: no such bound.
    """

    floors: QueueOffsets | None = None
    ceilings: QueueOffsets | None = None

    def __bool__(self) -> bool:
        return self.floors is not None or self.ceilings is not None

    def mask(self, requests: DispatchRequests) -> NDArray[np.bool_]:
        """Return for each record whether its own offset is within the span of its queue."""
        count = len(requests.topics)
        low, high = np.zeros(count, np.int64), np.full(count, NO_OFFSET)
        queues = zip(requests.topics, requests.queue_ids.tolist(), strict=True)
        for n, (topic, queue_id) in enumerate(queues):
            for offsets, bounds, missing in (
                (self.floors, low, 0),
                (self.ceilings, high, NO_OFFSET),
            ):
                if offsets is not None and topic not in offsets.by_topic:
                    high[n] = -1
                elif offsets is not None and high[n] >= 0:
                    bounds[n] = offsets.of(topic, queue_id, missing)
        offset, queue = requests.queue_offset, requests.queue
        chosen: NDArray[np.bool_] = (offset >= low[queue]) & (offset < high[queue])
        return chosen


def parse_queue_offsets(value: Any) -> QueueOffsets | None:
    """Return the offsets of a JSON value, None if it is anything else.

    -1 is a queue's end, -2 its beginning. A topic may have no queues.
    """
    if not isinstance(value, Mapping) or not value:
        return None
    by_topic = {}
    for topic, offsets in value.items():
        if not isinstance(offsets, Mapping):
            return None
        of_topic = {_queue_id(name): offset for name, offset in offsets.items()}
        if -1 in of_topic or not all(map(_is_offset, of_topic.values())):
            return None
        by_topic[topic] = of_topic
    return QueueOffsets(by_topic)


def _queue_id(text: str) -> int:
    """Return a queue id in canonical form as a number, -1 for any other text."""
    is_short = text.isascii() and text.isdecimal() and len(text) <= len(str(_QUEUE_ID_MAX))
    queue_id = int(text) if is_short else -1
    return queue_id if str(queue_id) == text and queue_id <= _QUEUE_ID_MAX else -1


def _is_offset(value: Any) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and EARLIEST_OFFSET <= value <= NO_OFFSET
