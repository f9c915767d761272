"""Which messages a consumer group has not consumed, by the offsets that it has committed.

A broker keeps, for each topic and queue, the position from which a group resumes
(``ConsumerOffsetManager``, ``config/consumerOffset.json``). ``reput.export.resume`` translates
it to an offset of the log: a message is not consumed if it is there or after it. A queue without a
committed offset is not consumed at all. The group's retry topic belongs to its topics:
``%RETRY%group`` holds what its consumers sent back.

A broker writes the file every 5 s (``flushConsumerOffsetInterval``), so messages consumed in the
last seconds before a crash count as not consumed. A group that consumes by POP or in broadcast mode
does not advance these offsets by consumption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.export.resume import WHOLE_QUEUE, QueueSources, Resume, find_resumes
from store.broker_files import read_consumer_offsets
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Stretch
from store.consumequeue.writer import QueueKey
from store.errors import ConfigError, shown
from store.layout import RETRY_PREFIX


@dataclass(frozen=True, slots=True)
class NotConsumed:
    """The topics of a group, its committed offsets, and where these are, by topic and queue id.

    ``problem`` is the warning to show if the offsets come from the broker's older backup, or "".
    Of ``untranslated`` queues, messages that the group has consumed may be selected too.
    """

    group: str
    topics: tuple[str, ...]
    committed: Mapping[QueueKey, int]
    problem: str = ""
    resumes: Mapping[QueueKey, Resume] = field(default_factory=dict)
    untranslated: tuple[QueueKey, ...] = ()

    def translated(
        self, sources: QueueSources, scan: Callable[[], Iterable[Stretch]]
    ) -> NotConsumed:
        """Return this with the committed offsets translated; ``scan`` as in ``find_resumes``."""
        wanted = {q: n for q, n in self.committed.items() if q[0] in self.topics and n > 0}
        resumes, untranslated = find_resumes(wanted, sources, scan)
        return replace(self, resumes=resumes, untranslated=tuple(untranslated))

    def rows(self, requests: DispatchRequests) -> NDArray[np.bool_]:
        """Return for each record whether it is at or past the committed offset of its queue."""
        queues = zip(requests.topics, requests.queue_ids.tolist(), strict=True)
        resumes = [self.resumes.get(queue, WHOLE_QUEUE) for queue in queues]
        own = np.array([r.queue_offset for r in resumes], np.int64)
        log = np.array([r.commit_log_offset for r in resumes], np.int64)
        queue = requests.queue
        at_or_past: NDArray[np.bool_] = requests.queue_offset >= own[queue]
        return at_or_past | (requests.commit_log_offset >= log[queue])


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
