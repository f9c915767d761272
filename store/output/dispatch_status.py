"""The status of a dispatch: the oldest message in its backlog, and when it last made progress.

Cheap enough to poll every few seconds: it reads the progress record, and the log at the offset
where the dispatch resumes. If a message at that offset and the progress record are both old, the
dispatch is stuck, whether its process is alive or not. A dispatch that is catching up with an old
log writes progress after every batch, and an idle one has no backlog.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.commitlog.commit_log import CommitLog
from store.commitlog.record import Message
from store.errors import ConfigError, DamageError, LostDataError, StoreIOError
from store.output.progress import PROGRESS, read_progress_view


@dataclass(frozen=True, slots=True)
class DispatchStatus:
    """The position of a dispatch, its backlog and its age. Times are epoch milliseconds."""

    reput_from_offset: int
    progress_timestamp: int  # when progress was last written
    waiting_timestamp: int | None  # store time of the first message in the backlog, if any
    behind_bytes: int = 0

    def behind_ms(self, now_ms: int) -> int:
        """Return the age of the first message in the backlog, 0 without one."""
        waiting = self.waiting_timestamp
        return 0 if waiting is None else max(now_ms - waiting, 0)

    def stuck_ms(self, now_ms: int) -> int:
        """Return for how long a message has been waiting without any progress."""
        if self.waiting_timestamp is None:
            return 0
        return max(now_ms - max(self.waiting_timestamp, self.progress_timestamp), 0)


def read_dispatch_status(log: CommitLog, output: Path) -> DispatchStatus:
    """Read the status of the dispatch of a log, which is refreshed, into ``output``.

    Raises ConfigError if nothing has been dispatched into it, DamageError, StoreIOError.
    """
    written = progress_timestamp(output)  # first: never newer than the content
    progress = read_progress_view(output)
    if progress is None:
        raise ConfigError(f"{output} holds no dispatch: {output / PROGRESS} does not exist")
    log.refresh()
    return status_at(log, progress.reput_from_offset, written)


def progress_timestamp(output: Path) -> int:
    """Return when progress was last written, in epoch ms, 0 if never. Raises StoreIOError."""
    path = output / PROGRESS
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 0
    except OSError as e:
        raise StoreIOError("read", path, e) from e


def status_json(status: DispatchStatus, now: int, *, is_stuck: bool) -> dict[str, Any]:
    """Return the JSON fields of a status, beside its offset."""
    return {
        "progress_timestamp": status.progress_timestamp,
        "waiting_timestamp": status.waiting_timestamp,
        "behind_bytes": status.behind_bytes,
        "behind_ms": status.behind_ms(now),
        "stuck_ms": status.stuck_ms(now),
        "is_stuck": is_stuck,
    }


def status_at(log: CommitLog, offset: int, progress_timestamp: int) -> DispatchStatus:
    """Return the status of a reader that recorded, at a time, that it had read up to an offset.

    A backlog that begins with damage has been waiting since that time. A blank is no backlog.
    """
    begin, last = max(offset, log.min_offset()), log.last_file()
    waiting = _message_at(log, begin)
    if waiting is None and (last is None or last.base <= begin):
        return DispatchStatus(offset, progress_timestamp, None)
    timestamp = progress_timestamp if waiting is None else waiting.store_timestamp
    behind = max(log.max_offset(begin) - begin, 0)  # loads the kernels: for a backlog only
    return DispatchStatus(offset, progress_timestamp, timestamp, behind)


def _message_at(log: CommitLog, offset: int) -> Message | None:
    """Return the message that begins at an offset, or after the blank record that begins there.

    The live end of the log holds zeros or a partial record; neither is a message.
    """
    for begin in (offset, log.roll_next_file(offset)):
        try:
            return log.message(begin)
        except (DamageError, LostDataError):
            continue
    return None
