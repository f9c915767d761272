"""One broker of the console: its reads, its status, its cached overview and its log monitor.

Only the log is required. OUTPUT may be missing, be rebuilt, or be damaged: then its queues and
index answer with an error, and the log is still read.
"""

from __future__ import annotations

import errno
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from checkpoints.state_paths import RECOVERED
from reput.console.metrics.history import History
from reput.console.monitor import LogMonitor
from reput.console.overview import OverviewCache
from reput.console.scans.background import BackgroundCache
from reput.console.scans.readers import USAGE_BY, pending_reader, usage_reader
from reput.console.security import ConsoleSettings
from store.commitlog.commit_log import CommitLog
from store.config import StoreConfig
from store.errors import ConfigError, DamageError, NoLogError, StoreError, StoreIOError
from store.io.lock_file import find_owner
from store.java import now_ms
from store.layout import CONSUME_QUEUE_DIR, INDEX_DIR, LOCK_FILE
from store.output.dispatch_status import DispatchStatus, read_dispatch_status, status_json
from store.output.progress import PROGRESS, LostRange, read_progress
from store.output.resolve_config import find_config
from store.reads.message_store import MessageStore

if TYPE_CHECKING:
    from store.commitlog.scanner import Damage

_T = TypeVar("_T")
_SWAP_WAIT_SECONDS = 1.0  # that a page waits while files of OUTPUT are replaced
_QUEUE_READS = threading.BoundedSemaphore(8)  # of all brokers: other pages have threads left
_MET_MAX = 100  # damaged places that are remembered
_SHOWN_MAX = 1000  # damaged places that an answer names


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

    def __init__(
        self, source: BrokerSource, settings: ConsoleSettings, *, may_lack_log: bool = False
    ) -> None:
        """Read the store's settings.

        ``may_lack_log``: without a commit log, this is a problem of the store, which ends once it
        exists. Raises NoLogError, ConfigError, UnsupportedFormatError, StoreIOError.
        """
        self.name = source.name
        self.source = source
        self.store_root = source.store_root
        self.output = source.output or source.store_root
        self.settings = settings
        self._guard = threading.Lock()
        self._queues: MessageStore | None = None
        self._met: dict[tuple[Path, int], tuple[DamageError, int]] = {}
        self._lacks_log = may_lack_log
        self.config = self._find_config()
        # Reads of the log alone. Its OUTPUT is a directory that never holds queues or progress.
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
        scanned = self.store_root, self.config, source.broker_conf
        self._has_log = False
        self.pending = BackgroundCache(
            self._checked(pending_reader(*scanned)), f"pending messages of {self.name}"
        )
        self.usage = {
            by: BackgroundCache(
                self._checked(usage_reader(*scanned, by)), f"the use of {self.name} by {by}"
            )
            for by in USAGE_BY
        }
        self.monitor = LogMonitor(
            self.store_root, self.config, settings.max_body_bytes, self.check_log
        )
        self._dispatched_log = CommitLog(logs, self.config)  # from where its last walk ended
        self._dispatch_guard = threading.Lock()
        self.history = History(self._figures)

    def start(self) -> None:
        """Start to follow the log."""
        with suppress(StoreError):
            self.check_log()
        self.monitor.start()
        self.history.start()

    def close(self) -> None:
        """Stop the threads, and release the files."""
        self.overview.close()
        self.pending.close()
        for usage in self.usage.values():
            usage.close()
        self.history.close()
        self.monitor.close()
        self.log.close()
        if self._queues is not None:
            self._queues.close()

    @contextmanager
    def queues(self) -> Iterator[MessageStore]:
        """Yield the reads on queues and index. Raises StoreError if they cannot be read (yet)."""
        with self._guard:
            if self._queues is None:
                self._queues = self._open()
            opened = self._queues
        if not _QUEUE_READS.acquire(timeout=_SWAP_WAIT_SECONDS):
            raise StoreIOError(
                "read", self.output, OSError(errno.EBUSY, "too many reads wait for it")
            )
        try:
            yield opened
        except ConfigError:  # OUTPUT was replaced, perhaps: the next read opens it again
            with self._guard:
                if self._queues is opened:
                    self._queues = None
            raise
        finally:
            _QUEUE_READS.release()

    def check_log(self) -> None:
        """Raise StoreError if the log has no file, but had one: no broker deletes the last one.

        Perhaps its file system is not mounted. Its messages would seem to have expired. So, too, if
        there was no log at the start, until there is one with the settings assumed then.
        """
        if self.log.min_phy_offset() >= 0:
            if self._lacks_log and self._find_config() != self.config:
                reason = "settings differ from those assumed while it had no log"
                raise ConfigError(f"{self.store_root}: its {reason}; restart reput serve")
            self._has_log, self._lacks_log = True, False
        elif self._has_log or self._lacks_log:
            path = self.config.commit_log_paths(self.store_root)[0]
            has = "has no file" if self._lacks_log else "no longer has any file"
            reason = f"it {has} (is a file system not mounted?)"
            raise StoreIOError("read", path, OSError(errno.ENOENT, reason))

    def _checked(self, read: Callable[[int, threading.Event], _T]) -> Callable[..., _T]:
        """Return a scan of the log whose answer stands only if there still is one."""

        def checked(now: int, stop: threading.Event) -> _T:
            answer = read(now, stop)
            self.check_log()
            return answer

        return checked

    def note_damage(self, error: DamageError) -> None:
        """Show damage that a read met, until its file changes."""
        with self._guard:
            if len(self._met) < _MET_MAX:
                self._met[error.path, error.offset] = error, _changed_ns(error.path)

    def damages(self) -> list[DamageError | StoreIOError]:
        """Return the damage of the log that is known: missing files, and what reads met."""
        with self._guard:
            for place, (error, changed) in list(self._met.items()):
                if _changed_ns(error.path) != changed:
                    del self._met[place]
            met = [error for error, _ in self._met.values()]
        return [*self.log.missing_files(), *met]

    def status(self) -> dict[str, Any]:
        """Return the status of log, dispatch and monitor; damage is part of it."""
        has_no_queues = self.overview.has_no_queues()
        problem: str | None = None
        damages: list[str] = []
        try:
            first, end = max(self.log.min_phy_offset(), 0), self.log.max_phy_offset()
            damages = [str(e) for e in self.damages()]
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
            "problem": problem or (None if has_no_queues else self.overview.error()),
            "build_command": self.build_command() if has_no_queues else None,
            "recovered": self._recovery(),
            "damage": [*damages, *self.overview.damages(), *filter(None, [self.monitor.error()])],
            "is_live": self._is_live(),
        }
        return fields | self._figures()

    def _figures(self) -> dict[str, Any]:
        """Return the status of dispatch and monitor, which the history samples."""
        now = now_ms()
        return {"now_ms": now, **self._dispatch_status(now), **self.monitor.status()}

    def _is_live(self) -> bool:
        """Return whether a broker or a dispatch runs, or messages have come in within an hour."""
        try:
            owners = [
                find_owner(directory / LOCK_FILE) for directory in (self.store_root, self.output)
            ]
        except StoreError:  # no sign of a process
            owners = []
        return any(pid is not None for pid in owners) or self.history.has_arrivals()

    def command(self, name: str, *options: str) -> str:
        """Return a command line for a shell in any directory, with the options of the console."""
        source = self.source
        paths = (("--output", source.output), ("--broker-conf", source.broker_conf))
        words = ["reput", name, str(source.store_root.absolute()), *options]
        for option, path in paths:
            if path is not None:
                words += [option, str(path.absolute())]
        if source.broker_version is not None:
            words += ["--broker-version", source.broker_version]
        return shlex.join(words)

    def build_command(self) -> str:
        """Return the command that builds the queues; OUTPUT is for the user to choose."""
        return self.command("rebuild", *(["--output", "OUTPUT"] if not self.source.output else []))

    def is_stuck(self) -> bool:
        """Return whether the dispatch is stuck; False without one. Raises StoreError."""
        if not (self.output / PROGRESS).exists():
            return False
        return self._read_dispatch().stuck_ms(now_ms()) > self.settings.stuck_after * 1000

    def _read_dispatch(self) -> DispatchStatus:
        with self._dispatch_guard:
            return read_dispatch_status(self._dispatched_log, self.output)

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
        names = ("reput_from_offset", "progress_timestamp", "waiting_timestamp", "stuck_ms")
        nothing = dict.fromkeys((*names, "behind_bytes", "behind_ms", "dropped"))
        nothing |= {"is_stuck": False, "lost": []}
        try:
            progress = read_progress(self.output)
            if progress is None:
                return nothing
            dispatch = self._read_dispatch()
        except StoreError as e:
            return nothing | {"problem": str(e)}
        is_stuck = dispatch.stuck_ms(now) > self.settings.stuck_after * 1000
        return {
            "reput_from_offset": dispatch.reput_from_offset,
            **status_json(dispatch, now, is_stuck=is_stuck),
            "lost": [range_json(r) for r in progress.lost],
            "dropped": {
                name: sum(counts[name] for counts in progress.drops.values())
                for name in ("repeated", "gaps")
            },
        }

    def _find_config(self) -> StoreConfig:
        """Return the settings recorded in OUTPUT, or those of the store if it cannot be read."""
        source = self.source
        given = source.broker_conf, source.broker_version
        try:
            return find_config(self.store_root, self.output, *given, may_lack_log=self._lacks_log)
        except NoLogError:
            raise
        except ConfigError:
            if source.output is None or (self.output / PROGRESS).exists():
                raise
        except (DamageError, StoreIOError):
            pass  # every page that needs the queues reports it
        return find_config(self.store_root, None, *given, may_lack_log=self._lacks_log)

    def _open(self) -> MessageStore:
        source = self.source
        opened = MessageStore.open(
            source.store_root, source.output, source.broker_conf, source.broker_version
        )
        opened.max_body_bytes = self.settings.max_body_bytes
        opened.swap_wait_seconds = _SWAP_WAIT_SECONDS
        return opened


def range_json(damage: Damage | LostRange) -> dict[str, Any]:
    """Return a range of the log that could not be read as JSON values."""
    return {name: getattr(damage, name) for name in ("begin", "end", "path", "reason")}


def damage_texts(damages: Sequence[Damage]) -> list[str]:
    """Return what a scan could not read as texts, and the number of those beyond the limit."""
    texts = [str(damage.passed()) for damage in damages[:_SHOWN_MAX]]
    further = len(damages) - len(texts)
    return [*texts, f"and {further:,} more"] if further else texts


def _changed_ns(path: Path) -> int:
    """Return when a file was last changed, -1 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def _report(read: Callable[[Path], Any], output: Path) -> dict[str, Any] | None:
    """Return a report as JSON values; why it cannot be read is its ``error``."""
    try:
        report = read(output)
    except StoreError as e:
        return {"error": str(e)}
    return None if report is None else asdict(report)
