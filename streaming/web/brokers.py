"""One broker of the console: its reads, its status, its cached overview and its log monitor.

Only the log is required. OUTPUT may be missing, be rebuilt, or be damaged: then its queues and
index answer with an error, and the log is still read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkpoints.state_paths import RECOVERED
from store.errors import ConfigError, StoreError
from store.layout import CONSUME_QUEUE_DIR, INDEX_DIR
from store.reads.message_store import MessageStore
from store.root.progress import PROGRESS
from store.root.status import read_dispatch_status, status_json
from streaming.web.monitor import LogMonitor
from streaming.web.overview import OverviewCache
from streaming.web.security import ConsoleSettings


@dataclass(frozen=True, slots=True)
class BrokerSource:
    """A broker to show: ``output`` holds its queues and index, None if the store itself does."""

    name: str
    store_root: Path
    output: Path | None = None
    broker_conf: Path | None = None
    broker_version: str | None = None


class Broker:
    """A broker's store for the console. Threads may share it."""

    def __init__(self, source: BrokerSource, settings: ConsoleSettings) -> None:
        """Read the store's settings. Raises ConfigError, UnsupportedFormatError, StoreIOError."""
        self.name = source.name
        self.source = source
        self.store_root = source.store_root
        self.output = source.output or source.store_root
        self.settings = settings
        self._guard = threading.Lock()
        self._queues: MessageStore | None = None
        self.config = self._open_any().config
        # Reads of the log alone. Its root is a directory that never holds queues or progress.
        logs = self.config.commit_log_paths(self.store_root)
        self.log = MessageStore(self.store_root, logs[0], self.config)
        self.log.max_body_bytes = settings.max_body_bytes
        self.overview = OverviewCache(
            self.queues,
            {
                "commitlog": logs,
                "consumequeue": (self.output / CONSUME_QUEUE_DIR,),
                "index": (self.output / INDEX_DIR,),
            },
        )
        self.monitor = LogMonitor(self.store_root, self.config, settings.max_body_bytes)

    def start(self) -> None:
        """Start to follow the log."""
        self.monitor.start()

    def close(self) -> None:
        """Stop the threads, and release the files."""
        self.overview.close()
        self.monitor.close()
        self.log.close()
        if self._queues is not None:
            self._queues.close()

    @contextmanager
    def queues(self) -> Iterator[MessageStore]:
        """Yield the reads on queues and index. Raises StoreError if they cannot be read (yet)."""
        with self._guard:
            if self._queues is None:
                self._queues = self._open(self.source)
            opened = self._queues
        try:
            yield opened
        except ConfigError:  # OUTPUT was replaced, perhaps: the next read opens it again
            with self._guard:
                if self._queues is opened:
                    self._queues = None
            raise

    def status(self) -> dict[str, Any]:
        """Return the status of log, dispatch and monitor; damage is part of it."""
        now = int(time.time() * 1000)
        problem: str | None = None
        try:
            first, end = max(self.log.min_phy_offset(), 0), self.log.max_phy_offset()
        except StoreError as e:
            first = end = 0
            problem = str(e)
        fields: dict[str, Any] = {
            "broker": self.name,
            "store": str(self.store_root),
            "output": None if self.source.output is None else str(self.output),
            "log_min_offset": first,
            "log_max_offset": end,
            "log_bytes": end - first,
            "problem": problem or self.overview.error(),
            "recovered": self._recovery(),
            "damage": [*self.overview.damages(), *filter(None, [self.monitor.error()])],
            "now_ms": now,
        }
        return fields | self._dispatch_status(now) | self.monitor.status()

    def is_stuck(self) -> bool:
        """Return whether the dispatch is stuck; False without one. Raises StoreError."""
        if not (self.output / PROGRESS).exists():
            return False
        dispatch = read_dispatch_status(self.store_root, self.output, self.config)
        now = int(time.time() * 1000)
        return dispatch.stuck_ms(now) > self.settings.stuck_after * 1000

    def _recovery(self) -> dict[str, Any] | None:
        """Return what the last recovery of OUTPUT did, None without one."""
        if not (self.output / RECOVERED).exists():
            return None
        from checkpoints.recovery.reports import read_recovery  # noqa: PLC0415 - loads numba

        return _report(read_recovery, self.output)

    def verification(self) -> dict[str, Any] | None:
        """Return the last result of ``verify --record``, None without one."""
        from checkpoints.recovery.reports import read_verification  # noqa: PLC0415 - loads numba

        return _report(read_verification, self.output)

    def _dispatch_status(self, now: int) -> dict[str, Any]:
        """Return the status of the dispatch into OUTPUT; nulls if there is none."""
        from checkpoints.progress import read_progress  # noqa: PLC0415 - loads numba

        names = ("reput_from_offset", "progress_timestamp", "waiting_timestamp", "stuck_ms")
        nothing = dict.fromkeys((*names, "behind_bytes", "behind_ms", "dropped"))
        nothing |= {"is_stuck": False, "lost": []}
        try:
            progress = read_progress(self.output)
            if progress is None:
                return nothing
            dispatch = read_dispatch_status(self.store_root, self.output, self.config)
        except StoreError as e:
            return nothing | {"problem": str(e)}
        is_stuck = dispatch.stuck_ms(now) > self.settings.stuck_after * 1000
        return {
            "reput_from_offset": dispatch.reput_from_offset,
            **status_json(dispatch, now, is_stuck=is_stuck),
            "lost": [
                {"begin": r.begin, "end": r.end, "path": r.path, "reason": r.reason}
                for r in progress.lost
            ],
            "dropped": {
                name: sum(counts[name] for counts in progress.drops.values())
                for name in ("repeated", "gaps")
            },
        }

    def _open_any(self) -> MessageStore:
        """Open OUTPUT, or the store alone if OUTPUT cannot be read yet."""
        source = self.source
        if source.output is not None:
            try:
                return self._open(source)
            except ConfigError:
                if (self.output / PROGRESS).exists():
                    raise
            except StoreError:
                pass  # every page that needs OUTPUT reports it
        alone = BrokerSource(
            source.name, source.store_root, None, source.broker_conf, source.broker_version
        )
        return self._open(alone)

    def _open(self, source: BrokerSource) -> MessageStore:
        opened = MessageStore.open(
            source.store_root, source.output, source.broker_conf, source.broker_version
        )
        opened.max_body_bytes = self.settings.max_body_bytes
        return opened


def _report(read: Callable[[Path], Any], output: Path) -> dict[str, Any] | None:
    """Return a report as JSON values; why it cannot be read is its ``error``."""
    try:
        report = read(output)
    except StoreError as e:
        return {"error": str(e)}
    return None if report is None else asdict(report)
