"""The live end of the log: whether a record that fails its checks is a torn tail or damage.

In the last file, such a record is damage if the log was closed cleanly and a valid record follows.
Otherwise the log ends before it: it is still being written, or a crash tore it, and a broker
truncates it at its next start. In files before the last, a failed record is always damage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from store import layout
from store.commitlog.commit_log import CommitLog
from store.commitlog.scanner import scan_rules
from store.io.mapped_file import MappedFile, intact
from store.kernels import record as rk
from store.kernels.log_walk import NO_CUTS, WalkEnd, find_record, walk

_STALLED_SECONDS = 2.0

_log = logging.getLogger(__name__)


class LiveEnd:
    """The end of one commit log. ``is_clean`` returns whether the broker closed the log cleanly."""

    def __init__(self, commit_log: CommitLog, is_clean: Callable[[], bool]) -> None:
        self._log = commit_log
        self._is_clean = is_clean
        self._rules = scan_rules(commit_log.config)
        self._stop = ((0, -1), 0.0)  # (file, offset) of the last failed record, time first seen
        self._searched = (0, -1, False)  # (file, offset) after which no record was found; clean

    @intact()
    def find(self, boundary: int = 0) -> int:
        """Return the offset where the log ends, as of the last refresh of its files.

        Follows the chain of the last file, from ``boundary`` as ``CommitLog.max_offset`` does. CRCs
        are checked only after damage, which a log that was closed cleanly may contain.
        """
        end, last = self._log.max_offset(boundary), self._log.last_file()
        if last is None or last.length != self._log.file_size or not self._is_clean():
            return end
        while end < last.base + last.length:
            span = (last.base, end - last.base, last.length)
            stopped = walk(last.view(), span, self._rules, True, NO_CUTS)
            last.check_length()
            found = self.record_after(last, stopped) if stopped.reason != rk.BLANK else -1
            if found < 0:
                return int(last.base + stopped.at)
            end = last.base + found
        return end

    def record_after(self, file: MappedFile, failed: WalkEnd) -> int:
        """Return the position in the file of a valid record after the failed one, else -1.

        -1 means that the log ends at ``failed.at``. The search runs at once if the log was closed
        cleanly; else only after the walk has stopped there for 2 s, and only to log a warning.
        """
        offset, now = file.base + failed.at, time.monotonic()
        if self._stop[0] != (file.inode, offset):
            self._stop = ((file.inode, offset), now)
        is_clean = self._is_clean()
        if self._searched == (file.inode, offset, is_clean):
            return -1
        if not is_clean and now - self._stop[1] < _STALLED_SECONDS:
            return -1
        found = self._find_record(file, failed.at + 1)
        if found >= 0 and self._is_valid_now(file, failed.at):
            return -1  # it was being written, and those after it
        if found < 0 or not is_clean:
            self._searched = (file.inode, offset, is_clean)
        if found >= 0 and not is_clean:
            _log.warning(
                "%s: the log ends at offset %d (%s); valid records follow from %d, but are not "
                "dispatched: a broker truncates them at its next start",
                file.path, offset, rk.REASONS.get(failed.reason, "?"), file.base + found,
            )  # fmt: skip
            return -1
        return found

    def _is_valid_now(self, file: MappedFile, at: int) -> bool:
        span = (file.base, at, at + 1)
        return bool(walk(file.view(), span, self._rules, True, NO_CUTS).at > at)

    def _find_record(self, file: MappedFile, at: int) -> int:
        """Return the position of the first valid record at or after ``at``, else -1; skip holes."""
        for data_begin, data_end in file.data_ranges(at):
            # A record at the edge of a range may have its first bytes in the hole before it,
            # which reads as zeros, and its last bytes in the next one.
            begin, end = data_begin - layout.BLANK_SIZE, data_end + layout.RECORD_MIN_SIZE
            span = (file.base, max(begin, at), min(end, file.length))
            found = int(find_record(file.view(), span, self._rules))
            if found >= 0:
                return found
        return -1
