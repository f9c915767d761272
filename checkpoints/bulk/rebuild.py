"""The whole rebuild: scan all parts, redo what is not continuous, build the index, swap all in.

The root is owned, and stays as it was until everything is built and durable. The rebuild ends where
the log ended when it was first begun; a dispatch goes on from there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from checkpoints.bulk.state import BulkPlan, BulkState, PartRecord, boot_id
from checkpoints.bulk.tasks import BuildIndex, Job, PreFill, Run, ScanPart
from checkpoints.fingerprint import read_fingerprint
from checkpoints.output import check_replaced
from checkpoints.progress import BatchEnd
from checkpoints.root import DispatchRoot
from checkpoints.signs import read_signs
from checkpoints.swap import WHOLE, SwapRecord, finish_swap, write_swap
from store.bulk.key_parts import count_index_files, number_keys, plan_index
from store.bulk.log_parts import (
    PART_BYTES,
    Break,
    LogPart,
    LogParts,
    cut,
    cut_by_records,
    find_break,
)
from store.bulk.queue_parts import JoinedQueues
from store.config import StoreConfig, config_to_json
from store.consume_queue_store import ConsumeQueueStore, QueueDrops, QueueKey
from store.errors import ConfigError, StoreError
from store.index_service import IndexState, name_after, next_name
from store.layout import CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR
from store.log_plan import LogPlanner
from store.log_replay import LogReplay
from store.marks import QueueMark
from store.scan import Damage

Report = Callable[[int, int], None]  # bytes of log done, bytes in all
_QUEUES_A_TASK = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BulkRebuilt:
    """What a rebuild came to. Offsets are physical offsets of the log."""

    begin_offset: int
    end_offset: int
    messages: int
    queues: int
    redone: int  # queues that were built in log order
    index_files: int
    parts: int
    parts_kept: int  # built by a run before this one
    stages: dict[str, float] = field(default_factory=dict)  # name to seconds
    drops: dict[QueueKey, QueueDrops] = field(default_factory=dict)
    damage: Damage | None = None  # at ``end_offset``: where the log cannot be read


class BulkRebuild:
    """Rebuilds a root that ``DispatchRoot.replacing`` took."""

    def __init__(self, root: DispatchRoot, run: Run, *, part_bytes: int = PART_BYTES) -> None:
        self._root = root
        self._config: StoreConfig = root.log.config
        self._run = run
        self._part_bytes = part_bytes
        self._state = BulkState(root.path, root.disk)
        self._job = Job(str(root.path), config_to_json(self._config))
        is_clean = root.is_log_clean(Path(root.progress.store))
        self._planner = LogPlanner(root.log, lambda: is_clean)
        self._kept = 0
        self._stages: dict[str, float] = {}

    def run(self, report: Report | None = None) -> BulkRebuilt:
        """Build everything and put it in place.

        Raises StoreError as tasks do; then the root is as it was, and the next run goes on. What
        the log holds behind damage is not built: ``BulkRebuilt.damage`` is for the caller to raise.
        """
        with self._stage("scan"):
            plan, parts = self._scan_all(report)
        queues = JoinedQueues()
        for part in parts:
            queues.add(part.queues)
        redone = queues.keys(continuous=False)
        if self._config.enable_consume_queue_ext:
            redone += queues.keys(continuous=True)
        with self._stage("queues in log order"):
            drops, marks = self._redo(plan, redone)
            self._pre_fill(queues)
        with self._stage("index"):
            index = self._build_index(plan, parts)
        keys = [part.keys for part in parts if part.keys.records]
        end = BatchEnd(
            reput_from_offset=plan.log.end,
            first_offset=keys[0].first_offset if keys else -1,
            last_offset=keys[-1].last_offset if keys else -1,
            messages=sum(part.records for part in keys),
            index=index,
            drops={key: (d.repeated, d.gaps) for key, d in drops.items()},
            marks=marks,
        )
        with self._stage("sync and swap"):
            self._swap_in(end)
        return BulkRebuilt(
            begin_offset=plan.log.begin,
            end_offset=plan.log.end,
            messages=end.messages,
            queues=queues.count,
            redone=len(redone),
            index_files=index.files,
            parts=len(parts),
            parts_kept=self._kept,
            stages=self._stages,
            drops=drops,
            damage=plan.log.damage,
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._stages[name] = time.perf_counter() - began

    # Parts ----------------------------------------------------------------------------------------

    def _scan_all(self, report: Report | None) -> tuple[BulkPlan, list[PartRecord]]:
        """Scan until the parts meet; return the plan that held, and what its parts came to."""
        plan = self._load_or_begin()
        while True:
            parts = self._scan(plan, report)
            gap = find_break(
                [(p, r.scanned) for p, r in zip(plan.log.parts, parts, strict=True)], plan.log.end
            )
            if gap is None:
                return plan, parts
            _log.info("parts of the log do not meet at offset %d: it is cut again", gap.at)
            plan = replace(plan, log=self._cut_again(plan.log, gap))
            self._begin(plan)

    def _load_or_begin(self) -> BulkPlan:
        """Return the plan of a run that was cut off, if it still holds, else a new one."""
        root, progress = self._root, self._root.progress
        log = cut(root.log, self._planner, progress.begin_offset, part_bytes=self._part_bytes)
        new = BulkPlan(
            log=log,
            store=progress.store,
            commit_log=progress.commit_log,
            shape=progress.shape,
            index_begin=next_name(None),
            boot_id=boot_id(),
        )
        old = self._state.read_plan()
        if old is not None and new.boot_id and old.fits(new):
            return old
        self._begin(new)
        return new

    def _begin(self, plan: BulkPlan) -> None:
        self._state.forget()
        self._state.write_plan(plan)

    def _scan(self, plan: BulkPlan, report: Report | None) -> list[PartRecord]:
        """Scan the parts that have not been; return what all came to, in order."""
        missing, total = [], plan.log.end - plan.log.begin
        done = 0
        for part in plan.log.parts:
            if self._is_done(part):
                done += part.end - part.begin
            else:
                missing.append(part)
        self._kept = len(plan.log.parts) - len(missing)

        def advance(part: LogPart) -> None:
            nonlocal done
            done += part.end - part.begin
            if report is not None:
                report(done, total)

        self._run(ScanPart(self._job), missing, advance)
        parts = [self._state.read_part(part.number) for part in plan.log.parts]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            raise StoreError(
                f"{self._root.path}: not every part of the rebuild is there; all workers need the "
                "same file system at the same path"
            )
        return found

    def _is_done(self, part: LogPart) -> bool:
        """Tell whether a part was built before, from the records that the log has there now."""
        record = self._state.read_part(part.number)
        if record is None or record.fault is not None:
            return False
        ends = (record.first_record, record.last_record)
        return all(p and read_fingerprint(self._root.log, p.offset) == p for p in ends)

    def _cut_again(self, log: LogParts, gap: Break) -> LogParts:
        """Cut the log so that its parts meet: at damage it ends, else by the chain of records."""
        if gap.damage is not None and log.by_records:
            kept = [p for p in log.parts if p.begin < gap.at]
            kept[-1:] = [replace(p, end=gap.at) for p in kept[-1:]]
            return LogParts(log.begin, gap.at, tuple(kept), gap.damage, by_records=True)
        if log.by_records:
            raise StoreError(f"the log changed while it was read, at offset {gap.at}")
        return cut_by_records(
            self._root.log,
            self._planner,
            log.begin,
            until=log.end,
            part_bytes=self._part_bytes,
        )

    # Queues ---------------------------------------------------------------------------------------

    def _redo(
        self, plan: BulkPlan, keys: Sequence[QueueKey]
    ) -> tuple[dict[QueueKey, QueueDrops], list[QueueMark]]:
        """Build in log order the queues that are not continuous."""
        if not keys:
            return {}, []
        disk, new = self._root.disk, self._state.new
        for topic, queue_id in keys:  # of what was laid, or built by a run before
            for kind in (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR):
                directory = new / kind / topic / str(queue_id)
                if directory.is_dir():
                    disk.remove_tree(directory)
        wanted = set(keys)
        store = ConsumeQueueStore(new, self._config, disk, wanted.__contains__)
        span = (plan.log.begin, plan.log.end)
        replay = LogReplay(self._root.log, self._planner, [span], "it was longer before")
        for batch in replay.batches():
            store.put_message_position_info(batch)
        drops = store.take_drops()
        return drops, store.marks_of(drops)

    def _pre_fill(self, queues: JoinedQueues) -> None:
        if self._config.enable_consume_queue_ext:
            return
        size = self._config.mapped_file_size_consume_queue
        wanted = [(key, first) for key, first, _ in queues.spans() if first % size]
        step = _QUEUES_A_TASK
        tasks = [wanted[n : n + step] for n in range(0, len(wanted), step)]
        if tasks:
            self._run(PreFill(self._job), tasks, lambda _: None)

    # Index ----------------------------------------------------------------------------------------

    def _build_index(self, plan: BulkPlan, parts: Sequence[PartRecord]) -> IndexState:
        config = self._config
        if not config.message_index_enable:
            return IndexState()
        keys, entries_max = [part.keys for part in parts], config.max_index_num - 1
        names: list[str] = []
        for _ in range(count_index_files(keys, entries_max)):
            names.append(name_after(names[-1]) if names else plan.index_begin)
        if not names:
            return IndexState()
        paths = [str(self._state.keys_path(part.number)) for part in plan.log.parts]
        sources = number_keys(list(zip(paths, keys, strict=True)))
        index_parts = plan_index(sources, names, entries_max, self._run.cores)
        missing = [part for part in index_parts if self._state.read_index_part(part) is None]
        self._run(BuildIndex(self._job), missing, lambda _: None)
        ends = [self._state.read_index_part(part) for part in index_parts if part.is_last]
        last, before = ends[-1], ends[-2] if len(ends) > 1 else None
        if last is None:
            raise StoreError(f"{self._root.path}: the index file {names[-1]} was not built")
        full_timestamp = before.end_timestamp if before is not None else 0
        return IndexState(names[0], names[-1], len(names), last.count - 1, full_timestamp)

    # The swap -------------------------------------------------------------------------------------

    def _swap_in(self, end: BatchEnd) -> None:
        """Make all durable, then put it in the places of the old queues and index."""
        root = self._root
        root.disk.sync()
        self._state.forget_keys()  # else they would be written to the disk now, for nothing
        root.disk.sync_all(root.path)
        progress = root.advanced(end)
        signs = read_signs(root.path, root.progress.signs.checkpoint)
        progress = replace(progress, signs=signs)
        names = tuple(name for name in WHOLE if (self._state.new / name).is_dir())
        self._check_places()
        write_swap(root.path, SwapRecord((), progress, names), root.disk)
        root.replaced(finish_swap(root.path, None, root.disk) or progress)

    def _check_places(self) -> None:
        """Refuse to swap what cannot be renamed, before anything is."""
        check_replaced(self._root.path)
        device = self._root.path.stat().st_dev
        for name in WHOLE:
            place = self._root.path / name
            if place.is_symlink() or (place.is_dir() and place.stat().st_dev != device):
                raise ConfigError(
                    f"{place} is a link or lies on another file system, and cannot be swapped: "
                    "rebuild into a new OUTPUT"
                )


def rebuild_root(
    root: DispatchRoot, run: Run, report: Report | None = None, *, part_bytes: int = PART_BYTES
) -> BulkRebuilt:
    """Rebuild a root that ``DispatchRoot.replacing`` took, and give it back, also after an error.

    Raises as ``BulkRebuild.run``.
    """
    is_done = False
    try:
        rebuilt = BulkRebuild(root, run, part_bytes=part_bytes).run(report)
        is_done = True
    finally:
        root.close(clean=is_done)
    return rebuilt
