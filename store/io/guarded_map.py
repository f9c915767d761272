"""Read-only maps of files whose bytes may vanish: reading vanished bytes does not kill the process.

A part of a map cannot be read if its file was truncated since, or if it is a hole in a file
on a full tmpfs. Reading there raises SIGBUS, whose default action ends the process. The handler of
``store.io.bus_handler`` replaces such pages with zeros, counts the fault, marks the map. So zeros
may be read in place of data: ``store.io.mapped_file.intact`` compares the counts, and raises.

For any other SIGBUS the previous handler is called. Without one, or where SIGBUS was ignored, it
ends the process, as one of the kernel does in any case. A handler that was installed later
(``faulthandler``, for example) becomes the previous one when the next file is mapped.

Without a handler for the machine, or where no memory may be executable, maps are not guarded.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import sys
import threading
from typing import Any, NamedTuple

import numpy as np

from store.io.bus_handler import (
    DATA_AT,
    FAULTS,
    FIRST_SLOT,
    HANDLERS,
    PAGE_SIZE,
    PREVIOUS,
    SLOT_WORDS,
    SLOTS_USED,
)

_libc = ctypes.CDLL(None)
_SLOTS_MAX = 65536  # Linux permits 65,530 maps (vm.max_map_count)
_BEGIN, _END, _FAULT = range(SLOT_WORDS)
_UNUSED = 2**64 - 1  # a begin above all addresses
_FLAGS = 0x48000004  # SA_NODEFER, SA_ONSTACK, SA_SIGINFO
_DEFAULT_OR_IGNORE = (None, 0, 1)  # SIG_DFL, SIG_IGN


class Fault(NamedTuple):
    """A read of bytes that have vanished: of the file, and the position in it."""

    path: str
    at: int


class GuardedMap(mmap.mmap):
    """A read-only map of a whole file. Raises OSError, ValueError for an empty file."""

    _word = -1  # the first word of its slot in the table, -1 without a handler

    def __new__(cls, fd: int, path: str) -> GuardedMap:
        """Map the file of a descriptor; ``path`` names it in a ``Fault``."""
        opened = super().__new__(cls, fd, 0, prot=mmap.PROT_READ)
        begin = np.frombuffer(opened, np.uint8).ctypes.data
        opened._word = _guard.register(begin, len(opened), path)
        return opened

    def is_intact(self) -> bool:
        """Return whether no read of vanished bytes has put zeros into the map."""
        return self._word < 0 or not _guard.table[self._word + _FAULT]

    def __del__(self) -> None:
        """Release the slot before the addresses can be reused."""
        if self._word >= 0:
            _guard.release(self._word)


def fork_safe_lock() -> threading.Lock:
    """Return a lock that is free in a forked child, which lacks the thread that may hold it."""
    lock: Any = threading.Lock()
    os.register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock  # type: ignore[no-any-return]


class _Sigaction(ctypes.Structure):
    """``struct sigaction`` of glibc and musl on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Guard:
    """The handler of this process and its table. A forked child has copies of both."""

    def __init__(self) -> None:
        self.table = memoryview(bytes(8)).cast("Q")  # no faults
        self._paths: dict[int, str] = {}  # by the first word of the slot
        self._last = Fault("", 0)  # of a map that no longer exists
        self._action: _Sigaction | None = None
        self._free: list[int] = []
        self._lock = fork_safe_lock()
        self._is_loaded = False

    def register(self, begin: int, size: int, path: str) -> int:
        """Add a map to the table, and return the first word of its slot; -1 without a handler."""
        with self._lock:
            if not self._is_loaded:
                self._load()
            if self._action is None:
                return -1
            self._install(self._action)
            table, used = self.table, self.table[SLOTS_USED]
            if not self._free and used == _SLOTS_MAX:
                return -1
            word = self._free.pop() if self._free else FIRST_SLOT + used * SLOT_WORDS
            table[word + _END] = begin + size + -size % mmap.PAGESIZE
            table[word + _BEGIN] = begin
            table[SLOTS_USED] = max(used, (word - FIRST_SLOT) // SLOT_WORDS + 1)
            self._paths[word] = path
            return word

    def release(self, word: int) -> None:
        """Remove a map. Takes no lock, because the garbage collector may call it anywhere."""
        self._last = self._fault(word) or self._last
        self.table[word + _BEGIN] = _UNUSED
        self.table[word + _FAULT] = 0
        self._free.append(word)

    def last_fault(self) -> Fault:
        """Return a fault of a map that exists, else the last one of the others."""
        faults = (self._fault(word) for word in list(self._paths))
        return next(filter(None, faults), self._last)

    def _fault(self, word: int) -> Fault | None:
        at = self.table[word + _FAULT]
        return Fault(self._paths[word], at - self.table[word + _BEGIN]) if at else None

    def _load(self) -> None:
        """Load the handler, if there is one for this machine."""
        self._is_loaded = True
        found = HANDLERS.get(platform.machine()) if sys.platform == "linux" else None
        if found is None or sys.maxsize < _UNUSED // 2:
            return
        size = DATA_AT + 8 * (FIRST_SLOT + _SLOTS_MAX * SLOT_WORDS)
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.write(found.code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(DATA_AT), protection) != 0:
            return
        self.table = memoryview(memory)[DATA_AT:].cast("Q")
        self.table[PAGE_SIZE] = mmap.PAGESIZE
        self._action = _Sigaction(handler=address, flags=_FLAGS)

    def _install(self, action: _Sigaction) -> None:
        """Install the handler, unless it is installed; what was installed becomes the previous."""
        found = _Sigaction()
        _libc.sigaction(signal.SIGBUS, None, ctypes.byref(found))
        if found.handler != action.handler:
            is_handler = found.handler not in _DEFAULT_OR_IGNORE
            self.table[PREVIOUS] = found.handler if is_handler else 0
            _libc.sigaction(signal.SIGBUS, ctypes.byref(action), None)


_guard = _Guard()


def fault_count() -> int:
    """Return how many reads of vanished bytes this process has handled."""
    return _guard.table[FAULTS]


def last_fault() -> Fault:
    """Return a fault that was counted."""
    return _guard.last_fault()
