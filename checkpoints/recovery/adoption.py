"""Adoption of the files that a broker wrote: keep what matches the log, truncate the rest.

The files are compared with what a dispatch of the whole log, from its minimum offset, would have
written. From the first stretch that differs, OUTPUT is truncated and dispatched again: units that
survived a truncation of the log, index entries that a restart duplicated, queues that lag. If the
log's oldest messages have expired, their units are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from checkpoints.batch_record import read_batch
from checkpoints.commit import add_rollback_point, queue_name
from checkpoints.ownership import ANY_ABORT, read_ownership_stamp
from checkpoints.recovery.consistent_prefix import ConsistentPrefix, find_consistent_prefix
from checkpoints.recovery.fingerprint import read_fingerprint
from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.parallel_scan import LogReplay
from store.commitlog.planner import LogPlanner
from store.compare.store import ComparisonPolicy
from store.config import StoreConfig
from store.consumequeue.files import ConsumeQueue, Unit, written_units
from store.consumequeue.names import list_queues, queue_directory
from store.consumequeue.reader import QueueReader
from store.errors import ConfigError, DamageError
from store.index.file import list_index_files
from store.index.index_end import IndexEnd
from store.io.mapped_file import intact, is_mapped_file_name
from store.kernels.index import INDEX_COUNT
from store.layout import CONSUME_QUEUE_DIR, PRE_BLANK_SIZE, index_file_size
from store.output.progress import Progress

RecoveryReporter = Callable[[str, int, int], None]  # activity, amount done, total amount

_log = logging.getLogger(__name__)
_HINT = "pass the broker.conf that it was created with (--broker-conf), or give a new OUTPUT"


class Adoption:
    """Determines up to which offset OUTPUT matches the log."""

    def __init__(
        self, output: Path, log: CommitLog, planner: LogPlanner, report: RecoveryReporter
    ) -> None:
        self._output = output
        self._log = log
        self._planner = planner
        self._report = report

    @intact()
    def adopt(self, progress: Progress, end: int) -> tuple[Progress, ConsistentPrefix]:
        """Compare OUTPUT with the log up to ``end``; return the progress to truncate it to.

        Raises ConfigError if its files do not have the configured sizes, or belong to
        another log.
        """
        self._check_file_sizes()
        self._check_log()
        begin = max(self._log.min_offset(), progress.begin_offset)
        policy = ComparisonPolicy(begin, is_aged=begin > progress.begin_offset, may_be_ahead=True)
        requests = self._requests(begin, end)
        prefix = find_consistent_prefix(self._output, self._log.config, policy, requests)
        return self._adopted(progress, prefix), prefix

    def _requests(self, begin: int, end: int) -> Iterator[DispatchRequests]:
        """Yield the log's requests up to damage, which the dispatch will report."""
        replay = LogReplay(self._log, self._planner, (begin, end))
        try:
            for batch in replay.batches():
                self._report("comparing with the log", batch.end - begin, end - begin)
                yield batch
        except DamageError as e:
            _log.warning("%s", e)

    def _adopted(self, progress: Progress, prefix: ConsistentPrefix) -> Progress:
        index = prefix.index or IndexEnd()
        names = [path.name for path in list_index_files(self._output)]
        names = [name for name in names if name <= index.file]
        record = read_batch(self._output)
        batch = max(progress.batch, record.number if record is not None else 0) + 1
        adopted = replace(
            progress,
            batch=batch,
            generation=batch,
            reput_from_offset=prefix.offset,
            messages=prefix.messages,
            index_file=names[-1] if names else "",
            index_count=index.header[INDEX_COUNT] - 1 if names else 0,
            index_first=names[0] if names else "",
            index_files=len(names),
            index_msg_timestamp=prefix.index_full_timestamp,
            drops={
                queue_name(*key): {"repeated": repeated, "gaps": gaps}
                for key, (repeated, gaps) in prefix.drops.items()
            },
            stamp=replace(read_ownership_stamp(self._output), abort_ns=ANY_ABORT),
        )
        last = None
        if prefix.last_offset >= 0:
            last = read_fingerprint(self._log, prefix.last_offset)
        if last is None:
            return adopted
        adopted = replace(adopted, last_record=last)
        return replace(adopted, rollback_points=add_rollback_point(adopted, prefix.queues))

    def _check_log(self) -> None:
        """Refuse an OUTPUT none of whose sampled units belongs to this log."""
        evidence = ""
        log = self._log
        log.refresh()
        for key in list_queues(self._output):
            try:
                queue = QueueReader(self._output, key, log)
            except DamageError:
                continue  # files are missing
            for unit in sample_units(queue.directory, self._log.config):
                if unit.commit_log_offset < log.min_offset() or _is_of_log(queue, unit):
                    return  # an expired unit proves nothing
                evidence = f"{queue.directory} names a record at offset {unit.commit_log_offset}"
        if evidence:
            raise ConfigError(
                f"{self._output} belongs to another log: {evidence}, which is not in this one; "
                "give a new OUTPUT, or remove its queues and its index"
            )

    def _check_file_sizes(self) -> None:
        """Refuse an OUTPUT none of whose files has the configured size."""
        config, output = self._log.config, self._output
        queues = output / CONSUME_QUEUE_DIR
        files = [p for t, q in list_queues(output) for p in queue_directory(queues, t, q).iterdir()]
        files = [p for p in files if is_mapped_file_name(p.name)]
        size = index_file_size(config.max_hash_slot_num, config.max_index_num)
        _check_sizes(files, config.mapped_file_size_consume_queue, "mappedFileSizeConsumeQueue")
        if config.message_index_enable:
            _check_sizes(list_index_files(output), size, "maxHashSlotNum or maxIndexNum")


def sample_units(directory: Path, config: StoreConfig) -> Iterator[Unit]:
    """Yield a few units of each file of a queue, without pre-fill units."""
    for file in ConsumeQueue(directory, config.mapped_file_size_consume_queue).files:
        units = written_units(file)
        for number in sorted({0, len(units) // 2, len(units) - 1}):
            if 0 <= number < len(units) and units[number]["size"] != PRE_BLANK_SIZE:
                yield Unit(*units[number].tolist())


def _is_of_log(queue: QueueReader, unit: Unit) -> bool:
    try:
        return queue.has_record(unit)
    except DamageError:
        return False  # the other samples decide


def _check_sizes(files: list[Path], size: int, setting: str) -> None:
    sizes = {path: path.stat().st_size for path in files}
    sizes = {
        path: found for path, found in sizes.items() if found
    }  # a power loss leaves empty ones
    if sizes and size not in sizes.values():
        path, found = next(iter(sizes.items()))
        raise ConfigError(f"{path} has {found} bytes, not {size} ({setting}); {_HINT}")
