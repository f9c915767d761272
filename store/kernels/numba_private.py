"""The private API of numba that kernels need: the only module that imports ``numba.core``.

``cgutils`` builds the code of intrinsics, ``event`` reports that a compilation begins, and the
option of ``NO_REFERENCE_COUNTS`` compiles without reference counting. Numba guarantees none of
them. A release without one is refused when the first kernel is imported, with one line.
"""

from __future__ import annotations

from typing import Any

import numba

try:
    from numba.core import cgutils as _cgutils
    from numba.core import event
    from numba.core.options import DefaultOptions as _Options
except ImportError as e:
    raise ImportError(f"numba {numba.__version__} is not supported: {e}") from None

NO_REFERENCE_COUNTS = {"_nrt": False}
cgutils: Any = _cgutils  # its functions are not typed

if not hasattr(_Options, "_nrt"):
    raise ImportError(f"numba {numba.__version__} is not supported: it has no option _nrt")

__all__ = ["NO_REFERENCE_COUNTS", "cgutils", "event"]
