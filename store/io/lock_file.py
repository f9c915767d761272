"""The lock file of OUTPUT and its owner: a broker, a dispatcher, or this process.

The lock covers the range [0, 1) of the file, like a broker's. A POSIX lock belongs to a process: it
does not exclude other threads of that process, and closing *any* descriptor of the file releases
it, by whichever path it was opened: a link, a hard link or a bind mount. So the locks of this
process are registered in ``HELD`` by device and inode, a registered file is never opened again, and
locks are taken, released and probed one at a time.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from store.errors import OutputInUseError, StoreIOError

FileId = tuple[int, int]  # device and inode: the same by every path to a file
HELD: set[FileId] = set()  # the lock files that this process has locked
UNKNOWN_OWNER = 0  # l_pid of a process in another PID namespace or on another machine
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: l_type, l_whence, l_start, l_len, l_pid
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Guard:
    """The mutex of this process; a forked child gets a new one, and holds no locks."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.mutex = threading.RLock()
        HELD.clear()


_guard = _Guard()


def serialized(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let only one thread of this process at a time take, release or probe a lock."""

    @wraps(function)
    def alone(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _guard.mutex:
            return function(*args, **kwargs)

    return alone


@serialized
def find_owner(path: Path) -> int | None:
    """Return the PID of the process that holds a lock file, None if none does.

    ``UNKNOWN_OWNER`` if the system does not report the PID, or this process may not open the
    file. Needs no write permission. Works on a read-only mount and between containers if both
    processes share a lock table: not on a network file system mounted without locks. Raises
    StoreIOError.
    """
    try:
        if _file_id(os.stat(path)) in HELD:
            return os.getpid()
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        return UNKNOWN_OWNER
    except OSError as e:
        raise StoreIOError("read", path, e) from e
    try:
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        found = fcntl.fcntl(fd, fcntl.F_GETLK, request)
    except OSError as e:
        raise StoreIOError("probe the lock of", path, e) from e
    finally:
        os.close(fd)
    kind, _, _, _, pid = _FLOCK.unpack(found)
    if kind == fcntl.F_UNLCK:
        return None
    return max(int(pid), UNKNOWN_OWNER)


def check_unlocked(path: Path) -> None:
    """Raise OutputInUseError if this process holds a lock, by whichever path.

    A file that cannot be examined is not locked by this process; to open it names the reason.
    """
    with suppress(OSError):
        if _file_id(os.stat(path)) in HELD:
            raise _in_use(path)


def take(handle: IO[bytes], path: Path) -> None:
    """Lock a file. Raises OutputInUseError if another process holds the lock, StoreIOError."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except (BlockingIOError, PermissionError) as e:
        raise _in_use(path) from e
    except OSError as e:
        raise StoreIOError("lock", path, e) from e


def register(handle: IO[bytes], *, is_locked: bool) -> None:
    """Record that this process holds the lock of an open lock file, or is about to release it."""
    (HELD.add if is_locked else HELD.discard)(_file_id(os.fstat(handle.fileno())))


def _file_id(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def _in_use(path: Path) -> OutputInUseError:
    return OutputInUseError(
        f"{path} is locked: a broker or another dispatcher owns this directory; stop it, or choose "
        "another OUTPUT"
    )
