"""Which messages a consumer group has not consumed, by the offsets that it has committed.

A broker keeps, for each topic and queue, the offset from which a group resumes
(``ConsumerOffsetManager``, ``config/consumerOffset.json``). A message is not consumed if its queue
offset is at or past it. A queue without a committed offset is not consumed at all. The group's
retry topic belongs to its topics: ``%RETRY%group`` holds what its consumers sent back.

A broker writes the file every 5 s (``flushConsumerOffsetInterval``), so messages consumed in the
last seconds before a crash count as not consumed. A group that consumes by POP or in broadcast mode
does not advance these offsets by consumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.broker_files import read_consumer_offsets
from store.commitlog.dispatch_request import DispatchRequests
from store.errors import ConfigError, shown
from store.layout import RETRY_PREFIX


@dataclass(frozen=True, slots=True)
class NotConsumed:
    """The topics of a group and its committed offsets, by topic and queue id.

    ``problem`` is the warning to show if the offsets come from the broker's older backup, or "".
    """

    group: str
    topics: tuple[str, ...]
    offsets: Mapping[tuple[str, int], int]
    problem: str = ""

    def rows(self, requests: DispatchRequests) -> NDArray[np.bool_]:
        """Return for each record whether it is at or past the committed offset of its queue."""
        queues = zip(requests.topics, requests.queue_ids.tolist(), strict=True)
        first = np.fromiter((self.offsets.get(q, 0) for q in queues), np.int64)
        at_or_past: NDArray[np.bool_] = requests.queue_offset >= first[requests.queue]
        return at_or_past


def read_not_consumed(
    store_root: Path, group: str, topics: Sequence[str], *, enable_lmq: bool
) -> NotConsumed:
    """Read what a group has committed in its topics, or in those of ``topics`` if there are any.

    Raises ConfigError for a group that has committed nothing, for a topic that is not the group's,
    and if the broker's file cannot be read; StoreIOError.
    """
    file = read_consumer_offsets(store_root, enable_lmq=enable_lmq)
    option = f"--not-consumed-by {group}"
    if file.content is None:
        raise ConfigError(f"{option}: no committed offset is known: {file.problem}")
    committed = [c for c in file.content if c.group == group]
    if not committed:
        groups = sorted({c.group for c in file.content})
        known = f"groups with offsets are {', '.join(groups)}" if groups else "it has no group"
        raise ConfigError(f"{option}: {file.read_from} has no offset of this group; {known}")
    own = {*(c.topic for c in committed), RETRY_PREFIX + group}
    for topic in topics:
        if topic not in own:
            raise ConfigError(
                f"--topic {shown(topic)}: {group} has no offset in it; "
                f"its topics are {', '.join(sorted(own))}"
            )
    offsets = {(c.topic, c.queue_id): c.offset for c in committed}
    return NotConsumed(group, tuple(sorted(set(topics) or own)), offsets, file.problem)
