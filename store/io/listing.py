"""Listings of directories; those of files are repeated only when a directory may have changed.

File systems record modification times in ticks, so a directory that changed within the last tick
is listed again even if its times are unchanged.

An entry with the name of a store's file is never skipped: if it is not a readable regular file (a
dangling link, a FIFO, a device, a directory), that is an error naming it, raised or listed in place
of its status. Skipped, it would look like an expired file.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from store.errors import StoreIOError
from store.io.file_system import LINK_REFUSED

_TICK_NS = 100_000_000  # longer than a tick of any file system with nanosecond times
_COARSE_TICK_NS = 2_500_000_000
_COARSE_UNIT_NS = 1_000_000

IsNamed = Callable[[str], bool]
_T = TypeVar("_T")


class DirectoryWatch:
    """Detects cheaply whether the entries of directories may have changed since their listing."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = [str(d) for d in directories]
        self._seen: list[tuple[int, int, int] | None] = []
        self._seen_ns = 0
        self._is_trusted = False

    def may_have_changed(self) -> bool:
        """Return whether the directories must be listed again. Raises StoreIOError."""
        seen = [_signature(d) for d in self._directories]
        if self._is_trusted and seen == self._seen:
            return False
        self._seen, self._seen_ns, self._is_trusted = seen, time.time_ns(), False
        return True

    def confirm_listing(self) -> None:
        """Accept the listing made since the last ``may_have_changed`` as complete."""
        self._is_trusted = all(s is None or _is_settled(s[-1], self._seen_ns) for s in self._seen)


def _signature(directory: str) -> tuple[int, int, int] | None:
    """Return values that change with a directory's entries, None if it does not exist."""
    try:
        found = os.stat(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise StoreIOError("list", Path(directory), e) from e
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _is_settled(changed_ns: int, now_ns: int) -> bool:
    """Return whether any later change is certain to get a different time."""
    is_coarse = changed_ns % _COARSE_UNIT_NS == 0
    return now_ns - changed_ns > (_COARSE_TICK_NS if is_coarse else _TICK_NS)


def list_files(
    directory: Path, is_named: IsNamed, *, follows_links: bool
) -> list[tuple[Path, os.stat_result | StoreIOError]]:
    """List the regular files of a directory with their status; a missing directory is empty.

    Hidden files are not listed: copy tools give unfinished files hidden names. ``is_named``
    accepts the names of the store's files: these entries must be regular files, or symbolic links
    to them if ``follows_links``; others are listed with their error. Raises StoreIOError.

    A directory that is replaced during the listing is listed again: otherwise its files would
    seem to be deleted.
    """
    while True:
        before = _signature(str(directory))
        found = _list_once(directory, is_named, follows_links=follows_links)
        after = _signature(str(directory))
        if before is after or (before and after and before[:2] == after[:2]):
            return found


def list_entries(directory: Path) -> list[Path]:
    """List all entries of a directory, sorted; a missing one is empty. Raises StoreIOError."""
    return sorted(_pick(directory, lambda entry: Path(entry.path)))


def list_names(directory: Path, is_named: IsNamed) -> list[str]:
    """List the regular files that ``is_named`` accepts, sorted; a missing directory is empty.

    Raises StoreIOError, also if an entry with such a name is a link or not a regular file.
    """

    def pick(entry: os.DirEntry[str]) -> str | None:
        if not is_named(entry.name):
            return None
        if not entry.is_file(follow_symlinks=False):
            raise _refused(entry)
        return entry.name

    return sorted(_pick(directory, pick))


def list_directories(parent: Path, links: list[StoreIOError] | None = None) -> list[Path]:
    """List the directories in a directory, sorted; a missing one is empty.

    A symbolic link is refused, whatever its target: following it could leave the directory or enter
    a loop, ignoring it could hide data. ``parent`` itself may be a link. Raises StoreIOError (ELOOP
    for a link); with ``links``, the errors of links are appended to that list instead.
    """

    def pick(entry: os.DirEntry[str]) -> str | None:
        if not entry.is_symlink():
            return entry.path if entry.is_dir() else None
        error = StoreIOError("list", entry.path, OSError(errno.ELOOP, LINK_REFUSED))
        if links is None:
            raise error
        links.append(error)
        return None

    return [Path(path) for path in sorted(_pick(parent, pick))]


def _pick(directory: Path, pick: Callable[[os.DirEntry[str]], _T | None]) -> list[_T]:
    """Return what ``pick`` returns for each entry of a directory, but None; empty without one."""
    try:
        with os.scandir(directory) as entries:
            return [found for entry in entries if (found := pick(entry)) is not None]
    except FileNotFoundError:
        _refuse_dangling(directory)
        return []
    except OSError as e:
        raise StoreIOError("list", directory, e) from e


def _list_once(
    directory: Path, is_named: IsNamed, *, follows_links: bool
) -> list[tuple[Path, os.stat_result | StoreIOError]]:
    def pick(entry: os.DirEntry[str]) -> tuple[Path, os.stat_result | StoreIOError] | None:
        status = _status(entry, is_named(entry.name), follows_links=follows_links)
        if status is None or entry.name.startswith("."):
            return None
        return Path(entry.path), status

    return _pick(directory, pick)


def _status(
    entry: os.DirEntry[str], is_named: bool, *, follows_links: bool
) -> os.stat_result | StoreIOError | None:
    """Return the status of a regular file, the error of another, None for an entry to omit."""
    if is_named and not follows_links and entry.is_symlink():
        return _refused(entry)
    try:
        status = Path(entry.path).stat()
    except FileNotFoundError:
        if not is_named or not os.path.islink(entry.path):
            return None  # deleted since it was listed
        return StoreIOError("read", entry.path, _dangling(entry.path))
    except OSError as e:
        if not is_named:
            raise
        return StoreIOError("read", entry.path, e)
    if stat.S_ISREG(status.st_mode):
        return status
    return _refused(entry, follows_links=follows_links) if is_named else None


def _refused(entry: os.DirEntry[str], *, follows_links: bool = False) -> StoreIOError:
    """Return the error for an entry that is a link, or not a regular file."""
    if entry.is_symlink() and not follows_links:
        return StoreIOError("read", entry.path, OSError(errno.ELOOP, LINK_REFUSED))
    return StoreIOError("read", entry.path, OSError(errno.EINVAL, "it is not a regular file"))


def _refuse_dangling(directory: Path) -> None:
    """Raise StoreIOError if a directory that was not found is a dangling link."""
    if directory.is_symlink():
        raise StoreIOError("list", directory, _dangling(directory))


def _dangling(link: Path | str) -> OSError:
    reason = "it is a symbolic link whose target does not exist (is a file system not mounted?)"
    return OSError(errno.EIO, f"{reason}: {os.readlink(link)}")  # unlike a file that was deleted
