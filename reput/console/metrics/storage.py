"""What the files of a store show: its log, the position of a dispatch, groups and timer wheel."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from reput.console.metrics import metric_names
from reput.console.metrics.metric_names import Node
from reput.console.metrics.samples import Samples
from store.broker_files import read_timer_checkpoint, read_timing_counts
from store.commitlog.commit_log import CommitLog
from store.config import StoreConfig
from store.consumequeue.names import is_system_topic
from store.errors import DamageError, LostDataError, StoreIOError
from store.java import now_ms
from store.layout import RETRY_PREFIX, TIMER_TOPIC
from store.output.dispatch_status import DispatchStatus, status_at
from store.topics.consumer_lag import Lag
from store.topics.overview import Overview

_SYSTEM_GROUP_PREFIX = "cid_rmq_sys_"


@dataclass(frozen=True, slots=True)
class Position:
    """How far a log has been read: a physical offset, and when it was recorded (epoch ms)."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class LogState:
    """A log, and how far it had been read at ``now_ms``; times are epoch ms."""

    now_ms: int
    status: DispatchStatus
    earliest_timestamp: int | None  # of its first message
    used_bytes: int  # of the file system that holds the store

    @property
    def behind_ms(self) -> int:
        """The age of the first message in the backlog, 0 without one."""
        return self.status.behind_ms(self.now_ms)

    @property
    def reserve_ms(self) -> int | None:
        """The age of the oldest message, None without one."""
        earliest = self.earliest_timestamp
        return None if earliest is None else max(self.now_ms - earliest, 0)

    @property
    def stuck_ms(self) -> int:
        """For how long a message has been waiting without any progress."""
        return self.status.stuck_ms(self.now_ms)

    def fault(self, stuck_after: float) -> str:
        """Return why the reader of the log is unhealthy, "" if it is not; argument in seconds."""
        if self.stuck_ms <= stuck_after * 1000:
            return ""
        return (
            f"stuck: no progress from offset {self.status.reput_from_offset} for "
            f"{self.stuck_ms // 1000} s, and a message is waiting"
        )


class LogReader:
    """Reads the state of one log at each scrape, from where the last one ended. Thread-safe."""

    def __init__(
        self, store_root: Path, config: StoreConfig, position: Callable[[], Position]
    ) -> None:
        self._store_root = store_root
        self._log = CommitLog(config.commit_log_paths(store_root), config)
        self._position = position
        self._lock = threading.Lock()

    def read(self) -> LogState:
        """Read the state. Raises DamageError, StoreIOError, and what ``position`` raises."""
        with self._lock:
            position = self._position()
            self._log.refresh()
            return LogState(
                now_ms=now_ms(),
                status=status_at(self._log, position.offset, position.timestamp),
                earliest_timestamp=self._earliest_timestamp(),
                used_bytes=used_bytes(self._store_root),
            )

    def _earliest_timestamp(self) -> int | None:
        begin = self._log.min_offset()
        if begin < 0:
            return None
        try:
            return self._log.message(begin).store_timestamp
        except (DamageError, LostDataError):  # an empty log; damage is not reported here
            return None


def measure_backlog(
    samples: Samples, node: Node, *, behind_bytes: int, behind_ms: int, stuck_ms: int
) -> None:
    """Add the backlog of a dispatch."""
    samples.add(metric_names.DISPATCH_BEHIND_BYTES, node, behind_bytes)
    samples.add(metric_names.DISPATCH_BEHIND_MS, node, behind_ms)
    samples.add(metric_names.DISPATCH_STUCK_MS, node, stuck_ms)


def measure_log(samples: Samples, node: Node, used_bytes: int, reserve_ms: int | None) -> None:
    """Add the used bytes of the log's file system, and the age of the oldest message, if any."""
    samples.add(metric_names.STORAGE_SIZE, node, used_bytes)
    if reserve_ms is not None:
        samples.add(metric_names.RESERVE_TIME, node, reserve_ms)


def measure_drops(samples: Samples, node: Node, *, repeated: int, gaps: int) -> None:
    """Add the messages that a broker's own rules dropped or misplaced."""
    samples.add(metric_names.DROPPED_MESSAGES, node, repeated, "repeated")
    samples.add(metric_names.DROPPED_MESSAGES, node, gaps, "gap")


def measure_groups(samples: Samples, node: Node, lags: Iterable[tuple[str, Lag]]) -> None:
    """Add the lag of each group on each topic.

    As a broker counts it: the sum over the queues in which the group has committed an offset, and
    the age of the oldest message that it has not consumed.
    """
    now = now_ms()
    by_group: dict[tuple[str, str], list[Lag]] = {}
    for group, lag in lags:
        by_group.setdefault((lag.queue.topic, group), []).append(lag)
    for (topic, group), queues in by_group.items():
        is_system = is_system_topic(topic) or group.lower().startswith(_SYSTEM_GROUP_PREFIX)
        labels = (topic, group, _flag(topic.startswith(RETRY_PREFIX)), _flag(is_system))
        messages = sum(max(lag.messages or 0, 0) for lag in queues)
        waiting = [lag.next_timestamp for lag in queues if lag.next_timestamp is not None]
        latency = max(now - min(waiting), 0) if waiting else 0
        samples.add(metric_names.CONSUMER_LAG, node, messages, *labels)
        samples.add(metric_names.CONSUMER_LAG_MS, node, latency, *labels)


def measure_timer(
    samples: Samples, node: Node, store_root: Path, overview: Overview | None
) -> None:
    """Add what the broker records of its timer wheel in ``config/``. Raises StoreIOError."""
    for topic, count in (read_timing_counts(store_root).content or {}).items():
        samples.add(metric_names.TIMING_MESSAGES, node, count, topic)
    checkpoint = read_timer_checkpoint(store_root)
    if checkpoint is None:
        return
    latency = max(now_ms() - checkpoint.read_timestamp, 0)
    samples.add(metric_names.TIMER_DEQUEUE_LATENCY, node, latency)
    for state in () if overview is None else overview.topics:
        if state.topic == TIMER_TOPIC and state.queues and state.queues[0].damage is None:
            lag = max(state.queues[0].max_offset - checkpoint.queue_offset, 0)
            samples.add(metric_names.TIMER_ENQUEUE_LAG, node, lag)


def measure_incoming(samples: Samples, node: Node, counts: Mapping[str, tuple[int, int]]) -> None:
    """Add the messages and bytes of each topic that were appended to the log."""
    for topic, (messages, size) in counts.items():
        labels = (topic, _flag(is_system_topic(topic)))
        samples.add(metric_names.MESSAGES_IN, node, messages, *labels)
        samples.add(metric_names.THROUGHPUT_IN, node, size, *labels)


def used_bytes(path: Path) -> int:
    """Return the used bytes of a file system. Java parity: File.getTotalSpace - getFreeSpace."""
    try:
        usage = os.statvfs(path)
    except OSError as e:
        raise StoreIOError("measure", path, e) from e
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize


def _flag(value: bool) -> str:
    return str(value).lower()
