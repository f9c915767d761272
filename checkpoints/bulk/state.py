"""What a rebuild keeps in ``OUTPUT/reput/bulk`` so that it can go on after a kill.

=====================  ===================================================================
``plan``               the parts of the log, and what they are built with
``parts/N.done``       part N: its bounds, its queues, its keys; ``N.keys`` are the keys
``index/NAME.done``    an index file that is built
``new/``               the queues and the index, as in a root
=====================  ===================================================================

Each record is written after what it names. None is synced: they hold as long as the machine has not
been booted again (``boot_id``), else the rebuild begins anew. Records are those of
``store.dispatched``: a JSON line and its CRC-32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from checkpoints.progress import REPUT_DIR
from store.bulk.index_build import BuiltIndexPart
from store.bulk.key_parts import IndexPart, PartKeys
from store.bulk.log_parts import LogPart, LogParts, Scanned
from store.bulk.queue_parts import PartQueues
from store.disk import Disk
from store.dispatched import Fingerprint, decode_values, encode_values, read_progress_file
from store.errors import DamageError
from store.scan import Damage

BULK_DIR = REPUT_DIR / "bulk"
NEW_DIR, OLD_DIR = BULK_DIR / "new", BULK_DIR / "old"
_PLAN, _PARTS, _INDEX = BULK_DIR / "plan", BULK_DIR / "parts", BULK_DIR / "index"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_Record = TypeVar("_Record")
RELEASE = 1  # of these records and of how parts are built


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """What is built; ``index_begin`` names the first index file."""

    log: LogParts
    store: str
    commit_log: str
    shape: dict[str, Any]
    index_begin: str
    boot_id: str
    release: int = RELEASE

    def fits(self, other: BulkPlan) -> bool:
        """Tell whether what was built by this plan is right for another one."""
        names = ("store", "commit_log", "shape", "boot_id", "release")
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        same_log = self.log.begin == other.log.begin and self.log.end <= other.log.end
        return same and same_log and self.log.damage is None


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


class BulkState:
    """The files below ``OUTPUT/reput/bulk``."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root = root
        self.new = root / NEW_DIR
        self._disk = disk

    def read_plan(self) -> BulkPlan | None:
        """Return the plan of a rebuild that was begun; None if there is none that can be read."""
        path = self.root / _PLAN
        data = read_progress_file(path)
        try:
            return None if data is None else decode_values(data, path, _plan_of)
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
        return _read(self._part_path(number), _part_of)

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
        return _read(self._index_path(part), lambda v: BuiltIndexPart(**v))

    def write_index_part(self, part: IndexPart, built: BuiltIndexPart) -> None:
        """Note that a part of an index file is built."""
        self._disk.put(self._index_path(part), [encode_values(dataclasses.asdict(built))])

    def _index_path(self, part: IndexPart) -> Path:
        return self.root / _INDEX / f"{part.name}-{part.begin_key}-{part.end_key}.done"

    def _part_path(self, number: int) -> Path:
        return self.root / _PARTS / f"{number:06d}.done"


def _read(path: Path, build: Callable[[dict[str, Any]], _Record]) -> _Record | None:
    data = read_progress_file(path)
    return None if data is None else decode_values(data, path, build)


def boot_id() -> str:
    """Return what changes when this machine is booted, "" where that is not told."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _plan_of(values: dict[str, Any]) -> BulkPlan:
    log = values["log"]
    parts = LogParts(
        log["begin"],
        log["end"],
        tuple(LogPart(**part) for part in log["parts"]),
        Damage(**log["damage"]) if log["damage"] else None,
        log["by_records"],
    )
    return BulkPlan(**values | {"log": parts})


def _part_of(values: dict[str, Any]) -> PartRecord:
    topics, queue_ids, first, end, is_continuous = values["queues"]
    queues = PartQueues(
        list(zip(topics, queue_ids, strict=True)),
        np.array(first, np.int64),
        np.array(end, np.int64),
        np.array(is_continuous, np.bool_),
    )
    prints = {
        name: Fingerprint(**values[name]) if values[name] else None
        for name in ("first_record", "last_record")
    }
    fault = Damage(**values["fault"]) if values["fault"] else None
    keys = PartKeys(**values["keys"])
    return PartRecord(**values | {"fault": fault, "keys": keys, "queues": queues} | prints)
