"""The reader of the progress of OUTPUT that waits while files are replaced (see ``docs/reads.md``).

The files of OUTPUT belong to one *generation*. Dispatching only adds to it; a swap, an adoption
or a rollback starts a new one.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from store.errors import StoreIOError
from store.io.checked_json import read_state_file
from store.io.file_system import open_regular
from store.io.lock_file import UNKNOWN_OWNER, find_owner
from store.layout import ABORT_FILE, LOCK_FILE
from store.output.progress import (
    PROGRESS,
    SWAP,
    ProgressView,
    decode_progress_view,
    read_progress_view,
)

SWAP_SECONDS, _SWAP_POLL_SECONDS = 30.0, 0.005  # how long a read waits, and how often it polls
_SWAPPING = "a swap of rebuilt files (reput rebuild)"
_RECOVERING = "a recovery"


class Wait:
    """The time that a read may wait, from now on, while files are replaced."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def is_over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() >= self._end


class ProgressReader:
    """Reads the progress of OUTPUT and detects later changes to OUTPUT."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._path = output / PROGRESS
        # As strings, because every read uses them.
        self._path_text, self._swap = str(self._path), str(output / SWAP)
        self._lock = output / LOCK_FILE
        self._abort = output / ABORT_FILE
        self._data: bytes | None = None
        self._progress: ProgressView | None = None

    def read(self) -> ProgressView | None:
        """Return the current progress, the same object while it is unchanged.

        Raises as ``read_progress_view``.
        """
        data = read_state_file(self._path)
        if data != self._data:
            progress = None if data is None else decode_progress_view(data, self._path)
            self._data, self._progress = data, progress
        return self._progress

    def is_unchanged(self, progress: ProgressView | None) -> bool:
        """Return whether ``progress`` is current and no file is being replaced."""
        return (
            self._progress is progress
            and read_state_file(self._path_text) == self._data
            and not os.access(self._swap, os.F_OK)
            and (progress is None or not progress.is_recovering)
        )

    def is_same_generation(self, progress: ProgressView | None) -> bool:
        """Return whether OUTPUT is still of that generation and no file is being replaced.

        A progress that was recovering is of no generation: some of its files may not have been in
        place, though its swap is over by now.
        """
        if self.is_unchanged(progress):
            return True
        current = read_progress_view(self._output)
        if current is None or progress is None or os.access(self._swap, os.F_OK):
            return False
        is_recovering = progress.is_recovering or current.is_recovering
        return not is_recovering and current.continues(progress)

    def is_deleted(self, progress: ProgressView | None) -> bool:
        """Return whether OUTPUT had progress, but has none now: it is only ever renamed over."""
        return progress is not None and read_state_file(self._path_text) is None

    def await_generation(self, wait: Wait) -> None:
        """Wait while a swap or a recovery replaces files.

        Raises StoreIOError (EBUSY) if the owner of OUTPUT is dead or takes too long.
        """
        while (replacement := self._find_replacement()) is not None:
            with replacement.file:
                owner = find_owner(self._lock)
                # The owner found is valid only while the file exists: the next owner creates
                # another one. The inode cannot be reused before the file is closed here.
                if replacement.is_current():
                    if owner is None:
                        raise self._busy(_interrupted(replacement, self._lock))
                    if wait.is_over():
                        raise self._busy(_in_progress(replacement, owner, wait))
            time.sleep(_SWAP_POLL_SECONDS)

    def replaced_repeatedly(self, wait: Wait) -> StoreIOError:
        """Return the error for a read whose generation was replaced at every attempt."""
        return self._busy(f"its files were replaced repeatedly for {wait.seconds:g} s")

    def is_at_rest(self) -> bool:
        """Return whether no owner has written to OUTPUT since the last ``read``."""
        return not self._abort.exists() and read_state_file(self._path) == self._data

    def _find_replacement(self) -> _Replacement | None:
        """Return the swap or recovery in progress, with its state file open."""
        for path, name in ((Path(self._swap), _SWAPPING), (self._path, _RECOVERING)):
            try:
                file = FileIO(path, opener=_open_file)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as e:
                raise StoreIOError("read", path, e) from e
            if name is _SWAPPING or decode_progress_view(file.readall(), path).is_recovering:
                return _Replacement(file, path, name)
            file.close()
        return None

    def _busy(self, reason: str) -> StoreIOError:
        return StoreIOError("read", self._output, OSError(errno.EBUSY, reason))


def _open_file(path: str, flags: int) -> int:
    return open_regular(path, flags | os.O_NOFOLLOW)


@dataclass(frozen=True, slots=True)
class _Replacement:
    """A swap or recovery in progress: its state file, open, and its name for messages."""

    file: FileIO
    path: Path
    name: str

    def is_current(self) -> bool:
        """Return whether the path still refers to the open file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.file.fileno()))
        except FileNotFoundError:
            return False

    def since(self) -> str:
        """Return when the file was written, in UTC."""
        written = time.gmtime(os.fstat(self.file.fileno()).st_mtime)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", written)


def _interrupted(work: _Replacement, lock: Path) -> str:
    return (
        f"{work.name} ({work.path}) that began at {work.since()} was interrupted: no process holds "
        f"{lock}; run reput recover, or start reput dispatch or reput rebuild again"
    )


def _in_progress(work: _Replacement, owner: int, wait: Wait) -> str:
    process = "another process" if owner == UNKNOWN_OWNER else f"process {owner}"
    return (
        f"{work.name} ({work.path}) has been in progress in {process} since {work.since()}; the "
        f"read waited {wait.seconds:g} s; retry when it is done"
    )
