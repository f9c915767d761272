"""How kernels are compiled: cached on disk, releasing the GIL.

Numba keeps a compiled kernel by the file it is written in alone, and would go on using it after a
kernel or constant that it takes from another file has changed. So the cache lies in a directory
named by a hash of all that kernels are made of.

The first kernel that a process has to compile is announced once, by a log record of level INFO of
the logger ``store.kernels.jit``.

Numba also reads only from a directory that it can write. An image, or an installation for all
users, brings compiled kernels that its users cannot write: those use a copy in their own cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event

config: Any = numba.config  # its settings are made at import, so its stub has none

_Function = TypeVar("_Function", bound=Callable[..., Any])

_KERNELS = Path(__file__).parent
_CONSTANTS = _KERNELS.parent / "layout.py"
_HASH_DIGITS = 16

_log = logging.getLogger(__name__)


def _cache_directory() -> str:
    """Return where kernels of just these sources are kept."""
    sources = [*sorted(_KERNELS.glob("*.py")), _CONSTANTS]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    beside = _KERNELS / "__pycache__" / f"numba-{digest[:_HASH_DIGITS]}"
    if not beside.is_dir() or os.access(beside, os.W_OK):
        return str(beside)
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return str(copied(beside, Path(user_cache) / "reput"))


def copied(directory: Path, parent: Path) -> Path:
    """Return a copy of a cache in ``parent``, made unless it is there.

    Where it cannot be made the cache itself is returned.
    """
    copy = parent / directory.name
    if copy.is_dir():
        return copy
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as unfinished:
            whole = Path(unfinished) / "whole"
            for file in directory.glob("*/*"):  # numba has a folder for each of sources
                target = whole / file.relative_to(directory)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
            whole.rename(copy)
    except OSError:
        return copy if copy.is_dir() else directory  # another process may have been first
    return copy


_CACHE_DIRECTORY = _cache_directory()


def kernel(function: _Function) -> _Function:
    """Compile a function at its first call, or take it from the cache.

    It must not allocate arrays: it is compiled without reference counting, whose atomic steps at
    every call of one kernel by another took more than half of the time of a scan.
    """
    return _compiled(function, inline="never", _nrt=False)


def allocating_kernel(function: _Function) -> _Function:
    """Compile a function that makes arrays."""
    return _compiled(function, inline="never")


def inlined(function: _Function) -> _Function:
    """Compile a small function into each kernel that calls it."""
    return _compiled(function, inline="always", _nrt=False)


@cache
def _warn_once() -> None:
    _log.warning(
        "%s and the user's cache directory cannot be written: kernels are compiled by every "
        "process anew, for some seconds each; set NUMBA_CACHE_DIR to a directory of your own",
        _CACHE_DIRECTORY,
    )


class _Announcer(event.Listener):
    """Says once that kernels are compiled: a cold cache takes long, and nothing else is seen."""

    has_said = False

    def on_start(self, event: Any) -> None:
        """Say it, if the kernel that numba begins to compile is ours."""
        if self.has_said or event.data["dispatcher"].py_func not in _FUNCTIONS:
            return
        self.has_said = True
        _log.info("compiling kernels, once, about 20 s")

    def on_end(self, event: Any) -> None:
        """Say nothing."""


_FUNCTIONS: set[Callable[..., Any]] = set()
event.register("numba:compile", _Announcer())  # type: ignore[no-untyped-call]


def _compiled(function: _Function, **how: Any) -> _Function:
    _FUNCTIONS.add(function)
    own = config.CACHE_DIR  # of whoever else uses numba in this process
    if not own:
        config.CACHE_DIR = _CACHE_DIRECTORY
    try:
        return cast(_Function, numba.njit(cache=True, nogil=True, **how)(function))
    except RuntimeError as e:
        if "cannot cache" not in str(e):
            raise
        _warn_once()
        return cast(_Function, numba.njit(nogil=True, **how)(function))
    finally:
        config.CACHE_DIR = own
