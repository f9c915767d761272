"""An executable model of a broker's dispatch: what a CommitLog's queues and index must be.

Plain Python and only the standard library, written from the format description alone and proved
against stores of real brokers (test_model_golden.py). Slow: meant for logs of some thousand
messages. It takes the log from its beginning to the first position that is not a record; what
that position is (torn, damaged, not yet written) is not its business.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.config import ModelConfig, Version
from tests.model.files import ConsumeQueue, ConsumeQueueExt, IndexFile, SparseContent
from tests.model.record import (
    COMMIT,
    PREPARED,
    ROLLBACK,
    Content,
    InvalidRecordError,
    Record,
    is_blank,
    is_blank_record,
    parse_integer,
    parse_record,
    split,
)

__all__ = ["Built", "Content", "Drop", "ModelConfig", "Record", "dispatch"]


class Drop(NamedTuple):
    """A unit that is not where its queue offset says.

    reason is "repeated" (the queue is beyond that offset: dropped), "gap" (the queue has not
    come that far: written earlier) or "restarted" (offset 0, written at the queue's end).
    """

    commit_log_offset: int
    topic: str
    queue_id: int
    reason: str


@dataclass(frozen=True)
class Built:
    """What a broker has written once `end` is reached, dispatched and cleanly shut down."""

    consume_queue: dict[str, bytes]
    consume_queue_ext: dict[str, bytes]
    index_files: list[SparseContent]
    records: list[Record]
    end: int
    drops: list[Drop]

    @property
    def index(self) -> list[bytes]:
        """The index files in order; with default sizes read `index_files` piecemeal instead."""
        return [bytes(content) for content in self.index_files]


def dispatch(files: Mapping[int, Content], config: ModelConfig) -> Built:
    """Dispatch every record of a log, given as content by base offset."""
    records, end = read_log(files, config)
    broker = Dispatcher(config)
    for record in records:
        broker.dispatch(record)
    return Built(
        consume_queue=name_files(broker.queues),
        consume_queue_ext=name_files(broker.exts),
        index_files=[file.content() for file in broker.index],
        records=records,
        end=end,
        drops=broker.drops,
    )


def read_log(files: Mapping[int, Content], config: ModelConfig) -> tuple[list[Record], int]:
    """Return all records and the offset where the log ends.

    A blank counts only if there is a file after it, as in a broker's recovery. A record whose
    multi-dispatch offsets do not parse, on which a broker's dispatch hangs, ends the log too.
    """
    size = config.commit_log_file_size
    records: list[Record] = []
    position = min(files, default=0)
    while True:
        base = position - position % size
        if base not in files:
            return records, position
        if is_blank_record(files[base], position - base):
            if base + size not in files:
                return records, position
            position = base + size
            continue
        try:
            record = parse_record(files[base], position - base, position, config)
            multi_dispatch_targets(record, config)
        except InvalidRecordError:
            return records, position
        records.append(record)
        position += record.size


def multi_dispatch_targets(record: Record, config: ModelConfig) -> list[tuple[str, int, int]]:
    """List the further queues of a record: (name, queue id, queue offset)."""
    version, topic = config.version, record.topic
    if not config.enable_multi_dispatch or version < (4, 9, 3):
        return []
    if record.transaction_type in (PREPARED, ROLLBACK) or is_excluded(topic, version):
        return []
    names = record.properties.get("INNER_MULTI_DISPATCH", "")
    offsets = record.properties.get("INNER_MULTI_QUEUE_OFFSET", "")
    if is_blank(names) or is_blank(offsets):
        return []
    name_list, offset_list = split(names, ","), split(offsets, ",")
    if len(name_list) != len(offset_list):
        return []
    targets = []
    for name, offset in zip(name_list, offset_list, strict=True):
        if "/" in name and version >= (5, 1, 2):
            continue
        queue_offset = parse_integer(offset, 64)
        if queue_offset is None:
            raise InvalidRecordError("a multi-dispatch offset is not an integer")
        is_lmq = config.enable_lmq and name.startswith("%LMQ%")
        targets.append((name, 0 if is_lmq else record.queue_id, queue_offset))
    return targets


def is_excluded(topic: str, version: Version) -> bool:
    """Return whether messages of a topic are never dispatched to further queues."""
    if version < (5, 1, 1):
        return False
    if topic.startswith("%RETRY%"):
        return True
    if version < (5, 1, 2):
        return False
    if topic == "SCHEDULE_TOPIC_XXXX":
        return True
    if version < (5, 2, 0):
        return topic == "rmq_sys_wheel_timer"
    return topic.startswith("rmq_sys_")


class Dispatcher:
    """A broker's dispatchers and all they write to."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.queues: defaultdict[tuple[str, int], ConsumeQueue] = defaultdict(
            lambda: ConsumeQueue(config.queue_file_size)
        )
        self.exts: defaultdict[tuple[str, int], ConsumeQueueExt] = defaultdict(
            lambda: ConsumeQueueExt(config.consume_queue_ext_file_size)
        )
        self.index: list[IndexFile] = []
        self.drops: list[Drop] = []

    def dispatch(self, record: Record) -> None:
        """Dispatch one record: queues first, then the index."""
        if record.transaction_type in (0, COMMIT):
            self.queue(record)
        if self.config.message_index_enable:
            self.put_index(record)

    def queue(self, record: Record) -> None:
        """Append to the record's queue, then to the queues of its multi-dispatch."""
        tags_code = record.tags_code
        if self.config.enable_consume_queue_ext:
            # Java parity: the ext unit comes before every check, a dropped message leaves one.
            ext = self.exts[record.topic, record.queue_id]
            tags_code = ext.put(record.tags_code, record.store_timestamp)
        self.append(record, (record.topic, record.queue_id, record.queue_offset), tags_code)
        for target in multi_dispatch_targets(record, self.config):
            self.append(record, target, record.tags_code)

    def append(self, record: Record, target: tuple[str, int, int], tags_code: int) -> None:
        """Append to one queue, given as (topic, queue id, queue offset)."""
        topic, queue_id, queue_offset = target
        unit = (record.commit_log_offset, record.size, tags_code)
        reason = self.queues[topic, queue_id].append(unit, queue_offset)
        if reason:
            self.drops.append(Drop(record.commit_log_offset, topic, queue_id, reason))

    def put_index(self, record: Record) -> None:
        """Put a record's keys; a file is created even for a record without keys."""
        file = self.writable_index_file()
        if record.commit_log_offset < file.end_phy_offset or record.transaction_type == ROLLBACK:
            return
        for key_hash in record.key_hashes:
            self.writable_index_file().put(key_hash, record)

    def writable_index_file(self) -> IndexFile:
        """Return the last index file, or a new one if that is full."""
        if not self.index or self.index[-1].is_full:
            self.index.append(IndexFile(self.config, self.index[-1] if self.index else None))
        return self.index[-1]


def name_files(
    queues: Mapping[tuple[str, int], ConsumeQueue] | Mapping[tuple[str, int], ConsumeQueueExt],
) -> dict[str, bytes]:
    """Name each queue file by its path below consumequeue/ or consumequeue_ext/."""
    return {
        f"{topic}/{queue_id}/{base:020d}": bytes(content)
        for (topic, queue_id), queue in queues.items()
        for base, content in queue.files.items()
    }
