"""The private API of numba that kernels need: the only module that imports ``numba.core``.

``cgutils`` builds the code of intrinsics, ``event`` reports that a compilation begins, the option
of ``NO_REFERENCE_COUNTS`` compiles without reference counting, and ``KernelCache`` loads compiled
kernels. ``_numba_unpickle`` finds the class of a named tuple that a kernel returns. Numba
guarantees none of them. A release without one is refused when the first kernel is imported, with
one line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba

try:
    from numba.core import cgutils as _cgutils
    from numba.core import event
    from numba.core import serialize as _serialize
    from numba.core.caching import FunctionCache as _FunctionCache
    from numba.core.options import DefaultOptions as _Options
    from numba.core.runtime.nrt import rtsys as _runtime
except ImportError as e:
    raise ImportError(f"numba {numba.__version__} is not supported: {e}") from None

NO_REFERENCE_COUNTS = {"_nrt": False}
cgutils: Any = _cgutils  # its functions are not typed

if not hasattr(_Options, "_nrt"):
    raise ImportError(f"numba {numba.__version__} is not supported: it has no option _nrt")

if not hasattr(_serialize, "_numba_unpickle"):
    raise ImportError(f"numba {numba.__version__} is not supported: it has no _numba_unpickle")
# A kernel that returns a named tuple calls this Python function each time, and does not check
# whether it failed: Ctrl-C during the call ended the process with SIGSEGV. A hit in this cache runs
# no Python code, and so sees no signal.
_serialize._numba_unpickle = cache(_serialize._numba_unpickle)

for _name in ("_guard_against_spurious_io_errors", "_load_overload", "load_overload"):
    if not hasattr(_FunctionCache, _name):
        raise ImportError(f"numba {numba.__version__} is not supported: its cache has no {_name}")


class KernelCache(_FunctionCache):
    """A kernel's cache that loads machine code without numba's registries.

    Numba fills the registries of all types and functions before it loads anything. Compiled code
    needs at most the run-time library (20 ms), if the kernel counts references. A compilation fills
    them itself. Loading the kernels of a scan takes 0.04 s instead of 0.16 s, a command that looks
    for the end of a log 0.5 s instead of 0.65 s of processor time; calls are as fast.
    """

    counts_references = True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled kernel for a signature, None if it is not cached."""
        if self.counts_references:
            _runtime.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


def use_kernel_cache(compiled: Callable[..., Any]) -> None:
    """Replace the cache of a function compiled with ``cache=True``."""
    dispatcher: Any = compiled
    cache = KernelCache(dispatcher.py_func)  # type: ignore[no-untyped-call]
    cache.counts_references = dispatcher.targetoptions.get("_nrt", True)
    dispatcher._cache = cache


__all__ = ["NO_REFERENCE_COUNTS", "cgutils", "event", "use_kernel_cache"]
