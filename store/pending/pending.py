"""The messages that a broker holds back, and what became of each, from the log alone.

The broker's queues are not needed. ``config/delayOffset.json`` tells which delayed messages the
broker passed over; it is read before the log, so that the log holds what the file says was
delivered. The names of the states are those of ``store.pending.states``.

Messages that were popped and not acknowledged are not shown: depending on its settings, a broker
keeps a part of their check points and acknowledgements in memory, or in RocksDB (format notes
§17.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.broker_files import ConfigFile, read_delay_offsets
from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.errors import UnsupportedFormatError
from store.layout import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from store.pending.delay import delay_rows
from store.pending.deliveries import Deliveries, Longs, codes
from store.pending.half import half_rows
from store.pending.held import Held, read_held
from store.pending.settings import HoldSettings
from store.pending.states import UNFINISHED, Kind, State, longs
from store.pending.timer import timer_rows
from store.reads.search import Report

_HOUR_MS = 3_600_000


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
    left_out: Mapping[Kind, str] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Return a sentence for each kind that is left out."""
        return [_left_out_text(kind, setting) for kind, setting in self.left_out.items()]

    def summary(self) -> list[tuple[str, int | None, Mapping[State, int]]]:
        """Return the count per state by topic and hour of the due time (epoch ms), in order.

        The hour of messages without a due time is None.
        """
        hours = pc.floor_temporal(self.rows["due_timestamp"].cast(pa.timestamp("ms")), unit="hour")
        table = pa.table(
            {
                "topic": self.rows["topic"],
                "hour": hours.cast(pa.int64()),
                "state": self.rows["state"],
            }
        )
        counts = table.group_by(["topic", "hour", "state"]).aggregate([([], "count_all")])
        found: dict[tuple[str, int | None], dict[State, int]] = {}
        for row in counts.to_pylist():
            of_hour = found.setdefault((row["topic"], row["hour"]), {})
            of_hour[State(row["state"])] = row["count_all"]
        return [(topic, hour, found[topic, hour]) for topic, hour in sorted(found, key=_order)]


def _order(topic_hour: tuple[str, int | None]) -> tuple[str, int]:
    topic, hour = topic_hour
    return topic, -1 if hour is None else hour


def find_pending(  # noqa: PLR0913 - the store, its settings, the question, and the time
    store_root: Path,
    config: StoreConfig,
    wanted: PendingFilter,
    *,
    now: int,
    settings: HoldSettings | None = None,
    report: Report | None = None,
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
    held = read_held(store_root, config, report, stop)
    # A delivery in a damaged part is not seen: none is concluded to be missing.
    up_to = {} if held.damages else delays.content or {}
    rows = _rows(held, config, settings, up_to, now)
    for kind in left_out:
        rows = rows.filter(pc.field("kind") != kind.value)
    return Pending(select_rows(rows, wanted), held.damages, delays, left_out)


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
    message, sent = codes(held.held["message"], held.sent["message"])
    deliveries = Deliveries(
        sent, longs(held.sent, "commit_log_offset"), longs(held.sent, "store_timestamp_ms")
    )

    def part(topic: str) -> tuple[pa.Table, Longs]:
        return held.of_topic(topic), message[pc.equal(held.held["topic"], topic).to_numpy()]

    schedule, timer = part(SCHEDULE_TOPIC), part(TIMER_TOPIC)
    return pa.concat_tables(
        [
            delay_rows(
                *schedule,
                deliveries,
                levels_ms=config.delay_levels_ms(),
                delivered_up_to=delivered_up_to,
                now=now,
            ),
            timer_rows(
                *timer,
                deliveries,
                config=config,
                settings=settings,
                now=now,
            ),
            half_rows(
                *part(HALF_TOPIC),
                committed=(held.sent, schedule[0], timer[0]),
                given_up=np.unique(part(CHECK_MAX_TIME_TOPIC)[1]),
                ended=held.ended,
                timeout_ms=settings.transaction_timeout_ms,
                now=now,
            ),
        ]
    )


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
        keep(pc.is_in(rows["topic"], pa.array(sorted(wanted.topics))))
    if wanted.kinds:
        keep(pc.is_in(rows["kind"], pa.array([kind.value for kind in wanted.kinds])))
    if wanted.due_before is not None:
        keep(pc.less(rows["due_timestamp"], wanted.due_before))
    return np.flatnonzero(is_wanted)
