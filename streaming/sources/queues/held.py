"""Which messages the queues of a root hold, and up to where of the log they are complete."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.commitlog.dispatch_request import DispatchRequests
from store.config import StoreConfig
from store.consumequeue.files import ConsumeQueue, queue_tail, written_units
from store.consumequeue.names import can_name_directory, list_queues, queue_directory
from store.layout import CONSUME_QUEUE_DIR
from store.root.progress import read_progress_view


class HeldMessages:
    """The units of a root's queues that refer to the span ``[begin, end)`` of the log."""

    def __init__(self, output: Path, config: StoreConfig, span: tuple[int, int]) -> None:
        self._root = output / CONSUME_QUEUE_DIR
        self._file_size = config.mapped_file_size_consume_queue
        self._span = span
        self._units: dict[tuple[str, int], NDArray[np.int64]] = {}

    def mask(self, requests: DispatchRequests, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return for each record whether it is chosen and a unit of its queue refers to it."""
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(requests.queue[rows], kind="stable")]
        held = np.zeros(len(requests), np.bool_)
        if not len(rows):
            return held
        queues, firsts = np.unique(requests.queue[rows], return_index=True)
        for n, of_queue in zip(queues.tolist(), np.split(rows, firsts[1:]), strict=True):
            units = self._units_of(requests.topics[n], int(requests.queue_ids[n]))
            held[of_queue] = np.isin(requests.commit_log_offset[of_queue], units)
        return held

    def _units_of(self, topic: str, queue_id: int) -> NDArray[np.int64]:
        """Return the commit log offsets of a queue's units in the span. Raises DamageError."""
        queue = topic, queue_id
        if queue not in self._units:
            self._units[queue] = self._read(*queue)
        return self._units[queue]

    def _read(self, topic: str, queue_id: int) -> NDArray[np.int64]:
        parts = [np.empty(0, np.int64)]
        if can_name_directory(topic):
            files = ConsumeQueue(queue_directory(self._root, topic, queue_id), self._file_size)
            files.check()
            for file in files.files:
                offsets = written_units(file)["commit_log_offset"]
                low, high = (bisect_left(offsets, at) for at in self._span)
                parts.append(offsets[low:high].astype(np.int64))
        return np.concatenate(parts)


def dispatched_end(output: Path, config: StoreConfig) -> int:
    """Return the commit log offset up to which the queues of a root are complete.

    A dispatch records it. A broker does not: it dispatches in log order, so its queues are complete
    up to the last record that one of them refers to. Raises DamageError, StoreIOError.
    """
    progress = read_progress_view(output)
    if progress is not None:
        return progress.reput_from_offset
    size = config.mapped_file_size_consume_queue
    directories = (queue_directory(output / CONSUME_QUEUE_DIR, *q) for q in list_queues(output))
    tails = [queue_tail(directory, size) for directory in directories]
    return max((tail.max_physic_offset for tail in tails if tail is not None), default=0)
