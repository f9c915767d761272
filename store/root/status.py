"""How a dispatch stands: what waits in the log behind it, and when it last got on.

Cheap enough to be asked every few seconds: it looks at the progress record and at one place of the
log, the one where the dispatch goes on. A message there, long stored while the progress record is
as old, means that the dispatch is stuck, whether its process is alive or not. One that catches up
with an old log writes progress after every batch, and one with nothing to do has nothing waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.commitlog.record import Message
from store.config import StoreConfig
from store.errors import ConfigError, DamageError, LostDataError, StoreIOError
from store.root.progress import PROGRESS, ProgressReader


@dataclass(frozen=True, slots=True)
class DispatchStatus:
    """Where a dispatch is. Times are epoch milliseconds."""

    reput_from_offset: int
    progress_timestamp: int  # when progress was last written
    waiting_timestamp: int | None  # of the first message not dispatched, if one waits

    def stuck_ms(self, now_ms: int) -> int:
        """Return for how long a message has waited and nothing was dispatched."""
        if self.waiting_timestamp is None:
            return 0
        return max(now_ms - max(self.waiting_timestamp, self.progress_timestamp), 0)


def read_dispatch_status(store_root: Path, output: Path, config: StoreConfig) -> DispatchStatus:
    """Read where the dispatch of a store into ``output`` is.

    Raises ConfigError where nothing was dispatched into it, DamageError, StoreIOError.
    """
    path = output / PROGRESS
    try:
        written = path.stat().st_mtime_ns // 1_000_000  # before what it says, so never too new
    except FileNotFoundError:
        written = 0
    except OSError as e:
        raise StoreIOError("read", path, e) from e
    dispatched = ProgressReader(output).read()
    if dispatched is None:
        raise ConfigError(f"{output} holds no dispatch: {path} does not exist")
    log = CommitLog(config.commit_log_paths(store_root), config)
    waiting = _message_at(log, dispatched.reput_from_offset)
    since = None if waiting is None else waiting.store_timestamp
    return DispatchStatus(dispatched.reput_from_offset, written, since)


def _message_at(log: CommitLog, offset: int) -> Message | None:
    """Return the message that begins at an offset, or behind the blank that does.

    At the live end of the log there are zeros or half a record: neither is a message.
    """
    for begin in (offset, log.roll_next_file(offset)):
        try:
            return log.message(begin)
        except (DamageError, LostDataError):
            continue
    return None
