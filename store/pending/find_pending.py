"""The messages that a broker holds back, and what became of each, from the log alone.

The broker's queues are not needed. ``config/delayOffset.json`` shows which delayed messages the
broker passed over; it is read before the log, so that the log holds what the file says was
delivered. The names of the states are those of ``store.pending.states``.

Messages that were popped and not acknowledged are not shown: depending on its settings, a broker
keeps a part of their check points and acknowledgements in memory, or in RocksDB (format notes
§17.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.broker_files import ConfigFile, read_delay_offsets
from store.commitlog.commit_log import CommitLog, ReportProgress
from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.errors import UnsupportedFormatError
from store.io.spilled_totals import GroupTotals
from store.pending.broker_settings import HoldSettings
from store.pending.delay import delay_rows
from store.pending.deliveries import Deliveries, Longs, codes
from store.pending.half import half_rows
from store.pending.held_messages import HELD_TOPICS, MESSAGE, Held, read_held
from store.pending.message_keys import with_keys
from store.pending.states import PENDING_FIELDS, STATES, UNFINISHED, Kind, State, longs
from store.pending.timer import names_topic, timer_rows
from store.reads.message_filter import is_unicode

_ROWS_AT_ONCE = 4096
ROW_NAMES = (*PENDING_FIELDS.names[:4], "uniq_key", "keys", *PENDING_FIELDS.names[4:])


@dataclass(frozen=True, slots=True)
class PendingFilter:
    """Which messages to return: every condition must hold. Times are epoch milliseconds.

    Without ``with_finished``, only messages that are waiting or overdue.
    """

    topics: frozenset[str] = frozenset()
    kinds: frozenset[Kind] = frozenset()
    due_before: int | None = None
    only_overdue: bool = False
    with_finished: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """An answer: ``rows`` (PENDING_FIELDS) by due time, and the damage that was passed.

    ``delays`` is delayOffset.json as it was read. ``left_out`` are the kinds that are not shown,
    because the broker keeps their state in RocksDB, and the setting that says so.
    """

    rows: pa.Table
    damages: tuple[Damage, ...]
    delays: ConfigFile[dict[int, int]]
    store_root: Path
    config: StoreConfig
    left_out: Mapping[Kind, str] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Return a sentence for each kind that is left out."""
        return [_left_out_text(kind, setting) for kind, setting in self.left_out.items()]

    def read_rows(self, begin: int = 0, count: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield rows from a position on, with ``uniq_key`` and ``keys``, which are read meanwhile.

        A message whose log file has expired since is left out. Raises DamageError for a record that
        has changed, StoreIOError.
        """
        log = CommitLog(self.config.commit_log_paths(self.store_root), self.config)
        for part in _slices(self.rows.slice(begin, count)):
            yield from with_keys(part, log, self.config).select(ROW_NAMES).to_pylist()

    def summary(self) -> GroupTotals:
        """Return the counts per state by ``topic`` and ``hour`` of the due time (epoch ms).

        The hour of messages without a due time is None, and comes first.
        """
        groups = GroupTotals(["topic", "hour"], {state.value: "sum" for state in STATES})
        for part in _slices(self.rows):
            due = part["due_timestamp"].cast(pa.timestamp("ms"))
            columns = {
                "topic": part["topic"].cast(pa.string()),
                "hour": pc.floor_temporal(due, unit="hour").cast(pa.int64()),
            }
            counts = {s.value: pc.equal(part["state"], s.value).cast(pa.int64()) for s in STATES}
            groups.add(pa.table(columns | counts))
        groups.sort("topic, hour")
        return groups


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    return (rows.slice(at, _ROWS_AT_ONCE) for at in range(0, rows.num_rows, _ROWS_AT_ONCE))


def find_pending(  # noqa: PLR0913 - the store, its settings, the question, and the time
    store_root: Path,
    config: StoreConfig,
    wanted: PendingFilter,
    *,
    now: int,
    settings: HoldSettings | None = None,
    report: ReportProgress | None = None,
    stop: Event | None = None,
) -> Pending:
    """Read the log and return the pending messages at ``now`` (epoch ms).

    Damage is passed and listed: a message whose record cannot be read is missing, one whose
    delivery cannot be read counts as not delivered. Raises UnsupportedFormatError for a wanted kind
    whose state is in RocksDB; StoreError, also once ``stop`` is set.
    """
    settings = settings or HoldSettings()
    left_out = settings.left_out()
    for kind in sorted(wanted.kinds & left_out.keys()):
        raise UnsupportedFormatError(_left_out_text(kind, left_out[kind]))
    delays = read_delay_offsets(store_root)
    cancels_topic = names_topic(config, settings)
    held = read_held(store_root, config, report, stop, names_topic=cancels_topic)
    # A delivery in a damaged part is not seen: none is concluded to be missing.
    up_to = {} if held.damages else delays.content or {}
    rows = _rows(held, config, settings, up_to, now)
    for kind in left_out:
        rows = rows.filter(pc.field("kind") != kind.value)
    chosen = select_rows(rows, wanted)
    return Pending(chosen, held.damages, delays, store_root, config, left_out)


def _left_out_text(kind: Kind, setting: str) -> str:
    return (
        f"{kind} messages are not shown: their state is in RocksDB, which is not read ({setting})"
    )


def _rows(
    held: Held,
    config: StoreConfig,
    settings: HoldSettings,
    delivered_up_to: Mapping[int, int],
    now: int,
) -> pa.Table:
    tables = [*(held.held[topic] for topic in HELD_TOPICS), held.sent]
    *messages, sent = codes(*([longs(table, name) for name in MESSAGE] for table in tables))
    schedule, timer, half, moved = zip(tables[:-1], messages, strict=True)
    deliveries = Deliveries(
        sent, longs(held.sent, "commit_log_offset"), longs(held.sent, "store_timestamp_ms")
    )
    delay = delay_rows(
        *schedule,
        deliveries,
        levels_ms=config.delay_levels_ms(),
        delivered_up_to=delivered_up_to,
        now=now,
    )
    timers = timer_rows(*timer, deliveries, settings=settings, now=now)
    halves = half_rows(
        *half,
        committed=(held.sent, schedule[0], timer[0]),
        given_up=np.unique(moved[1]),
        ended=held.ended,
        timeout_ms=settings.transaction_timeout_ms,
        now=now,
    )
    return pa.concat_tables([delay, timers, halves]).unify_dictionaries()


def select_rows(rows: pa.Table, wanted: PendingFilter) -> pa.Table:
    """Return the rows that are wanted, by due time and position in the log."""
    chosen = rows.take(wanted_rows(rows, wanted))
    return chosen.sort_by([("due_timestamp", "ascending"), ("commit_log_offset", "ascending")])


def wanted_rows(rows: pa.Table, wanted: PendingFilter) -> Longs:
    """Return the positions of the rows that are wanted, in order; no column is copied."""
    is_wanted = np.ones(rows.num_rows, np.bool_)

    def keep(mask: pa.ChunkedArray) -> None:
        np.logical_and(is_wanted, pc.fill_null(mask, False).to_numpy(), out=is_wanted)

    if wanted.only_overdue:
        keep(pc.equal(rows["state"], State.OVERDUE.value))
    elif not wanted.with_finished:
        keep(pc.is_in(rows["state"], pa.array([state.value for state in UNFINISHED])))
    if wanted.topics:
        names = sorted(filter(is_unicode, wanted.topics))  # no topic has another name
        keep(pc.is_in(rows["topic"], pa.array(names, pa.string())))
    if wanted.kinds:
        keep(pc.is_in(rows["kind"], pa.array([kind.value for kind in wanted.kinds])))
    if wanted.due_before is not None:
        keep(pc.less(rows["due_timestamp"], wanted.due_before))
    return np.flatnonzero(is_wanted)
