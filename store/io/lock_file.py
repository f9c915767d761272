"""The lock file of a root, and who holds it: a broker, a dispatcher, or this process.

The lock covers the range [0, 1) of the file, as a broker's does. A POSIX lock belongs to a process:
it does not exclude the threads of its own process, and closing *any* descriptor of the file
releases it. So the locks of this process are registered in ``HELD``, a file in there is never
opened, and locks are taken, released and probed one at a time.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from store.errors import RootInUseError, StoreIOError

HELD: set[Path] = set()  # resolved paths of the lock files that this process has locked
UNKNOWN_OWNER = 0  # as in l_pid: a process of another PID namespace or machine
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: l_type, l_whence, l_start, l_len, l_pid
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Guard:
    """The mutex of this process; a forked child has one of its own, and no lock."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.mutex = threading.RLock()
        HELD.clear()


_guard = _Guard()


def one_at_a_time(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let only one thread of this process take, release or probe a lock."""

    @wraps(function)
    def alone(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _guard.mutex:
            return function(*args, **kwargs)

    return alone


@one_at_a_time
def find_owner(path: Path) -> int | None:
    """Return the PID of the process that holds a root's lock file, None if none does.

    ``UNKNOWN_OWNER`` if the system cannot name it, or this process may not open the file. Needs
    no write permission, and works on a read-only mount and between containers, but only where
    both processes see the same lock table: not on a network file system mounted without locks.
    Raises StoreIOError.
    """
    if path.resolve() in HELD:
        return os.getpid()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        return UNKNOWN_OWNER
    except OSError as e:
        raise StoreIOError("read", path, e) from e
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        found = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
    except OSError as e:
        raise StoreIOError("probe the lock of", path, e) from e
    finally:
        os.close(fd)
    kind, _, _, _, pid = _FLOCK.unpack(found)
    if kind == fcntl.F_UNLCK:
        return None
    return max(int(pid), UNKNOWN_OWNER)


def check_unlocked(path: Path) -> None:
    """Raise RootInUseError if this process holds the lock of a root."""
    if path.resolve() in HELD:
        raise _in_use(path)


def take(handle: IO[bytes], path: Path) -> None:
    """Lock a file. Raises RootInUseError if another process holds the lock, StoreIOError."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except (BlockingIOError, PermissionError) as e:
        raise _in_use(path) from e
    except OSError as e:
        raise StoreIOError("lock", path, e) from e


def note(path: Path, *, is_locked: bool) -> None:
    """Note that this process holds the lock of a root now, or does no longer."""
    (HELD.add if is_locked else HELD.discard)(path.resolve())


def _in_use(path: Path) -> RootInUseError:
    return RootInUseError(
        f"{path} is locked: a broker or another dispatcher owns this root; stop it, or choose "
        "another OUTPUT"
    )
