"""A writer that produces a commit log as a broker does, for demos, tests and benchmarks.

Records are appended to files of full size. A record that would not leave 8 bytes free goes to the
next file, and a blank record fills the current one; the blank's remainder stays zero, as since
4.9.1. Creating a file also preallocates the next one, and ``abort`` exists in STORE while
the writer is open, so a log that is being written looks like a live broker's. Format notes §1, §2.

An append is visible at once, and durable after ``close``. Not thread-safe, and nothing
guards against a second writer on the same store.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Self

import numpy as np

from store import layout
from store.commitlog.commit_log import CommitLog, was_closed_cleanly
from store.commitlog.dispatch_request import DispatchRequests, is_queued
from store.commitlog.planner import LogPlanner
from store.commitlog.record import IllegalMessageError, NewMessage, encode_record
from store.commitlog.scanner import Damage, Scanner
from store.config import StoreConfig
from store.errors import DamageError
from store.io.disk import Disk
from store.io.mapped_file import file_name
from store.java import now_ms
from store.kernels.record import BLANK, find_parts
from store.layout import ABORT_FILE, BLANK_SIZE, MAGIC_BLANK, struct_of

_BLANK = struct_of(layout.BLANK_RECORD)
_DELAY = layout.PROPERTY_DELAY
_DEFAULTS = StoreConfig()


class CommitLogWriter:
    """Appends to the commit log of ``store_root``, at the end of an existing one.

    ``clock`` returns store timestamps in milliseconds and is called once per append. As a context
    manager it closes; after an exception it leaves the files as a killed broker does. Opening
    raises DamageError if the log is damaged before its end.
    """

    def __init__(
        self,
        store_root: Path | str,
        config: StoreConfig,
        *,
        disk: Disk | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.config = config
        self.end = 0  # where the next record begins, if it fits
        self._store_root = Path(store_root)
        self._paths = config.commit_log_paths(self._store_root)
        self._file_size = config.mapped_file_size_commit_log
        self._clock = clock
        self._disk = disk or Disk()
        self._owns_disk = disk is None
        self._next: Counter[tuple[str, int]] = Counter()
        self._is_open = True
        self._base = -1  # of the active file
        self._ahead: Path | None = None  # the preallocated file, unused so far
        self._recover()
        pid = str(os.getpid()).encode() if config.writes_pid_in_abort else b""
        self._disk.replace(self._store_root / ABORT_FILE, pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.kill()

    def append(self, message: NewMessage) -> int:
        """Append a message; return its commit log offset. Raises IllegalMessageError."""
        return self._put([message])[0]

    def append_batch(self, messages: Sequence[NewMessage]) -> list[int]:
        """Append a client batch to one file, with one store time; return the offsets.

        Raises IllegalMessageError unless all are plain messages for one queue.
        """
        queues = {(m.topic, m.queue_id) for m in messages}
        is_plain = not any(m.sys_flag & layout.SYS_TRANSACTION for m in messages)
        if len(queues) != 1 or not is_plain or any(_DELAY in m.properties for m in messages):
            raise IllegalMessageError("a batch is for one queue, without transaction or delay")
        return self._put([replace(m, prepared_transaction_offset=0) for m in messages])

    def close(self) -> None:
        """Stop like a broker that is shut down: sync, remove the unused file and ``abort``."""
        self._disk.sync()
        if self._ahead is not None:
            self._disk.remove(self._ahead)
        self._disk.remove(self._store_root / ABORT_FILE)
        self._disk.sync()
        self.kill()

    def kill(self) -> None:
        """Stop like a broker that is killed: ``abort`` and the unused file stay; syncs nothing."""
        self._is_open = False
        if self._owns_disk:
            self._disk.close()

    def _put(self, messages: list[NewMessage]) -> list[int]:
        """Append messages to one file, with one store time."""
        stamp = self._clock()
        records = self._encode(messages, stamp)
        size = sum(map(len, records))
        if size + BLANK_SIZE > self._file_size:
            raise IllegalMessageError(
                f"{size} bytes do not fit in a commit log file of {self._file_size} bytes"
            )
        left = self._remaining()
        if size + BLANK_SIZE > left:
            self._write(_BLANK.pack(left, MAGIC_BLANK))
            self.end += left - BLANK_SIZE
            records = self._encode(messages, stamp)
        begins = list(accumulate(map(len, records), initial=self.end))
        self._write(b"".join(records))
        self._next.update((m.topic, m.queue_id) for m in messages if is_queued(m.sys_flag))
        return begins[:-1]

    def _encode(self, messages: list[NewMessage], stamp: int) -> list[bytes]:
        records, config, at = [], self.config, self.end
        for rank, message in enumerate(messages):
            queue = message.topic, message.queue_id
            offset = self._next[queue] + rank if is_queued(message.sys_flag) else 0
            record = encode_record(
                message, config, queue_offset=offset, commit_log_offset=at, store_timestamp=stamp
            )
            records.append(record)
            at += len(record)
        return records

    def _remaining(self) -> int:
        return self._file_size - self.end % self._file_size

    def _write(self, data: bytes | memoryview) -> None:
        assert self._is_open
        base = self.end - self.end % self._file_size
        if base != self._base:
            # Java parity: AllocateMappedFileService creates the requested file and the next one.
            self._make_file(base)
            self._ahead = self._make_file(base + self._file_size)
            self._base = base
        self._disk.write(self._path(base), self.end - base, data)
        self.end += len(data)

    def _make_file(self, base: int) -> Path:
        path = self._path(base)
        if path.exists() and path.stat().st_size != self._file_size:
            self._disk.remove(path)  # its creator crashed before sizing it
        if not path.exists():
            self._disk.create(path, self._file_size)
        return path

    def _path(self, base: int) -> Path:
        # Java parity: MultiPathMappedFileQueue rotates through the paths.
        directory = self._paths[base // self._file_size % len(self._paths)]
        return directory / file_name(base)

    def _recover(self) -> None:
        """Find the log's end and the queues' next offsets by scanning all of it.

        Java parity: bytes after the end are not erased, files after it are deleted.
        """
        log = CommitLog(self._paths, self.config)
        for file in log.files:
            log.check_file(file)
        if not log.files:
            return
        was_clean = was_closed_cleanly(self._store_root)
        plan = LogPlanner(log, lambda: was_clean).plan(log.min_offset())
        scanner = Scanner(self.config)
        for part in plan.ranges:
            for found in scanner.read(part):
                if isinstance(found, Damage):
                    raise DamageError(found.path, found.begin, found.reason)
                self._count(found)
        self.end = plan.end
        last = log.find(self.end)
        if last is not None:
            view = last.view()
            if find_parts(view, self.end - last.base, len(view)).reason == BLANK:
                self.end = log.roll_next_file(last.base)
        for file in log.files:
            if file.base <= self.end < file.base + self._file_size:
                self._base = file.base
            elif file.base > self.end:
                self._disk.remove(file.path)

    def _count(self, requests: DispatchRequests) -> None:
        """Advance the queues' next offsets over these records."""
        rows = requests.is_queued
        following = np.full(len(requests.topics), -1, np.int64)
        following[requests.queue[rows]] = requests.queue_offset[rows] + 1  # the last one stays
        queues = zip(requests.topics, requests.queue_ids.tolist(), strict=True)
        for queue, offset in zip(queues, following.tolist(), strict=True):
            if offset >= 0:
                self._next[queue] = offset


def schedule(message: NewMessage, level: int, config: StoreConfig = _DEFAULTS) -> NewMessage:
    """Return a message as a broker stores it until its delay expires (format notes §3).

    A level above the last one of ``messageDelayLevel`` is capped at it. Raises
    IllegalMessageError for a level below 1.
    """
    level = min(level, len(config.delay_levels_ms()))
    if level < 1:
        raise IllegalMessageError(f"delay level {level} is not positive")
    properties = {
        **message.properties,
        _DELAY: str(level),
        layout.PROPERTY_REAL_TOPIC: message.topic,
        layout.PROPERTY_REAL_QUEUE_ID: str(message.queue_id),
    }
    return replace(message, topic=layout.SCHEDULE_TOPIC, queue_id=level - 1, properties=properties)
