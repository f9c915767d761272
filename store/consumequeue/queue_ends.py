"""The end of a consume queue at an offset of the log, so that the queue can be truncated to it.

``ConsumeQueueStore.ends_touched_by`` returns it before a batch is written,
``store.output.end_search`` finds it in the files, and ``store.output.truncation`` truncates the
files to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from store.consumequeue.names import QueueId, Topic
from store.io.checked_json import Check, Count, Position
from store.layout import CQ_UNIT_SIZE, NO_QUEUE_YET


def _is_unit_end(position: int) -> bool:
    return position == NO_QUEUE_YET or position % CQ_UNIT_SIZE == 0


UnitEnd = Annotated[Position, Check("the end of a queue's units", _is_unit_end)]


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """The end of one queue: of its units and of its files, in bytes, and its count of ext units.

    ``end`` and ``allocated`` are -1 for a queue that has no files.
    """

    topic: Topic
    queue_id: QueueId
    end: UnitEnd = NO_QUEUE_YET
    allocated: UnitEnd = NO_QUEUE_YET
    ext_count: Count = 0

    @property
    def key(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.topic, self.queue_id
