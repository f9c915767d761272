"""New files outside OUTPUT: created whole or not at all, and never in place of another file.

The bytes are written to a temporary file in the same directory and synced. Then the file gets its
name in one step that fails if the name exists. The temporary file is created exclusively and has a
random name, so it is never a user's file. A write that fails removes it, and nothing else.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from store.errors import StoreIOError

_MODE = 0o666  # less the umask of the process, as for any file that a command creates
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # FAT, some network file systems


def write_new_file(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write a new file of these parts, durably. Its directory must exist.

    Raises FileExistsError if the name exists, a link that leads nowhere included; StoreIOError.
    """
    try:
        _check_unused(path)  # before anything is written
        _write(path, parts)
    except FileExistsError:
        raise
    except OSError as e:
        raise StoreIOError("write", path, e) from e


def _write(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    temporary = path.with_name(f".reput-{secrets.token_hex(16)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(fd, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        _publish(temporary, path)
    finally:
        with suppress(FileNotFoundError):  # where it has been renamed
            temporary.unlink()
    with suppress(PermissionError):  # a directory that this user may only write to
        _sync_directory(path.parent)


def _publish(temporary: Path, path: Path) -> None:
    """Give a file its name. Raises FileExistsError, OSError."""
    try:
        os.link(temporary, path, follow_symlinks=False)
    except OSError as e:
        if e.errno not in _NO_HARD_LINKS:
            raise
        _check_unused(path)
        temporary.rename(path)


def _check_unused(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
