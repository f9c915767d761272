"""Compilation of kernels: cached on disk, releasing the GIL.

Numba's cache checks only the file that defines a kernel, and would keep using a compiled kernel
after a change to a kernel or constant imported from another file. So the cache directory is named
by a hash of all sources of the kernels.

When a process compiles its first kernel, the logger ``store.kernels.jit`` logs one message at level
INFO.

Numba reads only from a cache directory that it can also write. An image, or an installation for all
users, ships compiled kernels in a directory that its users cannot write: they use a copy in their
own cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from store.kernels.numba_private import NO_REFERENCE_COUNTS, event, use_kernel_cache

config: Any = numba.config  # its settings are created at import, so its stub has none

_Function = TypeVar("_Function", bound=Callable[..., Any])

_KERNELS = Path(__file__).parent
_CONSTANTS = _KERNELS.parent / "layout.py"
_HASH_DIGITS = 16

_log = logging.getLogger(__name__)


def _cache_directory() -> str:
    """Return the cache directory of these sources."""
    sources = [*sorted(_KERNELS.glob("*.py")), _CONSTANTS]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    shipped = _KERNELS / "__pycache__" / f"numba-{digest[:_HASH_DIGITS]}"
    if not shipped.is_dir() or os.access(shipped, os.W_OK):
        return str(shipped)
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return str(copy_of(shipped, Path(user_cache) / "reput"))


def copy_of(directory: Path, parent: Path) -> Path:
    """Return the copy of a cache in ``parent``, created if it is missing.

    Returns the cache itself if the copy cannot be created.
    """
    copy = parent / directory.name
    if copy.is_dir():
        return copy
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as unfinished:
            whole = Path(unfinished) / "whole"
            for file in directory.glob("*/*"):  # numba has a folder for each source directory
                target = whole / file.relative_to(directory)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
            whole.rename(copy)
    except OSError:
        return copy if copy.is_dir() else directory  # another process may have been first
    return copy


_CACHE_DIRECTORY = _cache_directory()


def kernel(function: _Function) -> _Function:
    """Compile a function at its first call, or load it from the cache.

    It must not allocate arrays: it is compiled without reference counting, whose atomic operations
    at each call between kernels took more than half of the time of a scan.
    """
    return _compiled(function, inline="never", **NO_REFERENCE_COUNTS)


def allocating_kernel(function: _Function) -> _Function:
    """Compile a function that allocates arrays."""
    return _compiled(function, inline="never")


def inlined(function: _Function) -> _Function:
    """Compile a small function into each kernel that calls it."""
    return _compiled(function, inline="always", **NO_REFERENCE_COUNTS)


@cache
def _warn_once() -> None:
    _log.warning(
        "%s and the user's cache directory cannot be written: every process recompiles the "
        "kernels, which takes some seconds each; set NUMBA_CACHE_DIR to a writable directory",
        _CACHE_DIRECTORY,
    )


class _CompilationNotice(event.Listener):
    """Logs once that kernels are being compiled: with a cold cache, nothing else shows for long."""

    has_logged = False

    def on_start(self, event: Any) -> None:
        """Log the message if numba starts to compile one of this project's kernels."""
        if self.has_logged or event.data["dispatcher"].py_func not in _FUNCTIONS:
            return
        self.has_logged = True
        _log.info("compiling kernels, once, about 20 s")

    def on_end(self, event: Any) -> None:
        """Log nothing."""


_FUNCTIONS: set[Callable[..., Any]] = set()
_config_lock = threading.Lock()  # numba's settings are global, and threads import kernels
event.register("numba:compile", _CompilationNotice())  # type: ignore[no-untyped-call]


def _compiled(function: _Function, **options: Any) -> _Function:
    _FUNCTIONS.add(function)
    with _config_lock:
        previous = config.CACHE_DIR  # of other users of numba in this process
        if not previous:
            config.CACHE_DIR = _CACHE_DIRECTORY
        try:
            compiled = cast(_Function, numba.njit(cache=True, nogil=True, **options)(function))
            use_kernel_cache(compiled)
            return compiled
        except RuntimeError as e:
            if "cannot cache" not in str(e):
                raise
            _warn_once()
            return cast(_Function, numba.njit(nogil=True, **options)(function))
        finally:
            config.CACHE_DIR = previous
