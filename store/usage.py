"""What fills a commit log: messages and bytes by topic, day, queue, tag or producer host.

Bytes are those of whole records. A day is one of UTC, of the store time. The queue is that of the
record, so a delayed message counts where the broker holds it, and again where it was delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from store.broker_properties import BrokerProperties
from store.commitlog.commit_log import CommitLog, ReportProgress
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage
from store.config import StoreConfig, broker_properties
from store.consumequeue.names import is_system_topic
from store.errors import StoreError, StoreIOError
from store.io.spilled_totals import GroupTotals
from store.layout import DLQ_PREFIX, RETRY_PREFIX
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch

_TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_DAY_MS = 24 * 3600 * 1000
_HOUR_MS = 3600 * 1000
_RESERVED_HOURS = 72  # fileReservedTime of MessageStoreConfig
_TOTALS = {"messages": "sum", "bytes": "sum"}
_PORT = r":\d+$"


class By(StrEnum):
    """What the messages are counted by."""

    TOPIC = "topic"
    DAY = "day"
    QUEUE = "queue"
    TAG = "tag"
    HOST = "host"


KEYS: dict[By, tuple[str, ...]] = {  # the fields of a row that name its group
    By.TOPIC: ("topic",),
    By.DAY: ("day",),
    By.QUEUE: ("topic", "queue_id"),
    By.TAG: ("topic", "tag"),
    By.HOST: ("host",),
}


@dataclass(frozen=True, slots=True)
class Expiry:
    """The files of a log that expire on one day of UTC: from when, how many, and their bytes."""

    day: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The counts: ``groups`` by the columns of ``KEYS``, most bytes first.

    ``kinds`` are the same by kind of topic: retry, dead letter, trace, system, user. ``damages``
    are the parts of the log that could not be read.
    """

    groups: GroupTotals
    kinds: list[dict[str, Any]]
    damages: tuple[Damage, ...]


def measure_usage(  # noqa: PLR0913 - the store, its settings, the question, and the caller
    store_root: Path,
    config: StoreConfig,
    by: By = By.TOPIC,
    wanted: MessageFilter | None = None,
    report: ReportProgress | None = None,
    *,
    stop: Event | None = None,
) -> Usage:
    """Read the log once, skipping damage, and count the messages that match.

    Groups beyond a limit of memory are in temporary files. Raises StoreError, also once ``stop`` is
    set.
    """
    wanted = wanted if wanted is not None else MessageFilter()
    search = LogSearch(store_root, config, wanted, stop=stop, skip_damage=True)
    groups, kinds = GroupTotals(KEYS[by], _TOTALS), GroupTotals(["kind"], _TOTALS)
    counts = _columns if by in (By.TAG, By.HOST) else _requests
    for table in counts(search, sorted({"topic", *KEYS[by]}), wanted, report):
        groups.add(table)
        of_topics = pa.array([kind_of(topic) for topic in table["topic"].to_pylist()], pa.string())
        kinds.add(table.append_column("kind", of_topics))
    if search.stop.is_set():
        raise StoreError("the counting was interrupted")
    groups.sort(", ".join(["bytes DESC", *(f"{name} IS NULL, {name}" for name in KEYS[by])]))
    kinds.sort("bytes DESC, kind")
    return Usage(groups, list(kinds.rows()), tuple(search.damages))


def kind_of(topic: str) -> str:
    """Return the kind of a topic: retry, dead letter, trace, system or user."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dead letter"
    if topic == _TRACE_TOPIC:
        return "trace"
    return "system" if is_system_topic(topic) else "user"


def expiries(
    store_root: Path, config: StoreConfig, broker_conf: Path | None = None
) -> list[Expiry]:
    """Return when files of the log expire, the earliest day first; the last file never does.

    A file expires ``fileReservedTime`` hours after its last write; the broker deletes it in the
    hour ``deleteWhen``, or at once if the disk is nearly full
    (``DefaultMessageStore.CleanCommitLogService``). Raises ConfigError, StoreIOError.
    """
    reserved_ms = _reserved_hours(store_root, broker_conf) * _HOUR_MS
    log = CommitLog(config.commit_log_paths(store_root), config)
    log.refresh()
    days: dict[str, list[int]] = {}
    for file in (file for file in log.files[:-1] if file.problem is None):
        try:
            changed_ms = file.path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            continue  # it has expired since
        except OSError as e:
            raise StoreIOError("read", file.path, e) from e
        days.setdefault(_day_text((changed_ms + reserved_ms) // _DAY_MS), []).append(file.length)
    return [Expiry(day, len(sizes), sum(sizes)) for day, sizes in sorted(days.items())]


def _reserved_hours(store_root: Path, broker_conf: Path | None) -> int:
    values, path = broker_properties(store_root, broker_conf)
    read = BrokerProperties(values, str(path))
    return read.positive("fileReservedTime", _RESERVED_HOURS)


def _requests(
    search: LogSearch, names: Sequence[str], wanted: MessageFilter, report: ReportProgress | None
) -> Iterator[pa.Table]:
    """Yield counts from the columns of a scan: no record is decoded."""
    for requests in search.stretches(report=report):
        rows = wanted.candidates(requests)
        columns = {
            "queue": requests.queue[rows],
            "day": requests.store_timestamp[rows] // _DAY_MS,
            "size": requests.size[rows],
        }
        keys = ["queue", *(["day"] if "day" in names else [])]
        yield _with_queues(_counted(pa.table(columns), keys), requests, names)


def _with_queues(table: pa.Table, requests: DispatchRequests, names: Sequence[str]) -> pa.Table:
    """Replace the queue's number in a stretch by its topic and queue id."""
    queue = table["queue"]
    found = {
        "topic": pa.array(requests.topics, pa.string()).take(queue.combine_chunks()),
        "queue_id": pa.array(requests.queue_ids).take(queue.combine_chunks()),
    }
    if "day" in names:
        found["day"] = pa.array([_day_text(day) for day in table["day"].to_pylist()], pa.string())
    columns = {name: found[name] for name in names}
    return pa.table({**columns, **{name: table[name] for name in _TOTALS}})


def _columns(
    search: LogSearch, names: Sequence[str], wanted: MessageFilter, report: ReportProgress | None
) -> Iterator[pa.Table]:
    """Yield counts by what only the records hold."""
    fields = {"topic": "topic", "tag": "tags", "host": "born_host"}
    columns = [fields[name] for name in names]
    for _, batch in search.batches_of([(wanted, [*columns, "size"])], report):
        table = _counted(pa.Table.from_batches([batch]), columns)
        table = table.rename_columns([*names, *_TOTALS])
        if "host" in names:
            at = table.schema.get_field_index("host")
            hosts = pc.replace_substring_regex(table["host"], _PORT, "")
            table = table.set_column(at, "host", hosts)
        yield table


def _counted(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the number of messages and their bytes by keys."""
    groups = table.group_by(list(keys), use_threads=False)
    grouped = groups.aggregate([("size", "count"), ("size", "sum")])
    named = grouped.select([*keys, "size_count", "size_sum"])
    return named.rename_columns([*keys, *_TOTALS])


def _day_text(day: int) -> str:
    """Return a number of days since 1970 as a date; a day out of range as its number."""
    try:
        return str(pa.scalar(day, pa.date32()).as_py())
    except (OverflowError, ValueError, pa.ArrowInvalid):
        return f"day {day}"
