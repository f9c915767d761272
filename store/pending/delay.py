"""Messages with a delay level: the units of ``SCHEDULE_TOPIC_XXXX``, one queue per level.

The broker (``ScheduleMessageService``) delivers the messages of a queue in order, each once its
delay has passed since the store time, and records its position in ``config/delayOffset.json`` every
ten seconds. A message above that offset may therefore have been delivered. One below it was passed
over, and is not delivered later, if the log holds a later message of the level in its real queue,
but not this one. Without a later one, the file may be newer than the log, as in a copied store.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from store.pending.deliveries import NONE, Deliveries, Longs
from store.pending.states import Kind, choose_states, longs, pending_rows

# Java parity: ScheduleMessageService.computeDeliverTimestamp, for a level without a delay.
_UNKNOWN_LEVEL_MS = 1000


def delay_rows(  # noqa: PLR0913 - the records, and what decides on them
    held: pa.Table,
    messages: Longs,
    deliveries: Deliveries,
    *,
    levels_ms: tuple[int, ...],
    delivered_up_to: Mapping[int, int],
    now: int,
) -> pa.Table:
    """Return the rows of delayed messages; ``messages`` holds their codes.

    ``delivered_up_to`` is the content of delayOffset.json: level -> position in its queue; empty if
    part of the log could not be read. Own queue offsets are compared with it: after a closed gap
    they are above the position, so that too few messages count as passed over, never too many.
    """
    level = longs(held, "queue_id") + 1
    stored, offset = longs(held, "store_timestamp_ms"), longs(held, "commit_log_offset")
    delays = np.array([*levels_ms, _UNKNOWN_LEVEL_MS], np.int64)
    is_level = (level > 0) & (level <= len(levels_ms))
    due = stored + delays[np.where(is_level, level - 1, len(levels_ms))]
    delivered = deliveries.first_after(messages, offset, due)
    queue_offset, is_delivered = longs(held, "queue_offset"), delivered != NONE
    passed = np.zeros(held.num_rows, np.bool_)
    for known, up_to in delivered_up_to.items():
        of_level = level == known
        last = np.max(queue_offset[of_level & is_delivered], initial=NONE)
        passed |= of_level & (queue_offset < min(up_to, last))
    states = choose_states(due, now, delivered=delivered, given_up=passed)
    return pending_rows(
        Kind.DELAY, held, stored=stored, due=due, delivered=delivered, states=states
    )
