"""What a rebuild keeps in ``OUTPUT/reput/bulk`` so that it can go on after a kill.

=====================  ===================================================================
``plan``               the parts of the log, and what they are built with
``parts/N.done``       part N: its bounds, its queues, its keys; ``N.keys`` are the keys
``index/NAME.done``    an index file that is built
``new/``               the queues and the index, as in a root
=====================  ===================================================================

Each record is written after what it names. None is synced: they hold as long as the machine has not
been booted again (``boot_id``), else the rebuild begins anew. Their encoding:
``store.state_codec``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np

from checkpoints.progress import REPUT_DIR
from store.bulk.index_build import BuiltIndexPart
from store.bulk.key_parts import IndexPart, PartKeys
from store.bulk.log_parts import LogParts, Scanned
from store.bulk.queue_parts import PartQueues
from store.config import Shape
from store.disk import Disk
from store.dispatched import Fingerprint
from store.errors import DamageError
from store.layout import RECORD_MIN_SIZE
from store.scan import Damage
from store.state_codec import (
    Check,
    Offset,
    PathText,
    Position,
    decode_record,
    encode_values,
    read_state_file,
)
from store.state_names import IndexFileName, QueueId, Topic

BULK_DIR = REPUT_DIR / "bulk"
NEW_DIR, OLD_DIR = BULK_DIR / "new", BULK_DIR / "old"
_PLAN, _PARTS, _INDEX = BULK_DIR / "plan", BULK_DIR / "parts", BULK_DIR / "index"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_Record = TypeVar("_Record")
RELEASE = 1  # of these records and of how parts are built


def _tiles(log: LogParts) -> bool:
    """Return whether parts tile the log, each within the file that its base begins."""
    bounds = [log.begin, *(part.end for part in log.parts)]
    return bounds[-1] == log.end and all(
        part.base <= part.begin == bound <= part.end and part.number == number
        for number, (part, bound) in enumerate(zip(log.parts, bounds, strict=False))
    )


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """What is built; ``index_begin`` names the first index file."""

    log: Annotated[LogParts, Check("parts that tile the log", _tiles)]
    store: PathText
    commit_log: PathText
    shape: Shape
    index_begin: IndexFileName
    boot_id: str
    release: int = RELEASE

    def fits(self, other: BulkPlan) -> bool:
        """Tell whether what was built by this plan is right for another one."""
        names = ("store", "commit_log", "shape", "boot_id", "release")
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        same_log = self.log.begin == other.log.begin and self.log.end <= other.log.end
        files = [{(part.path, part.base) for part in plan.log.parts} for plan in (self, other)]
        return same and same_log and files[0] <= files[1] and self.log.damage is None


@dataclass(frozen=True, slots=True)
class PartRecord:
    """What one part came to: the scanned bounds, its queues and keys, its first and last record."""

    begin: int
    end: int
    fault: Damage | None
    keys: PartKeys
    queues: PartQueues
    first_record: Fingerprint | None
    last_record: Fingerprint | None

    @property
    def scanned(self) -> Scanned:
        """The bounds of the part, without what it held."""
        return Scanned(self.begin, self.end, [], self.fault)


@dataclass(frozen=True, slots=True)
class _PartValues:
    """A PartRecord as its file has it: ``queues`` as one list for each of its columns."""

    begin: Offset
    end: Offset
    fault: Damage | None
    keys: PartKeys
    queues: tuple[
        tuple[Topic, ...],
        tuple[QueueId, ...],
        tuple[Position, ...],
        tuple[Position, ...],
        tuple[bool, ...],
    ]
    first_record: Fingerprint | None
    last_record: Fingerprint | None

    def __post_init__(self) -> None:
        size, keys = self.end - self.begin, self.keys
        if len({len(column) for column in self.queues}) != 1:
            raise ValueError("the columns of queues differ in length")
        if keys.records * RECORD_MIN_SIZE > size or keys.keys > size:
            raise ValueError("its keys do not fit its bounds")

    def record(self) -> PartRecord:
        """Return the record."""
        topics, queue_ids, first, end, is_continuous = self.queues
        queues = PartQueues(
            list(zip(topics, queue_ids, strict=True)),
            np.array(first, np.int64),
            np.array(end, np.int64),
            np.array(is_continuous, np.bool_),
        )
        records = self.first_record, self.last_record
        return PartRecord(self.begin, self.end, self.fault, self.keys, queues, *records)


class BulkState:
    """The files below ``OUTPUT/reput/bulk``."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root = root
        self.new = root / NEW_DIR
        self._disk = disk

    def read_plan(self) -> BulkPlan | None:
        """Return the plan of a rebuild that was begun; None if there is none that can be read."""
        path = self.root / _PLAN
        try:
            return _read(path, BulkPlan)
        except DamageError:  # it was being written
            return None

    def write_plan(self, plan: BulkPlan) -> None:
        """Write the plan, when nothing of another one is there any more."""
        self._disk.put(self.root / _PLAN, [encode_values(dataclasses.asdict(plan))])

    def forget_plan(self) -> None:
        """Delete the plan, durably: nothing goes on from what was built."""
        self._disk.remove(self.root / _PLAN)
        self._disk.sync()

    def forget(self) -> None:
        """Delete all that has been built; the plan first."""
        self.forget_plan()
        if (self.root / BULK_DIR).is_dir():
            self._disk.remove_tree(self.root / BULK_DIR)

    def forget_keys(self) -> None:
        """Delete the keys of all parts: every index file is built."""
        for path in (self.root / _PARTS).glob("*.keys"):
            self._disk.remove(path)

    def keys_path(self, number: int) -> Path:
        """Return where the keys of a part lie."""
        return self.root / _PARTS / f"{number:06d}.keys"

    def read_part(self, number: int) -> PartRecord | None:
        """Return what a part came to, None if it has not been done."""
        found = _read(self._part_path(number), _PartValues)
        return None if found is None else found.record()

    def write_part(self, number: int, record: PartRecord) -> None:
        """Note that a part is done; what it built must be there."""
        queues = record.queues
        values = {
            "begin": record.begin,
            "end": record.end,
            "queues": [
                [topic for topic, _ in queues.keys],
                [queue_id for _, queue_id in queues.keys],
                queues.first.tolist(),
                queues.end.tolist(),
                queues.is_continuous.tolist(),
            ],
        }
        for name in ("fault", "keys", "first_record", "last_record"):
            value = getattr(record, name)
            values[name] = dataclasses.asdict(value) if value is not None else None
        self._disk.put(self._part_path(number), [encode_values(values)])

    def read_index_part(self, part: IndexPart) -> BuiltIndexPart | None:
        """Return what a part of an index file came to, None if it is not built."""
        return _read(self._index_path(part), BuiltIndexPart)

    def write_index_part(self, part: IndexPart, built: BuiltIndexPart) -> None:
        """Note that a part of an index file is built."""
        self._disk.put(self._index_path(part), [encode_values(dataclasses.asdict(built))])

    def _index_path(self, part: IndexPart) -> Path:
        return self.root / _INDEX / f"{part.name}-{part.begin_key}-{part.end_key}.done"

    def _part_path(self, number: int) -> Path:
        return self.root / _PARTS / f"{number:06d}.done"


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    data = read_state_file(path)
    return None if data is None else decode_record(data, path, kind)


def boot_id() -> str:
    """Return what changes when this machine is booted, "" where that is not told."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
