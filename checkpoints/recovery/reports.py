"""What the last recovery and the last verification of OUTPUT found, kept for its readers.

====================  ========================================================================
``reput/recovered``   written by a start that recovered OUTPUT, and by ``reput recover``
``reput/verified``    written by ``reput verify --record``
====================  ========================================================================

Nothing depends on these records, and no lock is needed: each write replaces the whole file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoints.recovery.steps import Recovered
from checkpoints.state_paths import RECOVERED, VERIFIED
from store.io.checked_json import Count, Offset, Position, encode_record, read_record
from store.io.disk import Disk
from store.java import now_ms

_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The recoveries of one start; ``timestamp`` is epoch ms, offsets are physical offsets.

    ``reasons`` has one text for each recovery. The counts are of what was truncated or removed.
    """

    timestamp: int
    reasons: tuple[str, ...]
    from_offset: Position
    to_offset: Position
    units: Count
    index_entries: Count
    files: Count


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result of a verification; ``timestamp`` is epoch ms, offsets are physical offsets.

    ``first`` has the first of the ``differences``, in words.
    """

    timestamp: int
    equal: bool
    begin_offset: Offset
    end_offset: Offset
    messages: Count
    differences: Count
    first: tuple[str, ...]


def record_recoveries(output: Path, recovered: Sequence[Recovered], disk: Disk) -> None:
    """Record the recoveries of a start; nothing if there were none. Raises StoreIOError."""
    if not recovered:
        return
    report = RecoveryReport(
        timestamp=now_ms(),
        reasons=tuple(r.why for r in recovered),
        from_offset=recovered[0].from_offset,
        to_offset=recovered[-1].to_offset,
        units=sum(r.cut.units for r in recovered),
        index_entries=sum(r.cut.index_entries for r in recovered),
        files=sum(r.cut.files for r in recovered),
    )
    disk.replace(output / RECOVERED, encode_record(report))


def record_verification(
    output: Path, span: tuple[int, int], messages: int, differences: Sequence[object]
) -> None:
    """Record the result of a verification of a span of the log. Raises StoreIOError."""
    begin, end = span
    report = VerificationReport(
        timestamp=now_ms(),
        equal=not differences,
        begin_offset=begin,
        end_offset=end,
        messages=messages,
        differences=len(differences),
        first=tuple(map(str, differences[:_SHOWN_MAX])),
    )
    Disk().replace(output / VERIFIED, encode_record(report))


def read_recovery(output: Path) -> RecoveryReport | None:
    """Return what the last recovery did, None without one. Raises DamageError, StoreIOError."""
    return read_record(output / RECOVERED, RecoveryReport)


def read_verification(output: Path) -> VerificationReport | None:
    """Return the result of the last verification that was recorded. Raises as ``read_recovery``."""
    return read_record(output / VERIFIED, VerificationReport)
