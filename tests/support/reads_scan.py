"""The expected answers of reads, by a full scan: slow, plain, without product code.

The queues come from the executable model. An answer follows the format notes (§11): a loop over
units for a batch, over times for a time, over records for a key.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.model.dispatch import Built, ModelConfig, Record, dispatch
from tests.model.record import ROLLBACK, string_hash, to_signed

UNIT = struct.Struct(">qiq")
FILLER_SIZE = 0x7FFFFFFF
BATCH_BYTES = 256 * 1024

Queue = tuple[str, int]


class Answer(NamedTuple):
    """Status, the next offset to read, and the physical offsets of the messages found."""

    status: str
    next_begin_offset: int
    found: list[int]


@dataclass(frozen=True)
class ScannedQueue:
    """A queue: its records by queue offset from `first` on, and the number of units per file."""

    begin: int  # the queue offset at which its files begin
    first: int
    end: int
    records: list[Record]
    per_file: int

    def times(self) -> list[int]:
        return [r.store_timestamp for r in self.records]


class LogScan:
    """A log and its dispatch, fully scanned.

    `min_offset` is where the log begins now: everything below has expired since the dispatch.
    """

    def __init__(
        self, files: Mapping[int, bytes], config: ModelConfig, min_offset: int = 0
    ) -> None:
        self.config = config
        self.min_offset = min_offset
        self.built: Built = dispatch(files, config)
        self.records = {r.commit_log_offset: r for r in self.built.records}
        contents: dict[Queue, list[tuple[int, bytes]]] = {}
        for name, content in self.built.consume_queue.items():
            topic, queue_id, base = name.rsplit("/", 2)
            contents.setdefault((topic, int(queue_id)), []).append((int(base), content))
        self.queues = {queue: self._queue(sorted(parts)) for queue, parts in contents.items()}

    def _queue(self, parts: list[tuple[int, bytes]]) -> ScannedQueue:
        begin = parts[0][0] // UNIT.size
        units = list(UNIT.iter_unpack(b"".join(content for _, content in parts)))
        units = [unit for unit in units if unit[1]]
        end = begin + len(units)
        is_live = [size != FILLER_SIZE and at >= self.min_offset for at, size, _ in units]
        first = begin + (is_live.index(True) if True in is_live else len(units))
        records = [self.records[at] for at, _, _ in units[first - begin :]]
        if units and units[-1][1] == FILLER_SIZE:
            first = end = 0
        return ScannedQueue(begin, first, end, records, len(parts[0][1]) // UNIT.size)

    def get_message(self, queue: Queue, offset: int, max_count: int, tags: str) -> Answer:
        """Answer a read by queue offset as versions since 4.9.4 do."""
        q = self.queues.get(queue)
        if q is None or q.end == 0:
            return Answer("NO_MESSAGE_IN_QUEUE", 0, [])
        if offset < q.first:
            return Answer("OFFSET_TOO_SMALL", q.first, [])
        if offset >= q.end:
            is_next = offset == q.end
            return Answer("OFFSET_OVERFLOW_ONE" if is_next else "OFFSET_OVERFLOW_BADLY", q.end, [])
        wanted = {tag.strip() for tag in tags.split("||")}
        hashes = {string_hash(tag) for tag in wanted}
        found: list[Record] = []
        size, at = 0, offset
        file_end = offset - offset % q.per_file + q.per_file
        while at < min(q.end, file_end, offset + max(800, max_count)):
            record = q.records[at - q.first]
            is_full = len(found) >= min(max_count, 32) or size + record.size > BATCH_BYTES
            if found and is_full:
                break
            at += 1
            if tags != "*":
                if to_signed(record.tags_code, 32) not in hashes:
                    continue
                if record.properties.get("TAGS") not in wanted:
                    continue
            found.append(record)
            size += record.size
        status = "FOUND" if found else "NO_MATCHED_MESSAGE"
        return Answer(status, at, [r.commit_log_offset for r in found])

    def query(self, topic: str, key: str, span: tuple[int, int], *, is_tag: bool) -> list[int]:
        """Return the physical offsets of all messages with a key, in log order."""
        return [
            r.commit_log_offset
            for r in self.built.records
            if r.commit_log_offset >= self.min_offset
            and r.transaction_type != ROLLBACK
            and r.topic == topic
            and span[0] <= r.store_timestamp <= span[1]
            and key
            and key in ([r.properties.get("TAGS")] if is_tag else keys_of(r))
        ]


def keys_of(record: Record) -> list[str]:
    """Return a record's unique key and keys."""
    return [record.properties.get("UNIQ_KEY", ""), *record.properties.get("KEYS", "").split(" ")]


def is_lower(times: list[int], timestamp: int, n: int) -> bool:
    """Return whether `times[n]` is the first one at or after `timestamp`.

    If times step back, any crossing point counts.
    """
    if is_rising(times):
        return n == bisect_left(times, timestamp)
    is_after = n == len(times) or (0 <= n < len(times) and times[n] >= timestamp)
    return is_after and (n == 0 or times[n - 1] < timestamp)


def is_upper(times: list[int], timestamp: int, n: int) -> bool:
    """Return whether `times[n]` is the last one at or before `timestamp`.

    If times step back, any crossing point counts.
    """
    if is_rising(times):
        return n == max(bisect_right(times, timestamp) - 1, 0)
    if not 0 <= n < len(times):
        return False
    is_before = times[n] <= timestamp or n == 0
    return is_before and (n == len(times) - 1 or times[n + 1] > timestamp)


def is_rising(times: list[int]) -> bool:
    return all(a <= b for a, b in pairwise(times))
